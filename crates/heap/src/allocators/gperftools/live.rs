//! Checks whether blocks of a running process are live, using their span and all free lists of
//! their class.

use super::spans::{Span, linked};
use super::tables::{Caches, Central, PageMap, SizeMap};
use crate::allocators::live_check::{LiveCheck, Standstill};
use crate::blocks::Block;
use crate::live_memory::Memory;
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;

/// Upper bound on the length of a list.
const MOST_LISTED: usize = 1 << 24;

/// Addresses of all structures that hold free blocks.
#[derive(Debug)]
pub struct Live {
    pub sizes: SizeMap,
    pub central: Central,
    pub map: PageMap,
    pub caches: Caches,
}

impl Live {
    /// Returns the free blocks of a class that are not in the lists of spans.
    fn free(&self, memory: &impl Memory, caches: &[u64], class: u64) -> Option<FxHashSet<u64>> {
        let mut free = FxHashSet::default();
        let chains = self.central.chains(memory, class)?;
        if !chains.changing.is_empty() {
            return None;
        }
        for (head, _) in chains.settled {
            free.extend(linked(memory, head, MOST_LISTED)?);
        }
        for &cache in caches {
            let (head, _) = Caches::list(memory, cache, class)?;
            free.extend(linked(memory, head, MOST_LISTED)?);
        }
        Some(free)
    }

    fn is_live(
        &self,
        memory: &impl Memory,
        block: &Block,
        mut free_of_class: impl FnMut(u64) -> Option<bool>,
    ) -> Option<bool> {
        let span = Span::around(memory, self.map, &self.sizes, block.address)?;
        let offset = block.address - span.range.start;
        let is_its = |bytes: u64| bytes == block.bytes && offset.is_multiple_of(bytes);
        if !span.is_in_use {
            return Some(false);
        }
        if span.block_bytes == 0 {
            return Some(offset == 0 && is_its(span.range.end - span.range.start));
        }
        if !is_its(span.block_bytes) || offset / span.block_bytes >= span.blocks() {
            return Some(false);
        }
        let own = span.own_free(memory)?;
        Some(!own.contains(&block.address) && !free_of_class(span.class)?)
    }
}

impl LiveCheck for Live {
    fn are_live(&self, still: &Standstill, blocks: &[Block]) -> Result<Vec<bool>, &'static str> {
        let memory = &still.memory;
        let caches = self.caches.now(memory, &self.sizes);
        let caches = caches.ok_or("the list of thread caches has moved")?;
        let mut classes: BTreeMap<u64, Option<FxHashSet<u64>>> = BTreeMap::new();
        let mut is_live = |block: &Block| {
            self.is_live(memory, block, |class| {
                let free = classes
                    .entry(class)
                    .or_insert_with(|| self.free(memory, &caches, class));
                free.as_ref().map(|free| free.contains(&block.address))
            })
        };
        Ok(blocks.iter().map(|b| is_live(b) == Some(true)).collect())
    }
}
