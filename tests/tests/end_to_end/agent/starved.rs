//! Attachers that get hardly any processor time must not hang, or leave a target stopped.

use memhook_tests::agents::Agent;
use memhook_tests::programs::{Folder, copy_program};
use memhook_tests::{ProcessorBox, Target, binary, build_target, not_run, until};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum stop of a target in milliseconds: the time that its attacher may lose, plus one
/// scheduling delay in a group that has a hundredth of a processor for all threads and watchdogs of
/// the attacher. The test adds the time for which a process in the same group waited for a
/// processor, because a busy machine may have none for the whole group.
const LONGEST: u64 = 3000;

fn longest(target: &mut Target) -> u64 {
    target.send("x");
    let line = target.expect("longest");
    let number = line.trim().strip_prefix("longest ");
    number.and_then(|n| n.parse().ok()).expect("a number")
}

/// Runs the attachers one after another, because two such groups in parallel would get even less
/// processor time.
#[test]
fn attachers_that_get_next_to_no_processor() {
    a_starved_agent_is_not_ended_and_holds_nobody_for_long();
    an_attach_without_a_processor_holds_nobody();
}

fn a_starved_agent_is_not_ended_and_holds_nobody_for_long() {
    let Some(group) = ProcessorBox::new("starved") else {
        return not_run("cannot create a cgroup with a processor limit here");
    };
    let folder = Arc::new(Folder::new("agent-starved"));
    let program = PathBuf::from(folder.path("beats"));
    copy_program(build_target("beats", &[]), &program);
    let start = || Target::start(&program, &[]);
    let rule = |program: &str| {
        format!("[[rule]]\nname = \"beats\"\nexecutable = \"{program}\"\nmode = \"exact\"\n")
    };
    let mut agent = Agent::start(&folder, &rule("/nowhere"));
    let single = start();
    let mut attacher = Command::new(binary())
        .args(["attach", &single.pid().to_string(), "--quiet"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    group.take(attacher.id());
    group.take(agent.pid());
    group.set_percent(Some(1));
    let mut beside = start();
    group.take(beside.pid());
    let targets: Vec<Target> = (0..30).map(|_| start()).collect();
    agent.reconfigure(&rule(&program.to_string_lossy()));
    // The pause is longer than the attacher's watchdog would accept.
    std::thread::sleep(Duration::from_secs(20));
    group.empty();
    assert!(agent.lives(), "{}", agent.said());
    assert!(!agent.said().contains("watchdog"), "{}", agent.said());
    // The attacher must not have been killed; failing to attach in time is acceptable. SAFETY: kill
    // takes plain integers; the child has not been waited for.
    unsafe { libc::kill(attacher.id() as i32, libc::SIGTERM) };
    let status = memhook_tests::patience::end_of(&mut attacher);
    // The attacher may not yet have installed a handler for the signal.
    assert_ne!(status.signal(), Some(libc::SIGKILL), "{status}");
    until("all are traced", || {
        let traced = agent.targets();
        let traced = traced.values().filter(|target| target["phase"] == "traced");
        traced.count() >= targets.len()
    });
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    let waited = longest(&mut beside);
    assert!(beside.finish().success());
    for mut target in targets.into_iter().chain([single]) {
        let longest = longest(&mut target);
        assert!(longest < LONGEST + 2 * waited, "{longest} ms, {waited} ms");
        assert!(target.finish().success());
    }
}

fn an_attach_without_a_processor_holds_nobody() {
    let Some(group) = ProcessorBox::new("refused") else {
        return not_run("cannot create a cgroup with a processor limit here");
    };
    let mut target = Target::start(&build_target("beats", &[]), &[]);
    let mut waits = Target::start(&build_target("beats", &[]), &[]);
    group.take(waits.pid());
    group.set_percent(Some(1));
    // A shell joins the group and then executes the attacher, as happens in a container.
    let mut shell = Command::new("sh")
        .args(["-c", "read line; exec \"$@\"", "sh"])
        .arg(binary())
        .args(["attach", &target.pid().to_string(), "-d", "100ms"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    group.take(shell.id());
    drop(shell.stdin.take());
    let limit = Instant::now() + Duration::from_secs(30);
    while Instant::now() < limit && shell.try_wait().expect("a child of ours").is_none() {
        // Pause between two checks.
        std::thread::sleep(Duration::from_millis(20));
    }
    // Leaves the group, which may get no processor at all on a busy machine, regardless of its
    // limit.
    group.empty();
    let status = memhook_tests::patience::end_of(&mut shell);
    let mut said = String::new();
    let mut errors = shell.stderr.take().expect("a pipe");
    std::io::Read::read_to_string(&mut errors, &mut said).expect("text");
    // With real-time priority, the attacher gets a processor despite the limit.
    if status.code() != Some(0) {
        assert_eq!(status.code(), Some(2), "{said}");
        assert!(said.contains("for each turn on a processor"), "{said}");
        assert!(said.contains("quota"), "{said}");
    }
    let (stood, waited) = (longest(&mut target), longest(&mut waits));
    assert!(stood < LONGEST + 2 * waited, "{stood} ms, {waited} ms");
    assert!(target.finish().success() && waits.finish().success());
}
