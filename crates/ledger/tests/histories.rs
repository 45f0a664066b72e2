//! Random programs, run against a model of the hook, with ledger passes at arbitrary points.

mod divided;
mod model;

use divided::Fed;
use memhook_abi::{Op, RawEvent};
use memhook_ledger::{Ledger, LedgerOptions};
use model::{Batch, Call, Outcome, Told, World, feed};
use proptest::prelude::*;

#[derive(Clone, Copy, PartialEq)]
enum Allowed {
    /// Everything but unhooked releases.
    OldBlocks,
    /// All events except releases of unknown blocks, because an address's count of unhooked releases and its count of
    /// unknown releases could cancel each other.
    Unhooked,
    /// Like `OldBlocks`, but with folded pairs, and therefore without the stacks of releases.
    Folding,
}

fn act(world: &mut World, thread: usize, choice: usize, shape: (usize, Allowed)) {
    let (addresses, allowed) = shape;
    let (address, kind) = (choice % addresses, choice / addresses % 8);
    if world.is_in_realloc(thread) {
        let outcome = match kind {
            0 | 1 => Outcome::Fails,
            2 => Outcome::Unrecorded,
            3 => return,
            _ => Outcome::NewBlock(address),
        };
        world.return_from_realloc(thread, outcome);
    } else if world.is_idle(thread) {
        let call = match kind {
            _ if world.is_free(address) => Call::Toggle,
            0 if allowed == Allowed::Unhooked => Call::Unhooked,
            0..3 => Call::Toggle,
            3 => Call::Resize,
            4 if choice > 200 => Call::End,
            _ => Call::Realloc,
        };
        world.begin(thread, call, address);
    } else {
        world.step(thread);
    }
}

struct Setup {
    addresses: usize,
    threads: usize,
    sequence: u32,
    allowed: Allowed,
    /// Divides the same ledger into shards after this number of passes.
    shards: usize,
    passes_before: usize,
}

fn run(setup: &Setup, actions: &[(u8, u8)], rest: usize) -> Result<(), TestCaseError> {
    let &Setup {
        addresses,
        threads,
        sequence,
        allowed,
        shards,
        passes_before,
    } = setup;
    let mut world = World::new(addresses, threads, sequence, allowed != Allowed::Unhooked);
    if allowed == Allowed::Folding {
        world = world.with_folding();
    }
    let options = LedgerOptions {
        track_release_stacks: allowed != Allowed::Folding,
        ignore_unknown_releases: false,
        ..LedgerOptions::default()
    };
    let mut ledger = Ledger::observed(options, Told::default());
    let mut divided = Fed::new(Ledger::new(options));
    let mut passes_left = passes_before;
    let mut feed_divided = |divided: &mut Fed, passes: &[Vec<Batch>]| {
        for pass in passes {
            if passes_left == 0 && !divided.is_divided() {
                assert!(divided.divide(shards));
            }
            passes_left = passes_left.saturating_sub(1);
            for batch in pass {
                divided.begin_ring(batch.ring, batch.tid);
                for &(word0, word1, size) in &batch.events {
                    let raw = RawEvent { word0, word1 };
                    divided.event(raw.unpack().unwrap(), size, 0);
                }
            }
            divided.end_pass(0);
        }
    };
    for (i, &(actor, choice)) in actions.iter().enumerate() {
        let actor = usize::from(actor) % (threads + 2);
        if actor < threads {
            act(&mut world, actor, usize::from(choice), (addresses, allowed));
        } else {
            world.consumer_step(usize::from(choice));
        }
        if i % rest == rest - 1 {
            world.come_to_rest();
            feed(&mut ledger, &world.passes);
            feed_divided(&mut divided, &world.passes);
            world.passes.clear();
            world.check(&ledger).map_err(TestCaseError::fail)?;
            let of_shards = world.check_sums(&divided.ledger);
            of_shards.map_err(|why| TestCaseError::fail(format!("in shards: {why}")))?;
            // No event is recent at this point, so the sequence numbers may advance by any amount.
            world.advance_sequence(u32::from(choice) << 14);
        }
    }
    world.come_to_rest();
    feed(&mut ledger, &world.passes);
    ledger.finish();
    world.check(&ledger).map_err(TestCaseError::fail)?;
    feed_divided(&mut divided, &world.passes);
    divided.ledger.finish();
    let of_shards = world.check_sums(&divided.ledger);
    of_shards.map_err(|why| TestCaseError::fail(format!("in shards: {why}")))?;
    // If one release was not seen, another release may be mistaken for it, depending on the order of the rings.
    if allowed != Allowed::Unhooked {
        prop_assert_eq!(divided.ledger.release_sites(), ledger.release_sites());
    }
    prop_assert_eq!(divided.ledger.sites(), ledger.sites());
    if allowed == Allowed::OldBlocks {
        let paired: u64 = ledger.release_sites().iter().map(|s| s.2).sum();
        prop_assert_eq!(paired, world.sums.released);
    }
    Ok(())
}

/// Failures are not saved to a file, because a failing case is printed and every run is different.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    }
}

fn actions(limit: usize) -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec(any::<(u8, u8)>(), 0..limit)
}

fn setup(allowed: Allowed) -> impl Strategy<Value = Setup> {
    let start = prop_oneof![Just(0u32), Just(0x3f_fff8), Just(0x1f_fff8)];
    let shape = (1usize..4, 1usize..5, start, 2usize..5, 0usize..9);
    shape.prop_map(
        move |(addresses, threads, sequence, shards, passes_before)| Setup {
            addresses,
            threads,
            sequence,
            allowed,
            shards,
            passes_before,
        },
    )
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} addresses, {} threads, numbers from {:#x}, {} shards after {} passes",
            self.addresses, self.threads, self.sequence, self.shards, self.passes_before
        )
    }
}

