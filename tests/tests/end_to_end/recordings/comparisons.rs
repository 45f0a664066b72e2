//! Comparisons of two runs.

use super::{json, output, record};
use memhook_tests::programs::Folder;
use memhook_tests::{build_target, run};
use serde_json::Value;

#[test]
fn a_planted_regression_comes_out_first() {
    let folder = Folder::new("recorded-diff");
    let (old, new) = (folder.path("old.mhk"), folder.path("new.mhk"));
    record(&build_target("regression", &["-g"]), &[], &old, &[]);
    let other = build_target("regression", &["-g", "-DOTHER_BUILD"]);
    record(&other, &["70"], &new, &[]);
    let diff = json(&["diff", &old, &new, "--json"]);
    let sites = diff["sites"].as_array().expect("sites");
    let name = |site: &Value| {
        site["stack"][0]["function"]
            .as_str()
            .unwrap_or("")
            .to_owned()
    };
    assert!(name(&sites[0]).starts_with("serve_request"), "{diff:#}");
    assert_eq!(sites[0]["fate"], "appeared");
    assert_eq!(sites[0]["change_bytes"], 70 * 300);
    let last = sites.last().expect("a site");
    assert!(name(last).starts_with("only_sometimes"), "{diff:#}");
    assert_eq!(
        (last["fate"].as_str(), last["change_bytes"].as_i64()),
        (Some("went"), Some(-40))
    );
    assert_eq!(sites.len(), 2, "fill_cache is the same in both: {diff:#}");
    let text = output(&["diff", &old, &new]);
    assert!(
        text.contains("#1 +20.5 KiB  serve_request  regression.cc:13  appeared"),
        "{text}"
    );
    // Conditions that a pipeline checks.
    for (expression, code) in [
        ("growth > 1K", 1),
        ("growth > 1G", 0),
        ("site growth > 20K", 1),
        ("site count > 1000", 0),
    ] {
        let (found, out, err) = run(&["diff", &old, &new, "--fail-on", expression]);
        assert_eq!(found, code, "{expression}: {err}");
        assert!(
            out.contains("#1 +20.5 KiB  serve_request  regression.cc:13  appeared"),
            "{out}"
        );
        assert_eq!(
            err.contains(&format!("memhook-rs: {expression}: ")),
            code == 1,
            "{err}"
        );
    }
    for bad in ["growth < 5%", "allocated > 5%"] {
        let (code, out, err) = run(&["diff", &old, &new, "--fail-on", bad]);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
    // A report of all sites contains the same data as its recording.
    let old_report = folder.path("old.json");
    output(&["report", &old, "--json", "-T", "1000", "-o", &old_report]);
    for pair in [[&*old_report, &new], [&old_report, &old]] {
        let from_report = json(&["diff", pair[0], pair[1], "--json"]);
        let expected = json(&["diff", &old, pair[1], "--json"]);
        // The report has no scores, so scores are not compared.
        assert!(
            from_report["sites"][0]["new_scores"].is_null(),
            "{from_report}"
        );
        assert_eq!(without_scores(&from_report), without_scores(&expected));
        assert_eq!(from_report["same_sites"], expected["same_sites"]);
    }
    let short = folder.path("short.json");
    output(&["report", &old, "--json", "-T", "1", "-o", &short]);
    let (code, out, err) = run(&["diff", &short, &new]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(
        err.contains("short.json: it lists only the 1 largest of"),
        "{err}"
    );
    assert_eq!(err.lines().count(), 1, "{err}");
    let allocated = json(&["diff", &old, &new, "--json", "--measure", "allocated"]);
    let changes = allocated["sites"].as_array().expect("sites");
    assert_eq!(changes.len(), 1, "the same requests: {allocated:#}");
}

/// Returns the sites of a comparison without their scores.
fn without_scores(difference: &Value) -> Vec<Value> {
    let mut sites = difference["sites"].as_array().expect("sites").clone();
    for site in sites.iter_mut().filter_map(Value::as_object_mut) {
        site.retain(|name, _| !name.ends_with("_scores"));
    }
    sites
}
