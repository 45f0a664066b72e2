//! Detects and ends gaps, in which the target continued untraced because we did not run.
//!
//! A thread whose ring is full waits for the drain thread. If the clock word does not advance during the wait, the hook
//! considers the attacher dead and suspends itself (`suspend` in the hook's `waiting.hpp`), because the target must not
//! wait forever. When this process runs again, it first takes all earlier events. Then the next hooked call of the
//! target resumes recording, with the same rings and slots.

use crate::drain::consumer::Consumer;
use crate::session::Session;
use memhook_ledger::Observer;
use memhook_stream::Gap;

/// Number of passes after which all events published before the first pass are taken and ordered. If pairs are folded,
/// a pass takes the events that the previous pass has claimed. In addition, the ledger waits for one more pass.
const PASSES: u64 = 4;
/// Maximum number of gaps that are reported immediately. The last report has all gaps.
const TOLD: usize = 3;

/// Detects gaps and ends them.
#[derive(Default)]
pub(crate) struct GapWatch {
    /// Number of completed passes after which tracing may resume.
    resume_at: Option<u64>,
}

impl GapWatch {
    /// Returns true if a gap is open.
    pub fn is_under_way(&self) -> bool {
        self.resume_at.is_some()
    }

    /// Runs on every turn. Returns a gap that has ended.
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
        // During the gap, no call of dlopen was followed.
        if let Ok(modules) = session.look_for_new_modules() {
            session.note_unannounced(&modules);
        }
        let gap = consumer.end_gap();
        session.region().resume();
        gap
    }
}

/// Returns the message for the user after the last of `count` gaps has ended.
pub(crate) fn notice(pid: i32, gap: Gap, count: usize) -> Option<String> {
    (count <= TOLD).then(|| said(pid, gap) + "; it is traced again")
}

/// Describes a gap of a process.
pub fn said(pid: i32, gap: Gap) -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    format!(
        "process {pid} waited too long for memhook-rs and went on untraced from {:.1} s to {:.1} s after the attach",
        seconds(gap.from_ns),
        seconds(gap.to_ns)
    )
}
