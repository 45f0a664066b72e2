//! State from which the event coder predicts the next event within a frame.
//!
//! Encoder and decoder run the same model over the events, so a correct prediction takes no bytes.
//! Every frame starts with an empty model, so that each frame can be decoded on its own.
//!
//! - *Releases* name their block by the number of allocations since.
//! - *Allocations* are predicted at the address of a block of their size class that was just
//!   released, as in most allocators, or directly after the previous allocation.
//! - *Stacks* are predicted in the same sequence as the last time, and each stack is predicted to
//!   request the same size as last time.
//! - *Sequence numbers* are predicted from the target's table of sequence words.

use memhook_abi::{SEQUENCE_BITS, SEQUENCE_WORDS};
use rustc_hash::FxHashMap;

/// Number of releases remembered in each size class.
pub(crate) const CLASS_RANKS: usize = 4;
/// Number of size classes. They are 16 bytes wide below 1 KiB, and then four in each power of two.
pub(crate) const CLASSES: usize = 256;
/// Mask of a sequence number.
pub(crate) const SEQUENCE_MASK: u32 = (1 << SEQUENCE_BITS) - 1;
/// Mask of an address in granules of 8 bytes.
pub(crate) const GRANULE_MASK: u64 = (1 << 45) - 1;
/// Bytes added to a size before it is rounded down to 16 for its class. 15 fits allocators whose
/// blocks are exactly as large as their size class, and 7 fits allocators that put an 8-byte word
/// before the block.
pub(crate) const CLASS_BIASES: [u64; 2] = [7, 15];

/// The last released addresses, latest first, in granules; 0 means none.
#[derive(Clone, Copy, Default)]
pub(crate) struct Released(pub [u64; CLASS_RANKS]);

impl Released {
    #[inline]
    pub fn push(&mut self, granule: u64) {
        let [a, b, c, _] = self.0;
        self.0 = [granule, a, b, c];
    }

    /// Removes the address at `rank`.
    #[inline]
    pub fn remove(&mut self, rank: usize) -> u64 {
        // The addresses are moved one by one, because a copy whose length is unknown at compile
        // time would be a function call.
        let [a, b, c, d] = self.0;
        let granule;
        (granule, self.0) = match rank {
            0 => (a, [b, c, d, 0]),
            1 => (b, [a, c, d, 0]),
            2 => (c, [a, b, d, 0]),
            _ => (d, [a, b, c, 0]),
        };
        granule
    }
}

/// A size class.
#[derive(Clone, Copy, Default)]
pub(crate) struct Class {
    pub released: Released,
    /// Last allocated block, in granules.
    pub last: u64,
}

/// An allocation of this frame.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub granule: u64,
    /// Local number of the stack.
    pub stack: u32,
    pub class: u8,
}

/// A stack that this frame has named.
#[derive(Clone, Copy)]
pub(crate) struct KnownStack {
    pub id: u32,
    /// Local number of the stack that followed this stack last time.
    pub next: u32,
    /// Size of the stack's last allocation in bytes.
    pub size: u64,
    /// Stack id of the last release of a block of this stack.
    pub release: u32,
}

pub(crate) struct Model {
    pub bias: u64,
    pub blocks: Vec<Block>,
    pub classes: Box<[Class; CLASSES]>,
    /// Released blocks that were allocated before this frame, so their class is unknown.
    pub strangers: Released,
    /// Last released block, in granules.
    pub last_released: u64,
    /// Last released block from before this frame.
    pub last_stranger: u64,
    /// Predicted address if the next block comes directly after the last one in memory.
    pub bump: u64,
    /// Stacks by local number. Number 0 is "no stack".
    pub stacks: Vec<KnownStack>,
    /// Local number of the last allocation's stack.
    pub last_stack: u32,
    pub sequences: Box<[u32; SEQUENCE_WORDS]>,
    pub time_ns: u64,
    pub pass_ns: u64,
    /// Thread of each ring.
    pub tids: FxHashMap<u64, u32>,
}

