//! End-to-end tests of recordings: created together with a live report, moved elsewhere, and read
//! in every way.

mod carried_away;
mod comparisons;
mod exports;
mod names;
mod odd_input;
mod refusals;
mod sums;
mod types;
mod unreachable;
mod what_if;
mod who_frees;

use memhook_tests::{Attacher, Target, run};
use serde_json::Value;
use std::path::Path;

/// Runs memhook-rs, and returns its standard output.
fn output(args: &[&str]) -> String {
    let (code, out, err) = run(args);
    assert_eq!(code, 0, "{args:?}: {err}");
    out
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&output(args)).expect("JSON")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn sum(rows: &Value, field: &str) -> u64 {
    let rows = rows.as_array().expect("rows");
    rows.iter().map(|row| number(&row[field])).sum()
}

/// Returns bytes, blocks, allocating function and stack functions of each site, sorted.
fn sites(report: &Value) -> Vec<(u64, u64, String, Vec<String>)> {
    let rows = report["sites"].as_array().expect("sites");
    let mut sites: Vec<_> = rows
        .iter()
        .map(|site| {
            let frames = site["stack"].as_array().expect("a stack").iter();
            // Names may come from files that the live report could read and a later report cannot.
            let frames = frames.map(|frame| frame["offset"].to_string());
            let kind = site["kind"].as_str().expect("a kind").to_owned();
            (
                number(&site["bytes"]),
                number(&site["blocks"]),
                kind,
                frames.collect(),
            )
        })
        .collect();
    sites.sort();
    sites
}

/// Records a run of the program from "ready" to "done", and returns the live report.
fn record(program: &Path, args: &[&str], file: &str, options: &[&str]) -> Value {
    let mut target = Target::start(program, args);
    let attacher = Attacher::start(&target, &[&["-o", file], options].concat());
    target.go();
    target.expect("done");
    let report = attacher.finish();
    assert!(target.finish().success(), "the target's self-check");
    report
}
