//! First look at the memory of a traced process, at the start of the trace, for comparison with the
//! last look.

use super::resident::LookedAt;
use memhook_attach::Consumer;
use memhook_heap::{Limits, LiveSizes, MemoryCopy};
use memhook_ledger::Observer;
use memhook_report::{MappedSite, RssReport, RssView, TwoLooks};
use std::thread::JoinHandle;

/// The first look at a process. A separate thread walks the copy of the memory, and then drops the
/// copy.
pub struct FirstLook {
    moment_ns: u64,
    walk: JoinHandle<Option<(RssReport, Option<LiveSizes>)>>,
}

impl FirstLook {
    /// Copies the memory. Returns `None` on failure; the last look will report the reason.
    pub fn take<O: Observer + Send>(
        pid: i32,
        consumer: &Consumer<O>,
        limits: Limits,
    ) -> Option<FirstLook> {
        let moment_ns = consumer.moment_ns();
        let copy = MemoryCopy::take(pid, limits).ok()?;
        let walk = move || {
            let looked = copy.account(false, Vec::new()).ok()?;
            let view = RssView {
                top: usize::MAX,
                pins: false,
            };
            let report = RssReport::new(pid, &looked.account, looked.meta.as_ref(), view);
            Some((report, looked.account.live_sizes))
        };
        let thread = std::thread::Builder::new().name("first look".into());
        Some(FirstLook {
            moment_ns,
            walk: thread.spawn(walk).ok()?,
        })
    }

    /// Compares this look with the last one, after waiting for its walk.
    pub fn compared(self, last: &LookedAt, mapped: Vec<MappedSite>) -> Option<TwoLooks> {
        let (first, before) = self.walk.join().ok()??;
        let sizes = before.as_ref().zip(last.live_sizes.as_ref());
        let grown = sizes.map(|(before, now)| now.grown_since(before));
        Some(TwoLooks {
            first,
            first_ms: self.moment_ns / 1_000_000,
            last_ms: last.moment_ns / 1_000_000,
            live_bytes: sizes.map(|(before, now)| (before.bytes(), now.bytes())),
            stacks: TwoLooks::stacks_of(grown.unwrap_or_default()),
            mapped,
        })
    }
}
