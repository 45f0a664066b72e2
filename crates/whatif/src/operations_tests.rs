use super::*;
use std::cell::RefCell;

fn block(address: u64, size: u64, thread: u16) -> BlockOf {
    BlockOf {
        site: 0,
        thread,
        address,
        size,
        time_ns: 0,
    }
}

fn by(thread: u16) -> ReleaseBy {
    ReleaseBy {
        stack: 0,
        thread,
        by_realloc: false,
        accesses: 0,
    }
}

const REALIGNED: u32 = 7;

fn encoded(moments: Moments, tell: impl FnOnce(&mut dyn Blocks)) -> (Vec<Operation>, Sums) {
    let all = RefCell::new(Vec::new());
    let asked = [(REALIGNED, Asked::Aligned)].into_iter().collect();
    let plan = Plan {
        moments,
        lives: Lives::new(1, &Calls::default(), |_| false),
    };
    let mut encoder = Encoder::new(|op| all.borrow_mut().push(op), asked, plan);
    tell(&mut encoder);
    let sums = encoder.sums;
    (all.into_inner(), sums)
}

fn in_short(operations: &[Operation]) -> Vec<(Kind, u16, u32, u64)> {
    let short = |op: &Operation| (op.kind, op.thread, op.slot, op.value);
    operations.iter().map(short).collect()
}

#[test]
fn places_of_released_blocks_are_used_again() {
    let (operations, sums) = encoded(Moments::default(), |all| {
        all.allocated(&block(16, 100, 1), 0);
        all.allocated(&block(32, 50, 1), 0);
        all.released(&block(16, 100, 1), 0, Some(by(2)));
        all.allocated(&block(48, 10, 2), 0);
    });
    use Kind::{Allocate, Release};
    let expected = [
        (Allocate, 0, 0, 100),
        (Allocate, 0, 1, 50),
        (Release, 1, 0, 0),
        (Allocate, 1, 0, 10),
    ];
    assert_eq!(in_short(&operations), expected);
    assert_eq!((sums.slots, sums.threads), (2, 2));
    assert_eq!((sums.live_bytes, sums.peak_live_bytes), (60, 150));
}

#[test]
fn the_table_is_as_long_as_most_blocks_live() {
    let (operations, sums) = encoded(Moments::default(), |all| {
        for i in 0..10_000 {
            all.allocated(&block(16 * (i + 1), 8, 1), 0);
            if i >= 10 {
                all.released(&block(16 * (i - 9), 8, 1), 0, None);
            }
        }
    });
    assert_eq!(sums.slots, 11);
    assert!(operations.iter().all(|op| op.slot < 11));
}

#[test]
fn a_block_whose_address_is_given_out_before_its_release_is_seen() {
    let (operations, sums) = encoded(Moments::default(), |all| {
        all.allocated(&block(16, 1, 1), 0);
        all.allocated(&block(16, 2, 1), 0);
        all.released(&block(16, 1, 1), 0, None);
        all.released(&block(16, 2, 1), 0, None);
        all.allocated(&block(16, 3, 1), 0);
        all.allocated(&block(16, 4, 1), 0);
        all.released(&block(16, 4, 1), 0, None);
        all.released(&block(16, 3, 1), 0, None);
    });
    let slots: Vec<u32> = operations.iter().map(|op| op.slot).collect();
    assert_eq!(slots, [0, 1, 0, 1, 1, 0, 0, 1]);
    assert_eq!(sums.live_bytes, 0);
}

#[test]
fn realloc_keeps_the_place() {
    let (operations, sums) = encoded(Moments::default(), |all| {
        all.allocated(&block(16, 100, 1), 0);
        all.reallocated((&block(16, 100, 1), 0), by(1), (&block(64, 300, 1), 0));
        all.released(&block(64, 300, 1), 0, Some(by(1)));
        // The block is from before the recording.
        all.reallocated((&block(80, 5, 1), 0), by(1), (&block(96, 6, 1), 0));
    });
    use Kind::{Allocate, Reallocate, Release};
    let expected = [
        (Allocate, 0, 0, 100),
        (Reallocate, 0, 0, 300),
        (Release, 0, 0, 0),
        (Allocate, 0, 0, 6),
    ];
    assert_eq!(in_short(&operations), expected);
    assert_eq!(sums.slots, 1);
}

#[test]
fn a_thread_ends_after_its_last_call() {
    let all = RefCell::new(Vec::new());
    let pass = |lives| {
        all.borrow_mut().clear();
        let write = |op: Operation| all.borrow_mut().push((op.kind, op.thread));
        let plan = Plan {
            lives,
            ..Plan::default()
        };
        let mut encoder = Encoder::new(write, FxHashMap::default(), plan);
        for thread in [1, 2, 2, 3] {
            encoder.pairs(&block(16, 1, thread), 0, by(thread), 1);
        }
        encoder.calls().clone()
    };
    let calls = pass(Lives::default());
    pass(Lives::new(1, &calls, |_| true));
    use Kind::{End, Pairs};
    let expected = [
        (Pairs, 0),
        (Pairs, 1),
        (Pairs, 1),
        (End, 1),
        (Pairs, 1),
        (End, 1),
    ];
    assert_eq!(*all.borrow(), expected);
}

#[test]
fn alignment_is_that_of_the_address() {
    let (operations, _) = encoded(Moments::default(), |all| {
        all.allocated(&block(0x1040, 8, 1), REALIGNED);
        all.allocated(&block(0x10000, 8, 1), REALIGNED);
        all.allocated(&block(0x10008, 8, 1), REALIGNED);
    });
    let aligned = operations.iter().map(|op| (op.kind, op.align_log2));
    let aligned: Vec<_> = aligned.collect();
    assert_eq!(
        aligned,
        [(Kind::Aligned, 6), (Kind::Aligned, 12), (Kind::Aligned, 4)]
    );
}

#[test]
fn moments_of_the_recording_and_of_the_replay() {
    let moments = Moments {
        times: vec![5, 15],
        every: 2,
    };
    let (operations, _) = encoded(moments, |all| {
        all.end_pass(4);
        all.allocated(&block(16, 1, 1), 0);
        all.end_pass(10);
        all.allocated(&block(32, 1, 1), 0);
        all.end_pass(20);
    });
    let samples = operations.iter().filter(|op| op.kind == Kind::Sample);
    let samples: Vec<u64> = samples.map(|op| op.value).collect();
    assert_eq!(samples, [5, 10, 15]);
}

#[test]
fn an_operation_as_bytes() {
    let operation = Operation {
        kind: Kind::Reallocate,
        align_log2: 6,
        thread: 0x0102,
        slot: 0x0304_0506,
        value: 0x0708,
    };
    let bytes = [5, 6, 2, 1, 6, 5, 4, 3, 8, 7, 0, 0, 0, 0, 0, 0];
    assert_eq!(operation.bytes(), bytes);
}
