//! The set of live blocks is exact even if addresses move between threads.

use memhook_tests::{Attacher, Target, build_target};

#[test]
fn live_set_is_exact_when_addresses_change_hands() {
    memhook_tests::patiently(|| {
        // MEMHOOK_ORACLE_OPERATIONS=25000000 results in 100 million operations.
        let operations = std::env::var("MEMHOOK_ORACLE_OPERATIONS").unwrap_or("500000".into());
        run(&operations, "4");
    });
}

/// Checks the switch to locked increments when a second recording thread appears.
#[test]
fn the_second_thread_comes_while_the_first_records() {
    memhook_tests::patiently(|| {
        for threads in ["2", "3"].iter().cycle().take(24) {
            run("30000", threads);
        }
    });
}

fn run(operations: &str, threads: &str) {
    let program = build_target("oracle", &[]);
    let mut target = Target::start(&program, &[operations, threads]);
    let attacher = Attacher::start(&target, &[]);
    target.go();
    let line = target.expect("live ");
    let numbers: Vec<u64> = line
        .split_ascii_whitespace()
        .skip(1)
        .map(|n| n.parse().expect("a number"))
        .collect();
    target.expect("done");
    let report = attacher.finish();
    assert!(target.finish().success());
    let totals = &report["totals"];
    assert_eq!(totals["lost_events"], 0);
    assert_eq!(totals["unknown_releases"], 0, "{totals}");
    assert_eq!(totals["unhooked_releases"], 0, "{totals}");
    let made: Vec<&serde_json::Value> = report["sites"]
        .as_array()
        .expect("sites")
        .iter()
        .filter(|s| s["kind"] == "malloc" && s.to_string().contains("oracle.cc"))
        .collect();
    let sum = |field: &str| made.iter().filter_map(|s| s[field].as_u64()).sum::<u64>();
    assert_eq!([sum("blocks"), sum("bytes")], numbers[..], "{report:#}");
}
