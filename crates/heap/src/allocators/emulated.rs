//! Programs that run in an emulator. Their heap belongs to a C library that is not a module of the
//! process.

use super::dissector::{AllocatorHeap, HeapDissector, NotDissected};
use crate::snapshot::Snapshot;

/// Reports that the heap of an emulated program is not dissected.
pub(crate) struct Emulated;

impl HeapDissector for Emulated {
    fn name(&self) -> &'static str {
        "an emulator"
    }

    fn dissect(&self, snapshot: &Snapshot) -> Option<Result<AllocatorHeap, NotDissected>> {
        let program = snapshot.meta.emulated.as_ref()?;
        let reason = format!("runs {program}, whose heap is not read");
        Some(Err(NotDissected::Because(reason)))
    }
}
