//! Several processes traced by one attacher: a parent with its existing and future children, and
//! all processes with a name.

use memhook_tests::programs::{Folder, installed};
use memhook_tests::{Attacher, Target, binary, build_target, run, stop, until};
use serde_json::Value;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

/// Index of the child that a short-lived process forks, so that its ancestor cannot be determined.
const ORPHAN: usize = 2;

/// Log of the processes that an attacher has found and does not trace yet.
const LOG: &str = "memhook_attach::following=debug";

/// Makes the server fork one child of each kind.
fn fork_children(server: &mut Target) -> Vec<String> {
    server.send("f");
    let lines = (0..5).map(|_| server.expect("child "));
    lines
        .map(|line| line.trim()["child ".len()..].to_owned())
        .collect()
}

fn server() -> Target {
    Target::start(&build_target("prefork", &["-pthread", "-ldl"]), &[])
}

fn detach(pid: &str) {
    let (code, output, errors) = run(&["detach", pid]);
    assert_eq!(code, 0, "{output}{errors}");
}

/// Returns true if a report is the last report of a process that worked and lost no events.
fn is_whole(report: &Value) -> bool {
    report["final"] == true
        && report["totals"]["allocations"].as_u64() >= Some(32)
        && report["totals"]["lost_events"] == 0
}

/// Returns true if no process was refused. Status 1 is accepted: it reports that a process
/// temporarily ran untraced, which happens on a busy machine.
fn has_refused_none(status: ExitStatus) -> bool {
    matches!(status.code(), Some(0 | 1))
}

/// Returns how often a process has slept; a worker sleeps once per round.
fn sleeps(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.expect("a number").trim().parse().expect("a number")
}

#[test]
fn children_present_and_to_come() {
    let mut server = server();
    let mut made = fork_children(&mut server);
    let pid = server.pid().to_string();
    let mut attacher = Attacher::to(&[&pid, "--follow-fork", "-i", "1h"]);
    let (mut children, mut orphans) = (Vec::new(), Vec::new());
    let of_process = |pid: &String| format!("Attached to {pid} ");
    // The attacher may report an existing child before its parent.
    let mut awaited = vec![of_process(&pid)];
    for round in 0..3 {
        if round > 0 {
            made = fork_children(&mut server);
        }
        orphans.push(made.remove(ORPHAN));
        awaited.extend(made.iter().map(of_process));
        while !awaited.is_empty() {
            let line = attacher.says("Attached to ");
            awaited.retain(|beginning| !line.starts_with(beginning));
        }
        children.append(&mut made);
    }
    let before: Vec<u64> = children.iter().map(|child| sleeps(child)).collect();
    until("every child has done a whole round", || {
        let mut both = children.iter().zip(&before);
        both.all(|(child, before)| sleeps(child) >= before + 4)
    });
    let (status, errors, reports) = attacher.last_reports();
    assert!(status.success(), "{status}: {errors}");
    for child in children.iter().chain([&pid]) {
        let report = &reports[&child.parse().expect("a pid")];
        assert!(is_whole(report), "{report:#}");
    }
    // On exit, the orphans check that their slots are restored.
    orphans.iter().for_each(|orphan| detach(orphan));
    server.send("e");
    server.expect("done");
    assert!(server.finish().success());
}

/// Checks that a trace of a family ends with its last process.
#[test]
fn it_ends_with_the_family() {
    let mut server = server();
    let mut attacher = Attacher::start(&server, &["--follow-fork"]);
    let mut children = fork_children(&mut server);
    let orphan = children.remove(ORPHAN);
    for _ in &children {
        attacher.says("Attached to ");
    }
    // Kills the children, because on a normal exit they would find a wrapper in their slots.
    for child in children.iter().chain([&orphan]) {
        // SAFETY: kill takes plain integers, and the server has not reaped this child yet.
        unsafe { libc::kill(child.parse().expect("a pid"), libc::SIGKILL) };
    }
    assert!(server.finish().success());
    let (status, output, errors) = attacher.outcome();
    assert!(has_refused_none(status), "{status}: {errors}");
    assert!(output.lines().count() >= 5, "{output}");
}

