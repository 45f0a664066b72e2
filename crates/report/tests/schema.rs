//! SCHEMA.md names every field that a report can have, and no other field.

use memhook_report::*;
use std::collections::BTreeSet;

const TIME: AllocatorTime = AllocatorTime {
    ns: 1,
    error_ns: 1,
    timed: 1,
};

fn frame() -> StackFrame {
    StackFrame {
        address: "0x1".into(),
        module: Some("m".into()),
        offset: Some("0x1".into()),
        function: Some("f".into()),
        file: Some("a.cc".into()),
        line: Some(1),
        inlined: false,
    }
}

fn full_report() -> ReportModel {
    ReportModel {
        marks: vec![Mark {
            name: "m".into(),
            at_s: 0.5,
        }],
        resident: vec![ResidentPoint::default()],
        rss: None,
        rss_bytes: None,
        schema: "memhook-rs/report/1",
        is_final: true,
        ended: None,
        is_cut: false,
        ends_early: false,
        is_recorded: false,
        by: "frame",
        target: Target {
            pid: 1,
            name: "x".into(),
            exe: "/x".into(),
        },
        attach: AttachInfo {
            depth: 10,
            from_start: false,
            ..AttachInfo::default()
        },
        from_s: 0.0,
        elapsed_s: 1.0,
        gaps: vec![UnseenTime {
            from_s: 0.2,
            to_s: 0.4,
        }],
        heap_comparison: Some(HeapComparison {
            grown_bytes: 1,
            traced_bytes: 1,
            bound_bytes: 1,
            has_unknown_releases: true,
        }),
        live_bounds: Some(LiveBounds {
            least_bytes: 1,
            most_bytes: 2,
            least_blocks: 1,
            most_blocks: 2,
        }),
        since_last_s: Some(1.0),
        allocator_time: Some(TIME),
        sampling: Some(Sampling {
            mean_bytes: 1,
            recorded_allocations: 1,
            exact_allocations: Some(1),
            exact_s: Some(1.0),
            live_error_bytes: Some(1),
            allocated_error_bytes: Some(1),
            released_error_bytes: Some(1),
            is_in_budget: false,
        }),
        bounded: Some(Bounded {
            max_memory_bytes: 1,
            since_s: 1.0,
            live_blocks_then: 1,
            kept_blocks: 1,
            live_blocks: 1,
            live_is_estimated: true,
            all_from_bytes: 1,
            one_address_in: 1,
            unattributed_allocations: 1,
            unknown_releases_are_counted: true,
        }),
        stale: None,
        overhead: Some(Overhead {
            budget: 0.02,
            cost: 0.01,
            in_process: 0.01,
            in_attacher: 0.0,
            passing: 0.0,
            timed_calls: 1,
            kept: vec![KeptTime {
                from_s: 0.0,
                to_s: 1.0,
                mean_bytes: Some(1),
            }],
        }),
        mappings: None,
        totals: ReportTotals::default(),
        heaps: vec![HeapTotals {
            name: "pool".into(),
            functions: vec!["pool_alloc".into()],
            allocations_per_s: 1.0,
            allocated_bytes_per_s: 1.0,
            released_bytes_per_s: 1.0,
            totals: ReportTotals::default(),
        }],
        call_stacks: Some(CallStacks::default()),
        measured: Measured {
            measure: "live",
            bytes: 1_600_000,
            blocks: 16_850,
            error_bytes: Some(1),
        },
        coverage: vec![Coverage {
            module: "m".into(),
            hooked: 1,
            unhookable: 0,
            note: String::new(),
            calls_seen: 1,
            symbols: Some("symbols"),
            allocator: "jemalloc".into(),
            is_linked_in: true,
            hidden: "small objects".into(),
        }],
        sites: vec![SiteRow {
            stack_id: 0,
            scores: Some(Scores::default()),
            custom_scores: CustomValues::from([("NAME".into(), Some(1.5))]),
            bytes: 1,
            blocks: 1,
            error_bytes: Some(1),
            unseen_bytes: 1,
            unreachable_bytes: Some(1),
            unreachable_error_bytes: Some(1),
            allocator_time: Some(TIME),
            growth_bytes: 1,
            oldest_ms: 1,
            heap: Some("pool".into()),
            kind: "malloc".into(),
            truncated: false,
            cut: false,
            stack: vec![frame()],
        }],
        groups: vec![GroupRow {
            name: "n".into(),
            frame: Some(frame()),
            bytes: 1,
            self_bytes: 1,
            blocks: 1,
            error_bytes: Some(1),
            unseen_bytes: 1,
            unreachable_bytes: Some(1),
            unreachable_error_bytes: Some(1),
            allocator_time: Some(TIME),
            growth_bytes: 1,
            oldest_ms: 1,
            heap: Some("pool".into()),
            released_bytes: 1,
            released_blocks: 1,
        }],
        folded: None,
        releases: vec![ReleaseSite {
            bytes: 1,
            blocks: 1,
            error_bytes: Some(1),
            heap: Some("pool".into()),
            kind: "free".into(),
            stack: vec![frame()],
        }],
        more_rows: 1,
        scores: Some(RunScores::default()),
        custom_scores: vec![CustomScore::default()],
        inferences: Some(vec![Inference {
            kind: InferenceKind::GrowingRun,
            title: "t",
            evidence: "e".into(),
            advice: "a",
            gain: Gain::default(),
            allocator: "malloc".into(),
            stack: vec![frame()],
            stack_index: 0,
            truncated: false,
        }]),
        leaks: Some(Leaks {
            snapshot: Some(SnapshotTaken {
                method: "precopy".into(),
                held_ms: 1.0,
                prepare_held_ms: 1.0,
                copied_bytes: 1,
            }),
            totals: LeakTotals::default(),
            sites: vec![LeakSite {
                bytes: 1,
                blocks: 1,
                held_bytes: 1,
                held_blocks: 1,
                kind: "malloc".into(),
                truncated: false,
                stack: vec![frame()],
            }],
            more_sites: 1,
            possible: vec![LeakSite {
                bytes: 1,
                blocks: 1,
                held_bytes: 0,
                held_blocks: 0,
                kind: "malloc".into(),
                truncated: false,
                stack: vec![frame()],
            }],
            more_possible: Some(1),
            gaps: vec!["x".into()],
        }),
    }
}

