//! Findings of a report, converted for comparisons in tests.

use serde_json::Value;
use std::collections::BTreeMap;

/// Blocks and bytes, by function of the target and kind.
pub type Sites = BTreeMap<(String, String), (u64, u64)>;

/// Returns the sites of a report, each with its innermost frame in `file`.
pub fn sites(report: &Value, file: &str) -> Sites {
    let mut found = Sites::new();
    for site in report["sites"].as_array().expect("sites") {
        let frames = site["stack"].as_array().expect("a stack");
        let planted = frames.iter().find(|f| {
            let of_target = f["file"].as_str().is_some_and(|path| path.ends_with(file));
            // Lambdas and templates are inlined into the function that plants the blocks.
            of_target && f["inlined"] == false
        });
        let function = planted.and_then(|f| f["function"].as_str()).unwrap_or("?");
        let name = function.split('(').next().unwrap_or(function).to_owned();
        let kind = site["kind"].as_str().expect("a kind").to_owned();
        let sum = found.entry((name, kind)).or_default();
        sum.0 += site["blocks"].as_u64().expect("blocks");
        sum.1 += site["bytes"].as_u64().expect("bytes");
    }
    found
}

/// Checks that a report contains exactly these findings: function, kind, blocks, bytes per block.
pub fn expect_sites(report: &Value, file: &str, expected: &[(&str, &str, u64, u64)]) {
    assert_eq!(report["totals"]["lost_events"], 0, "{report}");
    let mut planted = Sites::new();
    for &(function, kind, blocks, size) in expected {
        let sum = planted
            .entry((function.to_owned(), kind.to_owned()))
            .or_default();
        sum.0 += blocks;
        sum.1 += blocks * size;
    }
    let found = sites(report, file);
    assert_eq!(found, planted, "{report:#}");
    assert_eq!(report["more_rows"], 0);
}
