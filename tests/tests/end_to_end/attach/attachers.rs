//! Attachers that are stopped, terminated in other ways, or whose output is no longer read.

use memhook_tests::{Attacher, Target, build_target, run, stop, until};
use std::fs::File;

fn check_untouched(mut target: Target) {
    // The killed attacher leaves nothing behind that would affect a second attach.
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("live ");
    target.expect("done");
    let report = attacher.finish();
    assert_eq!(report["totals"]["lost_events"], 0);
    assert!(target.finish().success());
}

/// Suspends the attacher as Ctrl-Z does, and checks that the target waits briefly and then
/// continues untraced, and that the attacher reports this. On a busy machine the attacher may be
/// stopped while it holds a thread; its watchdog then resumes the thread, and nothing is lost.
#[test]
fn a_stopped_attacher_does_not_stop_the_target() {
    let program = build_target("oracle", &[]);
    for _ in 0..20 {
        let mut target = Target::start(&program, &["300000", "4"]);
        let attacher = Attacher::start(&target, &[]);
        stop(attacher.pid());
        target.go();
        target.expect("live ");
        target.expect("done");
        attacher.signal(libc::SIGINT);
        attacher.signal(libc::SIGCONT);
        let (status, output, errors) = attacher.outcome();
        let last = output.lines().last().expect("a report");
        let report: serde_json::Value = serde_json::from_str(last).expect("JSON");
        let gaps = report["gaps"].as_array().map(Vec::len);
        let is_untraced = status.code() == Some(1);
        if is_untraced {
            assert!(errors.contains("untraced"), "{errors}");
            assert_eq!(gaps, Some(1), "{report}");
            Attacher::start(&target, &[]).finish();
        } else {
            assert_eq!(status.code(), Some(0), "{errors}");
            assert_eq!(gaps, Some(0), "{report}");
            assert_eq!(report["totals"]["lost_events"], 0, "{report}");
        }
        assert!(target.finish().success());
        if is_untraced {
            return;
        }
    }
    panic!("it never went on untraced");
}

/// The first process of a container may never wait for its adopted children.
#[test]
fn a_killed_attacher_that_nobody_waits_for_keeps_nobody_out() {
    memhook_tests::patiently(|| {
        let program = build_target("oracle", &[]);
        let target = Target::start(&program, &["20000", "4"]);
        let killed = Attacher::start(&target, &[]);
        killed.signal(libc::SIGKILL);
        let status = format!("/proc/{}/status", killed.pid());
        until("it has ended", || {
            std::fs::read_to_string(&status).is_ok_and(|text| text.contains("\nState:\tZ"))
        });
        Attacher::start(&target, &[]).finish();
        let pid = target.pid().to_string();
        let (code, out, err) = run(&["detach", &pid]);
        assert_eq!(code, 0, "{out}{err}");
        drop(killed);
        check_untouched(target);
    });
}

#[test]
fn a_short_stop_loses_nothing() {
    memhook_tests::patiently(|| {
        let program = build_target("oracle", &[]);
        let mut target = Target::start(&program, &["300000", "4"]);
        let attacher = Attacher::start(&target, &[]);
        target.go();
        for _ in 0..5 {
            stop(attacher.pid());
            // The rings fill up during this time.
            std::thread::sleep(std::time::Duration::from_millis(60));
            attacher.signal(libc::SIGCONT);
            // The attacher drains the rings.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        target.expect("live ");
        target.expect("done");
        let report = attacher.finish();
        assert_eq!(report["totals"]["lost_events"], 0);
        assert_eq!(report["totals"]["unknown_releases"], 0);
        assert!(target.finish().success());
    });
}

#[test]
fn every_polite_signal_is_a_detach() {
    memhook_tests::patiently(|| {
        let program = build_target("oracle", &[]);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let target = Target::start(&program, &["20000", "4"]);
            // The tests themselves may run under nohup(1).
            let attacher = Attacher::start_by(&["env", "--default-signal=HUP"], &target, &[]);
            attacher.signal(signal);
            let report = attacher.last_report();
            assert_eq!(report["final"], true, "signal {signal}");
            check_untouched(target);
        }
    });
}

/// Checks signals that the attacher's parent has blocked, because a child inherits the mask.
#[test]
fn signals_blocked_by_the_parent_are_a_detach_too() {
    memhook_tests::patiently(|| {
        let program = build_target("oracle", &[]);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let target = Target::start(&program, &["20000", "4"]);
            let blocking = ["env", "--default-signal=HUP", "--block-signal=INT,TERM,HUP"];
            let attacher = Attacher::start_by(&blocking, &target, &[]);
            attacher.signal(signal);
            let report = attacher.last_report();
            assert_eq!(report["final"], true, "signal {signal}");
            check_untouched(target);
        }
    });
}

/// Starts the attacher like nohup(1).
#[test]
fn an_ignored_hangup_stays_ignored() {
    let program = build_target("leak_path", &[]);
    let mut target = Target::start(&program, &[]);
    let attacher = Attacher::start_by(&["env", "--ignore-signal=HUP"], &target, &[]);
    attacher.signal(libc::SIGHUP);
    target.go();
    target.expect("done");
    assert_eq!(attacher.finish()["totals"]["live_blocks"], 100);
    assert!(target.finish().success());
}

#[test]
fn a_closed_output_is_no_reason_to_stay() {
    let program = build_target("oracle", &[]);
    let target = Target::start(&program, &["20000", "4"]);
    let mut attacher = Attacher::start(&target, &["-d", "300ms"]);
    attacher.close_output();
    let (status, _, errors) = attacher.outcome();
    // The reader has closed the pipe, as `head` does.
    assert_eq!(status.code(), Some(0), "{errors}");
    assert!(errors.is_empty(), "{errors}");
    check_untouched(target);
}

/// Attachers exclude each other by a lock on a file that only a process with permission to trace
/// the target can open. Checks that a lock on any other file of the target is no reason to refuse.
#[test]
fn a_lock_that_anybody_may_take_keeps_nobody_out() {
    memhook_tests::patiently(|| {
        let target = Target::start(&build_target("hammer", &[]), &[]);
        let pid = target.pid().to_string();
        let locked = |name: &str| {
            let file = File::open(format!("/proc/{pid}/{name}")).expect("the target lives");
            file.lock().expect("nobody else locks it");
            file
        };
        let everybody = ["", "stat", "status", "cmdline", "maps", "exe"].map(locked);
        Attacher::start(&target, &[]).finish();
        assert_eq!(run(&["detach", &pid]).0, 0);
        let ours = locked("mem");
        for arguments in [&["attach", "-d", "100ms", &pid][..], &["detach", &pid]] {
            let (code, _, errors) = run(arguments);
            assert_eq!((code, errors.lines().count()), (2, 1), "{errors}");
            assert!(errors.contains("is working on process"), "{errors}");
        }
        drop((ours, everybody));
        Attacher::start(&target, &[]).finish();
        assert!(target.finish().success());
    });
}