impl Model {
    pub fn new() -> Self {
        let mut model = Self {
            bias: 0,
            blocks: Vec::new(),
            classes: Box::new([Class::default(); CLASSES]),
            strangers: Released::default(),
            last_released: 0,
            last_stranger: 0,
            bump: 0,
            stacks: Vec::new(),
            last_stack: 0,
            sequences: vec![0; SEQUENCE_WORDS]
                .try_into()
                .expect("the length is that of the array"),
            time_ns: 0,
            pass_ns: 0,
            tids: FxHashMap::default(),
        };
        model.reset(CLASS_BIASES[0], 0);
        model
    }

    /// Clears everything, for a new frame.
    pub fn reset(&mut self, bias: u64, time_ns: u64) {
        self.bias = bias;
        self.blocks.clear();
        self.classes.fill(Class::default());
        self.strangers = Released::default();
        self.last_released = 0;
        self.last_stranger = 0;
        self.bump = 0;
        self.stacks.clear();
        self.last_stack = 0;
        self.sequences.fill(0);
        self.time_ns = time_ns;
        self.pass_ns = time_ns;
        self.tids.clear();
        self.learn_stack(0);
    }

    /// Gives a stack id the next local number.
    pub fn learn_stack(&mut self, id: u32) -> u32 {
        self.stacks.push(KnownStack {
            id,
            next: 0,
            size: 0,
            release: 0,
        });
        self.stacks.len() as u32 - 1
    }

    #[inline]
    pub fn class_of(&self, size: u64) -> u8 {
        if size <= 1008 {
            return ((size + self.bias) >> 4) as u8;
        }
        let log = 63 - size.leading_zeros();
        let quarter = (size >> (log - 2)) & 3;
        (64 + (log - 9) * 4 + quarter as u32).min(CLASSES as u32 - 1) as u8
    }

    /// Returns the sequence word of a block. As in the hook, there is one word for the addresses of
    /// a page.
    #[inline]
    pub fn word_of(granule: u64) -> usize {
        let page = granule >> 9;
        (page ^ (page >> 14)) as usize & (SEQUENCE_WORDS - 1)
    }

    /// Returns the predicted sequence number of the next event at this address. A release
    /// increments it.
    #[inline]
    pub fn expected_sequence(&self, word: usize, is_release: bool) -> u32 {
        (self.sequences[word] + u32::from(is_release)) & SEQUENCE_MASK
    }

    /// Records an allocation at `granule`.
    #[inline]
    pub fn allocated(&mut self, granule: u64, size: u64, stack: u32, class: u8) {
        self.classes[class as usize].last = granule;
        self.bump = granule.wrapping_add((size.wrapping_add(23) >> 4 << 1).max(4)) & GRANULE_MASK;
        self.blocks.push(Block {
            granule,
            stack,
            class,
        });
        let known = &mut self.stacks[stack as usize];
        known.size = size;
        self.stacks[self.last_stack as usize].next = stack;
        self.last_stack = stack;
    }

    /// Records the release of the last allocated block.
    pub fn released_last(&mut self) {
        if let Some(block) = self.blocks.last().copied() {
            self.released(block.granule, Some(block.class));
        }
    }

    /// Records the release of a block.
    #[inline]
    pub fn released(&mut self, granule: u64, class: Option<u8>) {
        match class {
            Some(class) => self.classes[class as usize].released.push(granule),
            None => {
                self.strangers.push(granule);
                self.last_stranger = granule;
            }
        }
        self.last_released = granule;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_a_class() {
        let mut model = Model::new();
        for bias in CLASS_BIASES {
            model.reset(bias, 0);
            let mut last = 0;
            for size in (0..5000).chain((13..64).map(|bit| 1 << bit)) {
                let class = model.class_of(size);
                assert!(class >= last, "size {size}");
                last = class;
            }
            model.class_of(u64::MAX);
        }
    }
}
