//! Types of blocks, in live traces and in recordings.

use super::{json, number, output, record, sum};
use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, JsonSchema, Target, build_target, run};
use serde_json::Value;

/// Returns the blocks and bytes of each type that `typed.cc` allocates.
fn types(report: &Value) -> Vec<(&str, u64, u64)> {
    assert_eq!(report["by"], "type");
    let rows = report["groups"].as_array().expect("rows").iter();
    let name = |row: &'_ &Value| row["name"].as_str() != Some("unknown");
    let mut types: Vec<_> = rows
        .filter(name)
        .map(|row| {
            let name = row["name"].as_str().expect("a name");
            (name, number(&row["blocks"]), number(&row["bytes"]))
        })
        .collect();
    types.sort_unstable();
    types
}

#[test]
fn blocks_have_types_by_templates_and_constructors() {
    let folder = Folder::new("typed");
    let file = folder.path("run.mhk");
    let mut target = Target::start(&build_target("typed", &["-O1", "-g"]), &[]);
    let attacher = Attacher::start(&target, &["--by", "type"]);
    target.go();
    target.expect("done");
    let live = attacher.finish();
    JsonSchema::load("report-1").check(&live);
    let of_templates = [
        ("shapes::Point", 1, 64 * 40),
        ("std::_List_node<shapes::Point>", 50, 50 * 56),
        (
            "std::_Rb_tree_node<std::pair<int const, shapes::Point>>",
            10,
            10 * 80,
        ),
    ];
    assert_eq!(types(&live), of_templates, "{live}");
    assert!(target.finish().success());

    let mut target = Target::start(&build_target("typed", &["-O1", "-g"]), &[]);
    let attacher = Attacher::start(&target, &["-o", &file]);
    target.go();
    target.expect("done");
    attacher.finish();
    let recorded = json(&["report", &file, "--by", "type", "--json"]);
    JsonSchema::load("report-1").check(&recorded);
    let mut all = of_templates.to_vec();
    // The result is not the type of the constructor's argument, although the argument's constructor
    // is called in between.
    all.insert(0, ("shapes::Circle", 100, 2400));
    assert_eq!(types(&recorded), all, "{recorded}");
    let total = sum(&recorded["groups"], "bytes");
    assert_eq!(total, number(&recorded["totals"]["live_bytes"]));
    for (pattern, expected) in [
        ("Point", &all[1..]),
        ("^shapes::", &all[..2]),
        ("^std::_*node<*Point>$", &all[2..3]),
    ] {
        let some = json(&["report", &file, "--by", "type", "--type", pattern, "--json"]);
        assert_eq!(types(&some), expected, "{pattern}: {some}");
    }
    let none = ["report", &file, "--by", "type", "--type", "Square"];
    let (code, _, errors) = run(&none);
    assert!(code == 2 && errors.contains("no block"), "{errors}");
    // A comparison of a recording with itself shows no change, and has the sums of the selected
    // types.
    let same = json(&["diff", &file, &file, "--type", "^shapes::Circle$", "--json"]);
    assert_eq!(number(&same["new"]["bytes"]), 2400, "{same}");
    assert_eq!(same["sites"].as_array().map(Vec::len), Some(0), "{same}");
    let same = json(&["diff", &file, &file, "--by", "type", "--json"]);
    JsonSchema::load("diff-1").check(&same);
    assert_eq!(
        (&same["by"], &same["types"]["rows"]),
        (&"type".into(), &serde_json::json!([]))
    );
    // In a page of selected types, all references lead to sites that are in the page.
    let page = folder.path("page.html");
    let (code, _, errors) = run(&["view", &file, "--type", "^shapes::", "-o", &page]);
    assert_eq!(code, 0, "{errors}");
    assert!(target.finish().success());
}

/// Checks a build that creates more circles at another call site, and is otherwise unchanged.
#[test]
fn differences_by_type() {
    let folder = Folder::new("typed-diff");
    let files = ["old.mhk", "new.mhk"].map(|name| folder.path(name));
    for (file, circles) in files.iter().zip(["-DCIRCLES=100", "-DCIRCLES=175"]) {
        record(
            &build_target("typed", &["-O1", "-g", circles]),
            &[],
            file,
            &[],
        );
    }
    let [old, new] = &files;
    let diff = json(&["diff", old, new, "--by", "type", "--json"]);
    JsonSchema::load("diff-1").check(&diff);
    let rows = diff["types"]["rows"].as_array().expect("rows");
    let circles = serde_json::json!({
        "name": "shapes::Circle", "fate": "grew", "old_bytes": 2400, "old_blocks": 100,
        "new_bytes": 4200, "new_blocks": 175, "change_bytes": 1800,
    });
    assert_eq!(rows, &[circles], "{diff:#}");
    assert!(number(&diff["types"]["same"]) >= 3, "{diff:#}");
    let text = output(&["diff", new, old, "--by", "type"]);
    let line = "-1.8 KiB shrank shapes::Circle: 4.1 KiB in 175 blocks -> 2.3 KiB in 100 blocks";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("1 type changed"), "{text}");
    // A report has no types, and scores apply to sites.
    let report = folder.path("old.json");
    output(&["report", old, "--json", "-T", "1000", "-o", &report]);
    for (arguments, why) in [
        (
            &["diff", report.as_str(), new, "--by", "type"][..],
            "which has no types",
        ),
        (
            &["diff", old, new, "--by", "type", "--scores"],
            "leave --by out",
        ),
    ] {
        let (code, out, errors) = run(arguments);
        assert_eq!(
            (code, out.as_str(), errors.lines().count()),
            (2, "", 1),
            "{errors}"
        );
        assert!(errors.contains(why), "{errors}");
    }
}
