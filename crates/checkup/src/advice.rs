//! Advice from a recording.

use crate::descendants::larger_child;
use crate::said_by_allocator;
use memhook_advice::{Advice, Facts, advise};
use memhook_gate::{FoundLeaks, Search};
use memhook_heap::{
    ALLOCATOR_NOT_ASKED, Error as HeapError, Limits, Looked, Part, Request, capture_settled,
    look_at_memory,
};
use memhook_ledger::{Ledger, LedgerOptions, SampledAllocations};
use memhook_process::process_name;
use memhook_recording::Recording;
use memhook_report::recorded::{Contents, Window, account, profile, stale};
use memhook_report::{Leaks, Profile, RssPart, RssReport, RssView, Target};
use memhook_symbols::Symbolizer;

/// Reason why a recording leads to no advice.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdviceError {
    /// The recording has no events.
    #[error("the recording holds sums of intervals: advice needs events")]
    IsSummary,
    /// The recording is damaged.
    #[error(transparent)]
    Recording(#[from] memhook_recording::Error),
}

/// Advises on the process of a recording. `resident` is its current resident memory; if `None`, the
/// figure in the recording is used. `is_running` is true if the process is still running, so that
/// suggested commands may refer to it.
pub fn advice_of(
    recording: &Recording,
    mut symbols: Symbolizer,
    resident: Option<RssReport>,
    is_running: bool,
) -> Result<Advice, AdviceError> {
    if recording.is_summary() {
        return Err(AdviceError::IsSummary);
    }
    let contents = Contents::default();
    let profile = profile(recording, &mut symbols, Window::default(), contents)?;
    let account = resident.map(Box::new).or_else(|| account(recording));
    Ok(advise(&Facts {
        profile: &profile,
        account: account.as_deref(),
        stale: stale(recording).as_ref(),
        is_running,
        is_traced: true,
        larger_child: is_running
            .then(|| larger_child(profile.target.pid))
            .flatten(),
    }))
}

/// Advises on a process that may only be read, based on copies of its memory and without a trace.
///
/// # Errors
/// Fails if the process's memory cannot be read.
pub fn advice_of_look(pid: i32, limits: Limits) -> Result<Advice, HeapError> {
    let Looked { mut account, meta } = look_at_memory(pid, limits, true)?;
    if account.has_other_allocator {
        account.notes.push(ALLOCATOR_NOT_ASKED.into());
    }
    let view = RssView {
        top: usize::MAX,
        pins: true,
    };
    let account = RssReport::new(pid, &account, meta.as_ref(), view);
    let profile = Profile {
        target: Target {
            pid,
            name: process_name(pid),
            exe: String::new(),
        },
        leaks: Some(leaks_of_look(pid, limits)),
        ..Profile::default()
    };
    Ok(advise(&Facts {
        profile: &profile,
        account: Some(&account),
        stale: None,
        is_running: true,
        is_traced: false,
        larger_child: larger_child(pid),
    }))
}

/// Finds unreachable blocks in a process without a trace.
fn leaks_of_look(pid: i32, limits: Limits) -> Leaks {
    let request = Request {
        limits,
        ..Request::to_search()
    };
    let captured = match capture_settled(pid, request) {
        Ok(captured) => captured,
        Err(why) => {
            return Leaks {
                gaps: vec![format!("its memory could not be copied: {why}")],
                ..Leaks::default()
            };
        }
    };
    let search = Search {
        before_ns: None,
        is_complete: false,
        finds_possible: false,
    };
    let (ledger, samples) = (
        Ledger::new(LedgerOptions::default()),
        SampledAllocations::default(),
    );
    let found = FoundLeaks::search(&captured.snapshot, &ledger, &samples, search);
    found.report(usize::MAX, |_| Default::default())
}

/// Returns the current resident memory of a recorded process whose allocator is not glibc's and
/// reports the contents of its heap. A trace does not include these reports. The request holds one
/// thread.
pub fn resident_now(pid: i32, limits: Limits, recording: &Recording) -> Option<RssReport> {
    let recorded = account(recording)?;
    let is_foreign = |part: &&RssPart| part.name == Part::ForeignHeap.name() && part.bytes > 0;
    recorded.parts.iter().find(is_foreign)?;
    let Looked { mut account, meta } = look_at_memory(pid, limits, false).ok()?;
    let asks = account.parts.contains_key(&Part::ForeignHeap);
    let said = asks
        .then(|| said_by_allocator(pid).ok())
        .flatten()
        .flatten();
    account.split_by(said?);
    let view = RssView {
        top: usize::MAX,
        pins: false,
    };
    Some(RssReport::new(pid, &account, meta.as_ref(), view))
}
