//! Deep call stacks that need more memory than is available. The outer frames are lost, but no call
//! loses all of its frames.

use memhook_tests::{Attacher, Target, build_target};
use serde_json::Value;

/// Number of allocations of the target, each with a different stack, and their size in bytes.
const CALLS: u64 = 1 << 19;
const SIZE: u64 = 40;

#[test]
fn outer_frames_go_before_whole_stacks() {
    memhook_tests::patiently(|| {
        let program = build_target("deep_stacks", &[]);
        let mut target = Target::start(&program, &[]);
        let options = ["--depth", "64", "--by", "function"];
        let attacher = Attacher::start(&target, &options);
        target.go();
        target.expect("done");
        let report = attacher.finish();
        assert!(target.finish().success());
        let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value}"));
        assert_eq!(number(&report["totals"]["unkept_stacks"]), 0);
        assert_eq!(number(&report["totals"]["lost_events"]), 0);
        let rows = report["groups"].as_array().expect("rows");
        let is_it = |row: &&Value| {
            let name = row["name"].as_str();
            name.is_some_and(|name| name.starts_with("allocate_here"))
        };
        let row = rows.iter().find(is_it).expect("a row");
        assert_eq!(number(&row["blocks"]), CALLS);
        assert_eq!(number(&row["self_bytes"]), CALLS * SIZE);
        // Stacks are complete while half of the memory is free. All later calls share a few short
        // stacks.
        let stacks = &report["call_stacks"];
        let whole = number(&stacks["cut_at_depth"]);
        let short = number(&stacks["cut_unfollowed"]);
        assert!(whole > 10_000, "{stacks}");
        assert!(short > 0 && short < 1_000, "{stacks}");
    });
}
