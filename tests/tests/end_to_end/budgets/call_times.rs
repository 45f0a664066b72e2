//! `--alloc-time`: shows which sites have slow allocations.

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, Target, build_library, build_target, run as memhook};
use serde_json::Value;
use std::process::Command;

const QUICK: f64 = 1_000_001.0;
const SLOW: f64 = 100_001.0;
/// Time that the allocator waits for a slow block.
const WAIT_NS: f64 = 5_000.0;

/// Runs the target with quick and slow allocations, and returns the last report.
fn run(options: &[&str]) -> Value {
    let library = build_library("slow_allocator", "libslow_allocator.so", &[]);
    let program = build_target("timed_calls", &[]);
    let mut target = Target::run(Command::new(program).env("LD_PRELOAD", library));
    let attacher = Attacher::start(&target, &[&["--alloc-time"], options].concat());
    target.go();
    target.expect("done");
    let report = attacher.finish();
    assert!(target.finish().success());
    assert_eq!(report["totals"]["lost_events"], 0, "{report}");
    report
}

/// Returns nanoseconds and timed calls of a function's row.
fn of_function(report: &Value, name: &str) -> (f64, f64) {
    let groups = report["groups"].as_array().expect("groups");
    let mut rows = groups.iter();
    let row = rows.find(|row| row["name"].as_str().is_some_and(|n| n.starts_with(name)));
    let row = row.unwrap_or_else(|| panic!("{name} is in no row: {report}"));
    let number = |field: &str| row[field].as_f64().unwrap_or(0.0);
    (number("alloc_ns"), number("timed_calls"))
}

/// Checks the time of slow calls. A wait is never shorter than requested, even on a busy machine.
fn assert_slow(ns: f64, allocations: f64) {
    let mean = ns / allocations;
    assert!(mean > 0.97 * WAIT_NS, "{mean} ns a slow call");
}

/// Checks that each call is timed with equal probability. The bounds are six standard deviations
/// wide.
fn assert_share(slow: f64, quick: f64) {
    let (timed, share) = (slow + quick, SLOW / (SLOW + QUICK));
    let deviation = (timed * share * (1.0 - share)).sqrt();
    let off = slow - timed * share;
    assert!(
        off.abs() < 6.0 * deviation,
        "{slow} of {timed} timed calls were slow ones"
    );
}

#[test]
fn what_takes_long_is_found() {
    memhook_tests::patiently(|| {
        let report = run(&["--on-full", "wait", "--by", "function"]);
        let (quick_ns, quick) = of_function(&report, "quick (");
        let (slow_ns, slow) = of_function(&report, "slow (");
        assert!(quick_ns > 0.0, "{report}");
        assert!(quick > 300.0, "{quick} quick calls were timed");
        assert_share(slow, quick);
        // The number of calls is also an estimate.
        assert_slow(slow_ns, (SLOW + QUICK) * slow / (slow + quick));
        let all = &report["allocator_time"];
        assert_eq!(all["timed_calls"].as_f64(), Some(slow + quick), "{report}");
        assert!(all["alloc_ns"].as_f64() > Some(0.0), "{report}");
    });
}

/// Checks samples: large blocks are sampled more often, and have lower weights.
#[test]
fn samples_are_timed_and_weighed() {
    memhook_tests::patiently(|| {
        for options in [["--sample", "4K"], ["--overhead", "50%"]] {
            let report = run(&[&options[..], &["--by", "function"]].concat());
            let all = &report["allocator_time"];
            let timed = all["timed_calls"].as_f64().expect("a number");
            assert!(timed > 100.0, "{options:?}: {report}");
            // Slow allocations take nearly all of the time.
            let least = 0.5 * SLOW * WAIT_NS;
            assert!(
                all["alloc_ns"].as_f64() > Some(least),
                "{options:?}: {report}"
            );
        }
    });
}

#[test]
fn a_recording_keeps_it() {
    memhook_tests::patiently(|| {
        let folder = Folder::new("call-times");
        let file = folder.path("run.mhk");
        run(&["--on-full", "wait", "-o", &file]);
        let report = |options: &[&str]| {
            let base = ["report", &file, "--json", "--measure", "allocated"];
            let (code, out, err) = memhook(&[&base, options].concat());
            assert_eq!(code, 0, "{err}");
            serde_json::from_str::<Value>(&out).expect("JSON")
        };
        let report_all = report(&["--by", "function", "--sort", "time"]);
        let (slow_ns, timed) = of_function(&report_all, "slow (");
        assert_slow(slow_ns, SLOW);
        assert!(timed > 20.0);
        // A part of the run accounts for part of the time.
        let elapsed = report_all["elapsed_s"].as_f64().expect("seconds");
        let part = |sixteenths: f64| {
            let to = format!("{}s", elapsed * sixteenths / 16.0);
            let part = report(&["--by", "function", "--to", &to]);
            let rows = part["groups"].as_array().expect("groups").clone();
            let mut names = rows.iter().filter_map(|row| row["name"].as_str());
            // A part that ended before the work has no row.
            let has_row = names.any(|name| name.starts_with("slow ("));
            has_row.then(|| of_function(&part, "slow (").0)
        };
        // The middle of the run is outside the calls if the program, or the attacher, was suspended
        // before or after them. The test then tries other parts.
        let mut parts = [8.0, 4.0, 12.0, 2.0, 14.0, 1.0, 15.0, 15.6]
            .into_iter()
            .map(part);
        let is_a_part = |ns: Option<f64>| ns.is_some_and(|ns| ns > 0.0 && ns < slow_ns);
        assert!(parts.any(is_a_part), "no part of {slow_ns} ns");
        let (_, text, _) = memhook(&["report", &file, "--measure", "allocated"]);
        assert!(text.contains("in the allocator ("), "{text}");
    });
}

#[test]
fn two_draws_are_refused() {
    let target = Target::start(&build_target("timed_calls", &[]), &[]);
    let pid = target.pid().to_string();
    let folder = Folder::new("two-draws");
    let file = folder.path("run.mhk");
    let options = [
        "--alloc-time",
        "--access",
        "sampled",
        "-d",
        "1s",
        "-o",
        &file,
    ];
    let (code, _, said) = memhook(&[&["attach", &pid], &options[..]].concat());
    assert_eq!(code, 2, "{said}");
    assert!(
        said.contains("leave out --alloc-time or --access sampled"),
        "{said}"
    );
}
