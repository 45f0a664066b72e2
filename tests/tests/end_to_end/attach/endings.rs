//! Targets that end, stop or become another program while they are traced.

use memhook_tests::{Attacher, Target, build_target, expect_sites, run, until};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;

fn check(report: &Value, blocks: u64) {
    assert_eq!(report["final"], true);
    expect_sites(
        report,
        "endings.cc",
        &[("leak_at_the_end", "malloc", blocks, 654)],
    );
}

#[test]
fn the_last_report_of_a_target_that_ends_is_complete() {
    let program = build_target("endings", &[]);
    for (end, signal) in [
        ("exit", None),
        ("_exit", None),
        ("kill", Some(libc::SIGKILL)),
        ("segv", Some(libc::SIGSEGV)),
    ] {
        let mut target = Target::start(&program, &[end]);
        let attacher = Attacher::start(&target, &[]);
        target.go();
        let status = target.finish();
        assert_eq!(status.signal(), signal, "{end}: {status}");
        check(&attacher.last_report(), 50);
    }
}

#[test]
fn a_target_that_executes_another_program() {
    let program = build_target("endings", &[]);
    for by in ["exec", "exec_by_thread"] {
        let mut target = Target::start(&program, &[by]);
        let attacher = Attacher::start(&target, &[]);
        target.go();
        target.expect("ready");
        check(&attacher.last_report(), 50);
        // The new program can be traced like any other.
        let attacher = Attacher::start(&target, &[]);
        target.go();
        target.expect("done");
        check(&attacher.finish(), 50);
        assert!(target.finish().success());
    }
}

#[test]
fn a_stopped_target_stays_stopped() {
    let program = build_target("endings", &["-DSTOPPED"]);
    let mut target = Target::start(&program, &["wait"]);
    target.signal(libc::SIGSTOP);
    until("it stops", || target.status("State").starts_with('T'));
    let pid = target.pid().to_string();
    let (code, out, err) = run(&["attach", &pid, "-d", "300ms", "--json"]);
    assert!(
        target.status("State").starts_with('T'),
        "{}",
        target.status("State")
    );
    if code != 0 {
        assert_eq!(code, 2, "{out}{err}");
        assert!(err.contains("stopped"), "{err}");
    }
    target.signal(libc::SIGCONT);
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    check(&attacher.finish(), 50);
    assert!(target.finish().success());
}
