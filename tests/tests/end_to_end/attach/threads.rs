//! Short-lived threads and unusual stacks.

use memhook_tests::{Attacher, Target, build_target, expect_sites, run, trace};
use std::process::Command;

#[test]
fn ten_thousand_short_lived_threads_leave_no_residue() {
    memhook_tests::patiently(|| {
        let program = build_target("threads", &[]);
        let mut target = Target::start(&program, &["10000"]);
        let attacher = Attacher::start(&target, &[]);
        target.go();
        target.expect("done");
        let report = attacher.finish();
        expect_sites(
            &report,
            "threads.cc",
            &[("leak_in_thread", "malloc", 100, 48)],
        );
        assert!(target.finish().success());
    });
}

#[test]
fn coroutines_and_deep_recursion() {
    let program = build_target("stacks", &[]);
    let report = trace(&program, &["--depth", "128"]);
    assert_eq!(report["totals"]["truncated_stacks"], 0);
    expect_sites(
        &report,
        "stacks.cc",
        &[
            ("recurse", "malloc", 5, 71),
            ("leak_in_coroutine", "malloc", 50, 61),
            ("leak_in_coroutine", "malloc", 50, 62),
        ],
    );
}

#[test]
fn remembered_backtraces_are_right_everywhere() {
    for name in ["stacks", "leaks", "exceptions", "all_functions", "threads"] {
        let program = build_target(name, &[]);
        // If a cached backtrace was wrong, the attacher exits with code 3, and finish() fails.
        trace(&program, &["--check-memo", "--depth", "40"]);
    }
}

/// Checks that a traced call needs only a little more stack than the allocator itself.
#[test]
fn stacks_with_little_room() {
    memhook_tests::patiently(|| {
        let program = build_target("small_stacks", &["-O1", "-Wl,-z,now"]);
        let mut target = Target::start(&program, &["512"]);
        let attacher = Attacher::start(&target, &[]);
        target.go();
        target.expect("done");
        let report = attacher.finish();
        let status = target.finish();
        assert!(status.success(), "the target's self-check: {status}");
        assert_eq!(report["totals"]["lost_events"], 0);
        assert_ne!(report["totals"]["truncated_stacks"], 0, "{report:#}");
    });
}

/// Checks that a descriptor that a thread opens for us is looked up in the table of that thread.
#[test]
fn threads_with_descriptor_tables_of_their_own() {
    let mut target = Target::silent(&mut Command::new(build_target("own_descriptors", &[])));
    target.expect("ready");
    let pid = target.pid().to_string();
    for command in [&["attach", "--json", "-q"][..], &["stale", "-q"]] {
        let (code, out, errors) = run(&[command, &["-d", "100ms", &pid]].concat());
        assert_eq!((code, errors.as_str()), (0, ""), "{command:?}: {out}");
    }
    let (code, _, errors) = run(&["scan", &pid]);
    assert_eq!(code, 0, "{errors}");
    target.send("u");
    target.expect("usable");
    assert!(target.finish().success());
}
