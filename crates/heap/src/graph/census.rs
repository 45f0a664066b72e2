//! The whole heap by type, size and arena.

use crate::dissect::{Heap, OtherHeap};
use crate::glibc::dissect::ArenaReport;
use crate::graph::types::{Evidence, Types, TypesTold};
use crate::ranges::run_bytes;
use crate::snapshot::Snapshot;
use memhook_foreign::size_text;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::cmp::Reverse;

/// Blocks of one type or size.
#[derive(Clone, Debug, Serialize)]
pub struct CensusClass {
    /// Name of the type, or the size.
    pub name: String,
    /// Number of blocks.
    pub blocks: u64,
    /// Usable bytes.
    pub bytes: u64,
}

/// Blocks of one type.
#[derive(Clone, Debug, Serialize)]
pub struct CensusType {
    /// The type's name, with the number and bytes of its blocks.
    #[serde(flatten)]
    pub class: CensusClass,
    /// Evidence for the type.
    pub evidence: Evidence,
}

/// The census.
#[derive(Clone, Debug, Serialize)]
pub struct Census {
    /// `memhook-rs/census/1`.
    pub schema: &'static str,
    /// Process id.
    pub pid: i32,
    /// glibc's version; empty if its malloc has no blocks here.
    pub glibc: String,
    /// Name and version of each other allocator.
    pub others: Vec<String>,
    /// Blocks in use.
    pub blocks: u64,
    /// Usable bytes of these blocks.
    pub bytes: u64,
    /// By type, the largest first.
    pub types: Vec<CensusType>,
    /// Share of the bytes with a known type.
    pub types_told: TypesTold,
    /// By power of two of the usable bytes, ascending.
    pub sizes: Vec<CensusClass>,
    /// The largest blocks: address, bytes, type.
    pub largest: Vec<(String, u64, String)>,
    /// The arenas.
    pub arenas: Vec<ArenaReport>,
    /// Number of chunks that have their own mapping, and their bytes.
    pub mmapped: (u64, u64),
    /// Free bytes that the allocator holds: bins, thread caches, fast lists, and top chunks.
    pub free_bytes: u64,
    /// Share of all bytes obtained from the system that is free, not counting the top chunks.
    pub fragmentation: f64,
    /// True if the whole heap could be parsed.
    pub whole: bool,
}

/// Counts the heap.
pub fn census(snapshot: &Snapshot, heap: &Heap, types: &mut Types, top: usize) -> Census {
    let mut by_type: FxHashMap<u32, (u64, u64)> = FxHashMap::default();
    let mut types_told = TypesTold {
        notes: types.notes().to_vec(),
        ..TypesTold::default()
    };
    let cache = types.number_of("malloc's cache of a thread");
    let mut by_size = [(0u64, 0u64); 64];
    let mut largest: Vec<(u64, u32)> = Vec::new();
    let mut all_bytes = 0;
    for (number, block) in heap.blocks.iter() {
        all_bytes += block.bytes;
        let of = match heap.caches.contains(&block.address) {
            true => cache,
            false => types.number(&heap.blocks, number, block),
        };
        types_told.count(types.evidence(of), block.bytes);
        let entry = by_type.entry(of).or_default();
        entry.0 += 1;
        entry.1 += block.bytes;
        let size = &mut by_size[block.bytes.max(1).ilog2() as usize];
        size.0 += 1;
        size.1 += block.bytes;
        if largest.len() < top || largest.last().is_some_and(|l| block.bytes > l.0) {
            let at = largest.partition_point(|l| l.0 >= block.bytes);
            largest.insert(at, (block.bytes, number));
            largest.truncate(top);
        }
    }
    let mut classes: Vec<CensusType> = by_type
        .into_iter()
        .map(|(of, (blocks, bytes))| CensusType {
            class: CensusClass {
                name: types.name(of).to_owned(),
                blocks,
                bytes,
            },
            evidence: types.evidence(of),
        })
        .collect();
    classes.sort_by_key(|c| (Reverse(c.class.bytes), c.class.name.clone(), c.evidence));
    classes.truncate(top);
    let sizes = by_size
        .iter()
        .enumerate()
        .filter(|(_, s)| s.0 > 0)
        .map(|(i, s)| CensusClass {
            name: format!("{} to {}", size_text(1 << i), size_text((2u64 << i) - 1)),
            blocks: s.0,
            bytes: s.1,
        })
        .collect();
    let inside: u64 = heap
        .arenas
        .iter()
        .map(|a| a.counts.free_bytes + a.counts.cached_bytes + a.counts.fast_bytes)
        .sum();
    let of_others = heap.others.iter().map(OtherHeap::free_bytes);
    let between: u64 = of_others.clone().map(|(between, _)| between).sum();
    let inside = inside + between;
    let free_extents: u64 = of_others.map(|(_, extents)| extents).sum();
    let tops: u64 = heap.arenas.iter().map(|a| a.counts.top_bytes).sum();
    // A damaged arena may claim any size.
    let arenas = heap.arenas.iter().map(|a| a.system_bytes);
    let of_glibc = arenas.fold(heap.mmapped.1, u64::saturating_add);
    let of_others = heap.others.iter().map(|other| run_bytes(&other.ranges));
    let system = of_others.fold(of_glibc, u64::saturating_add);
    Census {
        schema: "memhook-rs/census/1",
        pid: snapshot.meta.pid,
        glibc: match heap.glibc_minor {
            0 => String::new(),
            minor => format!("2.{minor}"),
        },
        others: heap.others.iter().map(OtherHeap::to_string).collect(),
        blocks: u64::from(heap.blocks.len()),
        bytes: all_bytes,
        types: classes,
        types_told,
        sizes,
        largest: largest
            .into_iter()
            .map(|(bytes, number)| {
                let address = format!("{:#x}", heap.blocks.get(number).address);
                (address, bytes, types.describe(&heap.blocks, number))
            })
            .collect(),
        arenas: heap.arenas.clone(),
        mmapped: heap.mmapped,
        free_bytes: inside + tops + free_extents,
        fragmentation: inside as f64 / system.max(1) as f64,
        whole: heap.is_whole(),
    }
}
