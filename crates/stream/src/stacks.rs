//! The stack table, written by the hook.

use crate::Region;
use memhook_abi::{ARENA_BYTES, ARENA_OFFSET, GRANULE_BYTES, MAX_DEPTH, StackEntry};
use std::sync::atomic::Ordering::Relaxed;

/// An interned backtrace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Function id of the hooked call.
    pub function: u8,
    /// Whether the walk ended before the outermost frame.
    pub truncated: bool,
    /// Return addresses (avma), innermost first.
    pub frames: Vec<u64>,
}

// The entry is read as one word: hash, then function, truncated and depth in the upper half.
const _: () = assert!(size_of::<StackEntry>() == 8);
const _: () = assert!(std::mem::offset_of!(StackEntry, function) == 4);
const _: () = assert!(std::mem::offset_of!(StackEntry, truncated) == 5);
const _: () = assert!(std::mem::offset_of!(StackEntry, depth) == 6);

impl Region {
    /// The backtrace with this id, as carried by an event; `None` if there is none, or none that
    /// makes sense.
    pub fn stack(&self, id: u32) -> Option<Stack> {
        let start = (id as usize).checked_mul(GRANULE_BYTES)?;
        if id == 0 || start >= ARENA_BYTES {
            return None;
        }
        let head = self.memory.u64(ARENA_OFFSET + start).load(Relaxed);
        let depth = (head >> 48) as usize;
        let room = (ARENA_BYTES - start) / 8 - 1;
        if depth == 0 || depth > MAX_DEPTH || depth > room {
            return None;
        }
        let frames = self.memory.words(ARENA_OFFSET + start + 8, depth);
        Some(Stack {
            function: (head >> 32) as u8,
            truncated: (head >> 40) & 0xff != 0,
            frames: frames.iter().map(|frame| frame.load(Relaxed)).collect(),
        })
    }
}
