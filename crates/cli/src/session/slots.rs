//! The slots of an attach: which there are, whether they still hold our value, and back again.

use super::Session;
use crate::refused_slots;
use crate::residue::{hold_with_hook, restore_slots};
use anyhow::Context;
use memhook_abi::{self as abi, function_by_name, slot_state};
use memhook_process::{ModuleImage, SlotScan, find_slots, mappings, modules};
use memhook_stream::{SlotSpec, barrier};
use std::collections::{HashMap, HashSet};

/// What libstdc++ and libc++abi define with nothing but a call of malloc or of another of these
/// (libsupc++/new_op.cc and its neighbours, libcxxabi/src/stdlib_new_delete.cpp).
const FORWARDING_OPERATORS: [&str; 4] = [
    "_Znwm",
    "_Znam",
    "_ZnwmRKSt9nothrow_t",
    "_ZnamRKSt9nothrow_t",
];
const CXX_RUNTIMES: [&str; 3] = ["libstdc++.so", "libc++abi.so", "libc++.so"];

impl Session {
    /// Tells the hook which operators new end in a call of a hooked malloc: when most allocations are
    /// passed by, those need no look of their own.
    pub(super) fn announce_forwarding_operators(&self) {
        let slots = self.region.slots();
        let patched = |names: &[&str]| {
            let functions: Vec<usize> = names.iter().filter_map(|n| function_by_name(n)).collect();
            slots.iter().filter(move |s| {
                s.state == slot_state::PATCHED && functions.contains(&(s.function as usize))
            })
        };
        let hooked: HashSet<u64> = patched(&["malloc"]).map(|s| s.module_base).collect();
        let forwards = |original: u64| {
            self.modules.iter().any(|m| {
                m.contains(original)
                    && hooked.contains(&m.base)
                    && CXX_RUNTIMES.iter().any(|name| m.name().starts_with(name))
            })
        };
        self.region.set_forwarding_operators(
            patched(&FORWARDING_OPERATORS)
                .filter(|s| forwards(s.original))
                .map(|s| (s.function, s.variant)),
        );
    }

    /// Slots that hold our value, or did until the detach, and modules that have one.
    pub fn patched(&self) -> (u64, u64) {
        let slots: Vec<_> = self
            .region
            .slots()
            .into_iter()
            .filter(|s| matches!(s.state, slot_state::PATCHED | slot_state::RESTORED))
            .collect();
        let modules: HashSet<u64> = slots.iter().map(|s| s.module_base).collect();
        (slots.len() as u64, modules.len() as u64)
    }

    /// Writes the slots of a scan into the journal, those that are not in it yet.
    pub(super) fn journal(&mut self, scan: &SlotScan) -> anyhow::Result<()> {
        let known: HashSet<u64> = self
            .region
            .slots()
            .iter()
            .filter(|s| s.state != slot_state::UNUSED)
            .map(|s| s.address)
            .collect();
        for slot in &scan.slots {
            let Some(function) = function_by_name(&slot.symbol) else {
                continue;
            };
            if known.contains(&slot.address) {
                continue;
            }
            // Where slots of one symbol hold different originals, each keeps its own.
            let of_function = self
                .next_variant
                .keys()
                .filter(|(f, _)| *f == function)
                .count() as u32;
            let variant = *self
                .next_variant
                .entry((function, slot.target))
                .or_insert(of_function);
            let module = &self.modules[slot.module];
            if variant as usize >= abi::MAX_VARIANTS {
                self.unhookable.push((
                    module.name().to_owned(),
                    "more than four different originals of one function",
                ));
                continue;
            }
            self.region.push_slot(SlotSpec {
                address: slot.address,
                original: slot.target,
                expected: slot.value,
                module_base: module.base,
                function: function as u32,
                variant,
                protection: slot.protection,
            })?;
        }
        for u in &scan.unhookable {
            let name = self.modules[u.module].name().to_owned();
            self.unhookable.push((name, u.reason));
        }
        Ok(())
    }

    /// Answers dlopen and dlclose calls of the target: new slots go into the journal, slots of
    /// modules that are gone are forgotten.
    pub fn follow_modules(&mut self, answered: &mut u32) -> anyhow::Result<()> {
        let request = self.region.module_requests();
        if request == *answered {
            return Ok(());
        }
        let maps = mappings(self.pid)?;
        let now = modules(self.pid, &maps, &mut self.files)?;
        for slot in self.region.slots() {
            let there = now
                .iter()
                .any(|m| m.base == slot.module_base && m.contains(slot.address));
            if !there && slot.state != slot_state::UNUSED {
                self.region.set_slot_state(slot.index, slot_state::UNUSED);
            }
        }
        let functions = self.functions.clone();
        let wanted = |name: &str| function_by_name(name).is_some_and(|f| functions.contains(&f));
        for module in std::mem::replace(&mut self.modules, now) {
            let same = |m: &ModuleImage| m.base == module.base && m.path == module.path;
            if !self.modules.iter().chain(&self.gone).any(same) {
                self.gone.push(module);
            }
        }
        let originals: HashMap<u64, u64> = self
            .region
            .slots()
            .iter()
            .map(|s| (s.replacement, s.original))
            .collect();
        let original_of = |value: u64| originals.get(&value).copied();
        let scan = find_slots(self.pid, &self.modules, &maps, &wanted, &original_of)?;
        self.journal(&scan)?;
        self.publish_modules()?;
        *answered = request;
        self.region.answer_modules(request);
        Ok(())
    }

    /// Patches slots again that a lazy resolver, already under way at the attach, has overwritten, and
    /// those that a thread of the target could not make writable for itself.
    pub fn verify_slots(&self) -> anyhow::Result<()> {
        let mut again = false;
        for slot in self.region.slots() {
            let mut word = [0; 8];
            if slot.state == slot_state::REFUSED {
                self.region.set_slot_state(slot.index, slot_state::PENDING);
                again = true;
                continue;
            }
            if slot.state != slot_state::PATCHED
                || memhook_process::read_memory(self.pid, slot.address, &mut word).is_err()
            {
                continue;
            }
            if u64::from_le_bytes(word) == slot.original {
                // A new entry, which expects what the resolver wrote.
                self.region.set_slot_state(slot.index, slot_state::UNUSED);
                self.region.push_slot(SlotSpec {
                    address: slot.address,
                    original: slot.original,
                    expected: slot.original,
                    module_base: slot.module_base,
                    function: slot.function,
                    variant: slot.variant,
                    protection: slot.protection,
                })?;
                again = true;
            }
        }
        if again {
            let mut held = hold_with_hook(self.pid, self.hook_base)?;
            held.call(self.hook_base + self.entry.patch, &[])?;
            held.release()?;
            refused_slots::patch(self.pid, &self.region)?;
        }
        self.announce_forwarding_operators();
        Ok(())
    }

    /// Closes the gate and restores the slots; returns how many could not be restored.
    pub fn detach(&self) -> anyhow::Result<u64> {
        let (mut left, _) = restore_slots(self.pid, self.hook_base)
            .with_context(|| format!("cannot restore the slots of process {}", self.pid))?;
        barrier();
        if left > 0 {
            refused_slots::restore(self.pid, &self.region)?;
            left = 0;
        }
        Ok(left)
    }
}
