//! The report of a scan: what leaked, grouped; and sums.

use crate::glibc::dissect::Heap;
use crate::glibc::walk::Finding;
use crate::graph::blocks::BlockTable;
use crate::graph::leaks::Leak;
use crate::graph::mark::Marked;
use crate::graph::types::{Types, content, peek};
use crate::snapshot::Snapshot;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::cmp::Reverse;

/// Name of the JSON schema.
pub const SCHEMA: &str = "memhook-rs/scan/1";

/// A whole report.
#[derive(Clone, Debug, Serialize)]
pub struct ScanReport {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The process.
    pub pid: i32,
    /// The snapshot.
    pub snapshot: SnapshotPart,
    /// Sums.
    pub totals: Totals,
    /// Groups of leaked blocks, the largest first.
    pub leaks: Vec<LeakGroup>,
    /// Groups that are not listed.
    pub more_groups: u64,
    /// Whether the heap parsed whole.
    pub whole: bool,
    /// Damage found in the heap.
    pub findings: Vec<Finding>,
    /// Anything else to know.
    pub notes: Vec<String>,
}

/// How the snapshot was taken.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotPart {
    /// `precopy` or `stop`.
    pub method: &'static str,
    /// How long all threads were held.
    pub held_ms: f64,
    /// How long one thread was held before, to prepare.
    pub prepare_held_ms: f64,
    /// How long taking it took in all.
    pub taken_ms: f64,
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Bytes copied while the threads were held.
    pub held_bytes: u64,
    /// Bytes searched for pointers.
    pub scanned_bytes: u64,
    /// How long the search took.
    pub mark_ms: f64,
    /// Threads.
    pub threads: u64,
    /// Of those, inside malloc: what they were changing may look damaged.
    pub in_malloc: u32,
}

/// Sums over the heap; bytes are usable bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Totals {
    /// Bytes of leaked blocks.
    pub leaked_bytes: u64,
    /// Leaked blocks.
    pub leaked_blocks: u64,
    /// Of those, direct ones.
    pub direct_blocks: u64,
    /// Bytes of reachable blocks.
    pub live_bytes: u64,
    /// Reachable blocks.
    pub live_blocks: u64,
}

/// Leaked blocks of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct LeakGroup {
    /// Usable bytes of the blocks.
    pub bytes: u64,
    /// How many.
    pub blocks: u64,
    /// Nothing points to them; otherwise they hang on other leaked blocks.
    pub direct: bool,
    /// C++ class, or what the contents look like: `text`, `pointers`, `zeros`, `data`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The call stack that allocated them, where it is known.
    pub stack: Option<Vec<String>>,
    /// Usable bytes of each block.
    pub block_bytes: u64,
    /// Of direct ones: bytes of what hangs on them.
    pub held_bytes: u64,
    /// Of direct ones: blocks that hang on them.
    pub held_blocks: u64,
    /// Of indirect ones: what they hang on.
    pub owner: Option<String>,
    /// Address of one of them.
    pub example: String,
    /// Its first bytes.
    pub peek: String,
}

#[derive(Default)]
struct Group {
    bytes: u64,
    blocks: u64,
    held_bytes: u64,
    held_blocks: u64,
    example: u32,
}

/// The begin of a large block says what it is; the rest may be memory that nobody has touched.
const MOST_DESCRIBED: u64 = 1 << 20;

/// What a block is called.
pub fn describe(snapshot: &Snapshot, blocks: &BlockTable, types: &mut Types, block: u32) -> String {
    let block = blocks.get(block);
    if let Some(class) = snapshot.word(block.address).and_then(|w| types.class(w)) {
        return class;
    }
    let bytes = snapshot.bytes(block.address, block.bytes.min(MOST_DESCRIBED));
    content(bytes.unwrap_or(&[]), |word| blocks.find(word).is_some()).to_owned()
}

