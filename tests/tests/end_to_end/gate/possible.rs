//! Blocks that are reachable only through interior pointers: they are a class of their own, which
//! is compared with memcheck's verdict on the program.

use memhook_tests::programs::installed;
use memhook_tests::{JsonSchema, Target, build_target, run_with};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Blocks and bytes.
type Sum = (u64, u64);

/// Planted blocks: definitely lost, possibly lost.
const LOST: Sum = (2, 64 + 500);
const POSSIBLE: Sum = (6, 200 + 3 * 64 + 250 + 64);

/// Parses lines like `==1==    possibly lost: 1,234 bytes in 5 blocks`.
fn class(text: &str, name: &str) -> Sum {
    let line = text.lines().find(|line| line.contains(name));
    let words = line.into_iter().flat_map(str::split_whitespace);
    let numbers: Vec<u64> = words
        .filter_map(|word| word.replace(',', "").parse().ok())
        .collect();
    match numbers[..] {
        [bytes, blocks] => (blocks, bytes),
        _ => panic!("{name}: {text}"),
    }
}

fn by_memcheck(program: &Path) -> (Sum, Sum) {
    let output = Command::new(installed("valgrind"))
        .arg("--leak-check=full")
        .arg(program)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    let (direct, held) = (
        class(&text, "definitely lost:"),
        class(&text, "indirectly lost:"),
    );
    let lost = (direct.0 + held.0, direct.1 + held.1);
    (lost, class(&text, "possibly lost:"))
}

fn sum(value: &Value) -> Sum {
    let number = |name: &str| value[name].as_u64().unwrap_or_else(|| panic!("{value}"));
    (number("blocks"), number("bytes"))
}

#[test]
fn what_memcheck_calls_possibly_lost() {
    let program = build_target("possible", &["-O1", "-g"]);
    assert_eq!(by_memcheck(&program), (LOST, POSSIBLE));
    let program = program.to_string_lossy();
    let gate = |options: &[&str]| {
        let command = [&["gate"], options, &["--", &program]].concat();
        let (code, out, errors) = run_with(&command, &[]);
        (code, out, errors)
    };
    let json = |options: &[&str]| -> Value {
        let (_, out, errors) = gate(&[options, &["--json", "-"]].concat());
        serde_json::from_str(out.trim()).unwrap_or_else(|e| panic!("{e}: {out}{errors}"))
    };
    let (plain, shown) = (json(&[]), json(&["--show-possible"]));
    for verdict in [&plain, &shown] {
        assert_eq!(sum(&verdict["leaked"]), LOST, "{verdict}");
    }
    let reachable = |verdict: &Value| sum(&verdict["evidence"]["reachable"]);
    assert_eq!(
        reachable(&plain),
        reachable(&shown),
        "they are a part of it"
    );
    assert!(plain["evidence"]["possible"].is_null(), "{plain}");
    let rows = shown["evidence"]["possible"].as_array().expect("rows");
    let all = rows.iter().map(sum);
    let all = all.fold((0, 0), |(blocks, bytes), row| {
        (blocks + row.0, bytes + row.1)
    });
    assert_eq!(all, POSSIBLE, "{shown}");
    for row in rows {
        let site = row["site"].as_u64().expect("a number") as usize;
        let stack = shown["evidence"]["sites"][site]["stack"].to_string();
        assert!(stack.contains("plant"), "{stack}");
    }
    // Possibly lost blocks do not fail the gate.
    let (code, _, text) = gate(&["--show-possible", "--fail-on", "leaked > 1K"]);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("possibly lost, by malloc: only pointers into blocks reach them"),
        "{text}"
    );
    assert!(
        text.contains("of these possibly lost 706 B in 6 blocks"),
        "{text}"
    );
    let (_, sarif, _) = gate(&["--show-possible", "-o", "sarif=-"]);
    let sarif: Value = serde_json::from_str(&sarif).expect("JSON");
    JsonSchema::of_others("sarif-2.1.0").check(&sarif);
    let results = sarif["runs"][0]["results"].as_array().expect("results");
    let notes = results
        .iter()
        .filter(|r| r["ruleId"] == "memory-possibly-lost");
    assert!(notes.clone().count() == rows.len() && notes.clone().all(|n| n["level"] == "note"));
    let (_, junit, _) = gate(&["--show-possible", "-o", "junit=-"]);
    assert!(
        junit.contains("<system-out>") && junit.contains("possibly lost"),
        "{junit}"
    );
    assert!(!gate(&["-o", "junit=-"]).1.contains("possibly lost"));
}

#[test]
fn a_scan_lists_them() {
    let program = build_target("possible", &["-O1", "-g"]);
    let mut target = Target::start(&program, &["wait"]);
    target.go();
    target.expect("done");
    let pid = target.pid().to_string();
    let scan = |options: &[&str]| -> Value {
        let (code, out, errors) = run_with(&[&["scan", &pid, "--json"], options].concat(), &[]);
        assert_eq!(code, 0, "{errors}");
        serde_json::from_str(&out).expect("JSON")
    };
    let report = scan(&["--show-possible"]);
    assert_eq!(report["totals"]["leaked_blocks"], 2, "{report}");
    let possible = &report["possible"];
    assert_eq!(possible["blocks"].as_u64(), Some(POSSIBLE.0), "{report}");
    let (_, text, _) = run_with(&["scan", &pid, "--show-possible"], &[]);
    assert!(text.contains("in 6 blocks are possibly lost"), "{text}");
    assert!(scan(&[])["possible"].is_null());
    // The blocks were allocated before the trace.
    let attach = [
        "attach",
        &pid,
        "--duration",
        "0.2s",
        "--leaks",
        "--show-possible",
    ];
    let (code, text, errors) = run_with(&attach, &[]);
    assert_eq!(code, 0, "{errors}");
    let row = text.lines().find(|line| line.starts_with("P1 "));
    let is_told = row.is_some_and(|row| {
        row.contains("allocated before the attach") && row.contains("6 blocks possibly lost")
    });
    assert!(is_told, "{text}");
    target.finish();
}
