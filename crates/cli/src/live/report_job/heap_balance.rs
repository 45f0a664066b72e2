//! malloc's own count, for the reports of a trace.

use super::ReportJob;
use memhook_attach::{HeapBalance, Trace};
use memhook_checkup::account_of_trace;
use memhook_ledger::Observer;
use memhook_report::{HeapComparison, RssReport};

impl ReportJob {
    /// Reads the number of bytes that malloc counts as handed out: once at the beginning, then for
    /// each report. Only a trace of all blocks can be compared with this number.
    pub(super) fn look_at_heap<O: Observer + Send>(&mut self, trace: &Trace<O>) {
        if self.is_selective {
            return;
        }
        let (session, consumer) = (trace.session(), trace.consumer());
        let look = || HeapBalance::take(session, consumer);
        if self.beginning.is_none() {
            let at_first = session.is_from_start().then(HeapBalance::of_beginning);
            if at_first.is_none() {
                self.balance = look();
            }
            self.beginning = Some(at_first.or(self.balance));
        } else {
            self.balance = look();
        }
    }

    /// Compares the growth since the beginning in malloc's count with that in the trace.
    pub(super) fn heap_comparison(&self) -> Option<HeapComparison> {
        let found = self.balance?.since(&self.beginning??);
        Some(HeapComparison {
            grown_bytes: found.grown_bytes,
            traced_bytes: found.traced_bytes,
            bound_bytes: found.bound_bytes,
            has_unknown_releases: found.has_unknown_releases,
        })
    }

    pub(super) fn account<O: Observer + Send>(&self, trace: &Trace<O>) -> Option<RssReport> {
        let earlier = self.balance.as_ref().map(HeapBalance::earlier_bytes);
        // If the process was traced from its start, nothing had been allocated before.
        let earlier = earlier.filter(|_| !trace.session().is_from_start());
        let view = self.account_view();
        account_of_trace(trace.session(), trace.consumer(), earlier, view)
    }
}
