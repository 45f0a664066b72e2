//! The module list and the unwind tables that the hook reads.

use crate::{Error, Region};
use memhook_abi::{
    Control, MAX_MODULES, MAX_ROWS, MAX_RULES, MODULES_OFFSET, ModuleEntry, ROW_OFFSETS_OFFSET,
    ROW_RULES_OFFSET, RULES_OFFSET,
};
use std::mem::offset_of;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// One module in the form for the hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModuleSpec {
    /// First mapped byte (avma).
    pub start: u64,
    /// Address after the last mapped byte (avma).
    pub end: u64,
    /// Address (avma) of a `ret` instruction inside it, or 0.
    pub ret_gadget: u64,
    /// Load bias: avma - svma.
    pub base: u64,
    /// Index of the module's first unwind row.
    pub first_row: u32,
    /// Number of its rows.
    pub row_count: u32,
    /// True if code without rows keeps frame pointers.
    pub keeps_frame_pointers: bool,
    /// True if it is never unloaded.
    pub is_permanent: bool,
}

impl Region {
    /// Writes unwind rule `number` (see [`memhook_abi::unwind_rule`]). Rules are only added, because a thread may be
    /// unwinding with the current ones.
    pub fn write_rule(&self, number: u16, rule: u64) {
        let offset = RULES_OFFSET + usize::from(number) * 8;
        self.memory.tell64(offset, rule, Relaxed);
    }

    /// Writes unwind rows from index `first` on. No published module may use these rows. Each row has a code offset
    /// (bytes from the module's base, ascending) and a rule number.
    pub fn write_rows(&self, first: usize, offsets: &[u32], rules: &[u16]) -> Result<(), Error> {
        let fits = first
            .checked_add(offsets.len())
            .is_some_and(|end| end <= MAX_ROWS);
        if !fits || offsets.len() != rules.len() {
            return Err(Error::RowsFull {
                wanted: offsets.len(),
                limit: MAX_ROWS,
            });
        }
        self.memory
            .tell_u32s(ROW_OFFSETS_OFFSET + first * 4, offsets);
        self.memory.tell_u16s(ROW_RULES_OFFSET + first * 2, rules);
        self.note_spent((offsets.len() * (size_of::<u32>() + size_of::<u16>())) as u64);
        Ok(())
    }

    /// Publishes `modules` as the module list, which invalidates all backtraces that threads remember.
    ///
    /// # Errors
    /// There are more modules than the list can contain; the old list remains.
    pub fn publish_modules(&self, modules: &[ModuleSpec]) -> Result<(), Error> {
        if modules.len() > MAX_MODULES {
            return Err(Error::ModulesFull {
                start: modules[MAX_MODULES].start,
                limit: MAX_MODULES,
            });
        }
        let mut sorted = modules.to_vec();
        sorted.sort_by_key(|m| m.start);
        let word = offset_of!(Control, module_list);
        let version = (self.control64(word) >> 32).wrapping_add(1) & 0xffff_ffff;
        // The unpublished list is written, because threads may be reading the published list. A thread that began to
        // read this list before the last version was published notices that the version has changed, and starts again.
        let list = MODULES_OFFSET + (version as usize & 1) * MAX_MODULES * size_of::<ModuleEntry>();
        for (i, module) in sorted.iter().enumerate() {
            let at = list + i * size_of::<ModuleEntry>();
            for (field, value) in [
                (offset_of!(ModuleEntry, start), module.start),
                (offset_of!(ModuleEntry, end), module.end),
                (offset_of!(ModuleEntry, ret_gadget), module.ret_gadget),
                (offset_of!(ModuleEntry, base), module.base),
            ] {
                self.memory.tell64(at + field, value, Relaxed);
            }
            for (field, value) in [
                (offset_of!(ModuleEntry, first_row), module.first_row),
                (offset_of!(ModuleEntry, row_count), module.row_count),
                (
                    offset_of!(ModuleEntry, keeps_frame_pointers),
                    u32::from(module.keeps_frame_pointers),
                ),
                (
                    offset_of!(ModuleEntry, is_permanent),
                    u32::from(module.is_permanent),
                ),
            ] {
                self.memory.tell32(at + field, value, Relaxed);
            }
        }
        // Release: a thread that sees the version also sees list, rows and rules.
        self.memory
            .tell64(word, version << 32 | sorted.len() as u64, Release);
        Ok(())
    }
}

const _: () = assert!(MAX_RULES == u16::MAX as usize + 1);
