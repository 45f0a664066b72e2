//! The lines for events in heaptrack's file, for groups of blocks that live and die together.

use super::heaptrack_events::Plan;
use std::io::{Result, Write};
use std::ops::Range;

/// Maximum number of short-lived blocks of one site that are live at the same time.
const MOST_AT_ONCE: u64 = 64;

/// Blocks that live and die together. Their sizes are nearly equal, and the sum is exact.
#[derive(Clone, Copy, Default)]
pub(super) struct Lot {
    /// Index of the smaller blocks.
    pub(super) small: u32,
    /// Index of the blocks that are one byte larger.
    pub(super) large: u32,
    pub(super) blocks: u64,
    /// Number of the larger blocks, which come last.
    pub(super) large_blocks: u64,
}

impl Lot {
    pub(super) fn small_blocks(&self) -> u64 {
        self.blocks - self.large_blocks
    }

    /// Removes `blocks` of the smaller blocks and returns their index.
    pub(super) fn take_small(&mut self, blocks: u64) -> u32 {
        self.blocks -= blocks;
        self.small
    }

    /// Returns the index of the nth block.
    pub(super) fn index(&self, n: u64) -> u32 {
        if n < self.blocks - self.large_blocks {
            self.small
        } else {
            self.large
        }
    }
}

/// Writes runs of events. Without an output, only determines the order in which indices appear.
pub(super) struct Lines<'a> {
    pub(super) out: Option<&'a mut dyn Write>,
    pub(super) between: u32,
    /// Number in the file for each index. Numbers are assigned in the order of first allocation.
    pub(super) numbers: Vec<Option<u32>>,
    pub(super) used: u32,
}

impl Lines<'_> {
    pub(super) fn number(&mut self, index: u32) -> u32 {
        *self.numbers[index as usize].get_or_insert_with(|| {
            self.used += 1;
            self.used - 1
        })
    }

    pub(super) fn time(&mut self, ms: u64) -> Result<()> {
        match &mut self.out {
            Some(out) => writeln!(out, "c {ms:x}"),
            None => Ok(()),
        }
    }

    pub(super) fn add(&mut self, index: u32) -> Result<()> {
        let number = self.number(index);
        match &mut self.out {
            Some(out) => writeln!(out, "+ {number:x}"),
            None => Ok(()),
        }
    }

    pub(super) fn release(&mut self, index: u32) -> Result<()> {
        // Without an output, a block that is never allocated has no number.
        match (&mut self.out, self.numbers[index as usize]) {
            (Some(out), Some(number)) => writeln!(out, "- {number:x}"),
            _ => Ok(()),
        }
    }

    /// Allocates a share of a lot. Rounds down, smaller blocks first, so that the bytes never
    /// exceed the share.
    pub(super) fn allocate(&mut self, lot: &Lot, shares: Range<f64>) -> Result<()> {
        let by = |share: f64| (lot.blocks as f64 * share) as u64;
        for n in by(shares.start)..by(shares.end) {
            self.add(lot.index(n))?;
        }
        Ok(())
    }

    /// Releases a share of a lot. Rounds up, larger blocks first, so that the bytes never fall
    /// below the share.
    pub(super) fn release_lot(&mut self, lot: &Lot, shares: Range<f64>) -> Result<()> {
        let by = |share: f64| (lot.blocks as f64 * share).ceil() as u64;
        let range = by(shares.start)..by(shares.end);
        if !range.is_empty() {
            self.release(self.between)?;
        }
        for n in range {
            self.release(lot.index(lot.blocks - 1 - n))?;
        }
        Ok(())
    }

    /// Writes blocks that are allocated and released while the live bytes stay below the peak.
    pub(super) fn brief(
        &mut self,
        plan: &Plan,
        live: u64,
        peak: u64,
        shares: Range<f64>,
    ) -> Result<()> {
        let range = |lot: &Lot| {
            let by = |share: f64| (lot.blocks as f64 * share) as u64;
            by(shares.start)..by(shares.end)
        };
        for n in range(&plan.temporary) {
            let index = plan.temporary.index(n);
            self.add(index)?;
            self.release(index)?;
        }
        let room = peak.saturating_sub(live).saturating_sub(1);
        let at_once = (room / plan.largest.max(1)).clamp(1, MOST_AT_ONCE);
        let Range { mut start, end } = range(&plan.brief);
        while start < end {
            let batch = start..end.min(start + at_once);
            for n in batch.clone() {
                self.add(plan.brief.index(n))?;
            }
            self.release(self.between)?;
            for n in batch.clone() {
                self.release(plan.brief.index(n))?;
            }
            start = batch.end;
        }
        Ok(())
    }
}
