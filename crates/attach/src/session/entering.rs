//! The step of an attach in which the hook enters the process and patches slots. All work that requires held threads is
//! here.

use super::Session;
use super::lone_recorder;
use super::prepared::{Entry, Prepared};
use crate::error::Error;
use crate::hold::reach::Reach;
use crate::hold::safe_point::SAFE_POINT_PATIENCE;
use crate::hook::loading::Loading;
use crate::hook::passage::InProcess;
use crate::hook::presence::{HookInTarget, any_point};
use crate::leave::residue::Place;
use crate::survey::target_facts::{is_filtered, loading_is_filtered, thread_numbers};
use memhook_abi::{self as abi, hook_error};
use memhook_inject::{Held, move_guided_region, set_inherited, unmap_region};
use memhook_process::{RemoteAddress, is_executed_still};
use std::time::Duration;

/// Time limit for finding a thread that may call the loader. After that, the hook is mapped instead.
const LOAD_PATIENCE: Duration = Duration::from_secs(1);

impl Prepared {
    /// Brings the hook in and makes it patch the slots. After a failure, all changes are undone.
    pub fn enter(mut self, reach: &mut Reach<'_>, entry: Entry) -> Result<Session, Error> {
        // From here on the detach removes the jumps.
        self.pads.keep();
        match self.bring_in(reach, &entry) {
            Ok((held, hook)) => {
                let mut session = Session::of(self, hook);
                if let Err(error) = session.begin(reach, held, entry.region) {
                    // Some slots may already contain wrappers. If this attach cannot restore a slot, the next attach
                    // can.
                    let _ = session.detach();
                    return Err(error);
                }
                Ok(session)
            }
            Err(error) => {
                let _ = self.leave(None);
                Err(error)
            }
        }
    }

    /// Holds a thread and makes it load the hook, unless the process has it.
    fn bring_in(
        &mut self,
        reach: &mut Reach<'_>,
        entry: &Entry,
    ) -> Result<(Held, HookInTarget), Error> {
        let pid = self.pid;
        let (address, bytes) = self.region_at(&entry.region);
        let (mut held, mut way) = self.hold_to_load(reach, entry.way)?;
        // All addresses are those of the examined program.
        if !is_executed_still(&entry.memory) {
            held.release()?;
            return Err(Error::OtherProgram { pid });
        }
        // The loader refers to its file by a descriptor number, which another thread could close or reuse in the
        // meantime.
        let is_in_danger = entry.region.was_disturbed && !held.others_stand_still();
        let is_filtered = matches!(way, Loading::ByLoader(_)) && loading_is_filtered(&held);
        if self.may_be_mapped() && (is_in_danger || is_filtered) {
            way = way.without_loader();
        } else if is_filtered {
            let _ = unmap_region(&mut held, address, bytes);
            let call = "what dlopen calls";
            return Err(memhook_inject::Error::CallIsFiltered { pid, call }.into());
        }
        match self.load(&mut held, way) {
            Ok(hook) => Ok((held, hook)),
            Err(error) => {
                // Neither the hook nor later attachers know the region, so nothing would ever use it again.
                let _ = unmap_region(&mut held, address, bytes);
                Err(error)
            }
        }
    }

    /// Returns true if a hook that is not known to any loader is sufficient.
    fn may_be_mapped(&self) -> bool {
        self.emission.is_none() && !self.pads.may_be_thrown_through
    }

    /// Returns address and length of the region in the target.
    fn region_at(&self, place: &Place) -> (RemoteAddress, u64) {
        let bytes = abi::region_bytes(self.region.ring_bytes()) as u64;
        (RemoteAddress(place.address), bytes)
    }

