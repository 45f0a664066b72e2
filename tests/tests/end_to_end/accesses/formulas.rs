//! Scores that users define by formulas, computed for a program with known reads and writes.

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, JsonSchema, Target, build_target, build_telling, run};
use serde_json::{Value, json};

const WASTE: &str = "--scores=waste = size * (1 - usage)";
const PER_READ: &str = "--scores=per_read = size / reads";

/// Results of `accessed.cc` for each function: unused bytes, and bytes per read.
const EXPECTED: [(&str, f64, Option<f64>); 7] = [
    ("whole", 0.0, Some(1.0)),
    ("part", 20.0 * 96.0, Some(128.0)),
    ("unread", 4096.0, None),
    ("unwritten", 1000.0, Some(1.0)),
    ("untouched", 15_000.0, None),
    ("live", 10_000.0, Some(20_000.0)),
    ("pausing", 0.0, Some(1.0)),
];

fn output(arguments: &[&str]) -> String {
    let (code, out, err) = run(arguments);
    assert_eq!(code, 0, "{arguments:?}: {err}");
    out
}

fn parsed(arguments: &[&str]) -> Value {
    serde_json::from_str(&output(arguments)).expect("JSON")
}

/// Returns the planted function of a site, if it is in the list above.
fn function(site: &Value) -> Option<&'static str> {
    let mut frames = site["stack"].as_array().expect("frames").iter();
    frames.find_map(|frame| {
        let name = frame["function"].as_str().unwrap_or_default();
        let mut all = EXPECTED.iter().map(|expected| expected.0);
        all.find(|known| *known == name.trim_end_matches("()"))
    })
}

fn check_sites(report: &Value) {
    let sites = report["sites"].as_array().expect("sites");
    let mut found = 0;
    for site in sites {
        let values = &site["custom_scores"];
        let Some(function) = function(site) else {
            // The module of this site does not report accesses.
            assert_eq!(values, &json!({"waste": null, "per_read": null}), "{site}");
            continue;
        };
        let expected = EXPECTED.iter().find(|expected| expected.0 == function);
        let (_, waste, per_read) = expected.expect("one of them");
        assert_eq!(
            values,
            &json!({"waste": waste, "per_read": per_read}),
            "{function}"
        );
        found += 1;
    }
    assert_eq!(found, EXPECTED.len(), "{report}");
    let summed = &report["custom_scores"];
    assert_eq!(summed[0]["name"], "waste");
    assert_eq!(summed[0]["formula"], "size * (1 - usage)");
    assert_eq!(summed[0]["sum"], 32_016.0);
    assert_eq!(summed[0]["known_sites"], 7);
    assert_eq!(summed[1]["sum"], 20_131.0);
    assert_eq!(summed[1]["mean"], 20_131.0 / 5.0);
    assert_eq!(summed[1]["known_sites"], 5);
}

/// Makes two recordings: one pass over all functions, and two passes.
fn recordings(folder: &Folder) -> [String; 2] {
    [("once.mhk", &[][..]), ("twice.mhk", &["-DTWICE"])].map(|(name, flags)| {
        let program = build_telling("g++", "accessed", flags);
        let file = folder.path(name);
        let program = program.to_str().expect("a plain path");
        output(&["run", "-o", &file, "--", program]);
        file
    })
}

