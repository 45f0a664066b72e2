//! Finds, verifies and restores the slots of an attach.

use super::Session;
use super::refused_slots;
use crate::error::Error;
use crate::hold::reach::Reach;
use crate::hold::safe_point::SAFE_POINT_PATIENCE;
use crate::hook::presence::has_hook;
use crate::leave::guided::give_tables_back;
use crate::pads::RefusedPad;
use memhook_abi::{flags, forwarding_operators, function_by_name, hook_error, slot_state};
use memhook_inject::{Act, Held, note};
use memhook_process::{ModuleImage, Wrappers, hook_copies, mappings};
use memhook_stream::{SlotSpec, SlotView};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Runtimes whose variants of `operator new` may do nothing but forward to malloc.
const CXX_RUNTIMES: [&str; 3] = ["libstdc++.so", "libc++abi.so", "libc++.so"];

/// Longest time that the held thread waits for other threads to finish unloading modules.
const STILL_PATIENCE: Duration = Duration::from_millis(20);

/// Number of attempts to find the modules unchanged while all threads are held.
const FORCED_TRIES: u32 = 5;

impl Session {
    /// Returns true if mappings are traced as well.
    pub fn traces_mappings(&self) -> bool {
        self.prepared.journal.has_mappings()
    }

    /// Tells the hook which variants of `operator new` end in a call to a hooked malloc. While most allocations are
    /// skipped, these variants leave the decision to malloc.
    pub(super) fn announce_forwarding_operators(&self) {
        let slots = self.region().slots();
        let patched = |names: Vec<&str>| {
            let functions: Vec<usize> = names.iter().filter_map(|n| function_by_name(n)).collect();
            slots.iter().filter(move |s| {
                s.state == slot_state::PATCHED && functions.contains(&(s.function as usize))
            })
        };
        let hooked: HashSet<u64> = patched(vec!["malloc"]).map(|s| s.module_base).collect();
        let forwards = |original: u64| {
            self.modules().iter().any(|m| {
                m.contains(original)
                    && hooked.contains(&m.base)
                    && CXX_RUNTIMES.iter().any(|name| m.name().starts_with(name))
            })
        };
        self.region().set_forwarding_operators(
            patched(forwarding_operators().map(|f| f.name).collect())
                .filter(|s| forwards(s.original))
                .map(|s| (s.function, s.variant)),
        );
    }

    /// Returns true if all functions of a module's own allocator are traced, although no slot leads to them.
    pub fn covers_allocator_of(&self, module: &ModuleImage) -> bool {
        self.prepared.pads.cover(module)
    }

    /// Returns the pads that were refused.
    pub(crate) fn refused_pads(&self, module: &ModuleImage) -> impl Iterator<Item = &RefusedPad> {
        let refused = self.prepared.pads.refused.iter();
        refused.filter(move |refused| refused.module == module.name())
    }

    /// Returns the number of slots that hold our value, or held it until the detach, and the number of modules with
    /// such slots.
    pub fn patched(&self) -> (u64, u64) {
        let slots: Vec<_> = self
            .region()
            .slots()
            .into_iter()
            .filter(|s| matches!(s.state, slot_state::PATCHED | slot_state::RESTORED))
            .collect();
        let modules: HashSet<u64> = slots.iter().map(|s| s.module_base).collect();
        (slots.len() as u64, modules.len() as u64)
    }

    /// Answers the target's dlopen and dlclose calls: adds new slots to the journal, and removes the slots of unloaded
    /// modules.
    pub fn follow_modules(&mut self, answered: &mut u32) -> Result<(), Error> {
        let request = self.region().module_requests();
        if request == *answered {
            return Ok(());
        }
        let mut looked = self.prepared.look_at_modules();
        // Threads of the target must not make system calls for us, so they cannot patch slots.
        if looked.is_ok() && self.region().syscalls_filtered() {
            looked = self.force_slots().map(drop);
        } else if self.prepared.modules.may_vanish && self.has_refused_slots() {
            // If not all threads can be held, the coverage report shows the unseen calls.
            let _ = self.force_slots();
        }
        // The request is answered in any case, because the target's dlopen waits for the answer.
        *answered = request;
        self.region().answer_modules(request);
        looked
    }

    /// Adds to the journal the slots of modules that were loaded since the last look. Returns the load biases (avma) of
    /// these modules. [`Session::verify_slots`] patches them.
    pub(crate) fn look_for_new_modules(&mut self) -> Result<Vec<u64>, Error> {
        let maps = mappings(self.prepared.pid)?;
        if !self.prepared.modules.has_new_code_in(&maps) {
            return Ok(Vec::new());
        }
        let known: HashSet<u64> = self.modules().iter().map(|m| m.base).collect();
        self.prepared.look_at_modules()?;
        let slots = self.region().slots().into_iter();
        let modules: HashSet<u64> = slots.map(|slot| slot.module_base).collect();
        let new: Vec<u64> = modules.difference(&known).copied().collect();
        if !new.is_empty() {
            // A dlopen in progress may not have relocated all slots of its modules yet, and the journal does not
            // contain the others.
            self.prepared.modules.unsettle();
        }
        Ok(new)
    }

