//! mallocng, the allocator of musl since 1.2.1, including copies in static programs.
//!
//! All memory is reachable from one structure ([`context`]): pages of metadata, each with the descriptors of groups of
//! up to 32 slots ([`groups`]). A group is a mapping, is inside a slot of a larger group, or is memory that the loader
//! has left over. Two masks mark the free slots, so no list has to be followed to recognize a block in use.

mod context;
mod groups;

use crate::allocators::dissector::{
    AllocatorHeap, Counted, Extent, ExtentKind, HeapDissector, NotDissected, SizedSegments,
};
use crate::allocators::in_hand::in_hand;
use crate::allocators::live_check::{LiveCheck, Standstill};
use crate::blocks::Block;
use crate::glibc::walk::Finding;
use crate::live_memory::Memory;
use crate::ranges::{Runs, joined};
use crate::snapshot::{MUSL, Snapshot};
use context::{AREA_BYTES, CLASSES, CONTEXT_BYTES, Context, Meta};
use groups::{Group, Slot};
use rustc_hash::FxHashSet;
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of contradictions that the thread holding the lock can cause. A group that is freed may be the last
/// one in its slot of a larger group, which is then freed as well, up to four times (`free_group` of free.c). Each of
/// these groups may contradict its descriptor, its list, its slot, and the count of its class.
const MOST_OF_LOCK_HOLDER: usize = 16;

/// musl's mallocng.
pub(crate) struct Mallocng;

impl HeapDissector for Mallocng {
    fn name(&self) -> &'static str {
        MUSL
    }

    fn dissect(&self, snapshot: &Snapshot) -> Option<Result<AllocatorHeap, NotDissected>> {
        let Some(context) = Context::find(snapshot) else {
            let mut modules = snapshot.meta.modules.iter();
            let is_there = modules.any(|m| m.allocator.as_deref() == Some(MUSL));
            let reason =
                "has no known heap: it is older than musl 1.2.1, or nothing was allocated yet";
            return is_there.then(|| Err(NotDissected::Because(reason.into())));
        };
        Some(Dissection::of(snapshot, &context).finish(&context))
    }
}

/// Recognizes a block in use by its header and the masks of its group. free() invalidates the header before any other
/// write.
#[derive(Debug)]
struct Live {
    secret: u64,
}

impl LiveCheck for Live {
    fn needs_standstill(&self) -> bool {
        false
    }

    fn are_live(&self, still: &Standstill, blocks: &[Block]) -> Result<Vec<bool>, &'static str> {
        let memory = &still.memory;
        let is_live = |block: &Block| {
            let (group, index) = Group::of_block(memory, block.address)?;
            let area = group.meta.address & !(AREA_BYTES - 1);
            let is_ours = memory.word(area) == Some(self.secret) && group.is_used(index);
            // Blocks are kept in units of a word.
            let is_it = |address: u64, bytes: u64| {
                address == block.address && bytes.next_multiple_of(8) == block.bytes
            };
            let slot = group.slot(memory, index);
            Some(is_ours && matches!(slot, Slot::Block(address, bytes) if is_it(address, bytes)))
        };
        Ok(blocks.iter().map(|b| is_live(b) == Some(true)).collect())
    }
}

/// A partly dissected heap.
struct Dissection<'a> {
    snapshot: &'a Snapshot,
    groups: Vec<Group>,
    /// Starts of groups.
    starts: FxHashSet<u64>,
    /// Descriptors and groups whose addresses are in the registers or on the stack of a thread in the middle of malloc
    /// or free.
    in_hand: FxHashSet<u64>,
    /// True if the registers or the stack of a thread outside system calls contain the address of the allocator's own
    /// data.
    is_inside: bool,
    blocks: Vec<(u64, u64)>,
    extents: Vec<Extent>,
    findings: Vec<Finding>,
    unparsed: Runs,
    /// Number of groups and counts that contradict each other. A group counts once: while a thread moves its free slots
    /// from one mask to the other (`activate_group` of malloc.c), they are in neither mask.
    unclear: usize,
    /// Inconsistency that cannot be the work of a thread in the middle of an operation.
    refuted: Option<String>,
}

