//! `--sample`: estimates for a program with known blocks.

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, Target, build_target, run as memhook};
use serde_json::Value;
use std::collections::BTreeMap;

/// Mean bytes between samples: smaller than the large blocks, and much larger than the small
/// blocks.
const MEAN: &str = "8K";
/// Number of runs. MEMHOOK_RUNS sets another number; the bounds hold for any number.
const RUNS: u32 = 12;
/// Live blocks of each function of the target, and bytes per block.
const PLANTED: [(&str, u64, u64); 4] = [
    ("small", 100_000, 24),
    ("medium", 8_000, 500),
    ("large", 900, 9_000),
    ("huge", 5, 1_500_000),
];

#[derive(Default, Clone, Copy)]
struct Estimate {
    bytes: f64,
    blocks: f64,
    /// Squared standard error of the bytes.
    variance: f64,
}

fn estimates(report: &Value) -> BTreeMap<String, Estimate> {
    let mut found: BTreeMap<String, Estimate> = BTreeMap::new();
    for site in report["sites"].as_array().expect("sites") {
        let mut frames = site["stack"].as_array().expect("a stack").iter();
        let planting = frames.find(|frame| frame["inlined"] == false);
        let function = planting.and_then(|f| f["function"].as_str()).unwrap_or("?");
        let name = function.split('(').next().unwrap_or(function);
        let number = |field: &str| site[field].as_f64().expect("a number");
        let sum = found.entry(name.to_owned()).or_default();
        sum.bytes += number("bytes");
        sum.blocks += number("blocks");
        // A site without an error is exact, because no block could have been missed.
        let error = site["error_bytes"].as_f64().unwrap_or(0.0);
        sum.variance += error.powi(2);
    }
    found
}

fn run() -> BTreeMap<String, Estimate> {
    let mut target = Target::start(&build_target("sampled", &[]), &[]);
    let attacher = Attacher::start(&target, &["--sample", MEAN]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    assert!(target.finish().success());
    assert_eq!(report["totals"]["lost_events"], 0, "{report}");
    assert_eq!(report["sampling"]["mean_bytes"], 8192);
    estimates(&report)
}

/// The bounds are so wide that chance exceeds them less than once in a million runs of this test.
/// Forgotten releases, or weights that ignore the block's own size, exceed them every time.
#[test]
fn estimates_are_unbiased_and_their_errors_true() {
    memhook_tests::patiently(|| {
        let count = std::env::var("MEMHOOK_RUNS").map_or(RUNS, |n| n.parse().expect("a number"));
        let runs: Vec<_> = (0..count.max(RUNS)).map(|_| run()).collect();
        let mut squares = 0.0;
        let mut terms = 0.0;
        for (function, blocks, size) in PLANTED {
            let bytes = (blocks * size) as f64;
            let of_runs = runs.iter().map(|run| {
                let found = run.get(function).copied();
                found.unwrap_or_else(|| panic!("{function} is in no sample"))
            });
            let (mut sum, mut variance) = (0.0, 0.0);
            for estimate in of_runs {
                sum += estimate.bytes - bytes;
                variance += estimate.variance;
                let mean_size = estimate.bytes / estimate.blocks;
                assert!(
                    (mean_size / size as f64 - 1.0).abs() < 0.01,
                    "{function}: {mean_size} bytes a block"
                );
                if estimate.variance > 1.0 {
                    squares += (estimate.bytes - bytes).powi(2) / estimate.variance;
                    terms += 1.0;
                }
            }
            // Blocks that are practically always sampled have no error, and must be exact.
            if variance < 1.0 {
                assert_eq!(sum, 0.0, "{function}");
                continue;
            }
            let deviations = sum / variance.sqrt();
            assert!(
                deviations.abs() < 5.0,
                "{function}: the mean of {count} estimates is {deviations:.1} standard errors off"
            );
        }
        // The estimates scatter according to their standard errors: chi-squared per degree of
        // freedom.
        let scatter = squares / terms;
        assert!(
            (0.25..2.6).contains(&scatter),
            "the variance of {terms} estimates is {scatter:.2} times the stated variance"
        );
    });
}

/// Checks the totals, which estimate all allocated bytes, live or not.
#[test]
fn totals_are_estimates_of_everything() {
    memhook_tests::patiently(|| {
        for by in ["site", "function"] {
            check_totals(by);
        }
    });
}

fn check_totals(by: &str) {
    let mut target = Target::start(&build_target("sampled", &[]), &[]);
    let attacher = Attacher::start(&target, &["--sample", "1K", "--by", by]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    assert!(target.finish().success());
    let live: u64 = PLANTED.iter().map(|(_, blocks, size)| blocks * size).sum();
    for (field, bytes) in [("live_bytes", live), ("allocated_bytes", 2 * live)] {
        let found = report["totals"][field].as_f64().expect(field);
        let ratio = found / bytes as f64;
        // Nearly 9 of 19 live MB are in blocks that are always sampled. The standard error of the
        // rest is sqrt(mean * bytes), below one per cent.
        assert!((0.95..1.06).contains(&ratio), "{field} by {by}: {ratio}");
    }
}

/// Checks that a recording has the same errors as the live report, and that every view of it shows
/// that its numbers are estimates.
#[test]
fn views_of_a_recording_have_errors() {
    memhook_tests::patiently(|| {
        let folder = Folder::new("sampled");
        let file = folder.path("run.mhk");
        let mut target = Target::start(&build_target("sampled", &[]), &[]);
        let options = ["--sample", MEAN, "--stacks", "all", "-o", &file];
        let attacher = Attacher::start(&target, &options);
        target.go();
        target.expect("done");
        let live = attacher.finish();
        assert!(target.finish().success());
        let output = |args: &[&str]| {
            let (code, out, err) = memhook(args);
            assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
            out
        };
        let read = output(&["report", &file, "--json", "-T", "1000"]);
        let read: Value = serde_json::from_str(&read).expect("JSON");
        let (of_recording, of_attach) = (estimates(&read), estimates(&live));
        assert_eq!(of_recording.len(), of_attach.len());
        let mut variance = 0.0;
        for (name, estimate) in of_attach {
            let found = of_recording[&name].variance;
            // Each site is rounded separately.
            assert!(
                (found.sqrt() - estimate.variance.sqrt()).abs() < 5.0,
                "{name}"
            );
            variance += found;
        }
        let error = read["sampling"]["live_error_bytes"]
            .as_f64()
            .expect("an error");
        assert!((error / variance.sqrt() - 1.0).abs() < 0.01, "{error}");
        assert_eq!(read["measured"]["error_bytes"], error);
        let report = folder.path("run.json");
        output(&["report", &file, "--json", "-T", "1000", "-o", &report]);
        for args in [
            &["report", &file][..],
            &["report", &file, "--measure", "peak"],
            &["report", &file, "--by", "function"],
            &["report", &file, "--by", "size"],
            &["report", &file, "--by", "lifetime"],
            &["report", &file, "--tree", "top-down"],
            &["report", &file, "--who-frees"],
            &["report", &file, "-f", "flamegraph"],
            &["diff", &file, &file, "--measure", "allocated"],
            &["diff", &report, &file],
        ] {
            let text = output(args);
            assert!(text.contains(" ± "), "{args:?}: {text:.2000}");
            assert!(
                text.to_lowercase().contains("estimate"),
                "{args:?}: {text:.2000}"
            );
        }
        let page = output(&["report", &file, "-f", "massif"]);
        assert!(page.contains("estimated from samples"), "{page:.300}");
    });
}
