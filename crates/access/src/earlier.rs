//! Blocks from before the attach, by type and size, from a dissection of the heap.

use crate::page_watch::watchable;
use crate::pages::PAGE_BYTES;
use crate::sites::{LiveBlock, Site};
use memhook_foreign::size_text;
use memhook_heap::{Captured, Error, Types, dissect};
use memhook_inject::{PageScan, PageState};
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::Range;

/// Common property of some blocks from before the attach.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Class of the blocks, or the kind of their contents: `text`, `pointers`, `zeros`, `data`.
    pub what: String,
    /// Lower bound on the blocks' usable bytes, a power of two. The upper bound is twice as large.
    pub from_bytes: u64,
}

impl Kind {
    /// Describes the kind in words.
    pub fn name(&self) -> String {
        let most = size_text(self.from_bytes.saturating_mul(2) - 1);
        format!("{} of {} to {most}", self.what, size_text(self.from_bytes))
    }
}

/// Blocks from before the attach that are still live.
#[derive(Clone, Debug, Default)]
pub struct EarlierBlocks {
    kinds: Vec<Kind>,
    /// Bytes and kind number of each block, by address.
    blocks: FxHashMap<u64, (u64, u32)>,
    /// Pages, if the blocks are unknown.
    pages: Vec<Range<u64>>,
}

impl EarlierBlocks {
    /// Finds the blocks in a copy of the process's memory.
    pub fn of(captured: &Captured) -> Result<EarlierBlocks, Error> {
        let snapshot = &captured.snapshot;
        let heap = dissect(snapshot)?;
        let caches: FxHashSet<u64> = heap.caches.iter().copied().collect();
        let mut types = Types::new(snapshot, &captured.images);
        let mut numbers: FxHashMap<Kind, u32> = FxHashMap::default();
        let mut found = EarlierBlocks::default();
        for (number, block) in heap.blocks.iter() {
            // These blocks belong to malloc.
            if block.bytes == 0 || caches.contains(&block.address) {
                continue;
            }
            let kind = Kind {
                what: types.describe(&heap.blocks, number),
                from_bytes: 1 << block.bytes.ilog2(),
            };
            let kinds = &mut found.kinds;
            let kind = *numbers.entry(kind).or_insert_with_key(|kind| {
                kinds.push(kind.clone());
                kinds.len() as u32 - 1
            });
            found.blocks.insert(block.address, (block.bytes, kind));
        }
        Ok(found)
    }

    #[cfg(test)]
    pub(crate) fn with(blocks: impl Iterator<Item = (u64, u64, u32)>) -> EarlierBlocks {
        EarlierBlocks {
            blocks: blocks
                .map(|(at, bytes, kind)| (at, (bytes, kind)))
                .collect(),
            ..EarlierBlocks::default()
        }
    }

    /// Returns the pages that belong to the process alone, for a heap whose blocks cannot be
    /// distinguished.
    pub fn pages_of(pid: i32) -> EarlierBlocks {
        let mut found = EarlierBlocks::default();
        let Ok(scan) = PageScan::open(pid) else {
            return found;
        };
        for area in watchable(pid) {
            let mut runs = Vec::new();
            if scan.find(area, PageState::Own, &mut runs).is_ok() {
                found.pages.extend(runs);
            }
        }
        found
    }

    /// Returns true if only pages are known.
    pub fn are_pages(&self) -> bool {
        !self.pages.is_empty()
    }

    /// Removes the block at this address, because it was released or belongs to the trace.
    pub fn remove(&mut self, address: u64) {
        self.blocks.remove(&address);
    }

    /// Returns the kind with this number.
    pub fn kind(&self, number: u32) -> Option<&Kind> {
        self.kinds.get(number as usize)
    }

    /// Names the kind of a site's blocks; `None` for blocks that a trace has seen.
    pub fn name(&self, site: Site) -> Option<String> {
        match site {
            Site::Kind(number) => self.kind(number).map(Kind::name),
            Site::Pages => Some("pages".into()),
            Site::Stack(_) => None,
        }
    }

    /// Returns the remaining blocks.
    pub fn iter(&self) -> impl Iterator<Item = LiveBlock> + '_ {
        let blocks = self.blocks.iter();
        let blocks = blocks.map(|(&address, &(bytes, kind))| LiveBlock {
            address,
            bytes,
            site: Site::Kind(kind),
            allocated_ms: None,
        });
        let pages = self.pages.iter().cloned();
        let pages = pages.flat_map(|run| run.step_by(PAGE_BYTES as usize));
        blocks.chain(pages.map(|address| LiveBlock {
            address,
            bytes: PAGE_BYTES,
            site: Site::Pages,
            allocated_ms: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names() {
        let kind = Kind {
            what: "Node".into(),
            from_bytes: 32,
        };
        assert_eq!(kind.name(), "Node of 32 B to 63 B");
    }
}
