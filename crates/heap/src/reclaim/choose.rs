//! Chooses the leaked blocks that may be given back to the allocator. Releasing a block that the
//! program still uses would corrupt the program's memory, so a block about which there is any doubt
//! is kept.

use super::refusal::Refusal;
use crate::arch::native;
use crate::blocks::{BlockSet, BlockTable};
use crate::dissect::Heap;
use crate::graph::finder::{Finder, MarkOptions};
use crate::graph::leaks::Leak;
use crate::graph::twice::{Fingerprints, still_leaked};
use crate::snapshot::{Snapshot, ThreadState};
use std::ops::Range;

/// Size of a `dtv_t`, which consists of two words. `dtv[-1].counter` is the number of entries
/// (sysdeps/generic/dl-dtv.h).
const DTV_ENTRY_BYTES: u64 = 16;
const MAX_DTV_ENTRIES: u64 = 1 << 16;

/// Returns the reason why no block of this heap may be released, or `None` if there is no such
/// reason.
pub fn refusal(snapshot: &Snapshot, heap: &Heap) -> Option<Refusal> {
    let meta = &snapshot.meta;
    // Refusals that would recur on another scan come first, so that the user sees a reason that is
    // worth acting on.
    let undissected = heap.undissected.first().map(|other| other.allocator);
    if let Some(allocator) = heap.unknown_allocator(&meta.modules).or(undissected) {
        return Some(Refusal::OtherAllocator(allocator.to_owned()));
    }
    if meta.in_malloc > 0 {
        return Some(Refusal::InMalloc);
    }
    if let Some(finding) = heap.findings.first() {
        return Some(Refusal::Unparsed {
            address: finding.address,
            what: finding.what.clone(),
        });
    }
    // If another allocator serves the program, glibc's malloc may have no blocks.
    let is_served = heap.glibc_minor == 0 && !heap.others.is_empty();
    if heap.caches.is_empty() && !is_served {
        return Some(Refusal::NoCaches);
    }
    if !heap.is_whole() {
        return Some(Refusal::OtherCount);
    }
    let unsearched = meta.unsearched.first();
    unsearched.map(|what| Refusal::Unsearched(what.clone()))
}

/// Returns the blocks that were leaked at both moments, have unchanged contents, and meet three
/// conditions: they do not belong to libc, the kernel does not use them for a thread
/// (`kernel_places`), and no leaked block outside the result points to them. A block that became
/// unreachable only recently, or was written to in the meantime, may still be in use, and so may
/// the blocks that it points to.
pub fn reclaimable(
    snapshot: &Snapshot,
    heap: &Heap,
    options: MarkOptions,
    leaks: &[Leak],
    before: &Fingerprints,
    kernel_places: &[Range<u64>],
) -> Vec<u32> {
    let blocks = &heap.blocks;
    let mut kept = BlockSet::new(blocks.len());
    let mut waiting: Vec<u32> = Vec::new();
    let same = still_leaked(before, snapshot, blocks, leaks);
    let mut candidates = BlockSet::new(blocks.len());
    for leak in &same {
        candidates.insert(leak.block);
    }
    let changed = leaks.iter().map(|l| l.block);
    waiting.extend(changed.filter(|&b| !candidates.contains(b)));
    waiting.extend(of_libc(snapshot, heap));
    waiting.extend(within(kernel_places, blocks, leaks));
    waiting.retain(|&b| kept.insert(b));
    let finder = Finder::new(snapshot, blocks, options);
    while let Some(block) = waiting.pop() {
        for piece in finder.contents(block) {
            finder.in_piece(&piece, |next| {
                if kept.insert(next) {
                    waiting.push(next);
                }
            });
        }
    }
    let may_go = same.into_iter().map(|l| l.block);
    may_go.filter(|&b| !kept.contains(b)).collect()
}

/// Returns the leaked blocks that the ranges touch.
fn within(ranges: &[Range<u64>], blocks: &BlockTable, leaks: &[Leak]) -> impl Iterator<Item = u32> {
    let leaked = leaks.iter().map(|l| l.block);
    leaked.filter(|&b| {
        let block = blocks.get(b);
        let touches =
            |r: &Range<u64>| r.start < block.address + block.bytes && r.end > block.address;
        ranges.iter().any(touches)
    })
}

/// Returns the blocks that libc keeps for threads: caches, stacks, thread control blocks,
/// thread-local storage. Marking also reaches them, but the choice does not rely on that.
fn of_libc(snapshot: &Snapshot, heap: &Heap) -> Vec<u32> {
    let threads = &snapshot.meta.threads;
    let of_thread = threads.iter().flat_map(|t| {
        let dtv = dtv(snapshot, t);
        [t.rsp, t.fs_base].into_iter().chain(dtv)
    });
    let addresses = heap.caches.iter().copied().chain(of_thread);
    addresses
        .filter_map(|address| heap.blocks.find(address).map(|(block, _)| block))
        .collect()
}

