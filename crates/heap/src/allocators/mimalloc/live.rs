//! Checks whether blocks of a running process are live, using the block's page, the page's lists,
//! and the list of the page's heap.

use super::layout::Layout;
use super::lists::{delayed_of_heap, free_of_page};
use super::page_map::{MapLayout, page_of};
use super::segments::{Page, SEGMENT_BYTES, Segment};
use crate::allocators::live_check::{LiveCheck, Standstill};
use crate::blocks::Block;
use crate::live_memory::Memory;
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;

/// Facts that are needed to read a page.
#[derive(Debug)]
pub struct Live {
    pub layout: Layout,
    pub secret: u64,
}

/// A page, and its free blocks if all of them are known.
type PageNow = (Page, Option<FxHashSet<u64>>);

impl Live {
    /// Returns the pages in use of the segment at this address.
    fn pages(&self, memory: &impl Memory, segment: u64) -> Option<Vec<Page>> {
        if Segment::secret(memory, &self.layout, segment)? != self.secret {
            return None;
        }
        let mut pages = Vec::new();
        let segment = Segment::at(memory, &self.layout, segment)?;
        let walked = segment.walk(memory, &self.layout, |p| pages.extend(p.ok()), |_| {});
        walked.ok().map(|()| pages)
    }

    /// Returns the free blocks of a page from all lists.
    fn free(&self, memory: &impl Memory, page: &Page) -> Option<FxHashSet<u64>> {
        let mut free = free_of_page(memory, &self.layout, page)?;
        // A page whose thread has ended belongs to no heap, so it has no other list.
        if page.heap != 0 {
            free.extend(delayed_of_heap(
                memory,
                &self.layout,
                (page.heap, page.thread),
            )?);
        }
        Some(free)
    }
}

/// Like [`Live`], for a heap in which a map leads to all pages.
#[derive(Debug)]
pub struct LiveByMap {
    pub layout: MapLayout,
    /// Address of the entries of the first level.
    pub entries: u64,
}

impl LiveCheck for LiveByMap {
    fn are_live(&self, still: &Standstill, blocks: &[Block]) -> Result<Vec<bool>, &'static str> {
        let memory = &still.memory;
        let mut pages: BTreeMap<u64, Option<FxHashSet<u64>>> = BTreeMap::new();
        let mut is_live = |block: &Block| {
            let page = page_of(memory, &self.layout, self.entries, block.address)?;
            let free = pages
                .entry(page.address)
                .or_insert_with(|| free_of_page(memory, &self.layout.lists, &page));
            Some(is_block(&page, block) && !free.as_ref()?.contains(&block.address))
        };
        Ok(blocks.iter().map(|b| is_live(b) == Some(true)).collect())
    }
}

/// Returns true if a page has this block, live or not.
fn is_block(page: &Page, block: &Block) -> bool {
    let offset = block.address.wrapping_sub(page.start);
    block.address >= page.start
        && offset.is_multiple_of(page.block_bytes)
        && offset / page.block_bytes < page.capacity
        && block.bytes <= page.block_bytes
}

impl LiveCheck for Live {
    fn are_live(&self, still: &Standstill, blocks: &[Block]) -> Result<Vec<bool>, &'static str> {
        let memory = &still.memory;
        let mut segments: BTreeMap<u64, Vec<Page>> = BTreeMap::new();
        let mut pages: BTreeMap<u64, PageNow> = BTreeMap::new();
        let mut is_live = |block: &Block| {
            let segment = block.address & !(SEGMENT_BYTES - 1);
            let of_segment = segments
                .entry(segment)
                .or_insert_with(|| self.pages(memory, segment).unwrap_or_default());
            let page = of_segment
                .iter()
                .find(|page| page.range.contains(&block.address))?;
            let (page, free) = pages
                .entry(page.address)
                .or_insert_with(|| (page.clone(), self.free(memory, page)));
            Some(is_block(page, block) && !free.as_ref()?.contains(&block.address))
        };
        Ok(blocks.iter().map(|b| is_live(b) == Some(true)).collect())
    }
}
