//! Blocks that nothing reaches go back to the allocator of a process that nobody traces.

use crate::claim::{Claim, claim};
use crate::error::Error;
use crate::hold::{reach::Reach, safe_point::SafePoints};
use memhook_heap::{Candidates, Reclaimer, Released, Request, Verdict};
use memhook_process::{filter_may_kill, first_failure, preflight};
use std::time::Duration;

/// Time limit for finding a thread at a safe point.
const SAFE_POINT_LIMIT: Duration = Duration::from_secs(2);

/// Reason why a process is not reclaimed, whatever its heap is like.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReclaimError {
    /// It cannot be read or traced: the reason and the remedy.
    #[error("{0}")]
    Access(String),
    /// Calls of `free` make system calls, for which a filter may end the process.
    #[error("nothing is released: a seccomp filter may kill process {pid} for what free() needs")]
    Filtered {
        /// The process.
        pid: i32,
    },
    /// Another memhook-rs traces or reclaims it.
    #[error(transparent)]
    Claim(#[from] Error),
    /// It has gone, or the verdict is on another process.
    #[error(transparent)]
    Heap(#[from] memhook_heap::Error),
}

/// A process that is reclaimed. Nobody else traces or reclaims it until this is dropped: a tracer would not see the
/// releases, and two reclaimers would release the same blocks.
pub struct Reclaiming {
    pid: i32,
    reclaimer: Reclaimer,
    _claim: Claim,
}

impl Reclaiming {
    /// Usual time between two scans of which both have to find a block leaked.
    pub const PAUSE: Duration = Duration::from_secs(2);

    /// Claims a process. A verdict takes the place of the first scan.
    pub fn begin(
        pid: i32,
        request: Request,
        verdict: Option<Verdict>,
    ) -> Result<Reclaiming, ReclaimError> {
        if let Some(why) = first_failure(&preflight(pid)) {
            return Err(ReclaimError::Access(why));
        }
        if filter_may_kill(pid) {
            return Err(ReclaimError::Filtered { pid });
        }
        let claim = claim(pid)?;
        let reclaimer = match verdict {
            Some(verdict) => Reclaimer::with_verdict(pid, request, verdict)?,
            None => Reclaimer::new(pid, request)?,
        };
        Ok(Reclaiming {
            pid,
            reclaimer,
            _claim: claim,
        })
    }

    /// Returns true if the process lives.
    pub fn is_alive(&mut self) -> bool {
        self.reclaimer.is_alive()
    }

    /// Scans the process, and chooses what was leaked at the scan before as well. The first scan chooses nothing.
    pub fn scan(&mut self) -> Result<Candidates, memhook_heap::Error> {
        self.reclaimer.scan()
    }

    /// Has the process release the chosen blocks of its last scan, by calls of its own `free` from a thread at a safe
    /// point.
    pub fn release(&mut self, found: &Candidates) -> Released {
        if found.chosen.is_empty() {
            return Released::default();
        }
        let safe_points = match SafePoints::of_process(self.pid, found.captured.images.clone()) {
            Ok(safe_points) => safe_points,
            Err(error) => {
                return Released {
                    failed: Some(error.into()),
                    ..Released::default()
                };
            }
        };
        let mut hold = || safe_points.hold_to_free(&mut Reach::Running, self.pid, SAFE_POINT_LIMIT);
        self.reclaimer.release(found, &mut hold)
    }
}
