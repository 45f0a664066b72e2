//! `struct malloc_context` of musl's mallocng, found by what must be true of it.
//!
//! It is in the data of the C library, or of the program in which that is linked. Its first word is a secret that
//! each of the allocator's pages of metadata begins with, too, which nothing else in a process has
//! (musl 1.2.1 to 1.2.5, src/malloc/mallocng/meta.h and malloc.c, whose `PAGESIZE` is a constant on x86-64).

use crate::live_memory::Memory;
use crate::snapshot::{Snapshot, words};
use std::collections::BTreeSet;

/// Size classes; a group of its own has [`MAPPED_CLASS`].
pub const CLASSES: usize = 48;
/// The class of blocks that are mappings of their own.
pub const MAPPED_CLASS: u64 = 63;
/// Bytes of the context.
pub const CONTEXT_BYTES: u64 = 928;
/// Each piece of metadata is as large as a page, and begins at one.
pub const AREA_BYTES: u64 = 4096;
/// `struct meta_area` without its slots, and one of them.
const AREA_HEADER_BYTES: u64 = 24;
const META_BYTES: u64 = 40;
/// `nslots` of all areas.
const SLOTS: u64 = (AREA_BYTES - AREA_HEADER_BYTES) / META_BYTES;
/// More areas than a process has: each describes up to three thousand blocks.
const MOST_AREAS: usize = 1 << 22;

// Offsets in the context.
const INIT_DONE: u64 = 8;
const AREA_HEAD: u64 = 56;
const AREA_TAIL: u64 = 64;
const ACTIVE: u64 = 80;
const USAGE_BY_CLASS: u64 = 464;

/// The context of a process.
pub struct Context {
    /// Where it is.
    pub address: u64,
    /// First word of each page of metadata.
    pub secret: u64,
    /// The pages of metadata, in the allocator's order.
    pub areas: Vec<u64>,
    /// Number of slots of each class in all groups, as the allocator counts.
    pub usage: Vec<u64>,
    /// Fault of the heap, with its address.
    pub broken: Option<(u64, &'static str)>,
}

/// `struct meta`: what describes a group of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    pub address: u64,
    /// The group.
    pub mem: u64,
    pub avail: u32,
    pub freed: u32,
    pub last: u64,
    /// Not set for memory that the loader has given to the allocator.
    pub is_freeable: bool,
    pub class: u64,
    /// Pages of the mapping that it is; 0 if it lies in a slot of another group.
    pub pages: u64,
}

impl Context {
    /// Finds it in the data of all modules.
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

    /// The one at this address, if there is one: its secret must lead each of its areas.
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

    /// The descriptors in use.
    pub fn metas<'a>(&'a self, snapshot: &'a Snapshot) -> impl Iterator<Item = Meta> + 'a {
        let slots = self.areas.iter().flat_map(|&area| {
            let first = area + AREA_HEADER_BYTES;
            (0..SLOTS).map(move |slot| first + slot * META_BYTES)
        });
        slots.filter_map(|address| Meta::at(snapshot, address))
    }

    /// The group of each class from which the allocator takes slots, with the class.
    pub fn active(&self, snapshot: &Snapshot) -> Vec<(u64, u64)> {
        let classes = (0..CLASSES as u64).filter_map(|class| {
            let meta = snapshot.word(self.address + ACTIVE + class * 8)?;
            (meta != 0).then_some((class, meta))
        });
        classes.collect()
    }
}

impl Meta {
    /// The one at this address, if it is in use.
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

/// Bytes of data, up to the first that was not copied.
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