/// Kills the attacher while the server forks, and while it attaches to children.
#[test]
fn nobody_is_harmed_by_its_death() {
    let mut server = server();
    let mut children = Vec::new();
    for round in 0..8 {
        let mut attacher = Attacher::start(&server, &["--follow-fork"]);
        children.extend(fork_children(&mut server));
        for _ in 0..round % 4 {
            attacher.says("Attached to ");
        }
        attacher.kill();
    }
    children.push(server.pid().to_string());
    children.iter().for_each(|child| detach(child));
    server.send("e");
    server.expect("done");
    assert!(server.finish().success());
}

/// Several threads fork children constantly. Most children exit while the attacher attaches to
/// them.
#[test]
fn children_of_busy_threads() {
    let mut server = Target::start(&build_target("forking_threads", &["-pthread"]), &[]);
    for round in 0..4 {
        let mut attacher = Attacher::start(&server, &["--follow-fork"]);
        for _ in 0..4 {
            attacher.says("Attached to ");
        }
        if round % 2 == 0 {
            attacher.kill();
        } else {
            let (status, errors, reports) = attacher.last_reports();
            assert!(has_refused_none(status), "{status}: {errors}");
            assert!(reports.len() >= 5, "{reports:?}");
        }
        assert!(server.is_alive());
    }
    server.go();
    server.expect("done");
    assert!(server.finish().success());
}

/// Copies a target, and gives the copy a unique name.
fn copy(folder: &Folder, target: &str) -> PathBuf {
    let path = folder.path(&format!("all-{}", std::process::id()));
    memhook_tests::programs::copy_program(build_target(target, &[]), &path);
    path.into()
}

#[test]
fn all_of_a_name_one_of_which_refuses() {
    let folder = Folder::new("all");
    let program = copy(&folder, "deterministic");
    let name = program.file_name().and_then(|name| name.to_str());
    let name = name.expect("text");
    let recordings = folder.path("x.%p.mhk");
    let mut attacher = Attacher::to(&["--all", name, "-o", &recordings]);
    attacher.says("memhook-rs: no such process yet");
    let mut first = Target::start(&program, &[]);
    attacher.says(&format!("Attached to {} ", first.pid()));
    // Another tracer traces this process.
    let (mut refusing, other) = {
        // A stopped attacher does not see the process before the other tracer has attached.
        stop(attacher.pid());
        let target = Target::start(&program, &[]);
        let other = Attacher::start(&target, &[]);
        attacher.signal(libc::SIGCONT);
        (target, other)
    };
    let said = attacher.says(&format!(
        "memhook-rs: process {} is not traced: ",
        refusing.pid()
    ));
    assert!(said.contains("already traced"), "{said}");
    let mut last = Target::start(&program, &[]);
    attacher.says(&format!("Attached to {} ", last.pid()));
    for target in [&mut first, &mut refusing, &mut last] {
        target.go();
        target.expect("done");
    }
    let own = other.finish();
    let pids = [first.pid(), last.pid()];
    assert!(first.finish().success());
    let (status, errors, reports) = attacher.last_reports();
    assert_eq!(status.code(), Some(2), "{errors}");
    let mut expected = pids.map(u64::from);
    expected.sort();
    let traced: Vec<u64> = reports.keys().copied().collect();
    assert_eq!(traced, expected);
    for pid in pids {
        let report = &reports[&u64::from(pid)];
        assert!(is_whole(report), "{report}");
        for number in ["allocations", "live_blocks", "live_bytes"] {
            assert_eq!(report["totals"][number], own["totals"][number], "{number}");
        }
        let recording = folder.path(&format!("x.{pid}.mhk"));
        let (code, output, errors) = run(&["report", "--json", &recording]);
        assert_eq!(code, 0, "{errors}");
        let recorded: Value = serde_json::from_str(&output).expect("JSON");
        assert_eq!(
            recorded["totals"]["live_bytes"],
            own["totals"]["live_bytes"]
        );
    }
    assert!(refusing.finish().success() && last.finish().success());
}