#[test]
fn values_are_exact_sorted_and_compared() {
    let folder = Folder::new("formulas");
    let [once, twice] = recordings(&folder);
    let both = [WASTE, PER_READ];
    let of_report = [&["report", &once][..], &both].concat();
    let as_json = ["--json", "-T", "1000"];
    let report = parsed(&[&of_report[..], &as_json].concat());
    JsonSchema::load("report-1").check(&report);
    check_sites(&report);
    // The largest value comes first, and sites without a value come last.
    for name in ["waste", "per_read"] {
        let sorted = parsed(&[&of_report[..], &as_json, &["--sort", name]].concat());
        let sites = sorted["sites"].as_array().expect("sites").iter();
        let values: Vec<Option<f64>> = sites
            .map(|site| site["custom_scores"][name].as_f64())
            .collect();
        let known: Vec<f64> = values.iter().copied().flatten().collect();
        assert!(known.is_sorted_by(|a, b| a >= b), "{values:?}");
        assert!(
            values[known.len()..].iter().all(Option::is_none),
            "{values:?}"
        );
        assert!(known.len() < values.len(), "{values:?}");
    }
    let text = output(&of_report);
    for words in [
        "waste = size * (1 - usage): 32,016 in all, 4,573.714 a site on average, of 7 sites",
        "per_read -, waste 15,000",
        "per_read 20,000, waste 10,000",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // The second pass runs the same functions with different stacks.
    let of_diff = [&["diff", &once, &twice][..], &both].concat();
    let diff = parsed(&[&of_diff[..], &as_json].concat());
    JsonSchema::load("diff-1").check(&diff);
    let waste = &diff["custom_scores"][0];
    assert_eq!(
        (&waste["old"]["sum"], &waste["new"]["sum"], &waste["change"]),
        (&32_016.0.into(), &64_032.0.into(), &32_016.0.into())
    );
    let sites = diff["sites"].as_array().expect("sites");
    let of = |name: &str| {
        let mut all = sites.iter();
        let site = all.find(|site| function(site) == Some(name));
        &site.unwrap_or_else(|| panic!("no {name}: {diff}"))["custom_scores"]
    };
    let expected = json!({
        "waste": {"old": 1920.0, "new": 3840.0, "change": 1920.0},
        "per_read": {"old": 128.0, "new": 128.0, "change": 0.0},
    });
    assert_eq!(of("part"), &expected);
    let expected = json!({
        "waste": {"old": 15_000.0, "new": 30_000.0, "change": 15_000.0},
        "per_read": {"old": null, "new": null, "change": null},
    });
    assert_eq!(of("untouched"), &expected);
    let text = output(&of_diff);
    for words in [
        "waste = size * (1 - usage): 32,016 -> 64,032 (+32,016) in all",
        "per_read - -> -, waste 15,000 -> 30,000 (+15,000)",
        "per_read 128 -> 128 (±0), waste 1,920 -> 3,840 (+1,920)",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let page = folder.path("page.html");
    let of_view = [&["view", &twice, "-o", &page, "--diff", &once][..], &both].concat();
    output(&of_view);
}

#[test]
fn a_trace_has_them_at_its_end() {
    let program = build_telling("g++", "accessed", &[]);
    let mut target = Target::start(&program, &[]);
    let options = [WASTE, PER_READ];
    let attacher = Attacher::start(&target, &options);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    assert!(target.finish().success());
    JsonSchema::load("report-1").check(&report);
    let summed = &report["custom_scores"];
    assert_eq!(summed[0]["sum"], 32_016.0, "{report}");
    assert_eq!(summed[1]["known_sites"], 5, "{report}");
}

/// Checks that the time in the allocator is the sum of the rows.
#[test]
fn time_in_the_allocator_is_a_variable() {
    let folder = Folder::new("formulas-timed");
    let file = folder.path("run.mhk");
    let mut target = Target::start(&build_target("scores", &["-O1", "-g"]), &[]);
    let options = ["--alloc-time", "-o", &file, "--scores=cost = alloc_s"];
    let attacher = Attacher::start(&target, &options);
    target.go();
    target.expect("done");
    let last = attacher.finish();
    assert!(target.finish().success());
    assert_eq!(last["custom_scores"][0]["name"], "cost", "{last}");
    let words = ["report", &file, "--scores=cost = alloc_s * 1e9"];
    let report = parsed(&[&words[..], &["--json", "-T", "1000"]].concat());
    let sites = report["sites"].as_array().expect("sites").iter();
    let mut timed = 0;
    for site in sites {
        let (ns, cost) = (&site["alloc_ns"], &site["custom_scores"]["cost"]);
        assert_eq!(ns.is_null(), cost.is_null(), "{site}");
        if let (Some(ns), Some(cost)) = (ns.as_f64(), cost.as_f64()) {
            // The rows contain whole nanoseconds.
            assert!((ns - cost).abs() <= 0.51, "{site}");
            timed += 1;
        }
    }
    assert!(timed > 0, "{report}");
}

#[test]
fn what_is_wrong_is_said_in_one_line_with_the_column() {
    let folder = Folder::new("formulas-refused");
    let file = folder.path("silent.mhk");
    let mut target = Target::start(&build_target("scores", &["-O1", "-g"]), &[]);
    let attacher = Attacher::start(&target, &["-o", &file]);
    target.go();
    target.expect("done");
    attacher.finish();
    assert!(target.finish().success());
    let sums = folder.path("sums.mhk");
    output(&["run", "-o", &sums, "--record", "summary", "--", "/bin/true"]);
    let refused = |arguments: &[&str], words: &[&str]| {
        let (code, out, err) = run(arguments);
        assert_eq!(
            (code, out.as_str(), err.lines().count()),
            (2, "", 1),
            "{arguments:?}: {err}"
        );
        for word in words {
            assert!(err.contains(word), "{arguments:?}: {err}");
        }
    };
    for command in [
        &["report", &file][..],
        &["view", &file],
        &["diff", &file, &file],
    ] {
        let with = |formula: &str, words: &[&str]| {
            let option = format!("--scores={}", formula.trim_start_matches("--scores="));
            refused(&[command, &[&option]].concat(), words);
        };
        with(
            "waste = size * (1 - usge)",
            &["column 21: there is no variable 'usge'; the variables are size, blocks,"],
        );
        with("x = size / (1 - 1)", &["column 10: this divides by zero"]);
        with(
            WASTE,
            &[
                "waste: 'usage' (column 21) is not known",
                "--access sampled",
                "sdk",
            ],
        );
    }
    refused(
        &["report", &file, "--scores=a = size", "--scores=a = live"],
        &["two scores with the name a"],
    );
    refused(
        &["report", &file, "--scores=a = size", "--sort", "b"],
        &["--sort b: expected bytes, count, age, growth, time, score, or"],
    );
    refused(
        &["report", &file, "--scores=a = size", "--by", "thread"],
        &["leave --by out"],
    );
    refused(
        &["report", &file, "--scores=a = size", "--tree", "top-down"],
        &["--scores"],
    );
    refused(
        &["report", &file, "--sort", "a-b"],
        &["--sort a-b: expected"],
    );
    refused(
        &["view", &sums, "--scores=a = size"],
        &["sums of intervals"],
    );
    let json = folder.path("run.json");
    output(&[
        "report", &file, "--scores", "--json", "-T", "1000", "-o", &json,
    ]);
    refused(
        &["diff", &json, &file, "--scores=a = size"],
        &["compare recordings"],
    );
    let timed = "--scores=cost = alloc_s / blocks";
    refused(
        &["report", &file, timed],
        &["'alloc_s' (column 8) is not known", "--alloc-time"],
    );
    // The command is refused before any tracing.
    for access in ["off", "sampled"] {
        let options = ["--access", access, PER_READ, "--", "/bin/true"];
        refused(&[&["run"][..], &options].concat(), &["'reads' (column 19)"]);
    }
}
