//! Blocks that are watched from before the program has them: the hook names one when the attacher asks for it, and
//! its thread waits until the attacher answers, though never for long.

use crate::Region;
use crate::memory::tally;
use memhook_abi::{Control, flags, look};
use std::mem::offset_of;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// A block whose thread waits. All is foreign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewBlock {
    /// Its address (avma).
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    /// The thread, by the number that its ring has.
    pub tid: u32,
}

impl Region {
    /// Returns true if the hook draws blocks to be watched ([`flags::LOOKS`]).
    pub fn draws_looks(&self) -> bool {
        self.flags() & flags::LOOKS != 0
    }

    fn look_state(&self) -> &AtomicU32 {
        self.memory.u32(tally!(look_state))
    }

    fn change_look(&self, from: u32, to: u32) -> bool {
        let state = self.look_state();
        state.compare_exchange(from, to, AcqRel, Relaxed).is_ok()
    }

    /// Asks for the next block that is drawn: one of so many events of a ring is, on average.
    pub fn ask_for_block(&self, distance: u32) {
        self.draw_blocks_at(distance);
        self.change_look(look::CLOSED, look::OPEN);
    }

    /// Has blocks drawn at this mean distance from now on. Each draw costs the owner of a ring a look at how far it is
    /// read, also while nobody is asked.
    pub fn draw_blocks_at(&self, distance: u32) {
        let offset = offset_of!(Control, look_distance);
        self.memory.tell64(offset, distance.into(), Relaxed);
    }

    /// The block whose thread waits, if there is one.
    pub fn new_block(&self) -> Option<NewBlock> {
        // Acquire: the block was named before.
        (self.look_state().load(Acquire) == look::ASKED).then(|| NewBlock {
            address: self.reported64(tally!(look_address)),
            size: self.reported64(tally!(look_size)),
            tid: self.reported32(tally!(look_tid)),
        })
    }

    /// Lets the thread go on. Whether it has waited until now; else the block has been in use for a while.
    pub fn hand_over_block(&self) -> bool {
        self.change_look(look::ASKED, look::CLOSED)
    }

    /// Returns true if no block is asked for, or whoever was asked has given up.
    pub fn is_no_block_asked(&self) -> bool {
        self.look_state().load(Relaxed) == look::CLOSED
    }

    /// Asks no more. Nobody waits afterwards, but a thread that is about to name its block; that one does not wait
    /// for long.
    pub fn stop_asking_for_blocks(&self) {
        for state in [look::OPEN, look::ASKED, look::NAMED] {
            self.change_look(state, look::CLOSED);
        }
    }
}
