//! Blocks that are watched before the program receives them. The attacher requests a block, the hook names one, and the
//! hook's thread waits for the attacher's answer for a limited time.

use crate::Region;
use crate::memory::tally;
use memhook_abi::{Control, flags, look};
use std::mem::offset_of;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// A block, and the thread that waits for the attacher's answer. All fields come from the target and are not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewBlock {
    /// Address of the block (avma).
    pub address: u64,
    /// Size of the block in bytes.
    pub size: u64,
    /// Thread, by the number in its ring.
    pub tid: u32,
}

impl Region {
    /// Returns true if the hook draws blocks to watch ([`flags::LOOKS`]).
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

    /// Requests the next drawn block. On average, the hook draws one out of `distance` events of a ring.
    pub fn ask_for_block(&self, distance: u32) {
        self.draw_blocks_at(distance);
        self.change_look(look::CLOSED, look::OPEN);
    }

    /// Sets the mean distance between drawn blocks. Each draw makes the owner of a ring check how far the ring has been
    /// read, even while no block is requested.
    pub fn draw_blocks_at(&self, distance: u32) {
        let offset = offset_of!(Control, look_distance);
        self.memory.tell64(offset, distance.into(), Relaxed);
    }

    /// Returns the block whose thread waits, if there is one.
    pub fn new_block(&self) -> Option<NewBlock> {
        // Acquire: the block was named before that.
        (self.look_state().load(Acquire) == look::ASKED).then(|| NewBlock {
            address: self.reported64(tally!(look_address)),
            size: self.reported64(tally!(look_size)),
            tid: self.reported32(tally!(look_tid)),
        })
    }

    /// Lets the thread continue. Returns true if the thread was still waiting; otherwise the block has already been in
    /// use for a while.
    pub fn hand_over_block(&self) -> bool {
        self.change_look(look::ASKED, look::CLOSED)
    }

    /// Returns true if no block is requested, or if the thread of the requested block has stopped waiting.
    pub fn is_no_block_asked(&self) -> bool {
        self.look_state().load(Relaxed) == look::CLOSED
    }

    /// Ends the requests. From then on, no thread waits, except a thread that is just naming its block, which waits
    /// only for a short time.
    pub fn stop_asking_for_blocks(&self) {
        for state in [look::OPEN, look::ASKED, look::NAMED] {
            self.change_look(state, look::CLOSED);
        }
    }
}
