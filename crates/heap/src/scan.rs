//! A snapshot, searched for unreachable blocks.

use crate::graph::finder::MarkOptions;
use crate::graph::leaks::{Leak, leaks};
use crate::graph::mark::{Marked, mark, possibly_lost};
use crate::graph::twice::{Fingerprints, fingerprints, still_leaked};
use crate::{Error, Heap, Snapshot, dissect};

/// Result of a search.
pub struct Scan {
    /// The blocks.
    pub heap: Heap,
    /// Reachable blocks.
    pub marked: Marked,
    /// Unreachable blocks.
    pub leaks: Vec<Leak>,
}

impl Scan {
    /// Dissects the heap, marks the reachable blocks, and lists the rest.
    pub fn of(snapshot: &Snapshot, options: MarkOptions) -> Result<Scan, Error> {
        let heap = dissect(snapshot)?;
        let marked = mark(snapshot, &heap, options);
        let leaks = leaks(snapshot, &heap.blocks, &marked, options);
        Ok(Scan {
            heap,
            marked,
            leaks,
        })
    }

    /// Returns the reachable blocks that only interior pointers reach. Each block is judged
    /// separately.
    pub fn possibly_lost(&self, snapshot: &Snapshot, options: MarkOptions) -> Vec<Leak> {
        let blocks = possibly_lost(snapshot, &self.heap, &self.marked, options);
        let all = 0..self.heap.blocks.len();
        all.filter(|&block| blocks.contains(block))
            .map(|block| Leak {
                block,
                owner: block,
            })
            .collect()
    }

    /// Returns the contents of the leaked blocks, to be compared with a later snapshot.
    pub fn fingerprints(&self, snapshot: &Snapshot) -> Fingerprints {
        fingerprints(snapshot, &self.heap.blocks, &self.leaks)
    }

    /// Keeps only the leaks that an earlier snapshot contains with equal contents.
    pub fn keep_still_leaked(&mut self, before: &Fingerprints, snapshot: &Snapshot) {
        self.leaks = still_leaked(before, snapshot, &self.heap.blocks, &self.leaks);
    }
}
