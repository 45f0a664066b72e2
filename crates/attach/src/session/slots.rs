//! The slots of an attach: which there are, whether they still hold our value, and back again.

use super::Session;
use super::refused_slots;
use crate::error::Error;
use crate::hold::reach::Reach;
use crate::hold::safe_point::SAFE_POINT_PATIENCE;
use crate::hook::loading::{Fate, fate};
use crate::hook::presence::has_hook;
use crate::leave::restore::{layout, restore};
use crate::pads::RefusedPad;
use crate::plan::hooking::is_of_allocator;
use memhook_abi::{
    self as abi, HOOKED_FUNCTIONS, Role, flags, forwarding_operators, function_by_name, slot_state,
};
use memhook_process::{
    ModuleImage, RemoteAddress, SlotScan, Wrappers, find_slots, hook_copies, mappings, modules,
    read_word,
};
use memhook_stream::{Birth, SlotSpec, SlotView, barrier};
use std::collections::HashSet;
use std::time::Duration;

/// Runtimes whose operators new may only forward.
const CXX_RUNTIMES: [&str; 3] = ["libstdc++.so", "libc++abi.so", "libc++.so"];

/// How often all threads are held to find the modules as they were looked at.
const FORCED_TRIES: u32 = 5;

impl Session {
    /// Whether mappings are traced, too.
    pub fn traces_mappings(&self) -> bool {
        let mut functions = self.functions.iter();
        functions.any(|&function| HOOKED_FUNCTIONS[function].role == Role::Maps)
    }

    /// Tells the hook which operators new end in a call of a hooked malloc: when most allocations are
    /// passed by, those need no look of their own.
    pub(super) fn announce_forwarding_operators(&self) {
        let slots = self.region.slots();
        let patched = |names: Vec<&str>| {
            let functions: Vec<usize> = names.iter().filter_map(|n| function_by_name(n)).collect();
            slots.iter().filter(move |s| {
                s.state == slot_state::PATCHED && functions.contains(&(s.function as usize))
            })
        };
        let hooked: HashSet<u64> = patched(vec!["malloc"]).map(|s| s.module_base).collect();
        let forwards = |original: u64| {
            self.modules.iter().any(|m| {
                m.contains(original)
                    && hooked.contains(&m.base)
                    && CXX_RUNTIMES.iter().any(|name| m.name().starts_with(name))
            })
        };
        self.region.set_forwarding_operators(
            patched(forwarding_operators().map(|f| f.name).collect())
                .filter(|s| forwards(s.original))
                .map(|s| (s.function, s.variant)),
        );
    }

    /// Whether the functions of a module's own allocator are all traced, though no slot leads to them.
    pub fn covers_allocator_of(&self, module: &ModuleImage) -> bool {
        self.pads.cover(module)
    }