    fn has_refused_slots(&self) -> bool {
        let mut slots = self.region().slots().into_iter();
        slots.any(|slot| slot.state == slot_state::REFUSED)
    }

    /// Patches two kinds of slots again: slots that a lazy resolver, which was running at the attach, has overwritten,
    /// and slots that a thread of the target could not patch.
    pub fn verify_slots(&mut self) -> Result<(), Error> {
        let mut again = false;
        for slot in self.region().slots() {
            again |= slot.state == slot_state::PENDING;
            if slot.state != slot_state::PATCHED
                || self.prepared.word(slot.address) != Some(slot.original)
            {
                continue;
            }
            // A new entry, which expects the resolver's value, replaces the old entry.
            self.region().set_slot_state(slot.index, slot_state::UNUSED);
            self.region().push_slot(SlotSpec {
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
            let safe = self.prepared.safe_points();
            let mut held =
                safe.hold(&mut Reach::Running, self.prepared.pid, SAFE_POINT_PATIENCE)?;
            if !has_hook(self.prepared.pid, self.hook.base) {
                return Err(Error::OtherProgram {
                    pid: self.prepared.pid,
                });
            }
            let patched = held.call(self.hook.patch(), &[])? as i64;
            self.patch_until_current(&mut held, patched)?;
            held.release()?;
        }
        self.force_slots()?;
        self.announce_forwarding_operators();
        Ok(())
    }

    /// Repeats the patching until the hook reports that the module lists are current: if modules were loaded or
    /// unloaded since they were read, reads them again and makes the hook patch. Returns the hook's last answer.
    pub(super) fn patch_until_current(
        &mut self,
        held: &mut Held,
        answer: i64,
    ) -> Result<i64, Error> {
        let begin = Instant::now();
        let mut answer = answer;
        while answer == hook_error::STALE && begin.elapsed() < STILL_PATIENCE {
            self.prepared.look_at_modules()?;
            answer = held.call(self.hook.patch(), &[])? as i64;
        }
        self.note_slots();
        Ok(answer)
    }

    /// Records which slots hold a wrapper.
    fn note_slots(&self) {
        let slots = self.region().slots().into_iter();
        let patched = slots.filter(|slot| slot.state == slot_state::PATCHED);
        let places = patched.map(|slot| slot.address).collect();
        note(self.prepared.pid, Act::Slots(places));
    }

    /// Returns true for wrappers that first decide whether to skip a call (`patch_pending` of `hook-cxx/patch.hpp`).
    fn passes_calls_by(&self) -> bool {
        self.region().flags() & flags::LIVE_FILTER != 0
    }

    /// Patches the slots that the hook could not patch, with all threads held. Returns the duration of the hold.
    pub(super) fn force_slots(&mut self) -> Result<Duration, Error> {
        let mut longest = Duration::ZERO;
        for _ in 0..FORCED_TRIES {
            let maps = mappings(self.prepared.pid)?;
            let copies = hook_copies(self.prepared.pid, &maps);
            let Some(hook) = copies.iter().find(|copy| copy.base == self.hook.base) else {
                return Err(Error::OtherProgram {
                    pid: self.prepared.pid,
                });
            };
            let modules = &self.prepared.modules;
            let are_current =
                || mappings(self.prepared.pid).is_ok_and(|maps| modules.are_as_seen_in(&maps));
            let held = refused_slots::patch(
                self.prepared.pid,
                &self.prepared.region,
                hook,
                self.wrappers(),
                &are_current,
            )?;
            longest = longest.max(held);
            let slots = self.region().slots();
            if !slots.iter().any(|slot| slot.state == slot_state::PENDING) {
                break;
            }
            self.prepared.look_at_modules()?;
        }
        if longest > Duration::ZERO {
            self.note_slots();
        }
        Ok(longest)
    }

    /// Returns the wrappers that the hook puts into slots.
    fn wrappers(&self) -> Wrappers {
        match self.region().flags() {
            flags if flags & flags::EMITS != 0 => Wrappers::Emitting,
            _ if self.passes_calls_by() => Wrappers::Selective,
            _ => Wrappers::Recording,
        }
    }

    /// Points the cells of all pads to their wrappers, in a program that has not started yet.
    pub(super) fn fill_cells(&self) -> Result<(), Error> {
        let copies = hook_copies(self.prepared.pid, &mappings(self.prepared.pid)?);
        let Some(hook) = copies.iter().find(|copy| copy.base == self.hook.base) else {
            return Err(Error::OtherProgram {
                pid: self.prepared.pid,
            });
        };
        let is_cell = |slot: &SlotView| self.prepared.pads.has_cell(slot.address);
        refused_slots::patch_held(
            self.prepared.pid,
            &self.prepared.region,
            hook,
            self.wrappers(),
            &is_cell,
        )?;
        Ok(())
    }

    /// Closes the gate and restores the slots. Returns the number of slots that could not be restored.
    pub fn detach(&mut self) -> Result<u64, Error> {
        let left = self.prepared.leave(Some(self.hook.base))?;
        let held = give_tables_back(self.prepared.pid);
        self.note_held(held);
        Ok(left)
    }
}
