//! `--max-memory`: a target with more live blocks than the attacher may keep.

use memhook_tests::{Attacher, Target, build_target, run};
use serde_json::Value;

const BOUND: u64 = 16 << 20;
const CACHED: f64 = 1_000_000.0;
const LEAKED: f64 = 200_000.0;

/// Returns the peak of the attacher's resident memory in bytes.
fn most_resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("a number") << 10
}

fn site<'a>(report: &'a Value, function: &str) -> (usize, &'a Value) {
    let sites = report["sites"].as_array().expect("sites");
    let is_it = |frame: &Value| {
        let name = frame["function"].as_str().unwrap_or_default();
        name == function || name.starts_with(&format!("{function}("))
    };
    let mut sites = sites.iter().enumerate();
    let found = sites.find(|(_, s)| s["stack"].as_array().expect("a stack").iter().any(is_it));
    found.unwrap_or_else(|| panic!("{function} is not in {report}"))
}

#[test]
fn the_ledger_stays_small_and_still_finds_the_leak() {
    memhook_tests::patiently(|| {
        let mut target = Target::start(&build_target("many_blocks", &[]), &[]);
        let attacher = Attacher::start(&target, &["--max-memory", "16M"]);
        let before = most_resident(attacher.pid());
        target.go();
        target.expect("done");
        // Includes the mapped rings, 1 MiB per thread, and the memory for reading them.
        let grown = most_resident(attacher.pid()) - before;
        assert!(grown < BOUND * 3 / 2 + (8 << 20), "{grown} bytes");
        let report = attacher.finish();
        assert!(target.finish().success());
        let bounded = &report["bounded"];
        assert_eq!(bounded["max_memory_bytes"], BOUND, "{report}");
        assert_eq!(bounded["live_is_estimated"], true, "{report}");
        assert!(
            bounded["kept_blocks"].as_f64() < Some(500_000.0),
            "{bounded}"
        );
        assert!(
            bounded["live_blocks_then"].as_f64() > Some(100_000.0),
            "{bounded}"
        );
        // The number of allocations is exact.
        assert_eq!(report["totals"]["allocations"], 2_200_000, "{report}");
        assert_eq!(report["totals"]["lost_events"], 0, "{report}");
        // The leak is the first site, and both sites are correct within five standard errors.
        let (place, leak) = site(&report, "leaked");
        assert_eq!(place, 0, "{report}");
        let (_, cache) = site(&report, "cached");
        for (site, bytes) in [(leak, LEAKED * 700.0), (cache, CACHED * 24.0)] {
            let found = site["bytes"].as_f64().expect("a number");
            let error = site["error_bytes"].as_f64().unwrap_or(0.0);
            assert!(
                (found - bytes).abs() <= 5.0 * error + 1.0,
                "{site}: {bytes}"
            );
        }
        assert!(cache["error_bytes"].as_f64() > Some(0.0), "{cache}");
    });
}

fn on(command: &[&str], mode: &str) -> (i32, String, String) {
    let program = build_target("many_blocks", &[]);
    let program = program.to_str().expect("UTF-8");
    run(&[command, &["--max-memory", "4M", "--", program, mode]].concat())
}

#[test]
fn the_text_says_so_first() {
    let (code, _, text) = on(&["run", "--quiet"], "leaking");
    assert_eq!(code, 0, "{text}");
    let first = text.lines().next().unwrap_or_default();
    assert!(
        first.starts_with("The ledger reached --max-memory 4.0 MiB after "),
        "{text}"
    );
    assert!(first.contains("are estimates since then"), "{text}");
}

#[test]
fn a_gate_gives_no_verdict_on_estimates() {
    let (code, out, text) = on(&["gate"], "clean");
    assert_eq!(code, 3, "{out}{text}");
    assert!(text.contains("The ledger reached --max-memory"), "{text}");
    // A block found with its stack is a leak, even if other data is missing.
    let (code, out, text) = on(&["gate"], "leaking");
    assert_eq!(code, 1, "{out}{text}");
    assert!(text.contains("leaked"), "{text}");
    // If that leak is suppressed, there may still be leaks of unknown origin.
    let (code, out, text) = on(&["gate", "--suppress", "leaked"], "leaking");
    assert_eq!(code, 3, "{out}{text}");
}

#[test]
fn less_than_a_ledger_needs_is_refused() {
    let (code, _, errors) = run(&["attach", "1", "--max-memory", "1M"]);
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("needs at least 4M"), "{errors}");
}
