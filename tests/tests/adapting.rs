//! `--on-full adapt`: rings that are nearly full, with sums that are known.

use memhook_tests::{Attacher, Target, build_target};
use serde_json::Value;

/// MEMHOOK_RUNS sets another number; the bounds hold for any.
const RUNS: u32 = 6;

/// Runs eight threads that allocate more than an attacher with small rings takes: the report, and what the
/// target says (allocations, their bytes, live blocks, their bytes).
fn crowd(more: &[&str]) -> (Value, [f64; 4]) {
    let program = build_target("crowd", &["-O2"]);
    let mut target = Target::start(&program, &[&["8", "100000"], more].concat());
    let options = ["--on-full", "adapt", "--ring-size", "64K"];
    let attacher = Attacher::start(&target, &options);
    target.go();
    let line = target.expect("done");
    let report = attacher.finish();
    assert!(target.finish().success());
    assert_eq!(report["totals"]["lost_events"], 0, "{report}");
    let words: Vec<f64> = line
        .split_whitespace()
        .skip(2)
        .map(|word| word.parse().expect("a number"))
        .collect();
    (report, words.try_into().expect("four numbers"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// Threads and what the C++ library has of its own are allocations, too: so many bytes beside the program's
/// hundreds of megabytes.
const OTHER_BYTES: f64 = 100_000.0;

#[test]
fn sums_are_within_their_standard_errors() {
    let count = std::env::var("MEMHOOK_RUNS").map_or(RUNS, |n| n.parse().expect("a number"));
    let (mut sampled, mut squares, mut terms) = (0, 0.0, 0.0);
    for _ in 0..count {
        let (report, [allocations, allocated, _, live]) = crowd(&[]);
        let (totals, sampling) = (&report["totals"], &report["sampling"]);
        if sampling.is_null() {
            // The attacher kept up: then all is exact.
            assert!(number(&totals["live_bytes"]) >= live, "{report}");
            continue;
        }
        sampled += 1;
        let (exact, samples) = (
            number(&sampling["exact_allocations"]),
            number(&sampling["recorded_allocations"]),
        );
        assert!(exact > 0.0 && samples > 0.0, "{sampling}");
        assert!(exact + samples < allocations, "{sampling} of {allocations}");
        for (field, error, truth) in [
            ("allocated_bytes", "allocated_error_bytes", allocated),
            ("live_bytes", "live_error_bytes", live),
        ] {
            let (found, error) = (number(&totals[field]), number(&sampling[error]));
            let off = (found - truth).abs();
            assert!(
                off <= 6.0 * error + OTHER_BYTES,
                "{field}: {found} ± {error} instead of {truth}"
            );
            let beyond = (off - OTHER_BYTES).max(0.0);
            squares += (beyond / error.max(1.0)).powi(2);
            terms += 1.0;
        }
    }
    assert!(sampled > 0, "no ring was nearly full in {count} runs");
    // Chi squared over its degrees of freedom, for at least two of them.
    let scatter = squares / terms;
    assert!(scatter < 12.0, "{terms} sums scatter {scatter:.1} times");
}

/// Whatever was recorded, exactly or as a sample, is matched by its release, and no other block is.
#[test]
fn every_release_of_a_recorded_block_is_seen() {
    for _ in 0..2 {
        let (report, _) = crowd(&["release"]);
        let work = report["sites"].as_array().expect("sites").iter();
        let live: f64 = work
            .filter(|site| site["stack"].to_string().contains("work("))
            .map(|site| number(&site["bytes"]))
            .sum();
        assert_eq!(live, 0.0, "{report}");
        assert_eq!(report["totals"]["unhooked_releases"], 0, "{report}");
    }
}

/// With room in the rings nothing is estimated, and the report says nothing of samples.
#[test]
fn a_quiet_program_is_counted_exactly() {
    let mut target = Target::start(&build_target("sampled", &[]), &[]);
    let options = ["--on-full", "adapt", "--ring-size", "64M"];
    let attacher = Attacher::start(&target, &options);
    let report = attacher.finish();
    assert!(report["sampling"].is_null(), "{report}");
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}
