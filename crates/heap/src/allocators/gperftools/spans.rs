//! Spans, and their free blocks.

use super::tables::{PageMap, SizeMap};
use crate::live_memory::Memory;
use crate::snapshot::{Snapshot, words};
use rustc_hash::FxHashSet;
use std::ops::Range;

/// `Span` (src/span.h): the first page, the number of pages, two links, the list of free blocks, and bit fields.
pub const SPAN_BYTES: u64 = 48;
const OBJECTS: u64 = 32;
const BITS: u64 = 40;
/// Highest number of blocks in a span, because `refcount` has 16 bits.
const MOST_BLOCKS: u64 = 0xffff;
/// Lowest bits of the size class and of the location in the bit fields. The number of blocks is stored in the bits
/// below.
const CLASS_BIT: u32 = 16;
const PLACE_BIT: u32 = 24;

/// Consecutive pages with one use.
#[derive(Clone, Debug)]
pub struct Span {
    /// Address of the span's descriptor.
    pub address: u64,
    pub range: Range<u64>,
    pub class: u64,
    /// Size of the blocks in bytes; 0 if the span is one block, or free.
    pub block_bytes: u64,
    pub is_in_use: bool,
    /// True if the span is free and its memory was returned to the kernel.
    pub is_given_back: bool,
    /// Number of blocks that are not in the span's own list.
    pub used: u64,
    /// First block of the span's own list.
    objects: u64,
}

/// Fields of a descriptor.
struct Fields {
    page: u64,
    pages: u64,
    objects: u64,
    bits: u64,
}

impl Fields {
    fn at(memory: &impl Memory, address: u64) -> Option<Fields> {
        let word = |offset: u64| memory.word(address.checked_add(offset)?);
        Some(Fields {
            page: word(0)?,
            pages: word(8)?,
            objects: word(OBJECTS)?,
            bits: word(BITS)?,
        })
    }
}

impl Span {
    /// Returns the span with these fields, or `None` if its size class does not exist, or if it has more blocks than
    /// its fields can count.
    fn with(address: u64, fields: &Fields, shift: u32, sizes: &SizeMap) -> Option<Span> {
        let class = fields.bits >> CLASS_BIT & 0xff;
        let place = fields.bits >> PLACE_BIT & 3;
        let end = fields.page + fields.pages;
        let is_in_use = place == 0;
        let bytes = *sizes.bytes.get(class as usize)?;
        let range = fields.page << shift..end << shift;
        let blocks = (range.end - range.start).checked_div(bytes);
        if is_in_use && blocks.is_some_and(|blocks| blocks > MOST_BLOCKS) {
            return None;
        }
        Some(Span {
            address,
            range,
            class,
            block_bytes: if is_in_use { bytes } else { 0 },
            is_in_use,
            is_given_back: place == 2,
            used: fields.bits & MOST_BLOCKS,
            objects: fields.objects,
        })
    }

    /// Returns the span that contains an address.
    pub fn around(
        memory: &impl Memory,
        map: PageMap,
        sizes: &SizeMap,
        address: u64,
    ) -> Option<Span> {
        let page = address >> map.shift;
        let descriptor = map.get(memory, page).filter(|&at| at != 0)?;
        let fields = Fields::at(memory, descriptor)?;
        let is_in = fields.page <= page && page < fields.page.checked_add(fields.pages)?;
        is_in
            .then(|| Span::with(descriptor, &fields, map.shift, sizes))
            .flatten()
    }

