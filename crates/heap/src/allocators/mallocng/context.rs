//! Finds `struct malloc_context` of musl's mallocng by invariants of its contents.
//!
//! The context is in the data of the C library, or of the program into which the C library is linked. Its first word is
//! a secret that also begins each of the allocator's pages of metadata, and occurs nowhere else in a process (musl
//! 1.2.1 to 1.2.5, src/malloc/mallocng/meta.h and malloc.c, whose `PAGESIZE` is a constant on x86-64).

use crate::live_memory::Memory;
use crate::snapshot::{Snapshot, words};
use std::collections::BTreeSet;

/// Number of size classes. A group with its own mapping has [`MAPPED_CLASS`].
pub const CLASSES: usize = 48;
/// The class of blocks that have their own mapping.
pub const MAPPED_CLASS: u64 = 63;
/// Size of the context in bytes.
pub const CONTEXT_BYTES: u64 = 928;
/// Size and alignment of a piece of metadata: one page.
pub const AREA_BYTES: u64 = 4096;
/// Size of `struct meta_area` without its slots, and size of a slot.
const AREA_HEADER_BYTES: u64 = 24;
const META_BYTES: u64 = 40;
/// Number of slots (`nslots`) in every area.
const SLOTS: u64 = (AREA_BYTES - AREA_HEADER_BYTES) / META_BYTES;
/// Upper bound on the number of metadata areas. Each area describes up to three thousand blocks.
const MOST_AREAS: usize = 1 << 22;

// Offsets in the context.
const INIT_DONE: u64 = 8;
const AREA_HEAD: u64 = 56;
const AREA_TAIL: u64 = 64;
const ACTIVE: u64 = 80;
const USAGE_BY_CLASS: u64 = 464;

/// The context of a process.
pub struct Context {
    /// Address of the context.
    pub address: u64,
    /// First word of every page of metadata.
    pub secret: u64,
    /// The pages of metadata, in the allocator's order.
    pub areas: Vec<u64>,
    /// Number of slots of each class in all groups, as counted by the allocator.
    pub usage: Vec<u64>,
    /// A fault in the heap, with its address.
    pub broken: Option<(u64, &'static str)>,
}

/// `struct meta`: the descriptor of a group of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    pub address: u64,
    /// Address of the group.
    pub mem: u64,
    pub avail: u32,
    pub freed: u32,
    pub last: u64,
    /// False for memory that the loader has donated to the allocator.
    pub is_freeable: bool,
    pub class: u64,
    /// Number of pages in the group's own mapping; 0 if the group is in a slot of another group.
    pub pages: u64,
}

impl Context {
    /// Finds the context in the data of all modules.
    pub fn find(snapshot: &Snapshot) -> Option<Context> {
        let modules = snapshot.meta.modules.iter();
        let mut data = modules.flat_map(|m| &m.data);
        data.find_map(|range| {
            let end = range.end.checked_sub(CONTEXT_BYTES)?;
            let bytes = in_memory(snapshot, range.start, range.end)?;
            let words: Vec<u64> = words(bytes).collect();
            let candidates = words.windows((AREA_TAIL / 8 + 1) as usize).enumerate();
            let mut likely = candidates.filter(|(_, w)| may_be(w));
            likely.find_map(|(index, _)| {
                let address = range.start + index as u64 * 8;
                Context::at(snapshot, address).filter(|_| address <= end)
            })
        })
    }

    /// Returns the context at this address, if each of its areas begins with its secret.
    fn at(snapshot: &Snapshot, address: u64) -> Option<Context> {
        let word = |offset: u64| snapshot.word(address + offset);
        let secret = word(0)?;
        let (head, tail) = (word(AREA_HEAD)?, word(AREA_TAIL)?);
        let is_area = |area: u64| {
            area.is_multiple_of(AREA_BYTES)
                && snapshot.word(area) == Some(secret)
                && snapshot.half(area + 16).map(u64::from) == Some(SLOTS)
        };
        if !is_area(head) || !is_area(tail) {
            return None;
        }
        let mut usage = Vec::new();
        for class in 0..CLASSES as u64 {
            usage.push(word(USAGE_BY_CLASS + class * 8)?);
        }
        let mut found = Context {
            address,
            secret,
            areas: vec![head],
            usage,
            broken: None,
        };
        let mut seen = BTreeSet::from([head]);
        let mut area = head;
        while area != tail {
            let next = snapshot.word(area + 8).unwrap_or(0);
            if !is_area(next) || !seen.insert(next) || seen.len() > MOST_AREAS {
                found.broken = Some((area, "the list of metadata is broken"));
                break;
            }
            found.areas.push(next);
            area = next;
        }
        Some(found)
    }

    /// Returns the descriptors in use.
    pub fn metas<'a>(&'a self, snapshot: &'a Snapshot) -> impl Iterator<Item = Meta> + 'a {
        let slots = self.areas.iter().flat_map(|&area| {
            let first = area + AREA_HEADER_BYTES;
            (0..SLOTS).map(move |slot| first + slot * META_BYTES)
        });
        slots.filter_map(|address| Meta::at(snapshot, address))
    }

    /// Returns the groups from which the allocator takes slots, each with its class.
    pub fn active(&self, snapshot: &Snapshot) -> Vec<(u64, u64)> {
        let classes = (0..CLASSES as u64).filter_map(|class| {
            let meta = snapshot.word(self.address + ACTIVE + class * 8)?;
            (meta != 0).then_some((class, meta))
        });
        classes.collect()
    }
}

impl Meta {
    /// Returns the descriptor at this address, if it is in use.
    pub fn at(memory: &impl Memory, address: u64) -> Option<Meta> {
        let mem = memory
            .word(address.checked_add(16)?)
            .filter(|&mem| mem != 0)?;
        let bits = memory.word(address.checked_add(32)?)?;
        Some(Meta {
            address,
            mem,
            avail: memory.half(address + 24)?,
            freed: memory.half(address + 28)?,
            last: bits & 31,
            is_freeable: bits >> 5 & 1 != 0,
            class: bits >> 6 & 63,
            pages: bits >> 12,
        })
    }
}

/// Returns bytes of data up to the first byte that is not in the copy.
fn in_memory(snapshot: &Snapshot, start: u64, end: u64) -> Option<&[u8]> {
    let region = snapshot.region(start)?;
    snapshot.bytes(start, end.min(region.end()).checked_sub(start)?)
}

/// Returns true if the context may begin with these words: a secret, `init_done`, and the ends of the list of areas.
fn may_be(words: &[u64]) -> bool {
    let [head, tail] = [AREA_HEAD, AREA_TAIL].map(|at| words[at as usize / 8]);
    words[0] != 0
        && words[INIT_DONE as usize / 8] as u32 == 1
        && head != 0
        && head.is_multiple_of(AREA_BYTES)
        && tail != 0
        && tail.is_multiple_of(AREA_BYTES)
}