fn can_be_read(recording: &str) {
    let (code, output, errors) = run(&["report", recording]);
    assert_eq!(code, 0, "{output}{errors}");
}

#[test]
fn recordings_of_a_family() {
    let folder = Folder::new("family");
    let recording = folder.path("x.mhk");
    let mut server = server();
    let mut attacher = Attacher::start(&server, &["--follow-fork", "-o", &recording]);
    let mut children = fork_children(&mut server);
    let orphan = children.remove(ORPHAN);
    for _ in &children {
        attacher.says("Attached to ");
    }
    let (status, errors, _) = attacher.last_reports();
    assert!(status.success(), "{status}: {errors}");
    can_be_read(&recording);
    for child in &children {
        can_be_read(&folder.path(&format!("x.{child}.mhk")));
    }
    detach(&orphan);
    server.send("e");
    server.expect("done");
    assert!(server.finish().success());
}

/// Checks a vfork child, which runs in its parent's memory. Patching it separately would patch the
/// parent twice.
#[test]
fn a_child_in_its_parents_memory_is_let_be() {
    let mut server = server();
    let pid = server.pid().to_string();
    let mut attacher = Attacher::logging(LOG, &[&pid, "--follow-fork", "-i", "1h"]);
    attacher.says(&format!("Attached to {pid} "));
    server.send("v");
    let line = server.expect("child ");
    let child = line.trim()["child ".len()..].to_owned();
    // The attacher examines the child, and must do nothing.
    for _ in 0..2 {
        attacher.wait_for(&format!("pid={child} obstacle=BorrowsMemory"));
    }
    server.send("x");
    let attached = format!("Attached to {child} ");
    attacher.says(&attached);
    let before = sleeps(&child);
    until("it has done a whole round", || sleeps(&child) >= before + 4);
    let (status, errors, reports) = attacher.last_reports();
    assert!(status.success(), "{status}: {errors}");
    assert!(!errors.contains(&attached), "once more: {errors}");
    assert!(is_whole(&reports[&child.parse().expect("a pid")]));
    server.send("e");
    server.expect("done");
    assert!(server.finish().success());
}

/// Checks that an attach waits until a process has finished opening a library.
#[test]
fn a_process_that_opens_a_library_is_waited_for() {
    memhook_tests::patiently(|| {
        let mut target = Target::start(&build_target("modules_in_change", &[]), &[]);
        let pid = target.pid().to_string();
        let mut attacher = Attacher::logging(LOG, &[&pid, "--follow-fork", "-i", "1h"]);
        for _ in 0..2 {
            attacher.wait_for(&format!("pid={pid} obstacle=Error(StillLoaded"));
        }
        target.go();
        target.expect("consistent");
        attacher.says(&format!("Attached to {pid} "));
        target.go();
        target.expect("done");
        let (status, errors, reports) = attacher.last_reports();
        assert!(status.success(), "{status}: {errors}");
        let report = &reports[&pid.parse().expect("a pid")];
        assert_eq!(report["totals"]["allocations"], 7, "{report}");
        assert!(target.finish().success());
    });
}

