//! Calls of operator new that do not return must leave no state behind.

use memhook_tests::{Attacher, Target, build_target, sites};

fn regions(target: &Target) -> usize {
    target.maps().matches("memhook-region").count()
}

fn leaves_one_region(way: &str) {
    let target = Target::start(&build_target("ways_out", &[]), &[way]);
    let mut allocations = 0;
    for attach in 0.. {
        // The target may be suspended during any of the traces.
        if attach >= 10 && (allocations > 0 || attach >= 100) {
            break;
        }
        let report = Attacher::start(&target, &["-d", "100ms"]).last_report();
        allocations += report["totals"]["allocations"].as_u64().expect("a count");
        assert_eq!(regions(&target), 1, "{way}, attach {attach}");
    }
    assert!(allocations > 0, "{way}");
    assert!(target.finish().success(), "{way}");
}

#[test]
fn exceptions() {
    memhook_tests::patiently(|| {
        for way in ["throw", "nothrow", "handler"] {
            leaves_one_region(way);
        }
    });
}

#[test]
fn jumps() {
    memhook_tests::patiently(|| {
        for way in ["longjmp", "coroutine"] {
            leaves_one_region(way);
        }
    });
}

#[test]
fn ends_of_threads() {
    memhook_tests::patiently(|| {
        for way in ["pthread_exit", "cancel", "die"] {
            leaves_one_region(way);
        }
    });
}

/// Checks calls made deeper in the stack than an abandoned frame, after a longjmp. They look like
/// parts of the abandoned call.
#[test]
fn what_comes_after_a_jump_is_recorded_or_counted() {
    let mut target = Target::start(&build_target("ways_out", &[]), &["lose"]);
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    let found = sites(&report, "ways_out.cc");
    let blocks: u64 = found
        .iter()
        .filter(|((function, _), _)| function.contains("lose_below"))
        .map(|(_, (blocks, _))| blocks)
        .sum();
    let passed = report["totals"]["reentrant_calls"]
        .as_u64()
        .expect("a count");
    // The call of malloc within the abandoned call may be among the skipped calls.
    assert!(blocks <= 2000 && blocks + passed >= 2000, "{report:#}");
    assert!(blocks > 1800 && passed < 200, "{blocks}, {passed}");
    assert!(target.finish().success());
}

#[test]
fn calls_of_a_signal_handler_inside_a_call_are_counted() {
    let mut target = Target::start(&build_target("ways_out", &[]), &["signal"]);
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    let passed = report["totals"]["reentrant_calls"].as_u64();
    assert!(passed >= Some(50), "{report:#}");
    assert!(target.finish().success());
}
