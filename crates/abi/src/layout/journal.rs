//! Slots and modules.

use super::shared_struct::{Address, shared_struct};
use std::sync::atomic::AtomicU32;

/// Values of the states at [`super::SLOT_STATES_OFFSET`], a u32 for each entry of the journal, written by the hook.
pub mod slot_state {
    /// The entry is not in use, or its module is gone.
    pub const UNUSED: u32 = 0;
    /// The hook must patch it.
    pub const PENDING: u32 = 1;
    /// The hook is about to write, or has written, our value. The state is set before the write, so that recovery after
    /// a crash of the attacher knows every slot that may hold the value.
    pub const PATCHED: u32 = 2;
    /// The slot had an unexpected value, and was not changed.
    pub const CHANGED: u32 = 3;
    /// The slot has its original value again.
    pub const RESTORED: u32 = 4;
    /// The page could not be made writable.
    pub const REFUSED: u32 = 5;
}

shared_struct! {
    /// One GOT slot in the journal.
    guide SlotEntry {
        /// Address of the slot (avma).
        address: Address,
        /// Value of the slot before the attach and after the detach (avma).
        original: Address,
        /// Identity of the module: base avma.
        module_base: Address,
        /// Function id.
        function: u32,
        /// Variant of the original.
        variant: u32,
        /// Not 0: the hook must patch the slot, unless its state shows that this is done.
        is_wanted: AtomicU32,
        /// PROT_* bits to restore after patching.
        protection: u32,
        /// Value of the slot before patching: `original`, or the PLT stub of a slot that lazy binding has not resolved
        /// yet.
        expected: Address,
        /// Not 0: the slot's module was loaded with the program and is never unloaded, so the loader cannot make this
        /// entry out of date.
        is_permanent: u64,
    }
}

shared_struct! {
    /// A module; the list is sorted by `start`.
    guide ModuleEntry {
        /// First byte (avma).
        start: Address,
        /// Address after the last byte (avma).
        end: Address,
        /// Address of a `ret` instruction inside, or 0.
        ret_gadget: Address,
        /// Load bias: avma - svma.
        base: Address,
        /// Number of the first unwind row.
        first_row: u32,
        /// Number of unwind rows.
        row_count: u32,
        /// Not 0: code without unwind rows keeps frame pointers, because a run-time compiler has generated the code, or
        /// because it supports such code.
        keeps_frame_pointers: u32,
        /// Not 0: the module is never unloaded.
        is_permanent: u32,
    }
}
