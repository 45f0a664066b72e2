//! The whole heap by type, size and arena.

use crate::glibc::dissect::{ArenaReport, Heap};
use crate::graph::types::Types;
use crate::report::describe;
use crate::snapshot::Snapshot;
use crate::text::bytes_text;
use memhook_foreign::visible;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::cmp::Reverse;
use std::fmt::Write;

/// Blocks of one type or size.
#[derive(Clone, Debug, Serialize)]
pub struct Class {
    /// The type, or the size.
    pub name: String,
    /// How many blocks.
    pub blocks: u64,
    /// Usable bytes.
    pub bytes: u64,
}

/// The census.
#[derive(Clone, Debug, Serialize)]
pub struct Census {
    /// `memhook-rs/census/1`.
    pub schema: &'static str,
    /// Process id.
    pub pid: i32,
    /// glibc's version.
    pub glibc: String,
    /// Blocks in use.
    pub blocks: u64,
    /// Their usable bytes.
    pub bytes: u64,
    /// By type, the largest first.
    pub types: Vec<Class>,
    /// By power of two of the usable bytes, ascending.
    pub sizes: Vec<Class>,
    /// The largest blocks: address, bytes, type.
    pub largest: Vec<(String, u64, String)>,
    /// The arenas.
    pub arenas: Vec<ArenaReport>,
    /// Chunks that are mappings of their own, and their bytes.
    pub mmapped: (u64, u64),
    /// Bytes that the allocator holds but nobody uses: bins, caches, fast lists, tops.
    pub free_bytes: u64,
    /// Of all bytes taken from the system, the share that is free inside (not at the top).
    pub fragmentation: f64,
    /// Whether the heap parsed whole.
    pub whole: bool,
}

/// Counts the heap.
pub fn census(snapshot: &Snapshot, heap: &Heap, types: &mut Types, top: usize) -> Census {
    let mut by_type: FxHashMap<String, (u64, u64)> = FxHashMap::default();
    let mut by_size = [(0u64, 0u64); 64];
    let mut largest: Vec<(u64, u32)> = Vec::new();
    let mut all_bytes = 0;
    for (number, block) in heap.blocks.iter() {
        all_bytes += block.bytes;
        let name = if heap.caches.contains(&block.address) {
            "malloc's cache of a thread".to_owned()
        } else {
            describe(snapshot, &heap.blocks, types, number)
        };
        let entry = by_type.entry(name).or_default();
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
    let mut classes: Vec<Class> = by_type
        .into_iter()
        .map(|(name, (blocks, bytes))| Class {
            name,
            blocks,
            bytes,
        })
        .collect();
    classes.sort_by_key(|c| (Reverse(c.bytes), c.name.clone()));
    classes.truncate(top);
    let sizes = by_size
        .iter()
        .enumerate()
        .filter(|(_, s)| s.0 > 0)
        .map(|(i, s)| Class {
            name: format!("{} to {}", bytes_text(1 << i), bytes_text((2u64 << i) - 1)),
            blocks: s.0,
            bytes: s.1,
        })
        .collect();
    let inside: u64 = heap
        .arenas
        .iter()
        .map(|a| a.counts.free_bytes + a.counts.cached_bytes + a.counts.fast_bytes)
        .sum();
    let tops: u64 = heap.arenas.iter().map(|a| a.counts.top_bytes).sum();
    // What a damaged arena says of itself may be anything.
    let arenas = heap.arenas.iter().map(|a| a.system_bytes);
    let system = arenas.fold(heap.mmapped.1, u64::saturating_add);
    Census {
        schema: "memhook-rs/census/1",
        pid: snapshot.meta.pid,
        glibc: format!("2.{}", heap.glibc_minor),
        blocks: u64::from(heap.blocks.len()),
        bytes: all_bytes,
        types: classes,
        sizes,
        largest: largest
            .into_iter()
            .map(|(bytes, number)| {
                let address = format!("{:#x}", heap.blocks.get(number).address);
                (
                    address,
                    bytes,
                    describe(snapshot, &heap.blocks, types, number),
                )
            })
            .collect(),
        arenas: heap.arenas.clone(),
        mmapped: heap.mmapped,
        free_bytes: inside + tops,
        fragmentation: inside as f64 / system.max(1) as f64,
        whole: heap.is_whole(),
    }
}

/// The census as text.
pub fn census_text(census: &Census) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "Process {} (glibc {}): {} in {} blocks; malloc keeps {} free, {:.1} % of its memory is free between blocks{}",
        census.pid,
        census.glibc,
        bytes_text(census.bytes),
        census.blocks,
        bytes_text(census.free_bytes),
        census.fragmentation * 100.0,
        if census.whole {
            ""
        } else {
            " (the heap did not parse whole)"
        }
    );
    let mut table = |title: &str, classes: &[Class]| {
        let _ = writeln!(out, "\n{title}");
        for class in classes {
            let bytes = bytes_text(class.bytes);
            let _ = writeln!(
                out,
                "{bytes:>12} {:>10}  {}",
                class.blocks,
                visible(&class.name)
            );
        }
    };
    table("       bytes     blocks  type", &census.types);
    table("       bytes     blocks  size", &census.sizes);
    let _ = writeln!(
        out,
        "\n{:<16} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}",
        "arena", "system", "used", "in bins", "in caches", "fast", "top"
    );
    for arena in &census.arenas {
        let c = &arena.counts;
        let _ = writeln!(
            out,
            "{:<16} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}",
            format!("{:#x}", arena.address),
            bytes_text(arena.system_bytes),
            bytes_text(c.used_bytes),
            bytes_text(c.free_bytes),
            bytes_text(c.cached_bytes),
            bytes_text(c.fast_bytes),
            bytes_text(c.top_bytes)
        );
    }
    let _ = writeln!(
        out,
        "{:<16} {:>11} in {} blocks",
        "mapped alone",
        bytes_text(census.mmapped.1),
        census.mmapped.0
    );
    let _ = writeln!(out, "\nLargest blocks");
    for (address, bytes, kind) in &census.largest {
        let _ = writeln!(out, "{:>12}  {address}  {kind}", bytes_text(*bytes));
    }
    out
}
