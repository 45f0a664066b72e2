//! Refusals: if memhook-rs cannot trace a process, it says why in one line and does not touch the
//! process.

use memhook_tests::programs::{Folder, installed};
use memhook_tests::{Attacher, Target, binary, build_target, not_run, run, source, until};
use std::process::{Command, Output};

/// Checks for exit code 2, empty standard output, and a single line on standard error that contains
/// this word.
fn expect_refusal(output: (i32, String, String), word: &str, what: &str) {
    let (code, out, err) = output;
    assert_eq!(code, 2, "{what}: {out}{err}");
    assert!(err.contains(word), "{what}: {err}");
    assert_eq!(err.trim_end().lines().count(), 1, "{what}: {err}");
    assert!(out.is_empty(), "{what}: {out}");
}

fn parts(output: Output) -> (i32, String, String) {
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// Checks that all commands refuse this target, which then passes its self-check.
fn refused(target: Target, word: &str) {
    let pid = target.pid().to_string();
    let (maps, tracer) = (target.maps(), target.status("TracerPid"));
    expect_refusal(run(&["attach", &pid]), word, "attach");
    expect_refusal(run(&["attach", "-p", &pid, "--json"]), word, "attach -p");
    let (code, out, _) = run(&["doctor", &pid]);
    assert_eq!(code, 2, "doctor: {out}");
    assert!(out.contains(word), "doctor: {out}");
    assert_eq!(target.maps(), maps, "the mappings are as before");
    assert_eq!(target.status("TracerPid"), tracer);
    let status = target.finish();
    assert!(status.success(), "the target's self-check: {status}");
}

fn as_root() -> bool {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn arguments() {
    let own = std::process::id().to_string();
    for (args, word) in [
        (vec!["attach", "2147483647"], "no process"),
        (vec!["attach", "0"], "no process"),
        (vec!["doctor", "--json"], "PID"),
        (vec!["attach", &own, "--top", "-3"], "'-3' for '--top <N>'"),
        (vec!["attach"], "PID"),
        (vec!["attach", "x"], "no process is named x"),
        (vec!["attach", &own, "--depth", "0"], "depth"),
        (vec!["attach", &own, "--depth", "129"], "depth"),
        (vec!["attach", &own, "-d", "0"], "duration"),
        (vec!["attach", &own, "--max-hold", "1s"], "--leaks"),
        (vec!["gate", "--max-hold", "1s", "--", "true"], "-p PID"),
        (
            vec!["attach", &own, "-d", "5 parsecs"],
            "expected a positive duration",
        ),
        (vec!["attach", &own, "--size", "x"], "expected a size"),
        (vec!["attach", &own, "--max-memory", "1.5X"], "1.5G or 1T"),
        (vec!["attach", &own, "--overhead", "51%"], "up to 50%"),
        (
            vec!["attach", &own, "--size", "10..5"],
            "no block would match",
        ),
        (
            vec!["attach", &own, "--set", "ring-size=1000"],
            "power of two",
        ),
        (
            vec!["attach", &own, "--set", "functions=mallok"],
            "no such function",
        ),
        (
            vec!["attach", &own, "--sample", "1K", "--on-full", "adapt"],
            "samples do not fill a ring",
        ),
        (
            vec![
                "attach",
                &own,
                "-o",
                "x.mhk",
                "--record",
                "summary",
                "--on-full",
                "adapt",
            ],
            "use --record events",
        ),
        (
            vec!["gate", "--on-full", "adapt", "--", "true"],
            "a gate needs every allocation",
        ),
        (vec!["attach", &own, "--frobnicate"], "frobnicate"),
        (vec!["detach", "2147483647"], "no process"),
        (vec!["frobnicate"], "frobnicate"),
    ] {
        let (code, out, err) = run(&args);
        assert_eq!(code, 2, "{args:?}: {out}{err}");
        assert!(err.contains(word), "{args:?}: {err}");
        assert!(out.is_empty(), "{args:?}: {out}");
    }
}

#[test]
fn kernel_threads() {
    let is_kernel_thread = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Field 9, flags: PF_KTHREAD.
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap_or(0)..].split(' ').collect();
        let flags = fields.get(7).and_then(|f| f.parse::<u64>().ok());
        flags.is_some_and(|flags| flags & 0x0020_0000 != 0)
    };
    // A container's own pid namespace has no kernel threads.
    if let Some(pid) = (1..1000).find(is_kernel_thread) {
        expect_refusal(
            run(&["attach", &pid.to_string()]),
            "kernel thread",
            "attach",
        );
    }
}

