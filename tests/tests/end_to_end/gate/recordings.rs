//! The gate judges recordings by every criterion except reachability.

use memhook_tests::programs::Folder;
use memhook_tests::{Target, build_target, run};

/// Records a running service.
fn record(folder: &Folder, kind: &str, options: &[&str]) -> String {
    record_for("3s", folder, kind, options)
}

fn record_for(duration: &str, folder: &Folder, kind: &str, options: &[&str]) -> String {
    let program = build_target("gate_service", &["-O1", "-g"]);
    let target = Target::start(&program, &[kind]);
    let (pid, file) = (
        target.pid().to_string(),
        folder.path(&format!("{kind}.mhk")),
    );
    let always = [
        "attach", "-q", "-p", &pid, "-d", duration, "--force", "-o", &file,
    ];
    let (code, _, err) = run(&[&always, options].concat());
    assert_eq!(code, 0, "{err}");
    file
}

fn gate(options: &[&str], file: &str) -> (i32, String, String) {
    run(&[&["gate"], options, &[file]].concat())
}

#[test]
fn growth_limits_and_baselines() {
    let folder = Folder::new("gate-recording");
    let baseline = folder.path("cache.json");
    let growth = ["--growth", "--warmup", "500ms"];
    // Records for longer if the service was suspended.
    let judged = |kind: &str, code: i32| {
        let mut tries = ["3s", "10s", "20s"]
            .into_iter()
            .map(|duration| record_for(duration, &folder, kind, &[]));
        let judged = tries.find(|file| [code, 1].contains(&gate(&growth, file).0));
        judged.unwrap_or_else(|| panic!("{kind}: no verdict {code}"))
    };
    let (cache, leak) = (judged("cache", 0), judged("leak", 1));
    let write = ["--write-baseline", &baseline];
    assert_eq!(gate(&write, &cache).0, 0);
    for (options, file, code, words) in [
        (&growth[..], &leak, 1, "grows: "),
        (&growth, &cache, 0, "PASSED: no site keeps growing"),
        (
            &["--fail-on", "live > 1K"],
            &cache,
            1,
            "live at the end 4.0 KiB",
        ),
        (
            &["--fail-on", "live > 1M"],
            &cache,
            0,
            "PASSED: within the limits",
        ),
        (&["--fail-on", "peak > 1K"], &cache, 1, "peak 4.0 KiB"),
        (
            &["--fail-on", "allocations > 100"],
            &cache,
            1,
            "allocations (limit 100)",
        ),
        (
            &["--fail-on", "site ^replace$ > 1K"],
            &cache,
            1,
            "sites of ^replace$ keep 3.9 KiB",
        ),
        (&["--fail-on", "site ^replace$ > 4K"], &cache, 0, "PASSED"),
        (&["--baseline", &baseline], &cache, 0, "in the baseline"),
        (
            &["--baseline", &baseline],
            &leak,
            1,
            "live at the end, by malloc",
        ),
    ] {
        let (is, out, err) = gate(options, file);
        assert_eq!(is, code, "{options:?} {file}: {out}{err}");
        assert!(out.contains(words), "{options:?} {file}: {out}");
        assert!(!out.contains("no leaks"), "{out}");
        assert!(out.contains("does not show what is reachable"), "{out}");
        let names_it = !out.contains("grows: ") || out.contains("keep_for_good");
        assert!(names_it, "{out}");
    }
}

#[test]
fn what_a_recording_cannot_answer_is_refused() {
    let folder = Folder::new("gate-refused");
    let whole = record(&folder, "leak", &[]);
    let live = ["--fail-on", "live > 1G"];
    let refused = |options: &[&str], file: &str, word: &str| {
        let (code, out, err) = gate(options, file);
        assert_eq!((code, out.as_str()), (2, ""), "{options:?}: {err}");
        assert!(
            err.contains(word) && err.lines().count() == 1,
            "{options:?}: {err}"
        );
    };
    refused(&[], &whole, "does not show what is reachable");
    refused(
        &["--fail-on", "leaked > 0"],
        &whole,
        "--fail-on leaked: a recording",
    );
    refused(
        &["--fail-on", "leaked-blocks > 0"],
        &whole,
        "--fail-on leaked-blocks: a recording",
    );
    refused(&["--growth", "--warmup", "1h"], &whole, "--warmup");
    // The file is truncated in the middle. The gate judges the rest, but the verdict is not
    // "passed".
    let bytes = std::fs::read(&whole).expect("recorded");
    let cut = folder.path("cut.mhk");
    std::fs::write(&cut, &bytes[..bytes.len() * 3 / 4]).expect("written");
    let (code, out, err) = gate(&live, &cut);
    assert_eq!(code, 3, "{out}{err}");
    assert!(out.contains("\nNO VERDICT"), "{out}");
    assert_eq!(gate(&["--fail-on", "live > 0"], &cut).0, 1);
    let sums = record(&folder, "leak", &["--record", "summary"]);
    refused(&live, &sums, "sums of intervals");
    let sampled = record(&folder, "leak", &["--sample", "1K"]);
    refused(&live, &sampled, "leaves allocations out");
    let large = record(&folder, "leak", &["--size", "70.."]);
    refused(&live, &large, "leaves allocations out");
}
