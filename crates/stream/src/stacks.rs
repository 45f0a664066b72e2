//! The stack table, written by the hook.

use crate::{Region, python};
use memhook_abi::{
    ARENA_BYTES, ARENA_OFFSET, GRANULE_BYTES, MAX_DEPTH, PYTHON_LOCATION, STACK_OUTER, StackEntry,
};
use std::sync::atomic::Ordering::Relaxed;

/// An interned backtrace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Function id of the hooked call.
    pub function: u8,
    /// Whether the walk ended before the outermost frame.
    pub truncated: bool,
    /// Return addresses (avma), innermost first; for a Python function what [`Region::python_location`]
    /// knows ([`is_python`](crate::is_python)).
    pub frames: Vec<u64>,
}

// The head of an entry is read as one word: outer entry, then function, truncated and depth in the upper half.
const _: () = assert!(size_of::<StackEntry>() == 8);
const _: () = assert!(std::mem::offset_of!(StackEntry, outer) == 0);
const _: () = assert!(std::mem::offset_of!(StackEntry, function) == 4);
const _: () = assert!(std::mem::offset_of!(StackEntry, truncated) == 5);
const _: () = assert!(std::mem::offset_of!(StackEntry, depth) == 6);

/// An entry of the stack table.
pub(crate) struct Entry {
    /// Function id, or what else the entry is.
    pub function: u8,
    /// Whether the walk ended before the outermost frame.
    pub truncated: bool,
    /// The entry of the frames further out; 0: there are none.
    outer: u32,
    /// Frames, or what else the entry holds.
    pub words: Vec<u64>,
}

impl Region {
    /// The backtrace with this id, as carried by an event; `None` if there is none, or none that
    /// makes sense.
    pub fn stack(&self, id: u32) -> Option<Stack> {
        let entry = self.entry(id)?;
        if is_part(entry.function) {
            return None;
        }
        let Some(native) = python::native_of(&entry.words) else {
            return self.with_outer_frames(entry);
        };
        let native = self.entry(native)?;
        if is_part(native.function) || python::native_of(&native.words).is_some() {
            return None;
        }
        let native = self.with_outer_frames(native)?;
        Some(Stack {
            function: entry.function,
            frames: python::merge(&native.frames, &entry.words[1..], &self.evaluation()),
            ..native
        })
    }

    /// The backtrace whose innermost frames are those of `innermost`. `None` if that leads to what is no outer frames, or
    /// to more frames than a backtrace has.
    fn with_outer_frames(&self, innermost: Entry) -> Option<Stack> {
        let mut frames = innermost.words;
        let mut outer = innermost.outer;
        while outer != 0 {
            let entry = self.entry(outer)?;
            // No entry is empty, so that this comes to an end.
            if entry.function != STACK_OUTER || frames.len() + entry.words.len() > MAX_DEPTH {
                return None;
            }
            frames.extend(entry.words);
            outer = entry.outer;
        }
        Some(Stack {
            function: innermost.function,
            truncated: innermost.truncated,
            frames,
        })
    }

    /// An entry of the stack table.
    pub(crate) fn entry(&self, id: u32) -> Option<Entry> {
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
        let words = self.memory.words(ARENA_OFFSET + start + 8, depth);
        Some(Entry {
            function: (head >> 32) as u8,
            truncated: (head >> 40) & 0xff != 0,
            outer: head as u32,
            words: words.iter().map(|word| word.load(Relaxed)).collect(),
        })
    }
}

/// Whether an entry with this in place of a function id is only a part of others.
fn is_part(function: u8) -> bool {
    matches!(function, PYTHON_LOCATION | STACK_OUTER)
}