/// A root user who lacks the capability must not be advised to run as root.
#[test]
fn root_that_may_not_trace() {
    if !as_root() {
        return not_run("only root can give up capabilities and stay root");
    }
    let target = Target::start(&build_target("regression", &[]), &[]);
    let pid = target.pid().to_string();
    let output = Command::new("setpriv")
        .args(["--bounding-set=-sys_ptrace", "--"])
        .arg(binary())
        .args(["doctor", &pid])
        .output()
        .expect("setpriv");
    let (code, out, err) = parts(output);
    assert_eq!(code, 2, "{out}{err}");
    assert!(
        !out.contains("run as root") && !out.contains("os error"),
        "{out}"
    );
    assert!(out.contains("CAP_SYS_PTRACE"), "{out}");
    assert!(target.finish().success());
}

#[test]
fn a_zombie() {
    let mut child = Command::new("true").spawn().expect("true");
    let status = format!("/proc/{}/status", child.id());
    until("the child has ended", || {
        std::fs::read_to_string(&status).is_ok_and(|s| s.contains("State:\tZ"))
    });
    expect_refusal(
        run(&["attach", &child.id().to_string()]),
        "zombie",
        "attach",
    );
    child.wait().expect("it was there");
}

#[test]
fn a_thread_of_a_process() {
    let target = Target::start(&build_target("hammer", &[]), &[]);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", target.pid())).expect("threads");
    let tid = tasks
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find(|tid| *tid != target.pid().to_string())
        .expect("a second thread");
    let pid = target.pid().to_string();
    let output = run(&["attach", &tid]);
    assert!(output.2.contains(&pid), "it names the process: {output:?}");
    expect_refusal(output, "is a thread", "attach");
    assert!(target.finish().success());
}

#[test]
fn stripped_static_programs() {
    for flag in ["-static", "-static-pie"] {
        let program = build_target("before_attach", &[flag, "-s"]);
        let mut target = Target::start(&program, &[]);
        target.go();
        target.expect("done");
        refused(target, "statically linked and stripped");
    }
}

/// Checks a program whose ELF notes make it look like a Go program without cgo.
#[test]
fn a_go_program() {
    let folder = Folder::new("go");
    let (source, program) = (folder.path("main.go"), folder.path("main"));
    std::fs::write(&source, "package main\nfunc main() { select {} }\n").expect("written");
    let mut build = Command::new(installed("go"));
    build.args(["build", "-o", &program, &source]);
    build
        .env("CGO_ENABLED", "0")
        .env("HOME", folder.path("home"));
    assert!(build.status().expect("it runs").success());
    let output = run(&["run", "--", &program]);
    expect_refusal(output, "runtime/pprof", "run");
}

#[test]
fn a_32_bit_program() {
    let folder = Folder::new("bits32");
    let (object, program) = (folder.path("bits32.o"), folder.path("bits32"));
    for (tool, args) in [
        ("as", ["--32", "-o", &object]),
        ("ld", ["-melf_i386", "-o", &program]),
    ] {
        let from = match tool {
            "as" => source("bits32.s"),
            _ => object.clone().into(),
        };
        let status = Command::new(tool).args(args).arg(from).status();
        assert!(status.expect("binutils").success());
    }
    refused(Target::start(program.as_ref(), &[]), "32-bit");
}

#[test]
fn a_process_of_another_user() {
    // Runs as nobody, from a directory that nobody can access.
    let folder = Folder::new("nobody");
    let copy = folder.path("memhook-rs");
    memhook_tests::programs::copy_program(binary(), &copy);
    let target = Target::start(&build_target("leak_path", &[]), &[]);
    let maps = target.maps();
    let (mut command, pid) = if as_root() {
        let mut command = Command::new(installed("setpriv"));
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", &copy]);
        (command, target.pid().to_string())
    } else {
        (Command::new(&copy), "1".to_owned())
    };
    let output = command.args(["attach", &pid]).output().expect("it runs");
    expect_refusal(parts(output), "not permitted", "attach");
    assert_eq!(target.maps(), maps);
}

