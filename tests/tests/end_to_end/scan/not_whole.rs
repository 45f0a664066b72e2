//! Scans that could not search everything say so first, and have a separate exit code.

use memhook_tests::{JsonSchema, Target, build_target, run};
use serde_json::Value;

/// Exit code of an incomplete scan.
const NOT_ALL: i32 = 3;

#[test]
fn damage_comes_first_and_is_no_success() {
    let target = Target::start(&build_target("damaged_heap", &[]), &[]);
    let pid = target.pid().to_string();
    let (code, text, err) = run(&["scan", &pid]);
    assert_eq!(code, NOT_ALL, "{text}{err}");
    let first = text.lines().next().unwrap_or_default();
    assert!(
        first.starts_with("NOT SEARCHED: the heap does not parse at "),
        "{text}"
    );
    // The heap does not change, so a second scan finds the same damage.
    assert!(text.contains(", damaged: "), "{text}");
    assert!(!text.contains("changed while it was read"), "{text}");
    let (code, text, err) = run(&["scan", &pid, "--json"]);
    assert_eq!(code, NOT_ALL, "{text}{err}");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    JsonSchema::load("scan-1").check(&json);
    assert_eq!(json["whole"], false);
    assert_eq!(json["findings"][0]["cause"], "damage", "{json}");
    assert_eq!(json["not_searched"].as_array().map(Vec::len), Some(1));
    for others in [&["--census"][..], &["--retained"]] {
        let (code, text, err) = run(&[&["scan", &pid], others].concat());
        assert_eq!(code, NOT_ALL, "{others:?}: {text}{err}");
    }
}

#[test]
fn a_heap_that_was_searched_whole_is_a_success() {
    let target = Target::start(&build_target("random_graph", &[]), &["7", "300"]);
    let pid = target.pid().to_string();
    let (code, text, err) = run(&["scan", &pid, "--json"]);
    assert_eq!(code, 0, "{text}{err}");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["not_searched"], serde_json::json!([]));
}
