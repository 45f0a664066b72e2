//! Blocks that are unreachable at the end, in the rows of a recorded run and of its final report.

use super::{json, number, output, record};
use memhook_tests::programs::Folder;
use memhook_tests::{build_target, run};
use serde_json::Value;
use std::collections::BTreeMap;

/// Returns the unreachable bytes by function of the program.
fn by_function(report: &Value, field: &str) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for site in report["sites"].as_array().expect("sites") {
        let frames = site["stack"].as_array().expect("a stack").iter();
        let names = frames.filter_map(|f| f["function"].as_str()?.split('(').next());
        let mut own = names.filter(|n| n.starts_with("lose_") || n.starts_with("keep_"));
        let name = own.next_back().unwrap_or("").to_owned();
        *found.entry(name).or_default() += number(&site[field]);
    }
    found
}

/// Returns the blocks that the program leaks during the trace, and those that it keeps.
fn expected() -> BTreeMap<String, u64> {
    let sites = [
        ("keep_some", 0),
        ("lose_alone", 2000 * 72),
        ("lose_list", 40 * (16 + 30)),
        ("lose_pairs", 10 * 128),
    ];
    sites.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

#[test]
fn a_recording_knows_what_the_last_report_knows() {
    let folder = Folder::new("unreachable");
    let program = build_target("lost_while_traced", &[]);
    let file = folder.path("run.mhk");
    let live = record(&program, &[], &file, &["--leaks", "--stacks", "all"]);
    assert_eq!(by_function(&live, "unreachable_bytes"), expected());

    let recorded = json(&["report", &file, "--json", "-T", "100"]);
    assert_eq!(by_function(&recorded, "unreachable_bytes"), expected());
    assert_eq!(recorded["leaks"], live["leaks"]);

    let measured = json(&["report", &file, "--measure", "unreachable", "--json"]);
    let lost: u64 = expected().values().sum();
    assert_eq!(number(&measured["measured"]["bytes"]), lost);
    let mut only_lost = expected();
    only_lost.remove("keep_some");
    assert_eq!(by_function(&measured, "bytes"), only_lost);

    // Other kinds of rows also have this field.
    let threads = json(&["report", &file, "--by", "thread", "--json"]);
    let of_threads = threads["groups"].as_array().expect("rows").iter();
    let of_threads: u64 = of_threads
        .map(|row| number(&row["unreachable_bytes"]))
        .sum();
    assert_eq!(of_threads, lost);

    // A report up to an earlier time also shows what was leaked at the end of the run.
    let middle = recorded["elapsed_s"].as_f64().expect("seconds") / 2.0;
    let middle = format!("{}ms", (middle * 1e3).ceil());
    let early = output(&["report", &file, "--to", &middle]);
    assert!(
        early.contains("Leaked at the end of the run: 144.4 KiB"),
        "{early}"
    );

    // Text does not repeat the stack of an earlier row.
    let text = output(&["report", &file]);
    let row = text.lines().find(|line| line.contains("lose_alone"));
    let row = row.expect("its row");
    assert!(row.contains("140.6 KiB of it unreachable"), "{row}");
    let (rows, leaks) = text.split_once("Leaked:").expect("leaks");
    assert!(rows.contains("lose_alone"), "{text}");
    let leak = leaks.lines().find(|line| line.contains("lose_alone"));
    assert!(leak.is_some_and(|line| line.contains(" above")), "{leaks}");
    assert!(leaks.contains("allocated before the attach"), "{leaks}");
}

#[test]
fn one_function_can_be_asked_about() {
    let folder = Folder::new("focus");
    let program = build_target("lost_while_traced", &[]);
    let file = folder.path("run.mhk");
    record(&program, &[], &file, &["--leaks", "--stacks", "all"]);
    let asked = |focus: &str| json(&["report", &file, "--who-frees", "--json", "--focus", focus]);
    let lost = asked("^lose_alone");
    assert_eq!(number(&lost["blocks"]), 0, "{lost}");
    assert_eq!(number(&lost["live_bytes"]), 2000 * 72);
    assert_eq!(number(&lost["unreachable_bytes"]), 2000 * 72);
    let kept = asked("keep_some");
    assert_eq!(number(&kept["unreachable_bytes"]), 0);
    assert!(number(&kept["live_blocks"]) >= 300, "{kept}");
    let text = output(&["report", &file, "--who-frees", "--focus", "lose_alone"]);
    let words = "nothing was released, 140.6 KiB in 2,000 blocks live at the end, 140.6 KiB of it unreachable";
    assert!(text.contains(words), "{text}");
    let (code, _, err) = run(&["report", &file, "--focus", "no_such_function"]);
    assert_eq!(code, 2, "{err}");
    assert!(
        err.contains("no call stack") && err.contains("--by function"),
        "{err}"
    );
}

/// Checks that the command refuses a filter with an unknown name.
#[test]
fn no_filter_may_match_nothing() {
    let folder = Folder::new("filters");
    let program = build_target("lost_while_traced", &[]);
    let file = folder.path("run.mhk");
    record(&program, &[], &file, &["--leaks"]);
    let page = folder.path("run.html");
    let pattern = ["--type", "Sesion"];
    for command in [
        &["report", &file][..],
        &["report", &file, "--by", "type"],
        &["report", &file, "--tree", "bottom-up"],
        &["report", &file, "-f", "folded"],
        &["diff", &file, &file],
        &["view", &file, "-o", &page],
    ] {
        let (code, out, err) = run(&[command, &pattern].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{command:?}: {err}");
        assert!(
            err.contains("--type Sesion: no block in") && err.contains("--by type"),
            "{command:?}: {err}"
        );
    }
    let both = ["--focus", "lose_alone", "--type", "Sesion"];
    let (code, _, err) = run(&[&["report", &file][..], &both].concat());
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("fits both"), "{err}");
}

/// Checks that a comparison of equal runs reports no difference.
#[test]
fn a_run_is_no_better_than_itself() {
    let folder = Folder::new("itself");
    let program = build_target("lost_while_traced", &[]);
    let file = folder.path("run.mhk");
    record(&program, &[], &file, &[]);
    let text = output(&["diff", &file, &file, "--scores"]);
    assert!(text.contains("(the same)"), "{text}");
    assert!(
        !text.contains("better") && !text.contains("worse"),
        "{text}"
    );
}

/// Checks that the number is an estimate if allocations are sampled, and that runs without a search
/// are refused.
#[test]
fn samples_are_estimates_and_other_runs_are_refused() {
    let folder = Folder::new("unreachable-samples");
    let program = build_target("lost_while_traced", &[]);
    let file = folder.path("samples.mhk");
    record(&program, &[], &file, &["--leaks", "--sample", "1K"]);
    let report = json(&["report", &file, "--json", "-T", "100"]);
    let found = by_function(&report, "unreachable_bytes")["lose_alone"];
    // 2,000 blocks yield about 140 samples, so the standard error is about 1/12; six standard
    // errors are allowed.
    assert!(found.abs_diff(2000 * 72) < 2000 * 36, "{found}");
    let sites = report["sites"].as_array().expect("sites");
    let largest = sites
        .iter()
        .max_by_key(|site| site["unreachable_bytes"].as_u64());
    let error = largest.and_then(|site| site["unreachable_error_bytes"].as_u64());
    assert!(error > Some(0), "{report}");

    let file = folder.path("plain.mhk");
    record(&program, &[], &file, &[]);
    let (code, _, err) = run(&["report", &file, "--measure", "unreachable"]);
    assert_eq!(code, 2, "{err}");
    assert!(
        err.contains("was not searched for leaks") && err.contains("attach --leaks"),
        "{err}"
    );
}
