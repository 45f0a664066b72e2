//! Reads the extents that the tree leads to, and checks them against each other.

use super::base_blocks::BaseBlocks;
use super::layout::{
    BITMAP, CLASSES, EXTENT_BYTES, ExtentBits, Layout, MOST_REGIONS, PAGE_BYTES, SLAB_CLASSES,
    STATE_DIRTY, class_bytes,
};
use super::tree::{Entry, Tree};
use crate::glibc::walk::Finding;
use crate::snapshot::Snapshot;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Upper bound on the size of an extent.
const MOST_BYTES: u64 = 1 << 46;

/// One extent.
#[derive(Clone, Debug)]
pub struct Found {
    /// Pages of the extent.
    pub pages: Range<u64>,
    /// Start of the only block, if the extent is not a slab.
    pub address: u64,
    /// The decoded `e_bits` of the extent.
    pub bits: ExtentBits,
    /// Size of a region in bytes: the size of the size class, or of the only block.
    pub class_bytes: u64,
    /// Free regions of a slab, one bit each.
    free: [u64; (MOST_REGIONS / 64) as usize],
}

impl Found {
    /// Returns true if the extent is in use by the program, or by jemalloc itself.
    pub fn is_active(&self) -> bool {
        self.bits.state == 0
    }

    /// Returns the number of regions.
    pub fn regions(&self) -> u64 {
        match (self.is_active(), self.bits.is_slab) {
            (false, _) => 0,
            (true, true) => (self.pages.end - self.pages.start) / self.class_bytes,
            (true, false) => 1,
        }
    }

    /// Returns the regions that are not free, each as its address and size in bytes.
    pub fn taken(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let start = if self.bits.is_slab {
            self.pages.start
        } else {
            self.address
        };
        let is_free =
            |i: u64| self.bits.is_slab && self.free[(i / 64) as usize] >> (i % 64) & 1 == 1;
        (0..self.regions())
            .filter(move |&i| !is_free(i))
            .map(move |i| (start + i * self.class_bytes, self.class_bytes))
    }

    /// Returns the region that contains an address, if it is not free.
    pub fn taken_around(&self, address: u64) -> Option<Range<u64>> {
        if !self.is_active() || !self.pages.contains(&address) {
            return None;
        }
        let start = if self.bits.is_slab {
            let i = (address - self.pages.start) / self.class_bytes;
            let is_free = self.free.get((i / 64) as usize)? >> (i % 64) & 1 == 1;
            (i < self.regions() && !is_free).then_some(self.pages.start + i * self.class_bytes)?
        } else {
            self.address
        };
        let region = start..start + self.class_bytes;
        region.contains(&address).then_some(region)
    }

    /// Returns true if a region that is not free begins here.
    pub fn has_taken(&self, address: u64) -> bool {
        let region = self.taken_around(address);
        region.is_some_and(|region| region.start == address)
    }
}

/// All extents of a tree in address order, and the contradictions between them: each has its pages and a reason.
#[derive(Default)]
pub struct Extents {
    pub sound: Vec<Found>,
    pub doubtful: Vec<Range<u64>>,
    pub findings: Vec<Finding>,
    /// Number of bytes by which an extent exceeds its only block.
    pub padding: u64,
}

/// The leaf entries that lead to one extent.
struct Leaves {
    first: Entry,
    last: u64,
    agree: bool,
}

impl Extents {
    /// Reads all extents of a tree.
    pub fn of(snapshot: &Snapshot, tree: &Tree, base: &mut BaseBlocks) -> Extents {
        let mut leaves: FxHashMap<u64, Leaves> = FxHashMap::default();
        tree.each_entry(snapshot, base, |entry| {
            let of_extent = leaves.entry(entry.descriptor).or_insert(Leaves {
                first: entry,
                last: entry.page,
                agree: true,
            });
            of_extent.last = entry.page;
            let first = of_extent.first;
            of_extent.agree &= (first.class, first.is_slab) == (entry.class, entry.is_slab);
        });
        let mut extents = Extents {
            padding: padding(snapshot, tree.layout, leaves.keys()),
            ..Extents::default()
        };
        for (descriptor, of_extent) in leaves {
            let read = match base.around(descriptor) {
                Some(_) => extent(
                    snapshot,
                    tree.layout,
                    extents.padding,
                    descriptor,
                    &of_extent,
                ),
                None => Err((None, "is not where jemalloc keeps its data".to_owned())),
            };
            match read {
                Ok(found) => extents.sound.push(found),
                Err((pages, why)) => {
                    extents.doubtful.extend(pages);
                    extents.findings.push(Finding {
                        address: descriptor,
                        what: format!("a jemalloc extent {why}"),
                    });
                }
            }
        }
        extents
            .sound
            .sort_unstable_by_key(|found| found.pages.start);
        extents.part_overlapping();
        extents
            .findings
            .sort_unstable_by_key(|finding| finding.address);
        extents
    }

    /// Removes extents that overlap; none of them is trusted.
    fn part_overlapping(&mut self) {
        let mut end = 0;
        let mut keeps = vec![true; self.sound.len()];
        let mut last = 0;
        for (i, found) in self.sound.iter().enumerate() {
            if found.pages.start < end {
                (keeps[i], keeps[last]) = (false, false);
            }
            if found.pages.end > end {
                (end, last) = (found.pages.end, i);
            }
        }
        let mut keeps = keeps.into_iter();
        let (doubtful, findings) = (&mut self.doubtful, &mut self.findings);
        self.sound.retain(|found| {
            let is_kept = keeps.next() == Some(true);
            if !is_kept {
                doubtful.push(found.pages.clone());
                findings.push(Finding {
                    address: found.pages.start,
                    what: "jemalloc extents overlap here".into(),
                });
            }
            is_kept
        });
    }

