//! Contents of the resident pages in heaps of other allocators: live blocks, free regions next to
//! them, free pages, and the allocator's own data.

use crate::allocators::dissector::ExtentKind;
use crate::blocks::BlockTable;
use crate::dissect::OtherHeap;
use crate::ranges::{intersection, run_bytes};
use crate::resident::pages::ResidentPages;
use crate::resident::pins::Pinned;

/// The resident bytes of one heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherUse {
    /// Bytes of live blocks.
    pub live_bytes: u64,
    /// Bytes of the allocator's own data.
    pub overhead_bytes: u64,
    /// Free bytes in slabs and in threads' caches.
    pub fragmentation_bytes: u64,
    /// Bytes of free pages.
    pub free_bytes: u64,
    /// Part of these bytes that a purge would return.
    pub purgeable_bytes: u64,
}

/// Counts a heap. `class` returns the number of a block's class, given its address and its usable
/// size. The memory that each class pins is added to `pinned`. A slab is returned when its last
/// block is freed, so a class pins a slab only if it has all of the slab's live blocks. Blocks in
/// threads' caches count as free.
pub fn count(
    heap: &OtherHeap,
    blocks: &BlockTable,
    resident: &ResidentPages,
    mut class: impl FnMut(u64, u64) -> u32,
    mut pinned: Option<&mut Vec<Pinned>>,
) -> OtherUse {
    let mut found = OtherUse::default();
    for extent in &heap.extents {
        let pages = resident.bytes(&extent.range());
        match extent.kind {
            ExtentKind::FreeDirty => {
                found.free_bytes += pages;
                found.purgeable_bytes += pages;
                continue;
            }
            ExtentKind::FreeClean => {
                found.free_bytes += pages;
                continue;
            }
            ExtentKind::Metadata => {
                found.overhead_bytes += pages;
                continue;
            }
            ExtentKind::Slab | ExtentKind::Large => {}
        }
        let mut live = 0;
        let mut owner: Option<u32> = None;
        let mut is_owned = true;
        for (_, block) in blocks.within(extent.range()) {
            live += resident.bytes(&(block.address..block.address + block.bytes));
            let Some(pinned) = pinned.as_deref_mut() else {
                continue;
            };
            let class = class(block.address, block.bytes);
            if pinned.len() <= class as usize {
                pinned.resize(class as usize + 1, Pinned::default());
            }
            pinned[class as usize].blocks += 1;
            pinned[class as usize].own_bytes += block.bytes;
            is_owned &= *owner.get_or_insert(class) == class;
        }
        if let (Some(pinned), Some(owner), true) = (pinned.as_deref_mut(), owner, is_owned) {
            pinned[owner as usize].pinned_bytes += pages;
        }
        found.live_bytes += live;
        let is_its_own = extent.live == 0 && extent.cached == 0 && extent.free == 0;
        if is_its_own {
            found.overhead_bytes += pages - live;
        } else {
            found.fragmentation_bytes += pages - live;
        }
    }
    // Memory outside the extents holds the roots of the allocator's structures.
    let in_extents: Vec<_> = heap.extents.iter().map(|extent| extent.range()).collect();
    let known = run_bytes(&intersection(&resident.within(&heap.ranges), &in_extents));
    let all = run_bytes(&resident.within(&heap.ranges));
    found.overhead_bytes += all.saturating_sub(known);
    found
}
