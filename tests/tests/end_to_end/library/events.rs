//! Events that a profiler receives from a program, and answers to its queries.

use super::{looked, traced};
use memhook::{Access, Block, Free, Next, Options, Profiler, Touch};
use memhook_tests::{Target, build_target, until};
use std::collections::{BTreeMap, HashMap};

/// Numbers the blocks, and checks that the profiler gets a block's data back when the block is
/// released.
#[derive(Default)]
struct Numbers {
    next: u64,
    allocations: u64,
    frees: u64,
    reallocations: u64,
    bytes: u64,
    /// Live block of each number.
    blocks: HashMap<u64, Block>,
}

impl Profiler for Numbers {
    type Data = u64;

    fn on_alloc(&mut self, block: &Block) -> u64 {
        self.allocations += 1;
        self.bytes += block.size;
        self.next += 1;
        self.blocks.insert(self.next, *block);
        self.next
    }

    fn on_free(&mut self, block: &Block, number: u64, _free: &Free) {
        self.frees += 1;
        assert_eq!(self.blocks.remove(&number).as_ref(), Some(block));
    }

    fn on_realloc(&mut self, old: &Block, new: &Block, number: u64) -> u64 {
        self.reallocations += 1;
        self.bytes += new.size;
        assert_eq!(self.blocks.insert(number, *new).as_ref(), Some(old));
        number
    }
}

#[test]
fn data_stay_with_blocks_that_change_hands() {
    let program = build_target("oracle", &["-O1", "-g"]);
    let mut target = Target::start(&program, &["30000", "4"]);
    let attached = memhook::attach(target.pid() as i32, &Options::new(), Numbers::default());
    let attached = attached.expect("traced");
    target.go();
    let live = target.expect("live ");
    target.expect("done");
    let numbers: Vec<u64> = live
        .split_whitespace()
        .filter_map(|n| n.parse().ok())
        .collect();
    attached.leave();
    let summary = attached.summary();
    assert!(summary.is_complete, "{summary:?}");
    let found = attached.with(|heap| {
        let sizes: Vec<u64> = heap.blocks().map(|(block, _)| block.size).collect();
        for (block, number) in heap.blocks() {
            let (block, number) = (*block, *number);
            assert!(number > 0 && block.size > 0);
        }
        (sizes.len() as u64, sizes.iter().sum::<u64>())
    });
    assert_eq!(
        found,
        (summary.live_blocks, summary.live_bytes),
        "{summary:?}"
    );
    let numbers_of = attached.detach().expect("in order");
    assert!(target.finish().success());
    assert_eq!(
        numbers_of.allocations + numbers_of.reallocations,
        summary.allocations
    );
    assert_eq!(numbers_of.bytes, summary.allocated_bytes);
    assert_eq!(numbers_of.blocks.len() as u64, summary.live_blocks);
    assert!(
        numbers_of.reallocations > 1000,
        "{}",
        numbers_of.reallocations
    );
    // Expects the blocks of the program itself and of its library.
    assert!(
        found.0 >= numbers[0] && found.1 >= numbers[1],
        "{found:?} {numbers:?}"
    );
}

/// Counts unreachable blocks by size.
#[derive(Default)]
struct Unreachable(BTreeMap<u64, u64>);

impl Profiler for Unreachable {
    type Data = bool;

    fn on_unreachable(&mut self, block: &Block, is_known: &mut bool) {
        assert!(!std::mem::replace(is_known, true), "twice");
        *self.0.entry(block.size).or_default() += 1;
    }
}

#[test]
fn unreachable_blocks_are_reported_when_asked_for() {
    let (target, attached) = traced("lost_while_traced", &[], Unreachable::default());
    let search = attached.search_unreachable().expect("searched");
    let known = attached.with(|heap| heap.blocks().filter(|(_, known)| **known).count() as u64);
    let found = attached.detach().expect("in order").0;
    assert!(target.finish().success());
    // Blocks leaked before the attach are unknown.
    let expected = [(16, 40), (30, 40), (72, 2000), (128, 10)];
    assert_eq!(found, BTreeMap::from(expected));
    assert_eq!((search.blocks, known), (2090, 2090), "{search:?}");
}

/// Records the accesses.
#[derive(Default)]
struct Accesses(Vec<(Access, Option<Block>)>);

impl Profiler for Accesses {
    type Data = u32;

    fn on_access(&mut self, access: &Access, block: Option<(&Block, &mut u32)>) -> Next {
        let block = block.map(|(block, accesses)| {
            *accesses += 1;
            *block
        });
        self.0.push((access.clone(), block));
        if self.0.len() < 3 {
            Next::Again
        } else {
            Next::Done
        }
    }
}

#[test]
fn the_next_accesses_come_with_thread_and_stack() {
    let (target, attached) = traced("idle_blocks", &[], Accesses::default());
    attached.catch_up();
    let of_size = |size: u64| -> Vec<Block> {
        attached.with(|heap| {
            let blocks = heap.blocks().map(|(block, _)| *block);
            blocks.filter(|block| block.size == size).collect()
        })
    };
    let (busy, idle) = (of_size(400), of_size(1000));
    assert_eq!((busy.len(), idle.len()), (10, 6));
    let watched = looked(|_| {
        let quiet = attached.watch(idle[0].range(), Touch::Any)?;
        // A block has four words of eight bytes.
        assert_eq!(quiet.range, idle[0].address..idle[0].address + 32);
        let error = attached
            .watch_block(&busy[0], Touch::Any)
            .expect_err("none is free");
        assert!(
            matches!(error, memhook::Error::WatchpointsInUse { .. }),
            "{error}"
        );
        assert!(attached.unwatch(quiet.id), "nobody touches it");
        assert!(!attached.unwatch(quiet.id), "it is over");
        attached.watch_block(&busy[0], Touch::Any).map(drop)
    });
    if watched.is_none() {
        return;
    }
    until("three accesses", || {
        attached.with(|heap| heap.profiler().0.len() >= 3)
    });
    let count = attached.with(|heap| heap.block(busy[0].address).map(|(_, count)| *count));
    assert_eq!(count, Some(3));
    // The watch has ended, so its watchpoint is free.
    let all = attached
        .watch_block(&idle[1], Touch::Write)
        .expect("four are free");
    assert_eq!(all.range.end - all.range.start, 32);
    let seen = attached.with(|heap| std::mem::take(&mut heap.profiler().0));
    assert_eq!(seen.len(), 3);
    for (access, block) in &seen {
        assert_eq!(block.as_ref(), Some(&busy[0]));
        assert!(busy[0].range().contains(&access.address));
        assert!(
            access.tid != target.pid() && !access.by_kernel,
            "{access:?}"
        );
        let frames = attached.names(&access.frames).expect("names");
        let names = frames.iter().filter_map(|frame| frame.function.as_deref());
        assert!(names.clone().any(|name| name == "touch"), "{frames:?}");
    }
    attached.detach().expect("in order");
    assert!(target.finish().success());
}
