//! Dissects the heap of jemalloc: Debian's library, and copies with any prefix that are linked into a program.
//!
//! The radix tree from pages to extents is in the data of a module, and is recognized by the structures that it leads
//! to ([`tree`]). Extents, the bitmaps of slabs and the counts of free regions have to agree ([`extents`]). Regions in
//! thread caches are free ([`thread_caches`]).

mod base_blocks;
#[cfg(test)]
mod damage_tests;
mod extents;
mod layout;
mod live;
mod thread_caches;
mod tree;

use super::dissector::{
    AllocatorHeap, Counted, Extent, ExtentKind, HeapDissector, NotDissected, SizedSegments,
};
use crate::glibc::walk::Finding;
use crate::ranges::Runs;
use crate::snapshot::Snapshot;
use base_blocks::BaseBlocks;
use extents::{Extents, Found};
use layout::LAYOUTS;
use live::Live;
use std::ops::Range;
use std::sync::Arc;
use thread_caches::ThreadCaches;
use tree::Tree;

/// If more than one in this many extents is doubtful, the layout of the heap is unknown.
const SOUND_FOR_EACH_DOUBTFUL: usize = 20;
/// Maximum number of findings that are kept.
const MAX_FINDINGS: usize = 20;

/// Dissects the heap of jemalloc.
pub(crate) struct Jemalloc;

impl HeapDissector for Jemalloc {
    fn name(&self) -> &'static str {
        "jemalloc"
    }

    fn dissect(&self, snapshot: &Snapshot) -> Option<Result<AllocatorHeap, NotDissected>> {
        let mut trees = Vec::new();
        for layout in LAYOUTS {
            let mut base = BaseBlocks::new(snapshot);
            for tree in tree::find(snapshot, layout, &mut base) {
                let extents = Extents::of(snapshot, &tree, &mut base);
                trees.push((tree, extents, base.all()));
            }
        }
        let is_whole = |extents: &Extents| {
            let active = extents.sound.iter().filter(|found| found.is_active());
            extents.findings.len() * SOUND_FOR_EACH_DOUBTFUL <= active.count()
        };
        let found_any = !trees.is_empty();
        trees.retain(|(_, extents, _)| !extents.sound.is_empty() && is_whole(extents));
        let is_there = || {
            let mut modules = snapshot.meta.modules.iter();
            modules.any(|m| m.allocator.as_deref() == Some(self.name()))
        };
        let because = |reason: &str| Some(Err(NotDissected::Because(reason.to_owned())));
        if trees.is_empty() {
            return match (found_any, is_there()) {
                (true, _) => because("has structures that contradict each other"),
                (false, true) => because("has a layout that scan does not know"),
                (false, false) => None,
            };
        }
        let mut parts = Vec::new();
        for (tree, extents, blocks) in trees {
            let caches = thread_caches::find(snapshot, &blocks, &extents);
            if caches.all.is_empty() {
                return because(
                    "has no thread caches that scan knows, so cached blocks cannot be told from blocks in use",
                );
            }
            parts.push(Part {
                tree,
                extents,
                blocks,
                caches,
            });
        }
        Some(Ok(joined(snapshot, parts)))
    }
}

/// One copy of jemalloc.
struct Part {
    tree: Tree,
    extents: Extents,
    /// Memory of jemalloc's own data.
    blocks: Runs,
    caches: ThreadCaches,
}

