//! End-to-end tests of scores and inferences, for a program with one function for each pattern.

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, JsonSchema, Target, build_target, run};
use serde_json::Value;

/// Traces `scores.cc` from "ready" to "done", and returns the last report.
fn traced(options: &[&str]) -> Value {
    let mut target = Target::start(&build_target("scores", &["-O1", "-g"]), &[]);
    let attacher = Attacher::start(&target, options);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    assert!(target.finish().success());
    report
}

fn json(arguments: &[&str]) -> Value {
    let (code, out, err) = run(arguments);
    assert_eq!(code, 0, "{arguments:?}: {err}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{arguments:?}: {e}: {out}"))
}

/// Returns the planted function of a stack.
fn planted(stack: &Value) -> String {
    const PLANTED: [&str; 9] = [
        "looped", "grown", "chained", "doubled", "in_turns", "listed", "kept", "few", "reserved",
    ];
    let frames = stack.as_array().expect("frames").iter();
    let mut functions = frames.filter_map(|frame| frame["function"].as_str());
    let found = functions.find(|function| PLANTED.contains(&function.trim_end_matches("()")));
    found
        .map_or("other", |function| function.trim_end_matches("()"))
        .to_owned()
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// Returns the lifetime score of a function, from a report of all sites.
fn lifetime(report: &Value, function: &str) -> f64 {
    let sites = report["sites"].as_array().expect("sites").iter();
    let mut sites = sites.filter(|site| planted(&site["stack"]) == function);
    let site = sites
        .next()
        .unwrap_or_else(|| panic!("no site {function}: {report}"));
    assert!(sites.next().is_none(), "two sites {function}");
    number(&site["scores"]["lifetime"])
}

#[test]
fn sites_and_runs_are_scored() {
    let folder = Folder::new("scores");
    let file = folder.path("run.mhk");
    traced(&["-o", &file]);
    let schema = JsonSchema::load("report-1");
    let report = json(&["report", &file, "--scores", "--json", "-T", "1000"]);
    schema.check(&report);
    // A long-lived block has the best score, and so does a block that is alone.
    let kept = lifetime(&report, "kept");
    assert!(kept > 0.9, "{kept}");
    assert_eq!(lifetime(&report, "reserved"), 1.0);
    // Each of 200 blocks that replace each other lives for at most one of two hundred steps. If the
    // run was interrupted, there are several groups.
    assert!(lifetime(&report, "chained") < 0.5);
    assert!(lifetime(&report, "listed") > 0.5);
    // Unknown values are null everywhere.
    let sites = report["sites"].as_array().expect("sites");
    for scores in sites
        .iter()
        .map(|site| &site["scores"])
        .chain([&report["scores"]])
    {
        assert_eq!(
            (&scores["usage"], &scores["useful_lifetime"]),
            (&Value::Null, &Value::Null)
        );
    }
    // Score of the whole run: geometric mean and variance of the sites' values.
    let all: Vec<f64> = sites
        .iter()
        .map(|site| number(&site["scores"]["lifetime"]))
        .collect();
    assert_eq!(report["scores"]["sites"].as_u64(), Some(all.len() as u64));
    let count = all.len() as f64;
    let mean = (all.iter().map(|score| score.ln()).sum::<f64>() / count).exp();
    assert!((number(&report["scores"]["lifetime"]) - mean).abs() < 1e-9);
    let average = all.iter().sum::<f64>() / count;
    let variance = all
        .iter()
        .map(|score| (score - average).powi(2))
        .sum::<f64>()
        / count;
    assert!((number(&report["scores"]["variance"]["lifetime"]) - variance).abs() < 1e-9);
    // With one group for the whole run, the loop gets the worst possible score.
    let arguments = [
        "report",
        &file,
        "--scores=group=100%",
        "--json",
        "-T",
        "1000",
    ];
    let one_group = json(&arguments);
    assert!(lifetime(&one_group, "looped") < 0.001);
    assert!(lifetime(&one_group, "kept") > 0.9);
    // The worst score comes first.
    let arguments = [
        "report", &file, "--scores", "--sort", "score", "--json", "-T", "1000",
    ];
    let sorted = json(&arguments);
    let sites = sorted["sites"].as_array().expect("sites").iter();
    let order: Vec<f64> = sites
        .map(|site| number(&site["scores"]["lifetime"]))
        .collect();
    assert!(order.is_sorted(), "{order:?}");

    let (code, text, err) = run(&["report", &file, "--scores"]);
    assert_eq!(code, 0, "{err}");
    for words in [
        "Scores from 0 (worst) to 1 (best): lifetime 0.",
        "usage unknown",
        "sdk",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let (_, without, _) = run(&["report", &file]);
    assert!(!without.contains("Scores from"), "{without}");
}

#[test]
fn each_planted_pattern_is_found_and_no_other() {
    let folder = Folder::new("inferences");
    let file = folder.path("run.mhk");
    traced(&["-o", &file]);
    let report = json(&["report", &file, "--scores", "--json"]);
    let inferences = report["inferences"].as_array().expect("inferences");
    let mut found: Vec<(String, String)> = inferences
        .iter()
        .map(|one| {
            (
                planted(&one["stack"]),
                one["kind"].as_str().expect("a kind").to_owned(),
            )
        })
        .filter(|(_, kind)| !kind.starts_with("top_"))
        .collect();
    found.sort();
    let expected = [
        ("chained", "growing_run"),
        ("grown", "growing_run"),
        // Two call sites of one chain.
        ("in_turns", "growing_run"),
        ("in_turns", "growing_run"),
        ("listed", "many_small_blocks"),
        ("looped", "short_lived_in_loop"),
    ];
    let expected = expected.map(|(function, kind)| (function.to_owned(), kind.to_owned()));
    assert_eq!(found, expected);
    let of = |function: &str| {
        let mut all = inferences.iter();
        let found = all.find(|one| planted(&one["stack"]) == function && one["advice"] != "");
        found.unwrap_or_else(|| panic!("nothing about {function}"))
    };
    // Twenty vectors outgrew 4, 8, ..., 2048 bytes each, and the chain outgrew 100, 200, ...,
    // 19,900.
    let grown = &of("grown")["gain"];
    assert_eq!(grown["calls"], 2 * 20 * 10);
    assert_eq!(grown["copied_bytes"], 20 * (4096 - 4));
    let chained = &of("chained")["gain"];
    assert_eq!(chained["calls"], 2 * 199);
    assert_eq!(
        chained["copied_bytes"],
        (1..200).map(|n| 100 * n).sum::<u64>()
    );
    // A node of 24 bytes has a header of eight bytes.
    let listed = &of("listed")["gain"];
    assert_eq!(
        (&listed["bytes"], &listed["calls"]),
        (&24_000.into(), &6000.into())
    );
    // One of the 5000 blocks would suffice for each burst. The first and the last block may be
    // separate bursts.
    let calls = of("looped")["gain"]["calls"].as_u64().expect("calls");
    assert!((2 * 4000..2 * 5000).contains(&calls), "{calls}");
    let evidence = of("looped")["evidence"].as_str().expect("text");
    assert!(
        evidence.contains("at most 1 of them live at a time"),
        "{evidence}"
    );
    let top: Vec<String> = inferences
        .iter()
        .filter(|one| one["kind"] == "top_blocks")
        .map(|one| planted(&one["stack"]))
        .collect();
    assert_eq!(top, ["looped"]);
}

#[test]
fn a_trace_is_scored_at_its_end() {
    let report = traced(&["--scores"]);
    JsonSchema::load("report-1").check(&report);
    assert!(number(&report["scores"]["lifetime"]) > 0.0);
    assert!(lifetime(&report, "kept") > 0.9);
    let inferences = report["inferences"].as_array().expect("inferences").iter();
    let mut kinds: Vec<_> = inferences.filter_map(|one| one["kind"].as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert!(
        kinds.contains(&"growing_run") && kinds.contains(&"short_lived_in_loop"),
        "{kinds:?}"
    );
    // The command removes its temporary recording.
    let left = std::fs::read_dir(std::env::temp_dir())
        .expect("it is there")
        .flatten();
    let is_ours = |name: &str| name.starts_with(".memhook-scores-");
    let left: Vec<_> = left
        .filter(|entry| entry.file_name().to_str().is_some_and(is_ours))
        .collect();
    let lives = |name: &str| {
        let owner = name.split('-').nth(2).unwrap_or_default();
        std::path::Path::new("/proc").join(owner).exists()
    };
    // Another attacher may have just removed its recording.
    let orphans = left
        .iter()
        .filter(|entry| !lives(&entry.file_name().to_string_lossy()) && entry.path().exists());
    assert_eq!(orphans.count(), 0, "{left:?}");
}

#[test]
fn differences_and_gates_look_at_scores() {
    let folder = Folder::new("scores-compared");
    let [bad, good] = ["bad.mhk", "good.mhk"].map(|name| folder.path(name));
    traced(&["-o", &bad]);
    let mut target = Target::start(&build_target("leaks", &[]), &[]);
    let attacher = Attacher::start(&target, &["-o", &good]);
    target.go();
    target.expect("done");
    attacher.finish();
    assert!(target.finish().success());
    let score =
        |file: &str| number(&json(&["report", file, "--scores", "--json"])["scores"]["lifetime"]);
    let (old, new) = (score(&bad), score(&good));
    let diff = json(&["diff", &bad, &good, "--scores", "--json", "-T", "1000"]);
    JsonSchema::load("diff-1").check(&diff);
    assert_eq!(number(&diff["scores"]["old"]["lifetime"]), old);
    assert_eq!(number(&diff["scores"]["new"]["lifetime"]), new);
    assert!((number(&diff["scores"]["change"]["lifetime"]) - (new - old)).abs() < 1e-12);
    let (code, text, err) = run(&["diff", &bad, &bad]);
    assert_eq!(code, 0, "{err}");
    assert!(text.contains("(the same), usage unknown"), "{text}");
    let reports = [(&bad, "bad.json"), (&good, "good.json")].map(|(file, name)| {
        let path = folder.path(name);
        let (code, _, err) = run(&[
            "report", file, "--scores", "--json", "-T", "1000", "-o", &path,
        ]);
        assert_eq!(code, 0, "{err}");
        path
    });
    let of_reports = json(&["diff", &reports[0], &reports[1], "--scores", "--json"]);
    // Writing and reading a number may change its last bit.
    for run in ["old", "new", "change"] {
        let lifetime = |diff: &Value| number(&diff["scores"][run]["lifetime"]);
        assert!(
            (lifetime(&of_reports) - lifetime(&diff)).abs() < 1e-12,
            "{run}"
        );
    }
    for run in ["old", "new"] {
        let sites = |diff: &Value| diff["scores"][run]["sites"].clone();
        assert_eq!(sites(&of_reports), sites(&diff));
    }

    // The scores of every run of the program are between these two limits.
    let schema = JsonSchema::load("gate-1");
    let (code, out, err) = run(&[
        "gate",
        "--fail-on",
        "lifetime-score < .0001",
        "--json=-",
        &bad,
    ]);
    assert_eq!(code, 0, "{err}");
    let verdict: Value = serde_json::from_str(&out).expect("JSON");
    schema.check(&verdict);
    assert_eq!(number(&verdict["evidence"]["scores"]["lifetime"]), old);
    let (code, out, err) = run(&["gate", "--fail-on", "lifetime-score < .9", &bad]);
    assert_eq!(code, 1, "{out}{err}");
    assert!(
        out.contains("lifetime score 0.") && out.contains("(limit 0.9)"),
        "{out}"
    );
    let (code, _, err) = run(&["gate", "--fail-on", "usage-score < .6", &bad]);
    assert_eq!((code, err.lines().count()), (2, 1), "{err}");
    assert!(
        err.contains("--fail-on usage-score") && err.contains("sdk"),
        "{err}"
    );
}

/// A gate that starts a program records it for its score.
#[test]
fn a_started_program_is_held_to_its_score() {
    let program = build_target("scores", &["-O1", "-g"]);
    let program = program.to_str().expect("text");
    let leaks = [
        "--fail-on",
        "leaked > 1G",
        "--fail-on",
        "leaked-blocks > 1000000",
    ];
    for (limit, code, words) in [
        ("lifetime-score < .0001", 0, "PASSED"),
        ("lifetime-score < .9", 1, "(limit 0.9)"),
    ] {
        let arguments = [&["gate", "--fail-on", limit], &leaks[..], &[program]].concat();
        let (is, out, err) = run(&arguments);
        assert_eq!(is, code, "{out}{err}");
        assert!(
            err.contains(words) && err.contains("lifetime score 0."),
            "{err}"
        );
    }
}

#[test]
fn what_cannot_be_scored_is_refused() {
    let folder = Folder::new("scores-refused");
    let refused = |arguments: &[&str], word: &str| {
        let (code, out, err) = run(arguments);
        assert_eq!(
            (code, out.as_str(), err.lines().count()),
            (2, "", 1),
            "{arguments:?}: {err}"
        );
        assert!(err.contains(word), "{arguments:?}: {err}");
    };
    let [sums, samples] = ["sums.mhk", "samples.mhk"].map(|name| folder.path(name));
    traced(&["-o", &sums, "--record", "summary"]);
    traced(&["-o", &samples, "--sample", "1K"]);
    for command in ["report", "diff"] {
        for (file, word) in [
            (&sums, "sums of intervals"),
            (&samples, "samples of the allocations"),
        ] {
            let files: &[&str] = if command == "diff" {
                &[file, file]
            } else {
                &[file]
            };
            refused(&[&[command], files, &["--scores"]].concat(), word);
        }
    }
    let whole = folder.path("whole.mhk");
    traced(&["-o", &whole]);
    refused(
        &["report", &whole, "--scores", "--by", "thread"],
        "leave --by out",
    );
    refused(&["report", &whole, "--sort", "score"], "add --scores");
    refused(
        &["report", &whole, "--scores", "-f", "folded"],
        "text and JSON",
    );
    refused(&["report", &whole, "--scores=group=0"], "more than 0 %");
    refused(
        &["gate", "--fail-on", "lifetime-score < 2", &whole],
        "from 0 to 1",
    );
    let target = Target::start(&build_target("scores", &["-O1", "-g"]), &[]);
    let pid = target.pid().to_string();
    refused(
        &["attach", &pid, "-d", "1s", "--scores", "--sample", "1K"],
        "leave --sample out",
    );
    refused(
        &["attach", &pid, "-d", "1s", "--scores", "--follow-fork"],
        "add -o FILE.mhk",
    );
    refused(
        &["gate", "-p", &pid, "--fail-on", "lifetime-score < .5"],
        "--duration",
    );
}

/// In correct programs of the distribution, all findings are true, or there are none.
#[test]
fn plain_programs_raise_no_alarm() {
    let folder = Folder::new("scores-plain");
    for (number, program) in [
        &["true"][..],
        &["ls", "/"],
        &["cat", "/etc/passwd"],
        &["uname", "-a"],
        &["env"],
    ]
    .iter()
    .enumerate()
    {
        let file = folder.path(&format!("{number}.mhk"));
        let (code, _, err) = run(&[&["run", "-q", "-o", &file, "--"], *program].concat());
        assert_eq!(code, 0, "{program:?}: {err}");
        let report = json(&["report", &file, "--scores", "--json"]);
        let inferences = report["inferences"].as_array().expect("inferences").iter();
        let alarms: Vec<_> = inferences.filter(|one| one["advice"] != "").collect();
        assert!(alarms.is_empty(), "{program:?}: {alarms:?}");
    }
}
