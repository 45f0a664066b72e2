//! Blocks held only by a suspended frame below another frame's stack pointer on one stack. The
//! suspended frame is a coroutine's frame, or was interrupted by a signal whose handler has a
//! separate stack.

use memhook_tests::scans::scan;
use memhook_tests::{Target, build_target, run};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build_target("suspended", &[]))
}

/// Checks that no block of the frame is reported as leaked or released, and that the suspended
/// frame finds its blocks unchanged.
fn keeps_what_it_holds(mode: &str) {
    let mut target = Target::start(program(), &[mode]);
    let pid = target.pid();
    let report: serde_json::Value = serde_json::from_str(&scan(pid, &["--json"])).unwrap();
    assert_eq!(report["totals"]["leaked_blocks"], 0, "{report}");
    // If a thread is on a coroutine's stack, memhook-rs may refuse the command.
    let pid = pid.to_string();
    let (code, out, err) = run(&["scan", &pid, "--reclaim", "--yes", "--twice", "50ms"]);
    assert!(matches!(code, 0 | 2), "{out}{err}");
    target.send("c");
    assert_eq!(target.expect("done"), "done 0\n");
    assert!(target.finish().success());
}

#[test]
fn coroutines_on_parts_of_one_mapping() {
    keeps_what_it_holds("p");
}

#[test]
fn coroutines_on_local_arrays_of_main() {
    keeps_what_it_holds("m");
}

#[test]
fn coroutines_on_local_arrays_of_a_thread() {
    keeps_what_it_holds("t");
}

#[test]
fn frames_that_a_signal_has_interrupted() {
    keeps_what_it_holds("s");
}
