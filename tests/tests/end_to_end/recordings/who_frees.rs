//! Checks that every allocating and releasing stack is known and correct when threads pass blocks
//! to each other.

use super::{json, number, record};
use memhook_tests::build_target;
use memhook_tests::programs::Folder;
use serde_json::Value;
use std::collections::BTreeSet;

/// Behaviour of the target: allocating and releasing functions.
const PAIRS: [(&str, &str); 5] = [
    ("new_request", "end_request"),
    ("new_answer", "end_answer"),
    ("new_temporary", "end_temporary"),
    ("new_buffer", "grown_buffer"),
    ("grown_buffer", "end_buffer"),
];

/// Returns the target's own function on a stack, without its scope and parameters.
fn function(stack: &Value) -> String {
    let mut frames = stack.as_array().expect("a stack").iter();
    let is_ours = |frame: &&Value| {
        let module = frame["module"].as_str();
        module.is_some_and(|module| module.starts_with("handed_over"))
    };
    let name = frames.find(is_ours).and_then(|f| f["function"].as_str());
    let name = name.unwrap_or_default().split("::").last();
    let name = name.and_then(|name| name.split('(').next());
    name.unwrap_or_default().to_owned()
}

fn every_release_is_known(threads: u32, rounds: u32) {
    let folder = Folder::new(&format!("who-frees-{threads}"));
    let program = build_target("handed_over", &["-O1", "-pthread"]);
    let file = folder.path("run.mhk");
    let arguments = [threads.to_string(), rounds.to_string()];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let live = record(&program, &arguments, &file, &["--stacks", "all"]);
    assert_eq!(number(&live["totals"]["lost_events"]), 0);

    let freed = json(&["report", &file, "--who-frees", "--json", "-T", "100000"]);
    assert_eq!(freed["bytes"], live["totals"]["released_bytes"]);
    let pairs = freed["pairs"].as_array().expect("pairs");
    let unknown: Vec<&Value> = pairs.iter().filter(|pair| pair["kind"] == "").collect();
    assert!(unknown.is_empty(), "{threads} threads: {unknown:#?}");
    let own = |pair: &Value| {
        (
            function(&pair["allocated_by"]),
            function(&pair["released_by"]),
        )
    };
    let found: BTreeSet<_> = pairs
        .iter()
        .map(own)
        .filter(|(allocated_by, _)| !allocated_by.is_empty())
        .collect();
    let expected = PAIRS.map(|(by, to)| (by.to_owned(), to.to_owned()));
    // The number of answered requests depends on the scheduler.
    assert!(
        found.is_subset(&BTreeSet::from(expected)),
        "{threads} threads: {found:?}"
    );
    assert!(
        found.len() >= PAIRS.len() - 1,
        "{threads} threads: {found:?}"
    );
    let temporaries = pairs.iter().filter(|pair| own(pair).0 == "new_temporary");
    let blocks: u64 = temporaries.map(|pair| number(&pair["blocks"])).sum();
    assert_eq!(blocks, u64::from(threads) * u64::from(rounds));
}

#[test]
fn of_one_thread() {
    memhook_tests::patiently(|| {
        every_release_is_known(1, 30_000);
    });
}

#[test]
fn of_three_threads() {
    memhook_tests::patiently(|| {
        every_release_is_known(3, 30_000);
    });
}

#[test]
fn of_sixteen_threads() {
    memhook_tests::patiently(|| {
        every_release_is_known(16, 8_000);
    });
}