    /// Brings the hook in unless the process already has it, and passes it all the facts that it needs.
    fn load(&mut self, held: &mut Held, way: Loading) -> Result<HookInTarget, Error> {
        let pid = self.pid;
        let numbers = thread_numbers(held).ok_or(Error::NoThreadNumber { pid })?;
        let loaded = match &self.emission {
            Some(emission) => way.load_to_emit(held, emission),
            None => way.load(held, self.may_be_mapped()),
        };
        held.let_others_go();
        let (base, object) = loaded?;
        if !object.is_mapped {
            self.passage = None;
        }
        let object = object.with_passage(self.passage.as_ref());
        let hook = HookInTarget::new(object, base)?;
        let (region, modules) = (&self.region, &self.modules.now);
        self.journal.use_object(object, region, modules);
        tracing::debug!(base = format_args!("{base:#x}"), "the hook is in place");
        // An allocation inside one of the hook's wrappers has the hook's own frames on its stack.
        self.hook = Some(object.image(base)?);
        self.publish_modules()?;
        lone_recorder::register_alone(held, &self.region);
        self.region.set_thread_numbers(numbers);
        let is_filtered = is_filtered(held, self.journal.has_mappings());
        self.region.set_syscalls_filtered(is_filtered);
        Ok(hook)
    }

    /// Holds a thread, and chooses how to bring in the hook according to that thread. `dlopen` is called only if the
    /// thread provably holds no lock. Otherwise, if mapping is sufficient, a thread outside the loader maps the hook. A
    /// thread outside the loader is also required if the hook is already in place, because the hook keeps the loader
    /// from changing its lists.
    fn hold_to_load(
        &mut self,
        reach: &mut Reach<'_>,
        loading: Loading,
    ) -> Result<(Held, Loading), Error> {
        let pid = self.pid;
        // At the start of a program no thread holds a lock.
        if self.modules.is_static || matches!(reach, Reach::AtStart(_)) {
            return Ok((reach.hold(pid, &any_point())?, loading));
        }
        let points = self.safe_points();
        let mut way = loading;
        if let Loading::ByLoader(_) = loading {
            let can_be_mapped = self.may_be_mapped();
            let patience = if can_be_mapped {
                LOAD_PATIENCE
            } else {
                SAFE_POINT_PATIENCE
            };
            if !(can_be_mapped && points.never().is_some()) {
                match points.hold_to_load(reach, pid, patience) {
                    Ok(held) => return Ok((held, loading)),
                    Err(memhook_inject::Error::NoSafeThread { .. }) if can_be_mapped => {}
                    Err(error) => return Err(error.into()),
                }
            }
            way = Loading::WithoutLoader;
        }
        let held = points.hold_outside_of_the_loader(reach, pid, SAFE_POINT_PATIENCE)?;
        Ok((held, way))
    }
}

impl Session {
    /// Makes the held thread pass the region to the hook and patch the slots.
    fn begin(&mut self, reach: &mut Reach<'_>, mut held: Held, place: Place) -> Result<(), Error> {
        let pid = self.prepared.pid;
        let (mut address, bytes) = self.prepared.region_at(&place);
        // Once fork(2) has its wrapper, children unmap the region themselves, and the hook makes them inherit it. If a
        // thread may return to a call that began during an earlier attach, children need the region from now on.
        if self.region().awaits_threads() {
            set_inherited(&mut held, address, bytes, true)?;
        }
        if let Some(to) = place.replaces.map(RemoteAddress) {
            let guide = abi::GUIDE_BYTES as u64;
            move_guided_region(&mut held, address, guide, bytes, to)?;
            address = to;
            self.region().guide_is_at(to.0);
        }
        self.region().tell_owner();
        let [passage, saved] = InProcess::arguments(self.prepared.passage.as_ref());
        let result = held.call(self.hook.attach(), &[address.0, passage, saved])? as i64;
        let result = self.patch_until_current(&mut held, result);
        if let Reach::AtStart(_) = reach {
            self.fill_cells()?;
        }
        self.note_held(held.release()?);
        match result? {
            hook_error::NO_WIPE_ON_FORK => return Err(Error::NoWipeOnFork { pid }),
            // Slots that are still pending are patched with all threads held.
            hook_error::STALE | hook_error::NO_LOADER | 0.. => {}
            code => return Err(Error::HookRefused { pid, code }),
        }
        // The hook has reported the loader's count, and a wrapped dlopen uses only lists that match it. A wrapped
        // dlopen also needs an instruction in its caller's module through which it can return.
        self.prepared.look_at_modules()?;
        // If not all threads can be held, the slots stay unchanged, and the coverage shows this.
        if let Ok(all_held) = self.force_slots() {
            self.note_held(all_held);
        }
        self.announce_forwarding_operators();
        Ok(())
    }
}
