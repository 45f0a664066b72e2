//! Runs small programs under every schedule: all interleavings of the steps of two threads and of
//! the consumer.

mod model;

use memhook_ledger::{Ledger, LedgerOptions};
use model::{Call, Outcome, Told, World, feed};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

#[derive(Clone, Copy)]
enum Step {
    Toggle(usize),
    Resize(usize),
    Unhooked(usize),
    Realloc(usize, Outcome),
    End,
}
use Outcome::{Fails, NewBlock, Unrecorded};
use Step::*;

struct Explorer<'a> {
    programs: [&'a [Step]; 2],
    passes: usize,
    seen: HashSet<u64>,
    checked: usize,
}

#[derive(Clone, Hash)]
struct State {
    world: World,
    next: [usize; 2],
    outcome: [Option<Outcome>; 2],
}

impl Explorer<'_> {
    fn explore(&mut self, state: State) {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        if !self.seen.insert(hasher.finish()) {
            return;
        }
        for thread in 0..2 {
            let mut after = state.clone();
            if self.step(&mut after, thread) {
                self.explore(after);
            }
        }
        if state.world.passes.len() < self.passes {
            for order in 0..2 {
                let mut after = state.clone();
                after.world.consumer_step(order);
                self.explore(after);
            }
        }
        self.check(state);
    }

    /// The program may end after any step.
    fn check(&mut self, state: State) {
        let mut world = state.world;
        let before = world.clone();
        world.come_to_rest();
        let options = LedgerOptions {
            track_release_stacks: true,
            ignore_unknown_releases: false,
            ..LedgerOptions::default()
        };
        let mut ledger = Ledger::observed(options, Told::default());
        feed(&mut ledger, &world.passes);
        ledger.finish();
        if let Err(why) = world.check(&ledger) {
            panic!("{why}\n{:#?}\nat rest: {:#?}", before, world.passes);
        }
        self.checked += 1;
    }

    fn step(&self, state: &mut State, thread: usize) -> bool {
        let world = &mut state.world;
        if world.is_in_realloc(thread) {
            world.return_from_realloc(thread, state.outcome[thread].take().unwrap());
            return true;
        }
        if !world.is_idle(thread) {
            world.step(thread);
            return true;
        }
        let Some(&step) = self.programs[thread].get(state.next[thread]) else {
            return false;
        };
        state.next[thread] += 1;
        match step {
            Toggle(address) => world.begin(thread, Call::Toggle, address),
            Resize(address) => world.begin(thread, Call::Resize, address),
            End => world.begin(thread, Call::End, 0),
            Unhooked(address) => world.begin(thread, Call::Unhooked, address),
            Realloc(address, outcome) => {
                state.outcome[thread] = Some(outcome);
                world.begin(thread, Call::Realloc, address)
            }
        }
    }
}

/// Explores the programs. Returns the number of final states checked.
fn explore(programs: [&[Step]; 2], old_block: bool, sequence: u32, passes: usize) -> usize {
    let mut explorer = Explorer {
        programs,
        passes,
        seen: HashSet::new(),
        checked: 0,
    };
    let world = World::new(2, 2, sequence, old_block);
    for world in [world.clone(), world.with_folding()] {
        explorer.explore(State {
            world,
            next: [0; 2],
            outcome: [None; 2],
        });
    }
    explorer.checked
}

#[test]
fn blocks_that_change_threads() {
    let here = &[Toggle(0), Toggle(0)][..];
    let longer = &[Toggle(0), Toggle(0), Toggle(0)][..];
    let checked = explore([here, here], false, 0x3f_ffff, 4)
        + explore([longer, here], true, 0, 3)
        + explore([longer, &[Toggle(0)]], true, 0x3f_fffe, 4);
    assert!(checked > 5_000, "only {checked} endings");
}

#[test]
fn reallocs_that_fail_late() {
    let fails = &[Toggle(0), Realloc(0, Fails), Toggle(0)][..];
    let other = &[Toggle(0), Toggle(0)][..];
    let checked = explore([fails, other], false, 0x3f_ffff, 3)
        + explore([fails, &[Toggle(0)]], true, 0, 4)
        + explore([&[Realloc(0, Fails), Toggle(0)], other], true, 0, 4);
    assert!(checked > 5_000, "only {checked} endings");
}

#[test]
fn reallocs_in_place_and_elsewhere() {
    let other = &[Toggle(0), Toggle(0)][..];
    let mut checked = 0;
    for outcome in [NewBlock(0), NewBlock(1), Unrecorded] {
        let moves = &[Toggle(0), Realloc(0, outcome)][..];
        checked += explore([moves, other], false, 0x3f_ffff, 3);
        checked += explore([&[Realloc(0, outcome), Toggle(0)], other], true, 0, 4);
    }
    assert!(checked > 5_000, "only {checked} endings");
}

#[test]
fn two_reallocs_of_one_block() {
    let mut checked = 0;
    for outcome in [Fails, NewBlock(0), NewBlock(1)] {
        let first = &[Toggle(0), Realloc(0, outcome)][..];
        checked += explore([first, &[Realloc(0, Fails), Toggle(0)]], true, 0, 3);
    }
    assert!(checked > 5_000, "only {checked} endings");
}

#[test]
fn threads_that_end() {
    let ends = &[Toggle(0), Realloc(0, Unrecorded), End, Toggle(0)][..];
    let checked = explore([ends, &[Toggle(0), Toggle(0)]], false, 0, 3);
    assert!(checked > 1_000, "only {checked} endings");
}

#[test]
fn resizes_and_releases_that_no_hook_sees() {
    let mut checked = 0;
    for step in [Resize(0), Unhooked(0)] {
        let first = &[Toggle(0), step, Toggle(0)][..];
        checked += explore([first, &[Toggle(0), Toggle(0)]], false, 0x3f_ffff, 3);
    }
    assert!(checked > 5_000, "only {checked} endings");
}
