//! `--overhead`: records everything while that fits into the budget; otherwise, and at the very
//! start, it samples. The tests know the true sums.

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, Target, build_target, run};
use serde_json::Value;
use std::collections::BTreeMap;

/// Number of runs. MEMHOOK_RUNS sets another number; the bounds hold for any number.
const RUNS: u32 = 3;
/// Upper bound for allocations of the C++ library.
const OTHER_BYTES: f64 = 100_000.0;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// Runs the program with a changing rate and these options of `attach`. Returns the last report,
/// and the truth: allocations, their bytes, live blocks, their bytes.
fn trace(options: &[&str], program: &[&str]) -> (Value, [f64; 4]) {
    let target = Target::start(&build_target("changing_rate", &["-O1"]), program);
    let attacher = Attacher::start(&target, options);
    traced(target, attacher)
}

/// Lets the program do its work. Returns the last report, and the truth.
fn traced(mut target: Target, attacher: Attacher) -> (Value, [f64; 4]) {
    target.go();
    let line = target.expect("done");
    let report = attacher.finish();
    assert!(target.finish().success());
    assert_eq!(report["totals"]["lost_events"], 0, "{report}");
    let words = line.split_whitespace().skip(1);
    let truth: Vec<f64> = words.map(|word| word.parse().expect("a number")).collect();
    (report, truth.try_into().expect("four numbers"))
}

/// Returns the deviations of the sums in standard errors.
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

/// Checks that the intervals cover the time from the attach to the end, and that the mean of each
/// interval differs from that of the previous one.
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

