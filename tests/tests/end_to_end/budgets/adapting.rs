//! `--on-full adapt`, the default for a program that is already running. The rings fill up
//! repeatedly, and the true sums are known. In other modes the program waits, and every event is
//! counted.

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, Target, build_target, run, stop};
use serde_json::Value;

/// Number of runs. MEMHOOK_RUNS sets another number; the bounds hold for any number.
const RUNS: u32 = 6;

/// Figures from the target: allocations, their bytes, live blocks, their bytes.
pub type Truth = [f64; 4];

/// Runs a program that allocates faster than an attacher can record, with exactly these options.
fn trace_crowd(program: &[&str], options: &[&str]) -> (Value, Truth) {
    let (report, truth, _) = trace_crowd_by(program, options);
    (report, truth)
}

/// Does the work of `trace_crowd`, and also returns the final names of the attacher's threads.
pub fn trace_crowd_by(program: &[&str], options: &[&str]) -> (Value, Truth, Vec<String>) {
    trace(program, options, false)
}

/// Traces a crowd. The attacher may be stopped while the program allocates.
fn trace(program: &[&str], options: &[&str], is_stopped: bool) -> (Value, Truth, Vec<String>) {
    let mut target = Target::start(&build_target("crowd", &["-O2"]), program);
    let attacher = Attacher::start_plain(&target, options);
    if is_stopped {
        stop(attacher.pid());
    }
    target.go();
    let line = target.expect("done");
    attacher.signal(libc::SIGCONT);
    let threads = thread_names(attacher.pid());
    let report = attacher.finish();
    assert!(target.finish().success());
    assert_eq!(report["totals"]["lost_events"], 0, "{report}");
    let words: Vec<f64> = line
        .split_whitespace()
        .skip(2)
        .map(|word| word.parse().expect("a number"))
        .collect();
    (report, words.try_into().expect("four numbers"), threads)
}

