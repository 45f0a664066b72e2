//! Notes of a recording from the last report of its run.

use memhook_attach::BudgetKept;
use memhook_recording::{
    ACCOUNT_NOTE, HEAP_COMPARISON_NOTE, OVERHEAD_NOTE, STALE_NOTE, UNREACHABLE_NOTE,
};
use memhook_report::{KeptTime, Overhead, ReportModel, UnreachableSite, unreachable_note};

/// Returns the notes, as JSON: coverage of modules, untouched memory, resident memory, and
/// unreachable blocks.
pub fn notes(
    report: &ReportModel,
    unreachable: Option<&[UnreachableSite]>,
) -> Vec<(&'static str, String)> {
    let coverage = serde_json::to_string(&report.coverage).ok();
    let stale = report.stale.as_ref();
    let stale = stale.and_then(|stale| serde_json::to_string(stale).ok());
    let account = report.rss.as_ref();
    let account = account.and_then(|account| serde_json::to_string(account).ok());
    let comparison = report.heap_comparison.as_ref();
    let comparison = comparison.and_then(|found| serde_json::to_string(found).ok());
    let overhead = report.overhead.as_ref();
    let overhead = overhead.and_then(|overhead| serde_json::to_string(overhead).ok());
    let leaks = report.leaks.as_ref();
    let leaks = leaks.and_then(|leaks| unreachable_note(leaks, unreachable.unwrap_or_default()));
    let all = [
        ("coverage", coverage),
        (UNREACHABLE_NOTE, leaks),
        (STALE_NOTE, stale),
        (ACCOUNT_NOTE, account),
        (HEAP_COMPARISON_NOTE, comparison),
        (OVERHEAD_NOTE, overhead),
    ];
    all.into_iter()
        .filter_map(|(name, text)| Some((name, text?)))
        .collect()
}

/// Returns the result of a budget, for reports.
pub fn kept_overhead(kept: BudgetKept) -> Overhead {
    let ends = kept.kept.iter().skip(1).map(|next| next.from);
    let ends = ends.chain([kept.until]);
    let times = kept.kept.iter().zip(ends).map(|(time, to)| KeptTime {
        from_s: time.from.as_secs_f64(),
        to_s: to.as_secs_f64(),
        mean_bytes: time.mean_bytes,
    });
    Overhead {
        budget: kept.budget,
        cost: kept.in_process + kept.in_attacher,
        in_process: kept.in_process,
        in_attacher: kept.in_attacher,
        passing: kept.passing,
        timed_calls: kept.timed_calls,
        kept: times.collect(),
    }
}
