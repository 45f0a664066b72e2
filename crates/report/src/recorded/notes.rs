//! Facts about a run that its recorder noted at the end.

use crate::allocator_time::call_times_of_note;
use crate::{ArenaResident, Overhead, ResidentPoint, StaleHistory, StaleReport, UnreachableAtEnd};
use memhook_ledger::CallTimes;
use memhook_recording::{
    ACCOUNT_NOTE, CALL_TIMES_NOTE, OVERHEAD_NOTE, RESIDENT_NOTE, Recording, STALE_NOTE,
    UNREACHABLE_NOTE, resident_of,
};

/// Name of the note that marks a process as traced from its first instruction.
pub const FROM_START_NOTE: &str = "from_start";

/// Returns a note of the recorder, or an empty text.
pub fn note<'a>(recording: &'a Recording, name: &str) -> &'a str {
    let notes = recording.meta().notes.iter();
    let found = notes.rev().find(|(known, _)| known == name);
    found.map_or("", |(_, value)| value.as_str())
}

/// Returns a note of the recorder; `None` in the recording of a described allocator's heap or of mappings.
fn note_of_heap<'a>(recording: &'a Recording, name: &str) -> Option<&'a str> {
    let is_of_heap = note(recording, "memory").is_empty();
    is_of_heap.then(|| note(recording, name))
}

/// Returns the resident memory in a window. The last sample is taken shortly after the last event.
pub(super) fn resident(recording: &Recording, (from_ns, to_ns): (u64, u64)) -> Vec<ResidentPoint> {
    let is_to_end = to_ns >= recording.span_ns().1;
    let samples = resident_of(note(recording, RESIDENT_NOTE)).into_iter();
    samples
        .filter(|sample| {
            let time_ns = sample.time_ms.saturating_mul(1_000_000);
            time_ns >= from_ns && (time_ns <= to_ns || is_to_end)
        })
        .map(|sample| ResidentPoint {
            time_ms: sample.time_ms.min(to_ns.div_ceil(1_000_000)),
            anonymous_bytes: sample.anonymous_bytes,
            file_bytes: sample.file_bytes,
            shared_bytes: sample.shared_bytes,
            swap_bytes: sample.swap_bytes,
        })
        .collect()
}

/// Returns the stale report at the end, if `attach --stale` watched the blocks.
pub fn stale(recording: &Recording) -> Option<StaleReport> {
    let report: StaleReport = serde_json::from_str(note_of_heap(recording, STALE_NOTE)?).ok()?;
    Some(StaleReport {
        depth: note(recording, "depth").parse().unwrap_or(0),
        ..report
    })
}

/// Returns the time of allocator calls by stack, if calls were timed (attach --alloc-time).
pub(super) fn call_times(recording: &Recording) -> Option<CallTimes> {
    call_times_of_note(note_of_heap(recording, CALL_TIMES_NOTE)?)
}

/// Returns the unreachable blocks at the end, if they were searched for (attach --leaks).
pub(super) fn unreachable(recording: &Recording) -> Option<UnreachableAtEnd> {
    UnreachableAtEnd::of_note(note_of_heap(recording, UNREACHABLE_NOTE)?)
}

/// Reason why a recording has no list of unreachable blocks.
#[derive(Debug, thiserror::Error)]
pub enum NotSearched {
    /// No search was requested.
    #[error("the end of this run was not searched for leaks")]
    NotAsked,
    /// The search failed.
    #[error("the end of this run could not be searched for leaks: {0}")]
    Failed(String),
}

/// Fails for a recording without a search for unreachable blocks.
///
/// # Errors
/// Returns the reason why there was no search.
pub fn check_unreachable(recording: &Recording) -> Result<(), NotSearched> {
    let found = unreachable(recording).ok_or(NotSearched::NotAsked)?;
    match found.leaks.snapshot {
        Some(_) => Ok(()),
        None => Err(NotSearched::Failed(found.leaks.gaps.join("; "))),
    }
}

/// Returns the account of resident memory at the end, if it was recorded (attach --rss).
pub fn account(recording: &Recording) -> Option<Box<crate::RssReport>> {
    serde_json::from_str(note_of_heap(recording, ACCOUNT_NOTE)?).ok()
}

/// Returns the arenas of the account.
pub(super) fn arenas(recording: &Recording) -> Vec<ArenaResident> {
    let arenas = account(recording).map_or(Vec::new(), |account| account.arenas);
    let resident = arenas.into_iter().map(|arena| ArenaResident {
        address: arena.address,
        resident_bytes: arena.resident_bytes,
        live_bytes: arena.live_bytes,
    });
    resident.collect()
}

/// Returns the report's history of block ages within a window of time.
pub(super) fn aging(report: StaleReport, (from_ns, to_ns): (u64, u64)) -> Option<StaleHistory> {
    let mut history = report.history?;
    // A recording may come from an untrusted source.
    let bands = (history.ages_s.len() + 1, history.thresholds_s.len());
    history.points.retain(|point| {
        let is_whole = (point.untouched_bytes.len(), point.pages.len()) == bands;
        let at_ns = (point.at_s * 1e9) as u64;
        is_whole && (from_ns..=to_ns).contains(&at_ns)
    });
    Some(history)
}

/// Returns the cost and rate of tracing, if the trace had a budget (attach --overhead).
pub fn overhead(recording: &Recording) -> Option<Overhead> {
    serde_json::from_str(note(recording, OVERHEAD_NOTE)).ok()
}