    /// Returns the blocks in the span's own list, or `None` if the list is broken.
    pub fn own_free(&self, memory: &impl Memory) -> Option<Vec<u64>> {
        linked(memory, self.objects, self.blocks() as usize)
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> u64 {
        match self.block_bytes {
            0 => 0,
            bytes => (self.range.end - self.range.start) / bytes,
        }
    }
}

/// Follows a list of blocks from its head, for at most `most` blocks.
pub fn linked(memory: &impl Memory, head: u64, most: usize) -> Option<Vec<u64>> {
    let mut found = Vec::new();
    let mut block = head;
    while block != 0 {
        if found.len() >= most {
            return None;
        }
        found.push(block);
        block = memory.word(block)?;
    }
    Some(found)
}

/// All spans, in address order.
pub struct Spans {
    pub all: Vec<Span>,
}

impl Spans {
    /// Reads the spans that the page table points to, and reports damage. Only the entries of the first and the last
    /// page of a span are reliable; entries of other pages may be stale.
    pub fn of(
        snapshot: &Snapshot,
        map: PageMap,
        sizes: &SizeMap,
    ) -> (Spans, Vec<(u64, &'static str)>) {
        let mut all = Vec::new();
        let mut damaged = Vec::new();
        let mut next = 0;
        for (first, leaf) in map.leaves(snapshot) {
            let bytes = snapshot.bytes(leaf.start, leaf.end - leaf.start);
            let Some(bytes) = bytes else {
                damaged.push((leaf.start, "a page table is not completely mapped"));
                continue;
            };
            for (page, address) in (first..).zip(words(bytes)) {
                if address == 0 || page < next {
                    continue;
                }
                let Some(fields) = Fields::at(snapshot, address) else {
                    damaged.push((address, "a page belongs to no span"));
                    continue;
                };
                let end = page.saturating_add(fields.pages);
                if fields.page != page || fields.pages == 0 || end > 1 << (48 - map.shift) {
                    continue;
                }
                next = end;
                match Span::with(address, &fields, map.shift, sizes) {
                    Some(span) => all.push(span),
                    None => damaged.push((address, "a span does not fit its size class")),
                }
            }
        }
        (Spans { all }, damaged)
    }

    /// Returns the span and the number of the block that begins at an address.
    fn block(&self, address: u64) -> Option<(usize, usize)> {
        let after = self.all.partition_point(|span| span.range.start <= address);
        let index = after.checked_sub(1)?;
        let span = &self.all[index];
        let offset = address - span.range.start;
        let is_block = span.block_bytes > 0
            && offset.is_multiple_of(span.block_bytes)
            && offset / span.block_bytes < span.blocks();
        is_block.then(|| (index, (offset / span.block_bytes) as usize))
    }

    /// Returns the size of the block at an address.
    pub fn block_bytes(&self, address: u64) -> u64 {
        let block = self.block(address);
        block.map_or(0, |(span, _)| self.all[span].block_bytes)
    }
}

/// Free blocks of all spans.
pub struct Free {
    /// First bit of each span.
    first_bits: Vec<usize>,
    bits: Vec<u64>,
    /// Number of each span's free blocks in its own list, and in other lists.
    counts: Vec<(u64, u64)>,
}

impl Free {
    /// Returns an empty set.
    pub fn of(spans: &Spans) -> Free {
        let mut first_bits = Vec::with_capacity(spans.all.len());
        let mut bits = 0;
        for span in &spans.all {
            first_bits.push(bits);
            bits += span.blocks() as usize;
        }
        Free {
            first_bits,
            bits: vec![0; bits / 64 + 1],
            counts: vec![(0, 0); spans.all.len()],
        }
    }

    fn contains(&self, span: usize, block: usize) -> bool {
        let bit = self.first_bits[span] + block;
        self.bits[bit / 64] >> (bit % 64) & 1 != 0
    }

    fn insert(&mut self, span: usize, block: usize) {
        let bit = self.first_bits[span] + block;
        self.bits[bit / 64] |= 1 << (bit % 64);
    }

    /// Takes the free blocks of the span's own list.
    pub fn take_own(
        &mut self,
        snapshot: &Snapshot,
        spans: &Spans,
        span: usize,
    ) -> Result<(), &'static str> {
        let Span {
            objects,
            block_bytes,
            ..
        } = spans.all[span];
        let mut block = if block_bytes > 0 { objects } else { 0 };
        while block != 0 {
            match spans.block(block) {
                Some((of, number)) if of == span && !self.contains(span, number) => {
                    self.insert(span, number);
                    self.counts[span].0 += 1;
                }
                _ => return Err("the list of a span is damaged"),
            }
            block = snapshot.word(block).unwrap_or(u64::MAX);
        }
        Ok(())
    }

    /// Returns the blocks of a chain, or `None` if one of them is of another class or is already known to be free.
    pub fn chain(
        &self,
        snapshot: &Snapshot,
        spans: &Spans,
        head: u64,
        class: u64,
    ) -> Option<Vec<u64>> {
        let mut chain = Vec::new();
        let mut seen = FxHashSet::default();
        let mut block = head;
        while block != 0 {
            let (span, number) = spans.block(block)?;
            let is_new = spans.all[span].class == class
                && !self.contains(span, number)
                && seen.insert(block);
            if !is_new {
                return None;
            }
            chain.push(block);
            block = snapshot.word(block)?;
        }
        Some(chain)
    }

    /// Records the free blocks of a chain that moves between threads.
    pub fn take(&mut self, spans: &Spans, chain: &[u64]) {
        for &block in chain {
            if let Some((span, number)) = spans.block(block) {
                self.insert(span, number);
                self.counts[span].1 += 1;
            }
        }
    }

    /// Returns the number of a span's free blocks in its own list, and in other lists.
    pub fn counts(&self, span: usize) -> (u64, u64) {
        self.counts[span]
    }

    /// Returns the blocks of a span that are in use, as address and size.
    pub fn live(&self, span: &Span, index: usize) -> Vec<(u64, u64)> {
        let blocks = 0..span.blocks() as usize;
        blocks
            .filter(|&block| !self.contains(index, block))
            .map(|block| {
                let address = span.range.start + block as u64 * span.block_bytes;
                (address, span.block_bytes)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The set of free blocks has a bit for each block of a span.
    #[test]
    fn a_damaged_length_does_not_cost_memory() {
        let sizes = SizeMap { bytes: vec![0, 8] };
        let span = |pages: u64, class: u64| {
            let fields = Fields {
                page: 1,
                pages,
                objects: 0,
                bits: class << CLASS_BIT,
            };
            Span::with(0x1000, &fields, 13, &sizes).map(|span| span.blocks())
        };
        assert_eq!(span(1, 1), Some(1024));
        assert_eq!(span(1 << 34, 1), None);
        // One large block.
        assert_eq!(span(1 << 34, 0), Some(0));
    }
}
