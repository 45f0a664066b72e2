//! Processes that lock all of their memory (mlockall(2)). The mappings of memhook-rs must not
//! become resident.

use memhook_tests::{
    Attacher, MemoryBox, Prober, Target, build_target, build_telling, expect_sites, not_run, run,
};
use std::path::Path;
use std::process::Command;

const LIMIT: u64 = 64 << 20;
/// Maximum of memhook-rs's locked memory in KiB: the hook, and memory of a remote call.
const LITTLE: u64 = 4 << 10;

/// Starts a program in a control group with [`LIMIT`], if a group can be created.
fn start(name: &str, program: &Path, args: &[&str]) -> (Option<MemoryBox>, Target) {
    let group = MemoryBox::new(name, LIMIT);
    let target = match &group {
        Some(group) => Target::run(group.command(program).args(args)),
        None => {
            not_run("cannot create a control group with a memory limit here");
            Target::run(Command::new(program).args(args))
        }
    };
    (group, target)
}

fn kib(target: &Target, name: &str) -> u64 {
    let text = target.status(name);
    let kib = text.split_whitespace().next().and_then(|n| n.parse().ok());
    kib.expect("a number")
}

/// Returns the locked and the resident memory.
fn locked_and_resident(target: &Target) -> [u64; 2] {
    [kib(target, "VmLck"), kib(target, "VmRSS")]
}

fn assert_little_more(target: &Target, before: [u64; 2], when: &str) {
    let now = locked_and_resident(target);
    for (before, now) in before.into_iter().zip(now) {
        assert!(now < before + LITTLE, "{when}: {now} KiB, {before} before");
    }
}

#[test]
fn a_region_is_neither_locked_nor_populated() {
    for args in [&[][..], &["on-fault"]] {
        let (_group, mut target) = start("locked", &build_target("locked", &[]), args);
        let before = locked_and_resident(&target);
        let attacher = Attacher::start(&target, &[]);
        assert_little_more(&target, before, "attached");
        target.go();
        target.expect("done");
        let report = attacher.finish();
        expect_sites(&report, "locked.cc", &[("lose", "malloc", 1000, 48)]);
        assert_little_more(&target, before, "detached");
        // The program still locks the memory that it maps.
        let flags =
            std::fs::read_to_string(format!("/proc/{}/smaps", target.pid())).expect("smaps");
        let heap = flags.split("[heap]").nth(1).expect("a heap");
        let of_heap = heap.lines().find(|line| line.starts_with("VmFlags:"));
        assert!(
            of_heap.is_some_and(|flags| flags.contains(" lo")),
            "{of_heap:?}"
        );
        assert!(target.finish().success());
    }
}

#[test]
fn the_index_of_accesses_is_neither() {
    let (_group, mut target) = start("indexed", &build_telling("g++", "locked", &[]), &[]);
    let before = locked_and_resident(&target);
    let attacher = Attacher::start(&target, &["--access", "on"]);
    assert_little_more(&target, before, "attached");
    target.go();
    target.expect("done");
    attacher.finish();
    assert_little_more(&target, before, "detached");
    assert!(target.finish().success());
}

#[test]
fn the_memory_of_probes_is_neither() {
    let (_group, mut target) = start("probed", &build_target("locked", &[]), &[]);
    let before = locked_and_resident(&target);
    let prober = Prober::start(&target, "lose", &["--stack"]);
    assert_little_more(&target, before, "probed");
    target.go();
    target.expect("done");
    prober.finish();
    assert_little_more(&target, before, "without probes");
    assert!(target.finish().success());
}

#[test]
fn regions_for_children_are_neither() {
    let (_group, mut target) = start("family", &build_target("locked", &[]), &[]);
    let before = locked_and_resident(&target);
    let attacher = Attacher::start(&target, &["--follow-fork"]);
    assert_little_more(&target, before, "attached");
    target.go();
    target.expect("done");
    attacher.last_reports();
    assert_little_more(&target, before, "detached");
    assert!(target.finish().success());
}

/// Checks a process that may only lock memory up to its limit.
#[test]
fn a_limit_of_locked_memory_that_leaves_no_room_is_a_reason() {
    let program = build_target("locked", &[]);
    let script = "ulimit -l 7000 && exec setpriv --bounding-set -ipc_lock \"$0\"";
    let mut target = Target::run(Command::new("sh").args(["-c", script]).arg(&program));
    let pid = target.pid().to_string();
    let set_limit = |bytes: u64| {
        let limit = format!("--memlock={bytes}:");
        let mut command = Command::new("prlimit");
        let set = command.args(["--pid", &pid, &limit]).status();
        assert!(set.expect("util-linux").success());
    };
    // A limit just above the locked memory.
    let locked = kib(&target, "VmLck") << 10;
    set_limit(locked + 8192);
    let (code, _, errors) = run(&["attach", &pid, "-d", "100ms"]);
    assert_eq!(code, 2, "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("may lock"), "{errors}");
    assert_eq!(target.our_mappings(), 0);
    // With room for the memory that memhook-rs locks, the attach works.
    set_limit(locked + (2 << 20));
    let (code, _, errors) = run(&["attach", &pid, "-d", "100ms"]);
    assert_eq!(code, 0, "{errors}");
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}
