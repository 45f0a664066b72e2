//! Attachers that get next to no processor: they are not stuck, and nobody stands still for them.

use memhook_tests::agents::Agent;
use memhook_tests::programs::{Folder, copy_program};
use memhook_tests::{ProcessorBox, Target, binary, build_target, not_run, until};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The most for which a target may stand still, in milliseconds: the time that its attacher may lose, and what it takes to
/// get a turn with a hundredth of a processor, which all of its threads share, and its watchdogs, too.
const LONGEST: u64 = 3000;

fn longest(target: &mut Target) -> u64 {
    target.send("x");
    let line = target.expect("longest");
    let number = line.trim().strip_prefix("longest ");
    number.and_then(|n| n.parse().ok()).expect("a number")
}

#[test]
fn a_starved_agent_is_not_ended_and_holds_nobody_for_long() {
    let Some(group) = ProcessorBox::new("starved") else {
        return not_run("no cgroup with a limit of processor time can be made here");
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
    let targets: Vec<Target> = (0..30).map(|_| start()).collect();
    agent.reconfigure(&rule(&program.to_string_lossy()));
    std::thread::sleep(Duration::from_secs(20));
    group.set_percent(None);
    assert!(agent.lives(), "{}", agent.said());
    assert!(!agent.said().contains("watchdog"), "{}", agent.said());
    // It has not been ended either; that it could not attach in time is no crime.
    // SAFETY: kill takes plain integers; the child has not been waited for.
    unsafe { libc::kill(attacher.id() as i32, libc::SIGTERM) };
    let status = memhook_tests::patience::end_of(&mut attacher);
    assert!(status.code().is_some(), "{status}");
    until("all are traced", || {
        let traced = agent.targets();
        let traced = traced.values().filter(|target| target["phase"] == "traced");
        traced.count() >= targets.len()
    });
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    for mut target in targets.into_iter().chain([single]) {
        let longest = longest(&mut target);
        assert!(longest < LONGEST, "{longest} ms");
        assert!(target.finish().success());
    }
}