fn paths(value: &serde_json::Value, at: &str, into: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, field) in fields {
                let dot = if at.is_empty() { "" } else { "." };
                paths(field, &format!("{at}{dot}{name}"), into);
            }
        }
        serde_json::Value::Array(items) => {
            for item in items {
                paths(item, &format!("{at}[]"), into);
            }
        }
        _ => {
            into.insert(at.to_owned());
        }
    }
}

#[test]
fn page_and_code_name_the_same_fields() {
    let page = include_str!("../SCHEMA.md");
    let mut documented = BTreeSet::new();
    for line in page.lines().filter(|l| l.starts_with("| `")) {
        let name = line.split('`').nth(1).unwrap();
        match name {
            // The schema says "as in sites[].stack[]".
            "groups[].frame" => {
                documented.extend(frame_fields("groups[].frame"));
            }
            "releases[].stack[]"
            | "inferences[].stack[]"
            | "leaks.sites[].stack[]"
            | "leaks.possible[].stack[]" => {
                documented.extend(frame_fields(name));
            }
            _ => {
                documented.insert(name.to_owned());
            }
        }
    }
    let mut found = BTreeSet::new();
    let value: serde_json::Value = serde_json::from_str(&json(&full_report())).unwrap();
    paths(&value, "", &mut found);
    // These documents have their own schemas.
    found.extend(["mappings", "rss", "stale"].map(str::to_owned));
    assert_eq!(documented, found);
}

fn frame_fields(at: &str) -> Vec<String> {
    let mut fields = BTreeSet::new();
    paths(&serde_json::to_value(frame()).unwrap(), at, &mut fields);
    fields.into_iter().collect()
}

#[test]
fn losses_come_first_in_text() {
    let mut report = full_report();
    report.gaps.clear();
    report.totals.lost_events = 7;
    let first = report.text(Style::default());
    assert!(first.starts_with("7 events lost"), "{first}");
    assert!(!first.contains('\x1b'));
    let colored = Style {
        color: true,
        ..Style::default()
    };
    assert!(report.text(colored).contains('\x1b'));
}

fn json(report: &ReportModel) -> String {
    document(report, true, Style::default()).expect("in memory")
}