/// Returns the address of a thread's dtv and the addresses stored in it (`dtv` of `tcbhead_t`).
fn dtv(snapshot: &Snapshot, thread: &ThreadState) -> Vec<u64> {
    let word = |at: u64| snapshot.word(at).unwrap_or(0);
    let dtv = word(thread.fs_base.wrapping_add(native::DTV));
    if dtv < 4096 {
        return Vec::new();
    }
    let count = word(dtv.wrapping_sub(DTV_ENTRY_BYTES)).min(MAX_DTV_ENTRIES);
    let entries = (0..=count).flat_map(|i| {
        let at = dtv.wrapping_add(i * DTV_ENTRY_BYTES);
        [word(at), word(at.wrapping_add(8))]
    });
    entries.chain([dtv]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::{Segment, SegmentKind};
    use crate::glibc::walk::Finding;
    use crate::graph::leaks::leaks;
    use crate::graph::mark::mark;
    use crate::graph::twice::fingerprints;
    use crate::snapshot::ModuleInfo;

    #[test]
    fn each_doubt_is_a_refusal() {
        type Spoil = fn(&mut Snapshot, &mut Heap);
        let cases: [(&str, Spoil); 6] = [
            ("a thread stayed inside malloc", |s, _| {
                s.meta.in_malloc = 1;
            }),
            ("at 0x1230, damaged", |_, h| {
                h.findings.push(Finding {
                    address: 0x1230,
                    what: "damaged".into(),
                });
            }),
            ("no thread's malloc cache", |_, h| h.caches.clear()),
            ("not those that malloc counts", |_, h| {
                h.mmapped_exact = false
            }),
            ("another allocator is loaded (x)", |s, _| {
                s.meta.modules.push(ModuleInfo {
                    allocator: Some("x".into()),
                    ..ModuleInfo::default()
                });
            }),
            ("an io_uring may hold pointers", |s, _| {
                s.meta.unsearched.push("an io_uring".into());
            }),
        ];
        let sound = || {
            let mut heap = Heap::empty();
            heap.caches.push(0x1010);
            (crate::testing::snapshot(Vec::new()), heap)
        };
        let (snapshot, heap) = sound();
        assert_eq!(refusal(&snapshot, &heap), None);
        let (mut both, heap) = sound();
        both.meta.in_malloc = 1;
        cases[4].1(&mut both, &mut Heap::empty());
        let lasting = refusal(&both, &heap).expect("refused").to_string();
        assert!(lasting.contains(cases[4].0), "{lasting}");
        for (expected, spoil) in cases {
            let (mut snapshot, mut heap) = sound();
            spoil(&mut snapshot, &mut heap);
            let why = refusal(&snapshot, &heap).expect("refused").to_string();
            assert!(why.contains(expected), "{why}");
        }
    }

    /// Three leaked blocks, the first of which points to the second.
    #[test]
    fn what_the_kernel_uses_is_kept_with_all_that_it_reaches() {
        let start = 0x1000u64;
        let mut memory = vec![0u8; 0x4000];
        let [first, small, second] = [start + 0x10, start + 0x1010, start + 0x1030];
        memory[0x20..0x28].copy_from_slice(&small.to_le_bytes());
        let mut segment = Segment::new(start, start + 0x4000, SegmentKind::Arena(0));
        for (user, chunk) in [(first, 0x1000), (small, 0x20), (second, 0x1000)] {
            assert!(segment.push(user, chunk));
        }
        let snapshot = crate::testing::snapshot(vec![(start, memory)]);
        let mut heap = Heap::empty();
        heap.blocks = BlockTable::new(vec![segment]);
        heap.ranges = vec![start..start + 0x4000];
        let options = MarkOptions::default();
        let marked = mark(&snapshot, &heap, options);
        let found = leaks(&snapshot, &heap.blocks, &marked, options);
        let before = fingerprints(&snapshot, &heap.blocks, &found);
        let go =
            |stacks: &[Range<u64>]| reclaimable(&snapshot, &heap, options, &found, &before, stacks);
        assert_eq!(go(&[]), [0, 1, 2]);
        assert_eq!(go(&[first + 0x100..first + 0x900]), [2]);
        assert_eq!(go(&[second..second + 0x800]), [0, 1]);
        assert_eq!(go(&[small + 8..small + 12]), [0, 2]);
    }
}
