//! The stack table, written by the hook.

use crate::{Region, python};
use memhook_abi::{PYTHON_LOCATION, StackEntry};

/// An interned backtrace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Function id of the hooked call.
    pub function: u8,
    /// True if the walk ended before the outermost frame.
    pub truncated: bool,
    /// Return addresses (avma), innermost first; for a Python function, a placeholder that [`Region::python_location`]
    /// resolves ([`is_python`](crate::is_python)).
    pub frames: Vec<u64>,
}

// The entry is read as one word: the hash in the lower half; function, truncated and depth in the upper half.
const _: () = assert!(size_of::<StackEntry>() == 8);
const _: () = assert!(std::mem::offset_of!(StackEntry, function) == 4);
const _: () = assert!(std::mem::offset_of!(StackEntry, truncated) == 5);
const _: () = assert!(std::mem::offset_of!(StackEntry, depth) == 6);

impl Region {
    /// Returns the backtrace with this id, as carried by an event; `None` if it does not exist or is
    /// damaged.
    pub fn stack(&self, id: u32) -> Option<Stack> {
        let (function, truncated, frames) = self.entry(id)?;
        if function == PYTHON_LOCATION {
            return None;
        }
        let Some(native) = python::native_of(&frames) else {
            return Some(Stack {
                function,
                truncated,
                frames,
            });
        };
        let (native_function, truncated, native) = self.entry(native)?;
        if native_function == PYTHON_LOCATION || python::native_of(&native).is_some() {
            return None;
        }
        Some(Stack {
            function,
            truncated,
            frames: python::merge(&native, &frames[1..], &self.evaluation()),
        })
    }
}
