//! Signal handlers in traced programs.

use memhook_tests::{Attacher, Target, build_target, rounds, run, sites};

#[test]
fn a_handler_that_allocates_at_every_tick_of_a_timer() {
    memhook_tests::patiently(|| {
        let program = build_target("ticking", &[]);
        let mut target = Target::start(&program, &["3000"]);
        // The depth includes the frames of the signal.
        let attacher = Attacher::start(&target, &["--depth", "24"]);
        target.go();
        let line = target.expect("kept ");
        target.expect("done");
        let report = attacher.finish();
        assert!(target.finish().success());
        let kept: u64 = line[5..].trim().parse().expect("a number");
        assert!(kept >= 300);
        let planted = ("leak_in_handler".to_owned(), "malloc".to_owned());
        assert_eq!(
            sites(&report, "ticking.cc").get(&planted),
            Some(&(kept, kept * 87)),
            "{report:#}"
        );
        let totals = &report["totals"];
        for field in [
            "lost_events",
            "unknown_releases",
            "unhooked_releases",
            "reentrant_calls",
        ] {
            assert_eq!(totals[field], 0, "{field}: {totals}");
        }
    });
}

/// Checks a timer that fires while threads are stopped, remote calls are made and slots are
/// exchanged.
#[test]
fn attaches_between_ticks() {
    memhook_tests::patiently(|| {
        let program = build_target("ticking", &[]);
        let mut target = Target::start(&program, &["endless"]);
        for _ in 0..rounds(10) {
            let report = Attacher::start(&target, &[]).finish();
            assert_eq!(report["totals"]["lost_events"], 0, "{}", report["totals"]);
        }
        target.go();
        target.expect("kept ");
        assert!(target.finish().success());
    });
}

#[test]
fn attaches_between_forks() {
    memhook_tests::patiently(|| {
        let program = build_target("forking", &[]);
        let target = Target::start(&program, &[]);
        for _ in 0..rounds(10) {
            let report = Attacher::start(&target, &[]).finish();
            assert_eq!(report["totals"]["lost_events"], 0, "{}", report["totals"]);
        }
        assert!(target.finish().success());
    });
}

/// Checks system calls trapped by a filter, breakpoints, and a thread's SIGABRT to itself: each
/// handler must run at the right moment, regardless of the work of memhook-rs on the thread.
#[test]
fn attaches_between_synchronous_signals() {
    memhook_tests::patiently(|| {
        let program = build_target("adversary", &[]);
        let target = Target::start(&program, &["trapping"]);
        for _ in 0..rounds(20) {
            let report = Attacher::start(&target, &[]).finish();
            assert_eq!(report["totals"]["lost_events"], 0, "{}", report["totals"]);
        }
        assert!(target.finish().success());
    });
}

/// Checks PR_SET_SYSCALL_USER_DISPATCH of prctl(2), with which the program itself handles the
/// system calls of a thread.
#[test]
fn a_program_that_answers_system_calls_itself_is_refused_untouched() {
    let program = build_target("adversary", &[]);
    let target = Target::start(&program, &["dispatching"]);
    let pid = target.pid().to_string();
    for command in ["attach", "doctor"] {
        for _ in 0..rounds(10) {
            let (code, out, err) = run(&[command, &pid]);
            let said = format!("{out}{err}");
            assert_ne!(code, 0, "{said}");
            assert!(said.contains("handles its own system calls"), "{said}");
            assert_eq!(target.our_mappings(), 0, "{}", target.maps());
        }
    }
    assert!(target.finish().success());
}
