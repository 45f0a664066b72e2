//! Times in which the target went on untraced because we did not get to run, and the way back.
//!
//! A thread whose ring is full waits for the drain thread. If the clock word stands still meanwhile, the
//! hook takes us for dead and suspends itself (`suspend` in the hook's `waiting.hpp`): the target must not wait
//! for us without end. When we are back, everything that was recorded before is taken first. Then the next
//! hooked call of the target goes on recording, in the same rings and with the same slots.

use crate::drain::consumer::Consumer;
use crate::session::Session;
use memhook_ledger::Observer;
use memhook_stream::Gap;

/// Passes after which everything has been taken and put in order that was published before the first of
/// them: with pairs, a pass takes what the one before has claimed, and the ledger waits for one more.
const PASSES: u64 = 4;
/// The number of gaps that are told at once; the last report has all of them.
const TOLD: usize = 3;

/// Watches for gaps, and ends them.
#[derive(Default)]
pub(crate) struct GapWatch {
    /// The pass of the consumer from which on tracing may go on.
    resume_at: Option<u64>,
}

impl GapWatch {
    /// Returns true if one has been noticed and not ended yet.
    pub fn is_under_way(&self) -> bool {
        self.resume_at.is_some()
    }

    /// Called on every turn. Returns a gap that has ended.
    pub fn turn<O: Observer + Send>(
        &mut self,
        session: &mut Session,
        consumer: &Consumer<O>,
    ) -> Option<Gap> {
        let from_ns = session.region().abandoned_at_ns()?;
        let Some(resume_at) = self.resume_at else {
            let now_ns = consumer.elapsed().as_nanos() as u64;
            consumer.gap_log().begin(from_ns, now_ns);
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

/// Returns the message for the user when the last of `count` gaps has ended.
pub(crate) fn notice(pid: i32, gap: Gap, count: usize) -> Option<String> {
    (count <= TOLD).then(|| said(pid, gap) + "; it is traced again")
}

/// Says that a process went on without us.
pub fn said(pid: i32, gap: Gap) -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    format!(
        "process {pid} waited too long for memhook-rs and went on untraced from {:.1} s to {:.1} s after the attach",
        seconds(gap.from_ns),
        seconds(gap.to_ns)
    )
}
