//! Times in which the target went on untraced because we did not get to run, and the way back.
//!
//! A thread whose ring is full waits for the drain thread. If the clock word stands still meanwhile, the
//! hook takes us for dead and suspends itself (`suspend` in the hook's `waiting.hpp`): the target must not wait
//! for us without end. When we are back, everything that was recorded before is taken first. Then the next
//! hooked call of the target goes on recording, in the same rings and with the same slots.

use crate::consumer::Consumer;
use crate::session::Session;
use memhook_ledger::Observer;
use memhook_stream::Gap;

/// Passes after which everything has been taken and put in order that was published before the first of
/// them: with pairs, a pass takes what the one before has claimed, and the ledger waits for one more.
const PASSES: u64 = 4;
/// The number of gaps that are told at once; the last report has all of them.
const TOLD: usize = 3;

/// The gaps of a trace.
#[derive(Default)]
pub(crate) struct GapLog {
    ended: Vec<Gap>,
    /// When the one that goes on began, nanoseconds since the attach.
    open_since_ns: Option<u64>,
}

impl GapLog {
    pub fn begin(&mut self, from_ns: u64) {
        let last = self.ended.last().map_or(0, |gap| gap.to_ns);
        self.open_since_ns.get_or_insert(from_ns.max(last));
    }

    /// Returns the gap that ends.
    pub fn end(&mut self, to_ns: u64) -> Option<Gap> {
        let gap = gap(self.open_since_ns.take()?, to_ns);
        self.ended.push(gap);
        Some(gap)
    }

    /// All of them until now; one that goes on ends now.
    pub fn until(&self, now_ns: u64) -> Vec<Gap> {
        let open = self.open_since_ns.map(|from_ns| gap(from_ns, now_ns));
        self.ended.iter().copied().chain(open).collect()
    }

    pub fn is_open(&self) -> bool {
        self.open_since_ns.is_some()
    }

    pub fn len(&self) -> usize {
        self.ended.len() + usize::from(self.is_open())
    }
}

/// Never empty.
fn gap(from_ns: u64, to_ns: u64) -> Gap {
    let whole_milliseconds = to_ns / 1_000_000 * 1_000_000;
    Gap {
        from_ns,
        to_ns: whole_milliseconds.max(from_ns + 1),
    }
}

/// Watches for gaps, and ends them.
#[derive(Default)]
pub(crate) struct GapWatch {
    /// The pass of the consumer from which on tracing may go on.
    resume_at: Option<u64>,
}

impl GapWatch {
    /// Called on every turn. Returns a gap that has ended.
    pub fn turn<O: Observer + Send>(
        &mut self,
        session: &mut Session,
        consumer: &Consumer<O>,
    ) -> Option<Gap> {
        let from_ns = session.region().abandoned_at_ns()?;
        let Some(resume_at) = self.resume_at else {
            consumer.gap_log().begin(from_ns);
            self.resume_at = Some(consumer.passes() + PASSES);
            return None;
        };
        if consumer.passes() < resume_at {
            return None;
        }
        self.resume_at = None;
        // A dlopen of the target did not ask for it.
        let _ = session.look_at_modules();
        let gap = consumer.end_gap();
        session.region().resume();
        gap
    }
}

/// What to tell the user when the last of `count` gaps has ended.
pub(crate) fn notice(pid: i32, gap: Gap, count: usize) -> Option<String> {
    (count <= TOLD).then(|| said(pid, gap) + "; it is traced again")
}

/// That a process went on without us.
pub fn said(pid: i32, gap: Gap) -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    format!(
        "process {pid} waited for us too long and went on untraced from {:.1} s to {:.1} s after the attach",
        seconds(gap.from_ns),
        seconds(gap.to_ns)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_begin_and_end() {
        let mut log = GapLog::default();
        assert_eq!(log.until(5), []);
        assert_eq!(log.end(5), None);
        log.begin(1_200_000);
        log.begin(1_300_000);
        let gap = |from_ns, to_ns| Gap { from_ns, to_ns };
        assert_eq!(log.until(9_900_000), [gap(1_200_000, 9_000_000)]);
        assert_eq!(log.end(10_100_000), Some(gap(1_200_000, 10_000_000)));
        log.begin(20_000_000);
        assert_eq!(log.len(), 2);
        assert_eq!(log.until(20_000_000)[1], gap(20_000_000, 20_000_001));
    }
}