#[test]
fn a_process_that_another_tracer_holds() {
    let mut target = Target::start(&build_target("before_attach", &[]), &[]);
    let pid = target.pid() as i32;
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let (seized, is_seized) = std::sync::mpsc::channel();
    let tracer = std::thread::spawn(move || {
        // SAFETY: seizing takes plain integers. The tracee is released when this thread exits.
        let result = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) };
        seized.send(result).expect("the test waits");
        let _ = ended.recv();
    });
    assert_eq!(is_seized.recv(), Ok(0), "seized");
    expect_refusal(
        run(&["attach", &pid.to_string()]),
        "already traced by",
        "attach",
    );
    drop(end);
    tracer.join().expect("the tracer ends");
    until("it is let go", || target.status("TracerPid") == "0");
    // The process can be traced now.
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    assert_eq!(attacher.finish()["totals"]["unknown_releases"], 401);
    assert!(target.finish().success());
}

#[test]
fn a_process_that_we_trace_already() {
    let mut target = Target::start(&build_target("before_attach", &[]), &[]);
    let pid = target.pid().to_string();
    let first = Attacher::start(&target, &[]);
    let maps = target.maps();
    expect_refusal(run(&["attach", &pid]), "already traced", "attach");
    expect_refusal(run(&["detach", &pid]), "traced by memhook-rs", "detach");
    // An attach would fail, and doctor must report that.
    let (code, found, _) = run(&["doctor", &pid]);
    let refusal = format!("process {pid} is already traced by memhook-rs ");
    assert!(code == 2 && found.contains(&refusal), "{found}");
    assert_eq!(target.maps(), maps);
    // The first process was not disturbed.
    target.go();
    target.expect("done");
    assert_eq!(first.finish()["totals"]["unknown_releases"], 401);
    assert!(target.finish().success());
}

#[test]
fn a_process_that_lost_its_privileges() {
    if !as_root() {
        return not_run("only root can give a process another user");
    }
    // A non-dumpable process of the user nobody: that user may not trace it, but root may.
    let folder = Folder::new("undumpable");
    let copy = folder.path("memhook-rs");
    memhook_tests::programs::copy_program(binary(), &copy);
    let program = folder.path("target");
    memhook_tests::programs::copy_program(build_target("undumpable", &[]), &program);
    let nobody = |program: &str| {
        let mut command = Command::new(installed("setpriv"));
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program]);
        command
    };
    let mut target = Target::run(&mut nobody(&program));
    let pid = target.pid().to_string();
    let output = nobody(&copy).args(["attach", &pid]).output();
    expect_refusal(parts(output.expect("it runs")), "not dumpable", "attach");
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    assert_eq!(attacher.finish()["totals"]["live_blocks"], 7);
    assert!(target.finish().success());
}

/// `memhook-rs doctor PID | head -1`: a closed pipe is not a failure.
#[test]
fn a_reader_that_went_away() {
    let target = Target::start(&build_target("threads", &[]), &[]);
    let pid = target.pid().to_string();
    for arguments in [
        &["doctor", &pid][..],
        &["attach", &pid, "--dry-run"],
        &["detach", &pid],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = Command::new(binary())
            .args(arguments)
            .stdout(writer)
            .output();
        let (code, _, errors) = parts(output.expect("it starts"));
        assert_eq!(code, 0, "{arguments:?}: {errors}");
        assert!(!errors.contains("panicked"), "{arguments:?}: {errors}");
    }
    target.finish();
}

/// Checks that `doctor` predicts the result of an attach if a thread stays inside the loader.
#[test]
fn a_process_that_is_never_at_a_safe_point() {
    let program = build_target("never_safe", &["-pthread"]);
    let unsafe_point = "reached a safe point within";
    let asleep = "sleeps inside the loader";
    for (kind, of_doctor, of_attach) in [
        ("asleep", asleep, unsafe_point),
        ("busy", unsafe_point, unsafe_point),
        (
            "beside",
            asleep,
            "a lock it needs is held by another thread",
        ),
    ] {
        let target = Target::start(&program, &[kind]);
        let pid = target.pid().to_string();
        let maps = target.maps();
        let (code, out, errors) = run(&["doctor", &pid]);
        assert_eq!(code, 2, "{kind}: {out}{errors}");
        assert!(out.contains(of_doctor), "{kind}: {out}");
        assert!(out.contains("cannot be traced"), "{kind}: {out}");
        assert_eq!(target.maps(), maps, "{kind}: the mappings are as before");
        let attached = run(&["attach", &pid, "-d", "100ms", "-q"]);
        expect_refusal(attached, of_attach, kind);
        let left = target.maps();
        assert!(
            !left.contains("memhook"),
            "{kind}: nothing of ours stays: {left}"
        );
    }
}
