//! `--overhead`: everything is recorded while that fits into the budget, and samples otherwise, whose sums are known.

use memhook_tests::{Attacher, Target, build_target, run};
use serde_json::Value;

/// MEMHOOK_RUNS sets another number; the bounds hold for any.
const RUNS: u32 = 3;
/// What the C++ library has of its own.
const OTHER_BYTES: f64 = 100_000.0;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// Runs the program whose rate changes, with this budget. The last report, and the truth: allocations, their bytes,
/// live blocks, their bytes.
fn trace(overhead: &str, program: &[&str]) -> (Value, [f64; 4]) {
    let mut target = Target::start(&build_target("changing_rate", &["-O1"]), program);
    let attacher = Attacher::start(&target, &["--overhead", overhead]);
    target.go();
    let line = target.expect("done");
    let report = attacher.finish();
    assert!(target.finish().success());
    assert_eq!(report["totals"]["lost_events"], 0, "{report}");
    let words = line.split_whitespace().skip(1);
    let truth: Vec<f64> = words.map(|word| word.parse().expect("a number")).collect();
    (report, truth.try_into().expect("four numbers"))
}

/// By how many standard errors the sums are off.
fn deviations(report: &Value, truth: [f64; 4]) -> [f64; 2] {
    let (totals, sampling) = (&report["totals"], &report["sampling"]);
    let sums = [
        ("allocated_bytes", "allocated_error_bytes", truth[1]),
        ("live_bytes", "live_error_bytes", truth[3]),
    ];
    sums.map(|(field, error, truth)| {
        let (found, error) = (number(&totals[field]), number(&sampling[error]));
        let off = ((found - truth).abs() - OTHER_BYTES).max(0.0) / error.max(1.0);
        assert!(off <= 6.0, "{field}: {found} ± {error} instead of {truth}");
        off
    })
}

/// The times follow each other from the attach to the end, and each is told apart from the one before.
fn check_kept(report: &Value) {
    let kept = report["overhead"]["kept"].as_array().expect("times");
    let mut end = 0.0;
    for (at, time) in kept.iter().enumerate() {
        assert_eq!(number(&time["from_s"]), end, "{kept:?}");
        end = number(&time["to_s"]);
        let mean = time["mean_bytes"].as_u64();
        assert!(mean.is_none_or(|mean| mean.is_power_of_two()), "{kept:?}");
        assert_eq!(at == 0, kept[..at].is_empty());
        assert!(
            at == 0 || kept[at - 1]["mean_bytes"] != time["mean_bytes"],
            "{kept:?}"
        );
    }
    assert!(end <= number(&report["elapsed_s"]));
}

/// A budget that any machine exceeds: what is recorded changes several times, and sums keep to their standard errors.
#[test]
fn sums_are_within_their_standard_errors_though_the_rate_changes() {
    let count = std::env::var("MEMHOOK_RUNS").map_or(RUNS, |n| n.parse().expect("a number"));
    let (mut squares, mut terms, mut sampled) = (0.0, 0.0, 0);
    for round in 0..count {
        let stacks = ["1", "4096"][round as usize % 2];
        let (report, truth) = trace("0.5%", &[stacks, "150000"]);
        for off in deviations(&report, truth) {
            squares += off * off;
            terms += 1.0;
        }
        check_kept(&report);
        let overhead = &report["overhead"];
        assert_eq!(overhead["budget"], 0.005);
        assert!(number(&overhead["timed_calls"]) > 0.0, "{overhead}");
        let parts = number(&overhead["in_process"]) + number(&overhead["in_attacher"]);
        assert!((number(&overhead["cost"]) - parts).abs() < 1e-9 && parts > 0.0);
        assert!(overhead["kept"][0]["mean_bytes"].is_null());
        let sampling = &report["sampling"];
        sampled += u32::from(!sampling.is_null());
        if !sampling.is_null() {
            let (exact, samples) = (
                number(&sampling["exact_allocations"]),
                number(&sampling["recorded_allocations"]),
            );
            assert!(
                exact > 0.0 && samples > 0.0 && exact + samples < truth[0],
                "{sampling}"
            );
        }
    }
    assert!(sampled > 0, "everything fitted into 0.5% in {count} runs");
    // Chi squared over its degrees of freedom.
    assert!(
        squares / terms < 12.0,
        "{terms} sums scatter {:.1} times",
        squares / terms
    );
}

#[test]
fn what_fits_is_exact() {
    let (report, truth) = trace("50%", &["1", "100"]);
    assert!(report["sampling"].is_null(), "{report}");
    assert_eq!(report["overhead"]["kept"].as_array().map(Vec::len), Some(1));
    let allocated = number(&report["totals"]["allocated_bytes"]);
    assert!(
        (truth[1]..=truth[1] + OTHER_BYTES).contains(&allocated),
        "{report}"
    );
    let live = number(&report["totals"]["live_bytes"]);
    assert!(
        (truth[3]..=truth[3] + OTHER_BYTES).contains(&live),
        "{report}"
    );
}

/// In the text, and refused before anything is touched.
#[test]
fn the_text_and_what_is_refused() {
    let mut target = Target::start(&build_target("changing_rate", &["-O1"]), &["1", "100"]);
    let pid = target.pid().to_string();
    let (code, output, errors) = run(&["attach", &pid, "--overhead", "2%", "-d", "200ms"]);
    assert_eq!(code, 0, "{errors}");
    let line = output.lines().find(|line| line.starts_with("Overhead "));
    let line = line.unwrap_or_else(|| panic!("{output}"));
    assert!(line.ends_with(" of 2 %: exact"), "{line}");
    for (options, reason) in [
        (&["--overhead", "0"][..], "above 0% and up to 50%"),
        (&["--overhead", "51%"], "above 0% and up to 50%"),
        (
            &["--overhead", "1%", "--sample", "4K"],
            "leave the other out",
        ),
        (
            &["--overhead", "1%", "--on-full", "adapt"],
            "leave the other out",
        ),
    ] {
        let (code, _, errors) = run(&[&["attach", &pid], options].concat());
        assert_eq!(code, 2, "{errors}");
        assert!(errors.contains(reason), "{errors}");
    }
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}
