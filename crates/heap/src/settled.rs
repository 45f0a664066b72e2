//! Snapshots of a heap that its threads keep changing. Only a finding that a second snapshot
//! repeats is damage.

use crate::capture::{Captured, Request, capture};
use crate::{Error, dissect};

/// Maximum number of snapshots of one process. Each of them holds the threads, so there are few.
const LOOKS: usize = 3;

/// Takes snapshots of `pid` until its heap parses completely, but at most three. The last snapshot
/// stores the findings of the previous one, so that [`Heap::cause_of`](crate::Heap::cause_of) can
/// distinguish damage from a change that was caught halfway.
///
/// # Errors
/// Fails if a snapshot cannot be taken. Memory does not suffice for two, so each one is dropped
/// before the next is taken.
pub fn capture_settled(pid: i32, request: Request) -> Result<Captured, Error> {
    let mut captured = capture(pid, request)?;
    for _ in 1..LOOKS {
        let Ok(heap) = dissect(&captured.snapshot) else {
            break;
        };
        // A third snapshot would repeat what the second one has confirmed.
        let is_confirmed = heap.is_damaged();
        if heap.findings.is_empty() || is_confirmed {
            break;
        }
        let found = heap.findings;
        tracing::debug!(pid, findings = found.len(), "looked at again");
        drop(captured);
        captured = capture(pid, request)?;
        captured.snapshot.meta.earlier_findings = Some(found);
    }
    Ok(captured)
}
