//! JSON reports that can be compared, and JSON reports that cannot.

use memhook_report::{
    AttachInfo, Document, Measure, Measured, ReportModel, ReportTotals, SiteRow, StackFrame, Style,
    Target, diff, document, read_back,
};
use proptest::prelude::*;

fn report(sites: &[(&str, u64, u64)]) -> ReportModel {
    let site = |&(function, bytes, blocks): &(&str, u64, u64)| SiteRow {
        stack_id: 0,
        scores: None,
        custom_scores: std::collections::BTreeMap::new(),
        bytes,
        blocks,
        error_bytes: None,
        unseen_bytes: 0,
        unreachable_bytes: None,
        unreachable_error_bytes: None,
        allocator_time: None,
        growth_bytes: 0,
        oldest_ms: 5,
        heap: None,
        kind: "malloc".into(),
        truncated: false,
        cut: false,
        stack: vec![StackFrame {
            address: "0x401234".into(),
            module: Some("server".into()),
            offset: Some("0x1233".into()),
            function: Some(function.into()),
            file: None,
            line: Some(3),
            inlined: false,
        }],
    };
    ReportModel {
        schema: "memhook-rs/report/1",
        is_final: true,
        ended: None,
        is_cut: false,
        ends_early: false,
        is_recorded: false,
        by: "site",
        target: Target {
            pid: 7,
            name: "server".into(),
            exe: "/server".into(),
        },
        attach: AttachInfo {
            depth: 64,
            ..AttachInfo::default()
        },
        from_s: 0.0,
        elapsed_s: 2.5,
        marks: Vec::new(),
        gaps: Vec::new(),
        heap_comparison: None,
        live_bounds: None,
        since_last_s: None,
        sampling: None,
        allocator_time: None,
        bounded: None,
        totals: ReportTotals::default(),
        heaps: Vec::new(),
        call_stacks: None,
        measured: Measured {
            measure: "live",
            bytes: 0,
            blocks: 0,
            error_bytes: None,
        },
        coverage: Vec::new(),
        sites: sites.iter().map(site).collect(),
        groups: Vec::new(),
        folded: None,
        releases: Vec::new(),
        more_rows: 0,
        mappings: None,
        resident: Vec::new(),
        rss: None,
        rss_bytes: None,
        leaks: None,
        overhead: None,
        stale: None,
        scores: None,
        custom_scores: Vec::new(),
        inferences: None,
    }
}

fn refused(report: &ReportModel) -> String {
    let error = read_back(json(report).as_bytes(), Measure::Live).unwrap_err();
    error.to_string()
}

#[test]
fn two_reports_are_compared() {
    let old = json(&report(&[("stays", 10, 1), ("grows", 10, 1)]));
    // The output of attach has a report for each interval. A full disk has cut off the last one.
    let early = json(&report(&[("grows", 1, 1)]));
    let last = json(&report(&[("grows", 500, 5), ("stays", 10, 1)]));
    let new = format!("{early}\n{last}\n{}", &last[..last.len() / 2]);
    let read = |text: &str| read_back(text.as_bytes(), Measure::Live).unwrap();
    let found = diff(&read(&old), &read(&new), Measure::Live, 10);
    assert_eq!(found.sites.len(), 1);
    assert_eq!(found.sites[0].change_bytes, 490);
    assert_eq!(found.sites[0].stack[0].function.as_deref(), Some("grows"));
    assert_eq!(found.sites[0].stack[0].line, Some(3));
    assert_eq!((found.new.bytes, found.new.blocks), (510, 6));
    assert_eq!(found.new.seconds, 2.5);
    let text = found.text(Style::default());
    assert!(text.contains("2.5 s of server"), "{text}");
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let shortened = ReportModel {
        more_rows: 40,
        ..report(&[("f", 1, 1)])
    };
    let refusal = refused(&shortened);
    assert!(refusal.contains("1 largest of 41 sites"), "{refusal}");
    let functions = ReportModel {
        by: "function",
        ..report(&[])
    };
    assert!(refused(&functions).contains("by function"));
    let peak = ReportModel {
        heaps: Vec::new(),
        call_stacks: None,
        measured: Measured {
            measure: "peak",
            bytes: 0,
            blocks: 0,
            error_bytes: None,
        },
        ..report(&[])
    };
    assert!(refused(&peak).contains("counts peak, not live"));
    let other = ReportModel {
        schema: "memhook-rs/report/9",
        ..report(&[])
    };
    assert!(refused(&other).contains("memhook-rs/report/9"));
    for text in [
        "",
        "{",
        "{}",
        "[1]",
        "{\"schema\": \"memhook-rs/report/1\"}",
    ] {
        let error = read_back(text.as_bytes(), Measure::Live).unwrap_err();
        assert!(
            error.to_string().contains("not a report"),
            "{text}: {error}"
        );
    }
}

#[test]
fn numbers_that_no_heap_has() {
    let read = |sites: &[(&str, u64, u64)]| {
        read_back(json(&report(sites)).as_bytes(), Measure::Live).unwrap()
    };
    let old = read(&[("f", 1 << 63, u64::MAX), ("g", u64::MAX, u64::MAX)]);
    let new = read(&[("f", u64::MAX, 1), ("g", 1, 1)]);
    let found = diff(&old, &new, Measure::Live, 10);
    assert_eq!(found.old.bytes, u64::MAX);
    assert_eq!(found.sites[0].change_bytes, i64::MAX);
    assert_eq!(found.sites[1].change_bytes, i64::MIN);
    found.text(Style::default());
}

proptest! {
    /// Damage makes a report unreadable, but has no other effect.
    #[test]
    fn damaged_reports(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let mut text = json(&report(&[("f", 1, 1), ("g", 2, 2)])).into_bytes();
        let at = at.index(text.len());
        if cut { text.truncate(at) } else { text[at] = byte }
        if let Ok(profile) = read_back(&text, Measure::Live) {
            diff(&profile, &profile, Measure::Live, 10).text(Style::default());
        }
    }
}

fn json(report: &ReportModel) -> String {
    document(report, true, Style::default()).expect("in memory")
}
