//! Targets that exit, stop or execute another program during the trace.

use memhook_tests::{Attacher, JsonSchema, Target, build_target, expect_sites, run, until};
use serde_json::{Value, json};
use std::os::unix::process::ExitStatusExt;

fn check(report: &Value, blocks: u64) {
    assert_eq!(report["final"], true);
    expect_sites(
        report,
        "endings.cc",
        &[("leak_at_the_end", "malloc", blocks, 654)],
    );
}

/// Returns true if a pidfd still shows the exit status of a process after its parent has reaped it
/// (Linux 6.15).
fn kernel_keeps_ends() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux");
    let mut numbers = release.split(['.', '-']).flat_map(str::parse::<u32>);
    (numbers.next(), numbers.next()) >= (Some(6), Some(15))
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
        let pid = target.pid();
        target.go();
        let status = target.finish();
        assert_eq!(status.signal(), signal, "{end}: {status}");
        let (exit, output, errors) = attacher.outcome();
        assert!(exit.success(), "{exit}: {errors}");
        let report = serde_json::from_str(output.lines().last().expect("a report"));
        let report: Value = report.expect("JSON");
        JsonSchema::load("report-1").check(&report);
        check(&report, 50);
        // The parent, which is this test, has reaped the process. Before Linux 6.15, other
        // processes cannot learn the status after that.
        let says = |how: &str| errors.contains(&format!("process {pid} {how}"));
        if says("has ended, and only its parent knows how") {
            assert_eq!(report["ended"], json!({"executes": false}), "{errors}");
            assert!(!kernel_keeps_ends(), "{errors}");
            continue;
        }
        let expected = match signal {
            Some(signal) => json!({"signal": signal, "executes": false}),
            None => json!({"status": 0, "executes": false}),
        };
        assert_eq!(report["ended"], expected, "{end}: {errors}");
        match signal {
            Some(signal) => assert!(
                says(&format!("was ended by signal {signal} (SIG")),
                "{errors}"
            ),
            None => assert!(says("ended with status 0"), "{errors}"),
        }
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
