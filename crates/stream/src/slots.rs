//! Journal of GOT slots. The copy in the region is for the hook. This process reads nothing but slot states from it.
//! Otherwise anyone who can write to the region could choose what we write into the target's memory.

use crate::{Error, Region};
use memhook_abi::{
    Control, FIRST_DESCRIBED, MAX_DESCRIBED, MAX_SLOTS, MAX_VARIANTS, SLOT_STATES_OFFSET,
    SLOTS_OFFSET, SlotEntry, function_by_name, slot_state,
};
use std::mem::offset_of;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A slot to patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSpec {
    /// Address of the slot (avma).
    pub address: u64,
    /// Address of the function that the wrapper calls and the detach restores (avma).
    pub original: u64,
    /// Current value of the slot: `original`, or the PLT stub from which lazy binding starts.
    pub expected: u64,
    /// Base of the slot's module (avma).
    pub module_base: u64,
    /// Function id.
    pub function: u32,
    /// Variant of the original.
    pub variant: u32,
    /// `PROT_*` bits of the slot's page.
    pub protection: u32,
    /// True if the hook must not patch the slot, because the slot is exchanged while all threads are held.
    pub by_force: bool,
    /// True if its module is never unloaded.
    pub is_permanent: bool,
}

/// A slot in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// Index in the journal.
    pub index: usize,
    /// Address of the slot (avma).
    pub address: u64,
    /// Value that the detach restores (avma).
    pub original: u64,
    /// Value of the slot before patching (avma).
    pub expected: u64,
    /// Base of the slot's module (avma).
    pub module_base: u64,
    /// Function id.
    pub function: u32,
    /// Variant of the original.
    pub variant: u32,
    /// State, one of [`memhook_abi::slot_state`].
    pub state: u32,
    /// `PROT_*` bits of the slot's page.
    pub protection: u32,
    /// True if its module is never unloaded.
    pub is_permanent: bool,
}

fn slot_offset(index: usize) -> usize {
    assert!(index < MAX_SLOTS, "slot {index} of {MAX_SLOTS}");
    SLOTS_OFFSET + index * size_of::<SlotEntry>()
}

impl Region {
    /// Returns the number of slots in the journal, including unused ones.
    pub fn slot_count(&self) -> usize {
        self.journal().len()
    }

    /// Writes a pending slot (or a refused slot, if it must be exchanged by force) into the journal and returns its
    /// index. Reuses `UNUSED` entries when the journal is full. Only one thread may call this at a time.
    pub fn push_slot(&self, spec: SlotSpec) -> Result<usize, Error> {
        let (function, variant) = (spec.function, spec.variant);
        if function as usize >= FIRST_DESCRIBED + MAX_DESCRIBED || variant as usize >= MAX_VARIANTS
        {
            return Err(Error::Function { function, variant });
        }
        let count = self.slot_count();
        let index = if count < MAX_SLOTS {
            count
        } else {
            (0..MAX_SLOTS)
                .find(|&i| self.slot_state(i) == slot_state::UNUSED)
                .ok_or(Error::SlotsFull {
                    address: spec.address,
                    limit: MAX_SLOTS,
                })?
        };
        let mut journal = self.journal();
        match journal.get_mut(index) {
            Some(unused) => *unused = spec,
            None => journal.push(spec),
        }
        drop(journal);
        // While the entry is rewritten, the hook must not patch it.
        self.want_slot(index, false);
        let at = slot_offset(index);
        let m = &self.memory;
        for (field, value) in [
            (offset_of!(SlotEntry, address), spec.address),
            (offset_of!(SlotEntry, original), spec.original),
            (offset_of!(SlotEntry, module_base), spec.module_base),
            (offset_of!(SlotEntry, expected), spec.expected),
            (
                offset_of!(SlotEntry, is_permanent),
                spec.is_permanent.into(),
            ),
        ] {
            m.tell64(at + field, value, Relaxed);
        }
        for (field, value) in [
            (offset_of!(SlotEntry, function), function),
            (offset_of!(SlotEntry, variant), variant),
            (offset_of!(SlotEntry, protection), spec.protection),
        ] {
            m.tell32(at + field, value, Relaxed);
        }
        let state = if spec.by_force {
            slot_state::REFUSED
        } else {
            slot_state::PENDING
        };
        // Release, state before count: a concurrent patcher in the target sees either no entry or a complete one.
        self.set_slot_state(index, state);
        if index == count {
            m.tell32(offset_of!(Control, slot_count), count as u32 + 1, Release);
        }
        Ok(index)
    }

    /// Returns all entries of the journal whose state is not `UNUSED`.
    pub fn slots(&self) -> Vec<SlotView> {
        (0..self.slot_count())
            .filter_map(|index| self.slot(index))
            .collect()
    }

    /// Returns one entry of the journal; `None` beyond its end or if the entry is not in use.
    pub fn slot(&self, index: usize) -> Option<SlotView> {
        let spec = *self.journal().get(index)?;
        let state = self.slot_state(index);
        if state == slot_state::UNUSED {
            return None;
        }
        Some(SlotView {
            index,
            address: spec.address,
            original: spec.original,
            expected: spec.expected,
            module_base: spec.module_base,
            function: spec.function,
            variant: spec.variant,
            state,
            protection: spec.protection,
            is_permanent: spec.is_permanent,
        })
    }

    /// Tells the hook which definitions of `operator new`, by function and variant, merely call another hooked
    /// allocation function.
    pub fn set_forwarding_operators(&self, operators: impl Iterator<Item = (u32, u32)>) {
        let first = function_by_name("_Znwm").unwrap_or_default() as u32;
        let bits = operators
            .filter_map(|(function, variant)| {
                let bit = function.checked_sub(first)? * MAX_VARIANTS as u32 + variant;
                1u32.checked_shl(bit)
            })
            .fold(0, |bits, bit| bits | bit);
        let offset = offset_of!(Control, forwarding_operators);
        self.memory.tell32(offset, bits, Relaxed);
    }

    fn slot_state_word(&self, index: usize) -> &AtomicU32 {
        assert!(index < MAX_SLOTS, "slot {index} of {MAX_SLOTS}");
        self.memory.u32(SLOT_STATES_OFFSET + index * 4)
    }

    fn slot_state(&self, index: usize) -> u32 {
        self.slot_state_word(index).load(Acquire)
    }

    /// Sets a slot's state; panics if the index is beyond the end of the journal. The hook patches the slot only if the
    /// guide agrees. Other processes can write the state, but not the guide.
    pub fn set_slot_state(&self, index: usize, state: u32) {
        self.want_slot(index, state == slot_state::PENDING);
        self.slot_state_word(index).store(state, Release);
    }

    pub(crate) fn want_slot(&self, index: usize, is_wanted: bool) {
        let at = slot_offset(index) + offset_of!(SlotEntry, is_wanted);
        self.memory.tell32(at, is_wanted.into(), Release);
    }
}
