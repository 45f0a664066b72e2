//! tcmalloc of gperftools, as a library or linked into the program.
//!
//! Pages are grouped into spans ([`spans`]), and a table of all pages leads to the spans ([`tables`]). A span is free,
//! is one block, or has blocks of one size. A free block of such a span is in the span's own list, in a chain that
//! moves between threads, or in the cache of a thread. All other blocks are in use by the program.

mod live;
mod spans;
mod tables;

use crate::allocators::dissector::{
    AllocatorHeap, Counted, Extent, ExtentKind, HeapDissector, NotDissected, SizedSegments,
};
use crate::allocators::in_hand::in_hand;
use crate::glibc::walk::Finding;
use crate::ranges::{Runs, joined};
use crate::snapshot::Snapshot;
use live::Live;
use rustc_hash::FxHashSet;
use spans::{Free, SPAN_BYTES, Span, Spans};
use std::sync::Arc;
use tables::{Caches, Central, PageMap, SizeMap, data};

/// Name of the allocator, also used by other parts of the program.
const NAME: &str = "tcmalloc";
/// Fraction (1/n) of spans that the program may have damaged.
const SPANS_PER_DAMAGED: usize = 8;

/// gperftools' tcmalloc.
pub(crate) struct Gperftools;

impl HeapDissector for Gperftools {
    fn name(&self) -> &'static str {
        NAME
    }

    fn dissect(&self, snapshot: &Snapshot) -> Option<Result<AllocatorHeap, NotDissected>> {
        let data = data(snapshot);
        let because = |why: &str| Some(Err(NotDissected::Because(why.to_owned())));
        let mut modules = snapshot.meta.modules.iter();
        let is_there = modules.any(|m| m.allocator.as_deref() == Some(NAME));
        let Some(sizes) = SizeMap::find(snapshot, &data) else {
            let reason = "is not gperftools, or is an unknown version";
            return if is_there { because(reason) } else { None };
        };
        let classes = sizes.bytes.len() as u64;
        let Some(central) = Central::find(snapshot, &data, classes) else {
            let reason = "has central lists with an unknown layout";
            return if is_there { because(reason) } else { None };
        };
        let threads = snapshot.meta.threads.len().max(1);
        let some = central.some_spans(snapshot);
        let Some(map) = PageMap::find(snapshot, &data, &some, threads) else {
            return because("has no page table with a known layout");
        };
        let Some(caches) = Caches::find(snapshot, &data, &sizes) else {
            return because("has an inconsistent list of thread caches");
        };
        let found = Dissection::of(snapshot, &sizes, &central, map, &caches);
        let found = found.finish(threads);
        Some(found.map(|heap| AllocatorHeap {
            live_check: Some(Arc::new(Live {
                sizes,
                central,
                map,
                caches,
            })),
            ..heap
        }))
    }
}

/// A partly dissected heap.
struct Dissection<'a> {
    snapshot: &'a Snapshot,
    segments: SizedSegments,
    ranges: Runs,
    unparsed: Runs,
    findings: Vec<Finding>,
    extents: Vec<Extent>,
    counted: Vec<Counted>,
    spans: usize,
    /// Number of spans and lists that contradict each other.
    unclear: usize,
}