fn joined(snapshot: &Snapshot, parts: Vec<Part>) -> AllocatorHeap {
    let mut heap = AllocatorHeap {
        allocator: Jemalloc.name(),
        version: parts
            .first()
            .map_or("", |p| p.tree.layout.versions)
            .to_owned(),
        ..AllocatorHeap::default()
    };
    let mut all: Vec<(&Found, &ThreadCaches)> = Vec::new();
    for part in &parts {
        heap.ranges.extend(part.blocks.iter().cloned());
        heap.ranges.push(part.tree.root_range());
        heap.ranges.extend(part.extents.doubtful.iter().cloned());
        heap.unparsed.extend(part.extents.doubtful.iter().cloned());
        heap.findings.extend(part.extents.findings.iter().cloned());
        heap.findings.extend(part.caches.findings.iter().cloned());
        heap.extents.extend(part.blocks.iter().map(|block| Extent {
            start: block.start,
            end: block.end,
            kind: ExtentKind::Metadata,
            class_bytes: 0,
            live: 0,
            cached: 0,
            free: 0,
        }));
        all.extend(part.extents.sound.iter().map(|found| (found, &part.caches)));
        let is_settled = snapshot.meta.in_malloc == 0 && is_known(snapshot, &part.tree);
        if !is_settled || !part.caches.findings.is_empty() {
            heap.unparsed.extend(part.caches.in_change(snapshot));
        }
    }
    all.sort_unstable_by_key(|(found, _)| found.pages.start);
    let mut segments = SizedSegments::default();
    let mut blocks = Vec::new();
    let mut last_end = 0;
    for (found, caches) in all {
        let pages = found.pages.clone();
        if pages.start < last_end {
            // Two copies of jemalloc cannot both own this memory.
            heap.unparsed.push(pages.clone());
            heap.findings.push(Finding {
                address: pages.start,
                what: "extents of two jemallocs overlap here".into(),
            });
            continue;
        }
        last_end = pages.end;
        heap.ranges.push(pages.clone());
        blocks.clear();
        let is_own = |address: &u64| caches.own.contains(address);
        let taken = found.taken().filter(|(address, _)| !is_own(address));
        let mut cached = 0;
        for block in taken {
            if caches.cached.contains(&block.0) {
                cached += 1;
            } else {
                blocks.push(block);
            }
        }
        if !segments.add_extent(snapshot, pages.clone(), &blocks) {
            heap.unparsed.push(pages.clone());
            heap.findings.push(Finding {
                address: pages.start,
                what: "a jemalloc extent was not copied completely".into(),
            });
            continue;
        }
        heap.extents
            .push(extent(found, blocks.len() as u32, cached));
    }
    heap.segments = segments.finish();
    heap.extents.sort_unstable_by_key(|extent| extent.start);
    heap.findings.truncate(MAX_FINDINGS);
    heap.counted = counted(&parts);
    // With two copies, the owner of a block is not known.
    if let [part] = &parts[..] {
        heap.live_check = Live::of(snapshot, part.tree, part.extents.padding, &part.caches.all)
            .map(|live| Arc::new(live) as _);
    }
    heap
}

/// Returns true if the code of the jemalloc copy that owns this tree is known, so that a thread inside it would have been
/// noticed.
fn is_known(snapshot: &Snapshot, tree: &Tree) -> bool {
    let root = tree.root_range().start;
    let has_root = |data: &Range<u64>| data.contains(&root);
    let mut modules = snapshot.meta.modules.iter();
    let module = modules.find(|m| m.data.iter().any(has_root));
    // The functions that this copy calls are known only if the program also has a C library.
    module.is_some_and(|m| !m.allocator_code.is_empty()) && snapshot.libc().is_some()
}

fn extent(found: &Found, live: u32, cached: u32) -> Extent {
    let kind = match (found.bits.state, found.bits.is_slab) {
        (0, true) => ExtentKind::Slab,
        (0, false) => ExtentKind::Large,
        (3, _) => ExtentKind::FreeClean,
        _ => ExtentKind::FreeDirty,
    };
    let taken = found.taken().count() as u32;
    Extent {
        start: found.pages.start,
        end: found.pages.end,
        kind,
        class_bytes: found.class_bytes,
        live,
        cached,
        free: found.regions() as u32 - taken,
    }
}

fn counted(parts: &[Part]) -> Vec<Counted> {
    let extents = || parts.iter().flat_map(|part| &part.extents.sound);
    let slabs = || extents().filter(|found| found.is_active() && found.bits.is_slab);
    let free = slabs().map(|slab| slab.bits.free).sum();
    let by_bitmaps = slabs().map(|slab| slab.regions() - slab.taken().count() as u64);
    vec![Counted {
        what: "free regions of slabs".into(),
        allocator: free,
        found: by_bitmaps.sum(),
    }]
}
