//! Snapshots of a heap that its threads keep changing: damage is what a second look finds again.

use crate::capture::{Captured, Request, capture};
use crate::{Error, dissect};

/// Looks at one process. Each of them holds its threads, so there are few.
const LOOKS: usize = 3;

/// Takes snapshots of `pid` until its heap parses whole, up to three. The last one remembers what its predecessor
/// found, so that [`Heap::cause_of`](crate::Heap::cause_of) can tell damage from a change that was caught halfway.
///
/// # Errors
/// When a snapshot cannot be taken. There is no memory for two: one goes before the next is taken.
pub fn capture_settled(pid: i32, request: Request) -> Result<Captured, Error> {
    let mut captured = capture(pid, request)?;
    for _ in 1..LOOKS {
        let Ok(heap) = dissect(&captured.snapshot) else {
            break;
        };
        // What a second look has confirmed, a third one would, too.
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