impl<'a> Dissection<'a> {
    fn of(
        snapshot: &'a Snapshot,
        sizes: &SizeMap,
        central: &Central,
        map: PageMap,
        caches: &Caches,
    ) -> Dissection<'a> {
        let (spans, damaged) = Spans::of(snapshot, map, sizes);
        let mut found = Dissection {
            snapshot,
            segments: SizedSegments::default(),
            ranges: caches.ranges(),
            unparsed: Runs::new(),
            findings: Vec::new(),
            extents: Vec::new(),
            counted: Vec::new(),
            spans: spans.all.len(),
            unclear: 0,
        };
        found.ranges.push(central.range());
        found
            .ranges
            .extend(map.leaves(snapshot).into_iter().map(|(_, range)| range));
        for (address, what) in damaged {
            found.find(address, what);
        }
        let mut free = Free::of(&spans);
        for span in 0..spans.all.len() {
            if let Err(what) = free.take_own(snapshot, &spans, span) {
                found.find(spans.all[span].address, what);
            }
        }
        let mut withheld = FxHashSet::default();
        for class in 1..sizes.bytes.len() as u64 {
            if let Err(what) = found.take_class(&spans, &mut free, central, caches, class) {
                found.find(central.range().start, what);
                withheld.insert(class);
            }
        }
        let in_hand = in_hand(snapshot, |_| true);
        for (index, span) in spans.all.iter().enumerate() {
            found.ranges.push(span.range.clone());
            found.ranges.push(span.address..span.address + SPAN_BYTES);
            if withheld.contains(&span.class) {
                found.unparsed.push(span.range.clone());
            } else {
                found.take_span(span, &free, index, &in_hand);
            }
        }
        found.count(&spans, &free, central, sizes);
        found
    }

    /// Records the free blocks of a class that are not in the lists of spans.
    fn take_class(
        &mut self,
        spans: &Spans,
        free: &mut Free,
        central: &Central,
        caches: &Caches,
        class: u64,
    ) -> Result<(), &'static str> {
        let snapshot = self.snapshot;
        let broken = "the chains of a class are damaged";
        let chains = central.chains(snapshot, class).ok_or(broken)?;
        for (head, tail) in chains.settled {
            let chain = free.chain(snapshot, spans, head, class);
            let chain = chain.filter(|chain| chain.last() == Some(&tail));
            free.take(spans, &chain.ok_or(broken)?);
        }
        for (head, tail) in chains.changing {
            let chain = free.chain(snapshot, spans, head, class);
            if let Some(chain) = chain.filter(|chain| chain.last() == Some(&tail)) {
                // The chain may already have moved to a thread, so some of its blocks may be in that thread's cache, or
                // in use.
                for &block in &chain {
                    let bytes = spans.block_bytes(block);
                    self.unparsed.push(block..block + bytes);
                }
                free.take(spans, &chain);
            }
        }
        for &cache in &caches.all {
            let broken = "the list of a thread's cache is damaged";
            let (head, _) = Caches::list(snapshot, cache, class).ok_or(broken)?;
            if head == 0 {
                continue;
            }
            let chain = free.chain(snapshot, spans, head, class).ok_or(broken)?;
            free.take(spans, &chain);
        }
        Ok(())
    }

    fn find(&mut self, address: u64, what: &str) {
        self.unclear += 1;
        self.findings.push(Finding {
            address,
            what: what.to_owned(),
        });
    }

    fn leave(&mut self, span: &Span, what: &str) {
        self.find(span.range.start, what);
        self.unparsed.push(span.range.clone());
    }

    fn take_span(&mut self, span: &Span, free: &Free, index: usize, in_hand: &FxHashSet<u64>) {
        let mut live = Vec::new();
        let mut counts = (0, 0);
        if span.is_in_use && span.block_bytes > 0 {
            counts = free.counts(index);
            if counts.0 + span.used != span.blocks() {
                self.leave(
                    span,
                    "a span does not have as many free blocks as it counts",
                );
                return;
            }
            live = free.live(span, index);
        } else if span.is_in_use {
            // The descriptor is marked as in use before the requesting thread gets the address of the block.
            if in_hand.contains(&span.address) {
                // Alternatively, an earlier call left the address there, which is not damage.
                self.unparsed.push(span.range.clone());
                return;
            }
            live.push((span.range.start, span.range.end - span.range.start));
        }
        if !self
            .segments
            .add_extent(self.snapshot, span.range.clone(), &live)
        {
            self.leave(span, "a block is too large to be searched");
            return;
        }
        let live = live.len() as u32;
        self.extents.push(Extent {
            start: span.range.start,
            end: span.range.end,
            kind: match (span.is_in_use, span.block_bytes) {
                (true, 0) => ExtentKind::Large,
                (true, _) => ExtentKind::Slab,
                (false, _) if span.is_given_back => ExtentKind::FreeClean,
                (false, _) => ExtentKind::FreeDirty,
            },
            class_bytes: span.block_bytes,
            live,
            cached: counts.1 as u32,
            free: counts.0 as u32,
        });
    }

    /// Compares the allocator's counts for each class with the blocks found.
    fn count(&mut self, spans: &Spans, free: &Free, central: &Central, sizes: &SizeMap) {
        let mut found = vec![(0, 0); sizes.bytes.len()];
        for (index, span) in spans.all.iter().enumerate() {
            if span.is_in_use
                && span.block_bytes > 0
                && let Some(of_class) = found.get_mut(span.class as usize)
            {
                of_class.0 += 1;
                of_class.1 += free.counts(index).0;
            }
        }
        for (class, &(spans, blocks)) in found.iter().enumerate().skip(1) {
            let counts = central.counts(self.snapshot, class as u64);
            let (counted_spans, counted_blocks) = counts.unwrap_or((0, 0));
            if (counted_spans, counted_blocks) != (spans, blocks) {
                let what = format!(
                    "class {class} counts {counted_spans} spans with {counted_blocks} free blocks, and has {spans} with \
                     {blocks}"
                );
                self.find(central.range().start, &what);
            }
            if counted_spans + spans > 0 {
                self.counted.push(Counted {
                    what: format!("spans of class {class}"),
                    allocator: counted_spans,
                    found: spans,
                });
            }
        }
    }

    fn finish(self, threads: usize) -> Result<AllocatorHeap, NotDissected> {
        let most = 2 * threads + self.spans / SPANS_PER_DAMAGED;
        if self.unclear > most {
            let first = self.findings.first();
            let (address, what) = first.map_or((0, ""), |f| (f.address, f.what.as_str()));
            return Err(NotDissected::Unproved(format!(
                "{what} ({address:#x}); {} such faults in all",
                self.unclear
            )));
        }
        Ok(AllocatorHeap {
            allocator: NAME,
            version: "gperftools 2.8 or later".into(),
            segments: self.segments.finish(),
            ranges: joined(self.ranges),
            unparsed: joined(self.unparsed),
            findings: self.findings,
            extents: self.extents,
            counted: self.counted,
            ..AllocatorHeap::default()
        })
    }
}
