//! Releases unreachable blocks to the allocator of a process that is not traced.

use crate::claim::{Claim, claim};
use crate::error::Error;
use crate::hold::{reach::Reach, safe_point::SafePoints};
use crate::survey::limits::check_shared_memory;
use memhook_heap::{Candidates, Reclaimer, Released, Request, Verdict};
use memhook_process::{filter_may_kill, first_failure, preflight, thread_state};
use std::time::Duration;

/// Time limit for finding a thread at a safe point.
const SAFE_POINT_LIMIT: Duration = Duration::from_secs(2);

/// Reason why blocks cannot be reclaimed in a process, whatever its heap looks like.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReclaimError {
    /// The process cannot be read or traced: reason and remedy.
    #[error("{0}")]
    Access(String),
    /// Calls of `free` may make system calls for which a seccomp filter might kill the process.
    #[error(
        "nothing is released: a seccomp filter may kill process {pid} for a system call that free() makes"
    )]
    Filtered {
        /// The process.
        pid: i32,
    },
    /// Another memhook-rs traces or reclaims the process.
    #[error(transparent)]
    Claim(#[from] Error),
    /// The process has ended, or the verdict is about another process.
    #[error(transparent)]
    Heap(#[from] memhook_heap::Error),
}

/// Process whose unreachable blocks are being reclaimed. Until this value is dropped, no other memhook-rs can trace or
/// reclaim it: a tracer would not see the releases, and a second reclaimer would release the same blocks.
pub struct Reclaiming {
    pid: i32,
    reclaimer: Reclaimer,
    _claim: Claim,
}

impl Reclaiming {
    /// Default time between two scans. Only a block that both find leaked is reclaimed.
    pub const PAUSE: Duration = Duration::from_secs(2);

    /// Claims a process. If there is a verdict, it replaces the first scan.
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
        // A call needs memory of its own.
        check_shared_memory(pid, 0)?;
        // No thread of a stopped process can be made to report its signal stack, and a thread that was stopped inside
        // malloc would never leave malloc.
        if thread_state(pid, pid) == Some('T') {
            return Err(Error::from(memhook_inject::Error::TargetStopped { pid }).into());
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

    /// Returns true if the process is alive.
    pub fn is_alive(&mut self) -> bool {
        self.reclaimer.is_alive()
    }

    /// Scans the process, and selects the blocks that the previous scan also found leaked. The first scan selects none.
    pub fn scan(&mut self) -> Result<Candidates, memhook_heap::Error> {
        self.reclaimer.scan()
    }

    /// Makes a thread at a safe point call the process's own `free` for each block that the last scan selected.
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