/// Checks that an attach that fails after its time limit has expired reports the failure.
#[test]
fn an_attach_that_fails_late_is_reported() {
    let server = server();
    let attacher = Attacher::start(&server, &[]);
    let pid = server.pid().to_string();
    let (code, output, errors) = run(&["attach", "--follow-fork", "-d", "1ms", &pid]);
    assert_eq!(code, 2, "{output}{errors}");
    assert!(errors.contains("already traced by memhook-rs"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    let (status, errors, _) = attacher.last_reports();
    assert!(has_refused_none(status), "{errors}");
}

/// Checks that when a process executes another program, the new program is traced in place of the
/// old one, into a separate recording.
#[test]
fn another_program() {
    let folder = Folder::new("executed");
    let recording = folder.path("x.mhk");
    let program = build_target("deterministic", &[]);
    let mut shell = Command::new(installed("dash"));
    shell.args(["-c", "read line; exec \"$0\""]).arg(&program);
    let mut target = Target::silent(&mut shell);
    until("the shell waits for its input", || {
        let path = format!("/proc/{}/syscall", target.pid());
        std::fs::read_to_string(path).is_ok_and(|call| call.starts_with("0 0x0 "))
    });
    let mut attacher = Attacher::start(&target, &["--follow-fork", "-o", &recording]);
    target.send("\n");
    target.expect("ready");
    attacher.says(&format!("Attached to {} (", target.pid()));
    target.go();
    target.expect("done");
    let (status, errors, reports) = attacher.last_reports();
    assert!(status.success(), "{status}: {errors}");
    assert!(is_whole(&reports[&u64::from(target.pid())]));
    can_be_read(&recording);
    can_be_read(&folder.path("x.exec1.mhk"));
    assert!(target.finish().success());
}

/// Closes the reading end of the pipe to which the reports are written.
#[test]
fn it_ends_when_its_reader_has_gone() {
    let mut server = server();
    let options = ["--follow-fork", "-i", "50ms"];
    let pid = server.pid().to_string();
    let mut attacher = Attacher::to(&[&[pid.as_str()], &options[..]].concat());
    attacher.says("Attached to ");
    attacher.close_output();
    let (status, _, errors) = attacher.outcome();
    assert!(status.success(), "{status}: {errors}");
    server.send("e");
    server.expect("done");
    assert!(server.finish().success());
}

/// Checks that reports mention the events that are missing from a child's time before the attacher
/// found it.
#[test]
fn children_say_from_when_on_they_are_seen() {
    let mut server = server();
    let children = fork_children(&mut server);
    let pid = server.pid().to_string();
    let folder = Folder::new("seen");
    let [output, errors] = ["output", "errors"].map(|name| folder.path(name));
    let file = |path: &String| File::create(path).expect("a file");
    let text = |path: &String| std::fs::read_to_string(path).expect("text");
    let mut attacher = Command::new(binary())
        .args(["attach", &pid, "--follow-fork", "-i", "1h"])
        .stdout(file(&output))
        .stderr(file(&errors))
        .spawn()
        .expect("memhook-rs starts");
    until("the server and four children are traced", || {
        text(&errors).matches("Attached to ").count() == children.len()
    });
    // SAFETY: plain integers; the child has not been waited for.
    unsafe { libc::kill(attacher.id() as i32, libc::SIGINT) };
    let status = attacher.wait().expect("a child of ours");
    let (output, errors) = (text(&output), text(&errors));
    assert!(has_refused_none(status), "{status}: {errors}");
    let titles: Vec<&str> = output
        .lines()
        .filter(|line| line.starts_with("Process "))
        .collect();
    for (at, child) in children.iter().enumerate() {
        let title = titles
            .iter()
            .find(|title| title.starts_with(&format!("Process {child}: ")));
        assert_eq!(title.is_some(), at != ORPHAN, "{output}");
        if let Some(title) = title {
            let says_it = title.contains("(seen from ")
                && title.contains(" after it began: what it allocated before is not counted)");
            assert!(says_it, "{title}");
        }
    }
    let of_head = format!("Process {pid}: ");
    let head = titles.iter().find(|title| title.starts_with(&of_head));
    assert!(head.is_some_and(|title| !title.contains("seen from")));
    detach(&children[ORPHAN]);
    server.send("e");
    server.expect("done");
    assert!(server.finish().success());
}