    /// Returns the extent that contains an address.
    pub fn find(&self, address: u64) -> Option<&Found> {
        let after = self
            .sound
            .partition_point(|found| found.pages.start <= address);
        let found = self.sound.get(after.checked_sub(1)?)?;
        found.pages.contains(&address).then_some(found)
    }
}

/// Returns the size of the only block in an extent of `size` bytes, where the block begins at `offset`. Returns `None`
/// if the extent does not fit the size class. The block has the size of the class, or (since 5.3.1,
/// `opt.disable_large_size_classes`) any whole number of pages up to that size. A small block has its own extent if the
/// profiler sampled it.
pub fn only_block_bytes(bits: &ExtentBits, offset: u64, size: u64, padding: u64) -> Option<u64> {
    let most = class_bytes(bits.class)?;
    if bits.class < SLAB_CLASSES {
        return (offset.checked_add(most)? <= size).then_some(most);
    }
    let less = class_bytes(bits.class - 1)?;
    let bytes = size.checked_sub(padding)?;
    (bytes > less && bytes <= most && offset <= padding).then_some(bytes)
}

/// `sz_large_pad`: one page if blocks may begin anywhere in their first page (`opt.cache_oblivious`), else nothing.
fn padding<'a>(
    snapshot: &Snapshot,
    layout: Layout,
    descriptors: impl Iterator<Item = &'a u64>,
) -> u64 {
    let mut fitting = [0u32; 2];
    for descriptor in descriptors {
        let word = |offset| snapshot.word(descriptor.checked_add(offset)?);
        let (Some(bits), Some(address), Some(size)) = (word(0), word(8), word(16)) else {
            continue;
        };
        let bits = layout.bits(bits);
        if bits.state != 0 || bits.is_slab || bits.class < SLAB_CLASSES {
            continue;
        }
        let (offset, size) = (address % PAGE_BYTES, size & !(PAGE_BYTES - 1));
        for (fitting, padding) in fitting.iter_mut().zip([0, PAGE_BYTES]) {
            *fitting += u32::from(only_block_bytes(&bits, offset, size, padding).is_some());
        }
    }
    if fitting[1] > fitting[0] {
        PAGE_BYTES
    } else {
        0
    }
}

/// A contradiction in an extent: its pages, if they are known, and the reason.
type Doubt = (Option<Range<u64>>, String);

fn extent(
    snapshot: &Snapshot,
    layout: Layout,
    padding: u64,
    descriptor: u64,
    leaves: &Leaves,
) -> Result<Found, Doubt> {
    let bytes = snapshot.bytes(descriptor, EXTENT_BYTES);
    let bytes = bytes.ok_or_else(|| (None, "was not copied".to_owned()))?;
    let word = |offset: u64| {
        let at = offset as usize;
        bytes[at..at + 8]
            .iter()
            .rev()
            .fold(0u64, |w, &b| w << 8 | u64::from(b))
    };
    let (bits, address) = (layout.bits(word(0)), word(8));
    let size = word(16) & !(PAGE_BYTES - 1);
    let start = address & !(PAGE_BYTES - 1);
    let mapped = (leaves.first.page, leaves.last + PAGE_BYTES);
    if size == 0 || size > MOST_BYTES || start.checked_add(size).is_none() {
        return Err((None, format!("has a size of {size:#x} bytes")));
    }
    let pages = start..start + size;
    if mapped != (pages.start, pages.end) {
        let why = format!("is at {start:#x}, but {:#x} leads to it", mapped.0);
        return Err((Some(pages), why));
    }
    let mut found = Found {
        pages: pages.clone(),
        address,
        bits,
        class_bytes: 0,
        free: [0; (MOST_REGIONS / 64) as usize],
    };
    let doubt = |why: &str| Err((Some(pages.clone()), why.to_owned()));
    match bits.state {
        0 => {}
        1..=3 => return Ok(found),
        _ => return doubt("was being divided or joined"),
    }
    if bits.class == CLASSES && !bits.is_slab {
        // The extent is moving to or from the free extents, for example while its pages are returned to the kernel.
        found.bits.state = STATE_DIRTY;
        return Ok(found);
    }
    if class_bytes(bits.class).is_none() {
        return doubt("has no size class");
    }
    let entry = leaves.first;
    // When a large extent is recycled, only the leaf entry of its first page is written again (`emap_remap`).
    let agree = leaves.agree || !bits.is_slab;
    if !agree || (entry.class, entry.is_slab) != (bits.class, bits.is_slab) {
        return doubt("has a different size class in the tree");
    }
    if !bits.is_slab {
        let Some(bytes) = only_block_bytes(&bits, address - start, size, padding) else {
            return doubt("does not have the size of its block");
        };
        found.class_bytes = bytes;
        return Ok(found);
    }
    let class_bytes = class_bytes(bits.class).unwrap_or(size);
    found.class_bytes = class_bytes;
    let regions = size / class_bytes;
    if bits.class >= SLAB_CLASSES || !size.is_multiple_of(class_bytes) || regions > MOST_REGIONS {
        return doubt("cannot be divided into its regions");
    }
    for (i, group) in found.free.iter_mut().enumerate() {
        let before = i as u64 * 64;
        *group = match regions.saturating_sub(before) {
            0 => 0,
            left @ 1..64 => word(BITMAP + i as u64 * 8) & ((1 << left) - 1),
            _ => word(BITMAP + i as u64 * 8),
        };
    }
    let free: u32 = found.free.iter().map(|group| group.count_ones()).sum();
    if u64::from(free) != bits.free {
        return doubt(&format!("counts {} free regions of {free}", bits.free));
    }
    Ok(found)
}