/// Uses a budget that the program exceeds on any machine. Checks that the recorded share changes
/// several times, and that the sums stay within their standard errors.
#[test]
fn sums_are_within_their_standard_errors_though_the_rate_changes() {
    memhook_tests::patiently(|| {
        let count = std::env::var("MEMHOOK_RUNS").map_or(RUNS, |n| n.parse().expect("a number"));
        let (mut squares, mut terms, mut sampled) = (0.0, 0.0, 0);
        for round in 0..count {
            let stacks = ["1", "4096"][round as usize % 2];
            let (report, truth) = trace(&["--overhead", "0.5%"], &[stacks, "150000"]);
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
            assert_eq!(overhead["kept"][0]["mean_bytes"], 512 << 10);
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
        // Chi-squared per degree of freedom.
        assert!(
            squares / terms < 12.0,
            "{terms} sums scatter {:.1} times",
            squares / terms
        );
    });
}

/// Returns the live bytes of the program's own blocks, and the number of allocations.
fn own_bytes(report: &Value) -> f64 {
    let sites = report["sites"].as_array().expect("sites").iter();
    let own = sites.filter(|site| site["stack"].to_string().contains("\"allocate()"));
    own.map(|site| number(&site["bytes"])).sum()
}

/// Checks that live memory at the end is exact, not just within an error: memhook-rs sees the
/// releases of all recorded blocks and of no others, even after several refreshes of the live
/// filter, and with size filters. Otherwise estimates of live memory would be biased for any number
/// of samples.
#[test]
fn what_is_recorded_ends_with_its_own_release() {
    memhook_tests::patiently(|| {
        for filter in [&[][..], &["--size", "1.."]] {
            let options = [&["--overhead", "0.5%"], filter].concat();
            let (report, truth) = trace(&options, &["64", "20000", "3", "release"]);
            assert_eq!(truth[3], 0.0);
            assert!(!report["sampling"].is_null(), "{report}");
            assert_eq!(own_bytes(&report), 0.0, "{report}");
            assert_eq!(report["totals"]["unhooked_releases"], 0, "{report}");
            let (report, _) = trace(&options, &["64", "20000", "1"]);
            let totals = &report["totals"];
            let released = number(&totals["allocated_bytes"]) - number(&totals["live_bytes"]);
            assert!(released <= OTHER_BYTES, "{report}");
        }
    });
}

/// Checks that a recording has the weights of its samples.
#[test]
fn a_recording_has_the_sums_of_the_report() {
    memhook_tests::patiently(|| {
        let folder = Folder::new("overhead-recorded");
        let name = folder.path("run.mhk");
        for filter in [&[][..], &["--size", "1.."]] {
            let options = [&["--overhead", "0.5%", "--force", "-o", &name], filter].concat();
            let (report, truth) = trace(&options, &["64", "100000"]);
            deviations(&report, truth);
            let read = |words: &[&str]| {
                let (code, output, errors) = run(words);
                assert_eq!(code, 0, "{errors}");
                output
            };
            let json = |words: &[&str]| serde_json::from_str::<Value>(&read(words)).expect("JSON");
            let recorded = json(&["report", &name, "--json", "-T", "1000"]);
            agree(&report, &recorded);
            assert_eq!(report["overhead"], recorded["overhead"]);
            let sums = |report: &Value| -> BTreeMap<String, f64> {
                let sites = report["sites"].as_array().expect("sites").iter();
                let sums = sites.map(|site| (site["stack"].to_string(), number(&site["bytes"])));
                sums.filter(|(_, bytes)| *bytes > 0.0).collect()
            };
            let (live, found) = (sums(&report), sums(&recorded));
            assert_eq!(live.len(), found.len());
            for (stack, bytes) in live {
                assert!((bytes - found[&stack]).abs() <= 2.0, "{stack}: {bytes}");
            }
            let text = read(&["report", &name]);
            assert!(text.contains("of 0.5 %: exact for "), "{text}");
            assert!(
                text.contains("were all counted, and the others are estimated from"),
                "{text}"
            );
            let same = json(&["diff", &name, &name, "--json"]);
            // `diff` rounds each site separately.
            let (sum, bytes) = (
                number(&same["old"]["bytes"]),
                number(&recorded["totals"]["live_bytes"]),
            );
            assert!((sum - bytes).abs() <= 100.0, "{sum} and {bytes}");
            assert_eq!(
                same["old"]["error_bytes"],
                recorded["sampling"]["live_error_bytes"]
            );
            // The first and the second half of the run.
            let half = number(&recorded["elapsed_s"]) / 2.0;
            let until = json(&["report", &name, "--json", "--to", &format!("{half}s")]);
            let since = json(&["report", &name, "--json", "--from", &format!("{half}s")]);
            let allocated = |report: &Value| number(&report["totals"]["allocated_bytes"]);
            let together = allocated(&until) + allocated(&since);
            assert!((together - allocated(&recorded)).abs() <= 4.0, "{together}");
            read(&["view", &name, "--force", "-o", &folder.path("page.html")]);
            for (words, reason) in [
                (&["report", &name, "--scores"][..], "--overhead"),
                (&["gate", &name], "--overhead"),
            ] {
                let (code, _, errors) = run(words);
                assert_eq!(code, 2, "{errors}");
                assert!(errors.contains(reason), "{errors}");
            }
        }
    });
}

/// Compares the sums in the attacher's last report with the sums in its recording.
fn agree(report: &Value, recorded: &Value) {
    let (found, of_file) = (&report["totals"], &recorded["totals"]);
    for field in [
        "allocations",
        "allocated_bytes",
        "releases",
        "released_bytes",
        "live_blocks",
        "live_bytes",
    ] {
        // Sums are added up in another order, and rounded.
        let off = (number(&found[field]) - number(&of_file[field])).abs();
        assert!(
            off <= 2.0,
            "{field}: {} and {}",
            found[field],
            of_file[field]
        );
    }
    assert_eq!(report["sampling"], recorded["sampling"]);
}

#[test]
fn what_fits_is_exact() {
    memhook_tests::patiently(|| {
        let target = Target::start(&build_target("changing_rate", &["-O1"]), &["1", "100"]);
        let pid = target.pid().to_string();
        let mut attacher = Attacher::to(&[&pid, "-i", "1h", "--overhead", "50%", "-vv"]);
        attacher.wait_for("everything is recorded from here on");
        let (report, truth) = traced(target, attacher);
        assert!(report["sampling"].is_null(), "{report}");
        let kept = report["overhead"]["kept"].as_array().expect("times");
        assert!(
            kept.last().expect("a time")["mean_bytes"].is_null(),
            "{report}"
        );
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
    });
}

/// Checks the text of the report, and options that are refused before the process is touched.
#[test]
fn the_text_and_what_is_refused() {
    let mut target = Target::start(&build_target("changing_rate", &["-O1"]), &["1", "100"]);
    let pid = target.pid().to_string();
    let (code, output, errors) = run(&["attach", &pid, "--overhead", "2%", "-d", "2s"]);
    assert_eq!(code, 0, "{errors}");
    let line = output.lines().find(|line| line.starts_with("Overhead "));
    let line = line.unwrap_or_else(|| panic!("{output}"));
    assert!(line.contains(" of 2 %: exact for "), "{line}");
    assert!(
        line.ends_with(" to 1 in 512 KiB (3 changes, now exact)"),
        "{line}"
    );
    for (options, reason) in [
        (&["--overhead", "0"][..], "above 0% and up to 50%"),
        (&["--overhead", "51%"], "above 0% and up to 50%"),
        (
            &["--overhead", "1%", "--sample", "4K"],
            "with --overhead, leave --sample and --on-full adapt out",
        ),
        (
            &["--overhead", "1%", "--on-full", "adapt"],
            "with --overhead, leave --sample and --on-full adapt out",
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

/// Checks programs that memhook-rs starts, and a gate, which reports that some allocations are
/// missing.
#[test]
fn programs_that_are_started() {
    let program = build_target("changing_rate", &["-O1"]);
    let program = program.to_str().expect("UTF-8");
    let (code, _, errors) = run(&["run", "--overhead", "2%", program, "64", "1000"]);
    assert_eq!(code, 0, "{errors}");
    assert!(errors.contains(" of 2 %: "), "{errors}");
    let (code, output, errors) = run(&["gate", "--overhead", "0.1%", program, "64", "100000"]);
    let all = format!("{output}{errors}");
    assert_ne!(code, 0, "{all}");
    assert!(all.contains("not every allocation was recorded"), "{all}");
    let (code, _, errors) = run(&["gate", "--overhead", "1%", "--sample", "4K", program]);
    assert_eq!((code, errors.lines().count()), (2, 1), "{errors}");
}