fn thread_names(pid: u32) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
    let names = threads.filter_map(|thread| name(thread.ok()?).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

/// Runs eight threads with small rings.
fn crowd(more: &[&str]) -> (Value, Truth) {
    let options = ["--on-full", "adapt", "--set", "ring-size=64K"];
    trace_crowd(&[&["8", "100000"], more].concat(), &options)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// Upper bound for allocations of thread creation and of the C++ library. The program itself
/// allocates hundreds of megabytes.
const OTHER_BYTES: f64 = 100_000.0;

/// Compares the sums with the true values. Returns their deviations in standard errors, or nothing
/// if every event was counted.
pub fn check(report: &Value, [allocations, allocated, _, live]: Truth) -> Vec<f64> {
    let (totals, sampling) = (&report["totals"], &report["sampling"]);
    if sampling.is_null() {
        for (field, truth) in [("allocated_bytes", allocated), ("live_bytes", live)] {
            let found = number(&totals[field]);
            let exact = truth..=truth + OTHER_BYTES;
            assert!(exact.contains(&found), "{field}: {found} is not {truth}");
        }
        return Vec::new();
    }
    let (exact, samples) = (
        number(&sampling["exact_allocations"]),
        number(&sampling["recorded_allocations"]),
    );
    assert!(exact > 0.0 && samples > 0.0, "{sampling}");
    assert!(exact + samples < allocations, "{sampling} of {allocations}");
    let sums = [
        ("allocated_bytes", "allocated_error_bytes", allocated),
        ("live_bytes", "live_error_bytes", live),
    ];
    let deviation = |(field, error, truth): (&str, &str, f64)| {
        let (found, error) = (number(&totals[field]), number(&sampling[error]));
        let off = ((found - truth).abs() - OTHER_BYTES).max(0.0) / error.max(1.0);
        assert!(off <= 6.0, "{field}: {found} ± {error} instead of {truth}");
        off
    };
    sums.map(deviation).to_vec()
}

#[test]
fn sums_are_within_their_standard_errors() {
    memhook_tests::patiently(|| {
        let count = std::env::var("MEMHOOK_RUNS").map_or(RUNS, |n| n.parse().expect("a number"));
        let (mut sampled, mut squares, mut terms) = (0, 0.0, 0.0);
        for _ in 0..count {
            let (report, truth) = crowd(&[]);
            let deviations = check(&report, truth);
            sampled += u32::from(!deviations.is_empty());
            squares += deviations.iter().map(|d| d * d).sum::<f64>();
            terms += deviations.len() as f64;
        }
        assert!(sampled > 0, "no ring was nearly full in {count} runs");
        // Chi-squared per degree of freedom, for at least two degrees.
        let scatter = squares / terms;
        assert!(scatter < 12.0, "{terms} sums scatter {scatter:.1} times");
    });
}

/// Checks that a recording has the counts and estimates of the report.
#[test]
fn a_recording_has_the_weights_of_the_samples() {
    memhook_tests::patiently(|| {
        let folder = Folder::new("adapted");
        let name = folder.path("run.mhk");
        let mut sampled = 0;
        for _ in 0..3 {
            let options = [
                "--on-full",
                "adapt",
                "--set",
                "ring-size=64K",
                "--force",
                "-o",
                &name,
            ];
            let (report, truth) = trace_crowd(&["8", "100000"], &options);
            check(&report, truth);
            let (code, output, errors) = run(&["report", &name, "--json"]);
            assert_eq!(code, 0, "{errors}");
            let recorded: Value = serde_json::from_str(&output).expect("JSON");
            let mut sampling = report["sampling"].clone();
            if let Some(fields) = sampling.as_object_mut() {
                // A recording does not say when the first sample was taken.
                fields.remove("exact_s");
            }
            assert_eq!(sampling, recorded["sampling"]);
            sampled += u32::from(!report["sampling"].is_null());
            for field in ["allocated_bytes", "released_bytes", "live_bytes"] {
                // The sums are added up in a different order, and rounded.
                let [found, of_file] =
                    [&report, &recorded].map(|report| number(&report["totals"][field]));
                assert!(
                    (found - of_file).abs() <= 2.0,
                    "{field}: {found}, {of_file}"
                );
            }
        }
        assert!(sampled > 0, "no ring was nearly full");
    });
}

/// Checks that releases are matched with exactly the recorded blocks, whether exact or sampled.
#[test]
fn every_release_of_a_recorded_block_is_seen() {
    memhook_tests::patiently(|| {
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
    });
}

/// Checks that an attacher that gets no processor time leaves no gap: a ring that nobody empties
/// has space for the samples and releases of many more calls than it has slots.
#[test]
fn a_starved_attacher_leaves_no_gap() {
    let options = ["--on-full", "adapt", "--set", "ring-size=256K"];
    let (report, truth, _) = trace(&["0", "200000"], &options, true);
    assert_eq!(report["gaps"].as_array().map(Vec::len), Some(0), "{report}");
    assert!(
        !check(&report, truth).is_empty(),
        "the ring was not nearly full"
    );
}

/// Checks that nothing is estimated while the rings have space, and that the report does not
/// mention samples.
#[test]
fn a_quiet_program_is_counted_exactly() {
    let mut target = Target::start(&build_target("sampled", &[]), &[]);
    let options = ["--on-full", "adapt", "--set", "ring-size=64M"];
    let attacher = Attacher::start(&target, &options);
    let report = attacher.finish();
    assert!(report["sampling"].is_null(), "{report}");
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}

/// Checks that events that fit into a ring are counted exactly, even on a busy machine.
#[test]
fn a_burst_is_counted_exactly() {
    memhook_tests::patiently(|| {
        let (report, truth) = trace_crowd(&["1", "1000"], &["--on-full", "adapt"]);
        assert!(report["sampling"].is_null(), "{report}");
        check(&report, truth);
    });
}

#[test]
fn a_large_crowd_is_counted_or_estimated() {
    memhook_tests::patiently(|| {
        let (report, truth) = trace_crowd(&["16", "150000"], &["--on-full", "adapt"]);
        check(&report, truth);
    });
}

/// Checks that a running program does not wait for long, and that the first line of the report
/// explains the effect on the numbers.
#[test]
fn a_running_program_keeps_its_speed_by_default() {
    memhook_tests::patiently(|| {
        let folder = Folder::new("kept-speed");
        let name = folder.path("run.mhk");
        let mut sampled = 0;
        for output in [&[][..], &["-o", &name, "--force"], &["--stacks", "all"]] {
            let options = [&["--set", "ring-size=64K"], output].concat();
            let (report, truth) = trace_crowd(&["8", "100000"], &options);
            check(&report, truth);
            sampled += u32::from(!report["sampling"].is_null());
            if !report["sampling"].is_null() {
                assert!(number(&report["sampling"]["exact_s"]) > 0.0, "{report}");
            }
        }
        assert!(sampled > 0, "no ring was nearly full");
    });
}

/// Checks that the program waits if an option needs exact numbers or data that samples cannot
/// provide.
#[test]
fn all_is_counted_where_the_program_waits() {
    memhook_tests::patiently(|| {
        let folder = Folder::new("full-rings");
        let name = folder.path("run.mhk");
        let waiting = [
            &["--on-full", "wait"][..],
            &["--on-full", "wait", "-o", &name, "--force"],
            &["--scores"],
            &["--record", "summary", "-o", &name, "--force"],
        ];
        for options in waiting {
            let options = [&["--set", "ring-size=64K"], options].concat();
            let (report, truth) = trace_crowd(&["8", "50000"], &options);
            assert!(report["sampling"].is_null(), "{report}");
            assert!(check(&report, truth).is_empty());
        }
        let (code, output, errors) = run(&["report", &name, "--json"]);
        assert_eq!(code, 0, "{errors}");
        let report: Value = serde_json::from_str(&output).expect("JSON");
        assert!(report["sampling"].is_null(), "{report}");
    });
}