impl<'a> Dissection<'a> {
    fn of(snapshot: &'a Snapshot, context: &Context) -> Dissection<'a> {
        let data = context.address..context.address + CONTEXT_BYTES;
        let areas: FxHashSet<u64> = context.areas.iter().copied().collect();
        let is_own =
            |word: &u64| data.contains(word) || areas.contains(&(word & !(AREA_BYTES - 1)));
        let running = in_hand(snapshot, |thread| !thread.is_in_call);
        let mut found = Dissection {
            snapshot,
            groups: Vec::new(),
            starts: FxHashSet::default(),
            in_hand: in_hand(snapshot, |_| true),
            is_inside: running.iter().any(is_own),
            blocks: Vec::new(),
            extents: Vec::new(),
            findings: Vec::new(),
            unparsed: Runs::new(),
            unclear: 0,
            refuted: None,
        };
        if let Some((address, what)) = context.broken {
            found.refute(address, what);
        }
        let mut metas = FxHashSet::default();
        for meta in context.metas(snapshot) {
            match Group::of(snapshot, meta) {
                Ok(group) if found.starts.insert(meta.mem) => {
                    metas.insert((meta.class, meta.address));
                    found.groups.push(group);
                }
                Ok(_) => found.refute(meta.mem, "two descriptors have the same group"),
                Err(what) => found.contradiction(meta.address, what),
            }
        }
        for active in context.active(snapshot) {
            if !metas.contains(&active) {
                let what = "an active group is not of its size class";
                found.contradiction(active.1, what);
            }
        }
        // Outer groups come before the groups in their slots.
        let end = |group: &Group| std::cmp::Reverse(group.range().end);
        found
            .groups
            .sort_unstable_by_key(|group| (group.meta.mem, end(group)));
        for index in 0..found.groups.len() {
            found.take(found.groups[index]);
        }
        found
    }

    fn refute(&mut self, address: u64, what: &str) {
        let what = format!("{what} ({address:#x})");
        self.refuted.get_or_insert(what);
    }

    /// Records a contradiction that a thread in the middle of malloc or free may have caused.
    fn contradiction(&mut self, address: u64, what: &str) {
        self.unclear += 1;
        self.findings.push(Finding {
            address,
            what: what.to_owned(),
        });
    }

    fn take(&mut self, group: Group) {
        let mut extent = None;
        let mut unclear = None;
        for index in 0..=group.meta.last {
            let slot = group
                .is_used(index)
                .then(|| group.slot(self.snapshot, index));
            let mut is_live = false;
            match slot {
                // This group has its own extent.
                Some(Slot::Group(address)) if self.starts.contains(&address) => {
                    self.extents.extend(extent.take());
                    continue;
                }
                Some(Slot::Block(address, bytes)) if !self.is_being_made(&group, index, bytes) => {
                    is_live = true;
                    self.blocks.push((address, bytes));
                }
                Some(slot) => {
                    let what = match slot {
                        Slot::Block(..) => "a slot is being taken",
                        Slot::Group(_) => "a group is being made",
                        Slot::Unclear(what) => what,
                    };
                    let range = group.slot_range(index);
                    unclear.get_or_insert((range.start, what));
                    self.unparsed.push(range);
                }
                None => {}
            }
            let Range { start, end } = group.slot_range(index);
            let extent = extent.get_or_insert(Extent {
                start,
                end,
                kind: if group.meta.last == 0 {
                    ExtentKind::Large
                } else {
                    ExtentKind::Slab
                },
                class_bytes: group.stride,
                live: 0,
                cached: 0,
                free: 0,
            });
            extent.end = end;
            extent.live += u32::from(is_live);
            extent.free += u32::from(slot.is_none());
        }
        self.extents.extend(extent);
        if let Some((address, what)) = unclear {
            self.contradiction(address, what);
        }
    }

    /// Returns true if a slot may be a group that was just created and has no header yet. Such a slot looks like a
    /// block that fills it. A thread that got the slot's index from `alloc_slot` may find the address of the group only
    /// in the allocator's data.
    fn is_being_made(&self, group: &Group, index: u64, bytes: u64) -> bool {
        let Meta { address, mem, .. } = group.meta;
        let may_be = index == 0 && bytes + 4 == group.stride;
        let is_in_hand = self.in_hand.contains(&address) || self.in_hand.contains(&mem);
        may_be && (self.is_inside || is_in_hand)
    }

    /// Returns the heap, if it can be proved.
    fn finish(mut self, context: &Context) -> Result<AllocatorHeap, NotDissected> {
        let counted = self.count(context);
        let threads = self.snapshot.meta.threads.len().max(1);
        // A thread without the lock owns one slot.
        if self.unclear > threads + MOST_OF_LOCK_HOLDER {
            let first = self.findings.first();
            let (address, what) = first.map_or((0, ""), |f| (f.address, f.what.as_str()));
            let what = format!("{what}; {} such faults in all", self.unclear);
            self.refute(address, &what);
        }
        let mut ranges: Runs = context.areas.iter().map(|&a| a..a + AREA_BYTES).collect();
        ranges.push(context.address..context.address + CONTEXT_BYTES);
        ranges.extend(self.groups.iter().map(memory_of));
        let segments = self.segments();
        self.extents.sort_unstable_by_key(|extent| extent.start);
        if let Some(reason) = self.refuted {
            return Err(NotDissected::Unproved(reason));
        }
        Ok(AllocatorHeap {
            allocator: MUSL,
            version: "mallocng (1.2.1 or later)".into(),
            segments,
            ranges: joined(ranges),
            unparsed: joined(self.unparsed),
            findings: self.findings,
            extents: self.extents,
            counted,
            live_check: Some(Arc::new(Live {
                secret: context.secret,
            })),
            ..AllocatorHeap::default()
        })
    }

    /// Compares the number of slots of each class with the allocator's own count, which does not include memory from
    /// the loader.
    fn count(&mut self, context: &Context) -> Vec<Counted> {
        let mut slots = vec![0; CLASSES];
        for group in self.groups.iter().filter(|g| g.meta.is_freeable) {
            if let Some(count) = slots.get_mut(group.meta.class as usize) {
                *count += group.meta.last + 1;
            }
        }
        let mut counted = Vec::new();
        for (class, (&found, &allocator)) in slots.iter().zip(&context.usage).enumerate() {
            if found != allocator {
                let what = format!("{found} slots of class {class} of {allocator} were found");
                self.contradiction(context.address, &what);
            }
            if found > 0 || allocator > 0 {
                counted.push(Counted {
                    what: format!("usage_by_class[{class}]"),
                    allocator,
                    found,
                });
            }
        }
        counted
    }

    /// Returns the blocks, grouped by the outermost group that contains them. No two blocks may overlap.
    fn segments(&mut self) -> Vec<crate::blocks::Segment> {
        self.blocks.sort_unstable();
        let overlap = self.blocks.windows(2).find(|p| p[0].0 + p[0].1 > p[1].0);
        if let Some(address) = overlap.map(|pair| pair[1].0) {
            self.refute(address, "two blocks overlap");
            return Vec::new();
        }
        let mut segments = SizedSegments::default();
        let mut first = 0;
        let outermost = joined(self.groups.iter().map(Group::range).collect());
        for extent in outermost {
            let count = self.blocks[first..].partition_point(|block| block.0 < extent.end);
            let blocks = &self.blocks[first..first + count];
            first += count;
            if !segments.add_extent(self.snapshot, extent.clone(), blocks) {
                self.findings.push(Finding {
                    address: extent.start,
                    what: "a block is too large to be searched".into(),
                });
                self.unparsed.push(extent);
            }
        }
        segments.finish()
    }
}

/// Returns all memory of a group, including the rest of its mapping, which has no other use.
fn memory_of(group: &Group) -> Range<u64> {
    let Range { start, end } = group.range();
    let Meta { mem, pages, .. } = group.meta;
    start..end.max(mem.saturating_add(pages.saturating_mul(AREA_BYTES)))
}