/// Groups leaked blocks by class or content, size, and what they hang on.
pub fn group(
    snapshot: &Snapshot,
    blocks: &BlockTable,
    leaks: &[Leak],
    types: &mut Types,
) -> Vec<LeakGroup> {
    let mut groups: FxHashMap<(String, u64, Option<u32>), Group> = FxHashMap::default();
    // Kinds of the owners, as small numbers.
    let mut kinds: Vec<(String, u64)> = Vec::new();
    let mut kind_numbers: FxHashMap<(String, u64), u32> = FxHashMap::default();
    let mut owners: FxHashMap<u32, u32> = FxHashMap::default();
    for leak in leaks.iter().filter(|l| l.is_direct()) {
        let key = (
            describe(snapshot, blocks, types, leak.block),
            blocks.get(leak.block).bytes,
        );
        let number = *kind_numbers.entry(key.clone()).or_insert_with(|| {
            kinds.push(key);
            kinds.len() as u32 - 1
        });
        owners.insert(leak.block, number);
    }
    for leak in leaks {
        let bytes = blocks.get(leak.block).bytes;
        let owner = owners.get(&leak.owner).copied();
        let key = if leak.is_direct() {
            let kind = owner
                .and_then(|k| kinds.get(k as usize))
                .cloned()
                .unwrap_or_default();
            (kind.0, kind.1, None)
        } else {
            let kind = describe(snapshot, blocks, types, leak.block);
            (kind, bytes, owner)
        };
        if !leak.is_direct()
            && let Some((kind, bytes_each)) = owner.and_then(|k| kinds.get(k as usize))
        {
            let held = groups.entry((kind.clone(), *bytes_each, None)).or_default();
            held.held_bytes += bytes;
            held.held_blocks += 1;
        }
        let group = groups.entry(key).or_default();
        if group.blocks == 0 {
            group.example = leak.block;
        }
        group.bytes += bytes;
        group.blocks += 1;
    }
    let mut list: Vec<LeakGroup> = groups
        .into_iter()
        .map(|((kind, block_bytes, owner), group)| {
            let example = blocks.get(group.example);
            let bytes = snapshot.bytes(example.address, example.bytes.min(32));
            LeakGroup {
                bytes: group.bytes,
                blocks: group.blocks,
                direct: owner.is_none(),
                kind,
                stack: None,
                block_bytes,
                held_bytes: group.held_bytes,
                held_blocks: group.held_blocks,
                owner: owner.and_then(|k| Some(kinds.get(k as usize)?.0.clone())),
                example: format!("{:#x}", example.address),
                peek: peek(bytes.unwrap_or(&[])),
            }
        })
        .collect();
    list.sort_by_key(|g| {
        (
            Reverse(g.bytes + g.held_bytes),
            Reverse(g.direct),
            g.block_bytes,
            g.kind.clone(),
        )
    });
    list
}

/// Puts the report together; `leaks` may be fewer than were found.
pub fn report(
    snapshot: &Snapshot,
    heap: &Heap,
    marked: &Marked,
    leaks: &[Leak],
    types: &mut Types,
    top: usize,
) -> ScanReport {
    let mut totals = Totals::default();
    let (mut all_bytes, mut all_blocks) = (0, 0);
    for (_, block) in heap.blocks.iter() {
        all_bytes += block.bytes;
        all_blocks += 1;
    }
    for leak in leaks {
        totals.leaked_bytes += heap.blocks.get(leak.block).bytes;
        totals.leaked_blocks += 1;
        totals.direct_blocks += u64::from(leak.is_direct());
    }
    totals.live_bytes = all_bytes - totals.leaked_bytes;
    totals.live_blocks = all_blocks - totals.leaked_blocks;
    let mut groups = group(snapshot, &heap.blocks, leaks, types);
    let more = groups.len().saturating_sub(top) as u64;
    groups.truncate(top);
    let meta = &snapshot.meta;
    let mut notes = meta.notes.clone();
    for module in &meta.modules {
        if let Some(allocator) = &module.allocator {
            notes.push(format!(
                "the process has {allocator} too ({}): its blocks are searched for pointers, not reported",
                module.name()
            ));
        }
    }
    if !heap.mmapped_exact {
        let (count, bytes) = heap.mmapped;
        notes.push(match heap.parameters {
            Some(p) => format!(
                "{count} mapped chunks of {bytes} bytes were found, malloc counts {} of {}: all taken as reachable",
                p.mmapped_chunks, p.mmapped_bytes
            ),
            None => format!("malloc's own count of mapped chunks was not found: the {count} found are all taken as reachable"),
        });
    }
    ScanReport {
        schema: SCHEMA,
        pid: meta.pid,
        snapshot: SnapshotPart {
            method: meta.method.name(),
            held_ms: meta.held_ms,
            prepare_held_ms: meta.prepare_held_ms,
            taken_ms: meta.taken_ms,
            copied_bytes: snapshot.copied_bytes(),
            held_bytes: meta.held_bytes,
            scanned_bytes: marked.scanned_bytes,
            mark_ms: marked.took.as_secs_f64() * 1e3,
            threads: meta.threads.len() as u64,
            in_malloc: meta.in_malloc,
        },
        totals,
        leaks: groups,
        more_groups: more,
        whole: heap.is_whole(),
        findings: heap.findings.clone(),
        notes,
    }
}
