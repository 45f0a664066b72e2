//! Live blocks by size at two moments, to determine whether a call stack's new blocks are
//! additional or replace others.
//!
//! A trace knows the sizes of blocks whose allocation it saw. Of older blocks, it knows only that
//! some were released. Two walks of the heap show how many blocks of each size exist. The
//! allocations of a call stack between the walks are growth only to the extent that more blocks of
//! their sizes exist than before.

use crate::blocks::Block;
use crate::dissect::Heap;
use crate::resident::classes::TracedBlock;
use rustc_hash::FxHashMap;

/// Number of blocks and their usable bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    blocks: f64,
    bytes: f64,
}

impl Sum {
    fn add(&mut self, blocks: f64, bytes: u64) {
        self.blocks += blocks;
        self.bytes += blocks * bytes as f64;
    }
}

/// The live blocks at one moment, by size class.
#[derive(Clone, Debug, Default)]
pub struct LiveSizes {
    all: FxHashMap<u64, Sum>,
    traced: FxHashMap<(u32, u64), Sum>,
}

/// Growth of the sizes of a call stack's live blocks since an earlier moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetGrowth {
    /// The id of the call stack.
    pub stack: u32,
    /// Usable bytes of the call stack's live blocks.
    pub live_bytes: u64,
    /// Growth that no other call stack can account for.
    pub at_least_bytes: u64,
    /// Growth if this call stack accounts for as much of the growth as possible.
    pub at_most_bytes: u64,
}

impl LiveSizes {
    /// Counts the blocks of a heap. `traced` is sorted by address.
    pub(crate) fn of(heap: &Heap, traced: &[TracedBlock]) -> LiveSizes {
        let mut sizes = LiveSizes::default();
        for (_, block) in heap.blocks.iter() {
            sizes.count(block, traced);
        }
        sizes
    }

    fn count(&mut self, block: Block, traced: &[TracedBlock]) {
        let class = class_of(block.bytes);
        self.all.entry(class).or_default().add(1.0, block.bytes);
        if let Some(known) = block.holding(traced, |known| known.address) {
            let sum = self.traced.entry((known.stack, class)).or_default();
            sum.add(known.stands_for, block.bytes);
        }
    }

    /// Returns the usable bytes of all live blocks.
    pub fn bytes(&self) -> u64 {
        self.all.values().map(|sum| sum.bytes as u64).sum()
    }

    /// Returns the growth of each call stack since an earlier moment, ordered by its id.
    pub fn grown_since(&self, before: &LiveSizes) -> Vec<NetGrowth> {
        let mut new: FxHashMap<u64, f64> = FxHashMap::default();
        for ((_, class), sum) in &self.traced {
            *new.entry(*class).or_default() += sum.blocks;
        }
        let blocks = |sizes: &LiveSizes, class| sizes.all.get(class).map_or(0.0, |sum| sum.blocks);
        let mut found: FxHashMap<u32, (f64, f64, f64)> = FxHashMap::default();
        for ((stack, class), sum) in &self.traced {
            let more = (blocks(self, class) - blocks(before, class)).max(0.0);
            let of_others = new[class] - sum.blocks;
            let most = sum.blocks.min(more);
            let least = (more - of_others).clamp(0.0, sum.blocks);
            let mean = sum.bytes / sum.blocks.max(1.0);
            let all = found.entry(*stack).or_default();
            *all = (all.0 + sum.bytes, all.1 + least * mean, all.2 + most * mean);
        }
        let mut grown: Vec<NetGrowth> = found
            .into_iter()
            .map(|(stack, (live, least, most))| NetGrowth {
                stack,
                live_bytes: live as u64,
                at_least_bytes: least as u64,
                at_most_bytes: most as u64,
            })
            .collect();
        grown.sort_by_key(|one| one.stack);
        grown
    }
}

/// Returns the first usable size of a class. There are four classes for each power of two, so that
/// a few more blocks of one size and a few fewer of the next do not count as growth.
fn class_of(usable: u64) -> u64 {
    let step = ((1u64 << usable.max(64).ilog2()) / 4).max(16);
    usable / step * step
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts blocks given as (stack, size, number). Stack 0 means older than the trace.
    fn sizes(blocks: &[(u32, u64, u64)]) -> LiveSizes {
        let mut sizes = LiveSizes::default();
        let mut address = 0x1000;
        for &(stack, bytes, count) in blocks {
            for _ in 0..count {
                address += 0x10_000;
                let traced = TracedBlock {
                    address,
                    stack,
                    time_ns: 0,
                    stands_for: 1.0,
                };
                let known = (stack > 0).then_some(traced);
                sizes.count(Block { address, bytes }, known.as_slice());
            }
        }
        sizes
    }

    fn grown(now: &LiveSizes, before: &LiveSizes) -> Vec<(u32, u64, u64, u64)> {
        let grown = now.grown_since(before).into_iter();
        let numbers = |one: NetGrowth| {
            (
                one.stack,
                one.live_bytes,
                one.at_least_bytes,
                one.at_most_bytes,
            )
        };
        grown.map(numbers).collect()
    }

    #[test]
    fn what_takes_the_place_of_older_blocks_is_no_growth() {
        let before = sizes(&[(0, 4000, 100)]);
        let replaced = sizes(&[(0, 4000, 40), (1, 4000, 60)]);
        assert_eq!(grown(&replaced, &before), [(1, 240_000, 0, 0)]);
        // Additional blocks of another size do not change the result.
        let with_leak = sizes(&[(0, 4000, 40), (1, 4000, 60), (2, 1000, 10)]);
        assert_eq!(
            grown(&with_leak, &before),
            [(1, 240_000, 0, 0), (2, 10_000, 10_000, 10_000)]
        );
        assert_eq!(with_leak.bytes() - before.bytes(), 10_000);
    }

    #[test]
    fn two_call_stacks_of_one_size_leave_open_which_of_them_grows() {
        let before = sizes(&[(0, 4000, 100)]);
        let now = sizes(&[(0, 4000, 70), (1, 4000, 50), (2, 4000, 30)]);
        assert_eq!(
            grown(&now, &before),
            [(1, 200_000, 80_000, 200_000), (2, 120_000, 0, 120_000)]
        );
    }

    #[test]
    fn a_sample_counts_for_what_it_stands_for() {
        let mut now = sizes(&[(0, 4000, 100)]);
        let sample = TracedBlock {
            address: 8,
            stack: 1,
            time_ns: 0,
            stands_for: 30.0,
        };
        let block = Block {
            address: 8,
            bytes: 4000,
        };
        now.count(block, &[sample]);
        // 30 of these blocks were released, so only the block added here is additional.
        let before = sizes(&[(0, 4000, 101)]);
        assert_eq!(grown(&now, &before), [(1, 120_000, 0, 0)]);
    }

    #[test]
    fn classes_are_as_wide_as_a_quarter_of_a_power_of_two() {
        for (size, class) in [
            (24, 16),
            (40, 32),
            (1032, 1024),
            (1279, 1024),
            (1280, 1280),
            (5000, 4096),
        ] {
            assert_eq!(class_of(size), class, "{size}");
        }
    }
}