proptest! {
    #![proptest_config(config(4000))]

    #[test]
    fn short_histories_with_blocks_from_before(
        setup in setup(Allowed::OldBlocks), actions in actions(60)
    ) {
        run(&setup, &actions, 40)?;
    }

    #[test]
    fn short_histories_with_pairs(setup in setup(Allowed::Folding), actions in actions(60)) {
        run(&setup, &actions, 40)?;
    }

    #[test]
    fn short_histories_with_unhooked_releases(
        setup in setup(Allowed::Unhooked), actions in actions(60)
    ) {
        run(&setup, &actions, 40)?;
    }
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn long_histories_with_blocks_from_before(
        setup in setup(Allowed::OldBlocks), actions in actions(1000)
    ) {
        run(&setup, &actions, 150)?;
    }

    #[test]
    fn long_histories_with_pairs(setup in setup(Allowed::Folding), actions in actions(1000)) {
        run(&setup, &actions, 150)?;
    }

    #[test]
    fn long_histories_with_unhooked_releases(
        setup in setup(Allowed::Unhooked), actions in actions(1000)
    ) {
        run(&setup, &actions, 150)?;
    }

    /// After losses, sums are not exact, but no sum falls below zero, and nothing panics.
    #[test]
    fn any_events_are_survived(
        events in prop::collection::vec((0u8..6, 0u8..4, 1u64..4, any::<u8>()), 0..300)
    ) {
        let ops =
            [Op::Allocation, Op::Release, Op::ReallocRelease, Op::ReallocFailed, Op::Pair];
        let mut ledger = Ledger::new(LedgerOptions {
            track_release_stacks: true,
            ignore_unknown_releases: false, ..LedgerOptions::default() });
        ledger.begin_ring(0, 1);
        for (op, ring, address, number) in events {
            let Some(&op) = ops.get(usize::from(op)) else {
                ledger.end_pass(0);
                continue;
            };
            ledger.begin_ring(usize::from(ring), 1 + u32::from(number > 250));
            let size = u64::from(number) << 26;
            let raw = RawEvent::pack(op, 16 * address, u32::from(number), size as u32, 1);
            ledger.event(raw.unpack().unwrap(), size, 0);
        }
        ledger.finish();
        let totals = ledger.totals();
        prop_assert_eq!(totals.live_bytes, ledger.live_blocks().map(|b| b.size).sum::<u64>());
    }
}

/// A `realloc` fails after its release was matched to the block and after the block's true release has arrived.
#[test]
fn a_failed_realloc_leaves_no_second_note_of_its_block() {
    let setup = Setup {
        addresses: 3,
        threads: 3,
        sequence: 0,
        allowed: Allowed::OldBlocks,
        shards: 3,
        passes_before: 1,
    };
    let actions = [
        (47, 92),
        (33, 0),
        (98, 0),
        (203, 0),
        (87, 0),
        (237, 0),
        (70, 155),
        (77, 21),
        (103, 0),
        (3, 0),
        (97, 0),
        (73, 0),
        (95, 0),
        (13, 0),
        (98, 0),
        (47, 14),
        (13, 0),
        (5, 0),
        (137, 0),
        (2, 0),
        (5, 0),
        (213, 0),
        (71, 108),
        (58, 0),
        (18, 0),
        (15, 14),
        (28, 0),
        (13, 0),
        (55, 0),
        (98, 0),
        (188, 0),
        (105, 24),
        (28, 0),
        (48, 0),
        (38, 0),
        (112, 67),
        (23, 0),
        (133, 0),
        (132, 0),
        (168, 0),
        (23, 0),
        (32, 0),
        (235, 0),
        (117, 245),
        (5, 0),
    ];
    run(&setup, &actions, 150).expect("the release of each block is the true one");
}

/// The block was recorded one pass before its release arrived, so the block leaves one pass earlier.
#[test]
fn a_settled_release_keeps_its_block_when_that_leaves_first() {
    let setup = Setup {
        addresses: 1,
        threads: 3,
        sequence: 0,
        allowed: Allowed::OldBlocks,
        shards: 3,
        passes_before: 1,
    };
    let actions = [
        (35, 179),
        (40, 0),
        (233, 0),
        (73, 0),
        (73, 0),
        (48, 0),
        (13, 0),
        (73, 0),
        (255, 0),
        (28, 0),
        (105, 0),
        (107, 52),
        (82, 0),
        (157, 36),
        (37, 0),
        (152, 0),
        (35, 136),
        (200, 0),
        (65, 0),
        (1, 0),
        (55, 0),
        (30, 0),
    ];
    run(&setup, &actions, 40).expect("the release of each block is the true one");
}

/// A `realloc` of a block from before the attach fails late. By then, sampling has been announced, and unknown releases
/// are no longer counted.
#[test]
fn a_release_that_is_taken_back_may_be_forgotten() {
    for divides in [false, true] {
        let mut fed = Fed::new(Ledger::new(LedgerOptions::default()));
        let event = |op| RawEvent::pack(op, 0x1000, 1, 0, 1).unpack().unwrap();
        fed.begin_ring(0, 1);
        fed.event(event(Op::ReallocRelease), 0, 0);
        fed.end_pass(0);
        fed.end_pass(0);
        assert_eq!(fed.ledger.totals().unknown_releases, 1);
        fed.ledger.begin_ring(1, 2);
        fed.ledger.set_sampling(1);
        fed.end_pass(0);
        assert!(!divides || fed.divide(2));
        fed.begin_ring(0, 1);
        fed.event(event(Op::ReallocFailed), 0, 0);
        fed.end_pass(0);
        let totals = fed.ledger.totals();
        assert_eq!((totals.unknown_releases, totals.releases), (0, 0));
    }
}