    /// Those that are not.
    pub(crate) fn refused_pads(&self, module: &ModuleImage) -> impl Iterator<Item = &RefusedPad> {
        let refused = self.pads.refused.iter();
        refused.filter(move |refused| refused.module == module.name())
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

    /// Writes the slots of a scan into the journal, those that are not in it yet, and notes what cannot
    /// be hooked.
    pub(super) fn journal(&mut self, scan: &SlotScan) {
        let known: HashSet<u64> = self.region.slots().iter().map(|s| s.address).collect();
        let names = self.modules.iter().map(|m| m.name().to_owned());
        let names: Vec<String> = names.collect();
        let module_name = |index: usize| names[index].clone();
        let unhookable = scan.unhookable.iter();
        let mut unhookable: Vec<_> = unhookable
            .map(|u| (module_name(u.module), u.reason))
            .collect();
        for slot in &scan.slots {
            let of_cell = self.pads.function_of_cell(slot.address);
            let Some(function) = of_cell.or_else(|| function_by_name(&slot.symbol)) else {
                continue;
            };
            if known.contains(&slot.address)
                || is_of_allocator(function, &self.modules[slot.module])
            {
                continue;
            }
            match fate(self.object, function) {
                Fate::Hooked => {}
                Fate::PassedBy => continue,
                Fate::Refused(reason) => {
                    unhookable.push((module_name(slot.module), reason));
                    continue;
                }
            }
            let Some(variant) = self.variant_of(function, slot.target) else {
                let hooked = HOOKED_FUNCTIONS.get(function);
                if hooked.is_some_and(|f| f.role == Role::Touches) {
                    continue;
                }
                let reason = "more than four different originals of one function";
                unhookable.push((module_name(slot.module), reason));
                continue;
            };
            let pushed = self.region.push_slot(SlotSpec {
                address: slot.address,
                original: slot.target,
                expected: slot.value,
                module_base: self.modules[slot.module].base,
                function: function as u32,
                variant,
                protection: slot.protection,
                by_force: slot.is_unsettled,
                is_permanent: slot.is_permanent,
            });
            if pushed.is_err() {
                unhookable.push((module_name(slot.module), "there are too many slots"));
            }
        }
        self.unhookable = unhookable;
    }

    /// Where slots of one symbol hold different originals, each keeps its own.
    fn variant_of(&mut self, function: usize, original: u64) -> Option<u32> {
        if let Some(&variant) = self.next_variant.get(&(function, original)) {
            return Some(variant);
        }
        let of_function = self
            .next_variant
            .iter()
            .filter(|((f, _), _)| *f == function);
        let taken: HashSet<u32> = of_function.map(|(_, &variant)| variant).collect();
        let free = (0..abi::MAX_VARIANTS as u32).find(|variant| !taken.contains(variant))?;
        self.next_variant.insert((function, original), free);
        Some(free)
    }

    /// Answers dlopen and dlclose calls of the target: new slots go into the journal, slots of
    /// modules that are gone are forgotten.
    pub fn follow_modules(&mut self, answered: &mut u32) -> Result<(), Error> {
        let request = self.region.module_requests();
        if request == *answered {
            return Ok(());
        }
        let mut looked = self.look_at_modules();
        // Threads of the target make no system calls of ours, so they cannot patch; or relatives have its region
        // mapped, so its hook does not look at the journal (`patch_pending` of `hook-cxx/patch.hpp`).
        let is_shared = self.region.birth() != Birth::None;
        if looked.is_ok() && (self.region.syscalls_filtered() || is_shared) {
            looked = self.force_slots().map(drop);
        } else if self.may_lose_modules && self.has_refused_slots() {
            // If the threads cannot all be held, the coverage says what is not seen.
            let _ = self.force_slots();
        }
        // Whatever became of it: the target's dlopen waits for this.
        *answered = request;
        self.region.answer_modules(request);
        looked
    }

    fn has_refused_slots(&self) -> bool {
        let mut slots = self.region.slots().into_iter();
        slots.any(|slot| slot.state == slot_state::REFUSED)
    }

    /// Brings journal and module list up to date.
    pub(crate) fn look_at_modules(&mut self) -> Result<(), Error> {
        // Before the mappings are read: what comes or goes after this makes the lists out of date.
        let count = self.region.loader_count_now();
        let maps = mappings(self.pid)?;
        let now_layout = layout(&maps);
        if now_layout != self.layout {
            let now = modules(self.pid, &maps, &mut self.files)?;
            self.forget_slots(&now);
            for module in std::mem::replace(&mut self.modules, now) {
                let same = |m: &ModuleImage| m.base == module.base && m.path == module.path;
                if !self.modules.iter().chain(&self.gone).any(same) {
                    self.gone.push(module);
                }
            }
            let functions = self.functions.clone();
            let wanted =
                |name: &str| function_by_name(name).is_some_and(|f| functions.contains(&f));
            let copies = hook_copies(self.pid, &maps);
            let mut scan = find_slots(self.pid, &self.modules, &maps, &wanted, &copies)?;
            self.pads.add_to(&mut scan, &self.modules, &copies);
            self.journal(&scan);
            self.publish_modules()?;
            self.layout = now_layout;
            let (modules, slots) = (self.modules.len(), scan.slots.len());
            tracing::debug!(pid = self.pid, modules, slots, "its modules are looked at");
        }
        self.region.set_loader_count_seen(count);
        Ok(())
    }

    /// Slots of modules that are gone; those that do not hold our value although they did, as their module
    /// was replaced by another; and all that are not patched: what the journal says of their pages may
    /// have been true of a module that was there before, while another is being relocated now.
    fn forget_slots(&self, now: &[ModuleImage]) {
        for slot in self.region.slots() {
            let there = now
                .iter()
                .filter(|m| m.base == slot.module_base)
                .any(|m| m.contains(slot.address) || self.pads.has_cell(slot.address));
            let is_patched = slot.state == slot_state::PATCHED
                && self.word(slot.address) == Some(slot.replacement);
            if !there || !is_patched {
                self.region.set_slot_state(slot.index, slot_state::UNUSED);
            }
        }
    }

    fn word(&self, address: u64) -> Option<u64> {
        read_word(self.pid, RemoteAddress(address))
    }

    /// Patches slots again that a lazy resolver, already under way at the attach, has overwritten, and
    /// those that a thread of the target could not patch.
    pub fn verify_slots(&mut self) -> Result<(), Error> {
        let mut again = false;
        for slot in self.region.slots() {
            again |= slot.state == slot_state::PENDING;
            if slot.state != slot_state::PATCHED || self.word(slot.address) != Some(slot.original) {
                continue;
            }
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
                by_force: false,
                is_permanent: slot.is_permanent,
            })?;
            again = true;
        }
        if again {
            let safe = self.safe_points();
            let mut held = safe.hold(&mut Reach::Running, self.pid, SAFE_POINT_PATIENCE)?;
            if !has_hook(self.pid, self.hook_base) {
                return Err(Error::OtherProgram { pid: self.pid });
            }
            let patched = held.call(self.in_hook(self.entry.patch), &[])? as i64;
            self.patch_until_current(&mut held, patched)?;
            held.release()?;
        }
        self.force_slots()?;
        self.announce_forwarding_operators();
        Ok(())
    }

    /// Whether the wrappers are those that decide first whether a call is passed by (`patch_pending` of
    /// `hook-cxx/patch.hpp`).
    fn passes_calls_by(&self) -> bool {
        self.region.flags() & (flags::LIVE_FILTER | flags::BUDGET) != 0
    }

    /// Patches with all threads held what the hook could not patch. Returns for how long they were held.
    pub(super) fn force_slots(&mut self) -> Result<Duration, Error> {
        let mut longest = Duration::ZERO;
        for _ in 0..FORCED_TRIES {
            let maps = mappings(self.pid)?;
            let copies = hook_copies(self.pid, &maps);
            let Some(hook) = copies.iter().find(|copy| copy.base == self.hook_base) else {
                return Err(Error::OtherProgram { pid: self.pid });
            };
            let are_current = || mappings(self.pid).is_ok_and(|maps| layout(&maps) == self.layout);
            let held =
                refused_slots::patch(self.pid, &self.region, hook, self.wrappers(), &are_current)?;
            longest = longest.max(held);
            let slots = self.region.slots();
            if !slots.iter().any(|slot| slot.state == slot_state::PENDING) {
                break;
            }
            self.look_at_modules()?;
        }
        Ok(longest)
    }

    /// What the hook puts into slots.
    fn wrappers(&self) -> Wrappers {
        match self.region.flags() {
            flags if flags & flags::EMITS != 0 => Wrappers::Emitting,
            _ if self.passes_calls_by() => Wrappers::Selective,
            _ => Wrappers::Recording,
        }
    }

    /// Leads the functions that have a pad to their wrappers, in a program that has not begun.
    pub(super) fn fill_cells(&self) -> Result<(), Error> {
        let copies = hook_copies(self.pid, &mappings(self.pid)?);
        let Some(hook) = copies.iter().find(|copy| copy.base == self.hook_base) else {
            return Err(Error::OtherProgram { pid: self.pid });
        };
        let is_cell = |slot: &SlotView| self.pads.has_cell(slot.address);
        refused_slots::patch_held(self.pid, &self.region, hook, self.wrappers(), &is_cell)?;
        Ok(())
    }

    /// Closes the gate and restores the slots; returns how many could not be restored.
    pub fn detach(&mut self) -> Result<u64, Error> {
        let safe = self.safe_points();
        let restored = restore(self.pid, Some(self.hook_base), Some(safe), &mut self.files)
            .map_err(|source| Error::Restore {
                pid: self.pid,
                source: Box::new(source),
            })?;
        barrier();
        for slot in self.region.slots() {
            if matches!(slot.state, slot_state::PATCHED)
                && self.word(slot.address) != Some(slot.replacement)
            {
                self.region.set_slot_state(slot.index, slot_state::RESTORED);
            }
        }
        Ok(restored.left)
    }
}
