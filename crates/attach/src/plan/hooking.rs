//! Plan of what an attach would hook. Planning only reads the process.

use crate::config::{Accesses, TraceConfig};
use crate::error::Error;
use crate::hook::loading::{Fate, Loading, fate, hook_to_record};
use crate::hook::presence::hook_in_use;
use crate::leave::pad_areas::live_places;
use crate::pads::{PadPlan, plan_described, plan_pads};
use crate::survey::limits::may_reserve;
use crate::survey::process::Surveyed;
use memhook_abi::{
    ACCESS_LISTENER, FIRST_DESCRIBED, HOOKED_FUNCTIONS, Role, function_by_name, touches,
};
use memhook_process::{
    HookCopy, Mapping, ModuleFiles, ModuleImage, SlotScan, find_slots, hook_copies, mappings,
};
use std::collections::HashSet;

/// Plan for one module.
pub struct PlannedModule {
    /// The module.
    pub image: ModuleImage,
    /// Symbol of each slot.
    pub slots: Vec<String>,
    /// Function (avma) that each slot leads to.
    pub targets: Vec<u64>,
    /// Functions of the module's own allocator that are hooked at their entries: symbol and address (avma).
    pub pads: Vec<(String, u64)>,
    /// Functions that cannot be hooked at their entries: symbol, address, reason.
    pub refused_pads: Vec<(String, u64, String)>,
    /// Slots that cannot be hooked: symbol and reason.
    pub unhookable: Vec<(String, &'static str)>,
}

impl PlannedModule {
    fn nothing_of(image: &ModuleImage) -> PlannedModule {
        PlannedModule {
            image: image.clone(),
            slots: Vec::new(),
            targets: Vec::new(),
            pads: Vec::new(),
            refused_pads: Vec::new(),
            unhookable: Vec::new(),
        }
    }
}

/// Returns what an attach with this configuration would patch, for all modules.
pub fn hook_plan(pid: i32, config: &TraceConfig) -> Result<Vec<PlannedModule>, Error> {
    Planned::of(survey(pid)?, config)?.into_modules()
}

/// Surveys the process as the next attach would.
pub(crate) fn survey(pid: i32) -> Result<Surveyed, Error> {
    let maps = mappings(pid)?;
    let last = hook_in_use(pid, &hook_copies(pid, &maps));
    let present = hook_to_record(pid, &maps, last);
    Surveyed::of(pid, maps, present, &mut ModuleFiles::new())
}

/// Attach that no known obstacle prevents.
pub(crate) struct Planned {
    pub survey: Surveyed,
    /// Ids of the functions to hook.
    pub functions: HashSet<usize>,
    /// Pads for the functions that no slot leads to.
    pub pads: PadPlan,
    /// True if the process has room for the index of accesses.
    may_count_accesses: bool,
}

impl Planned {
    /// Plans the hooking, and refuses if it is impossible.
    pub fn of(survey: Surveyed, config: &TraceConfig) -> Result<Planned, Error> {
        let pid = survey.pid;
        let may_count_accesses = may_reserve(pid);
        if config.accesses == Accesses::Needed {
            let is_listener = |name: &str| name == ACCESS_LISTENER;
            let copies = hook_copies(pid, &survey.maps);
            let scan = find_slots(pid, &survey.modules, &survey.maps, &is_listener, &copies)?;
            if scan.slots.is_empty() && scan.held.is_empty() {
                return Err(Error::NoAccessRuntime { pid });
            }
            if !may_count_accesses {
                return Err(Error::Refused(format!(
                    "the address space of process {pid} is limited (RLIMIT_AS, RLIMIT_DATA, or mlockall in a \
                     sandbox), and counting accesses needs 64 GiB of it: trace without counting accesses"
                )));
            }
        }
        if survey.is_static && config.mappings {
            return Err(Error::Refused(format!(
                "process {pid} is statically linked: its calls of mmap use no GOT slot, so they cannot be traced"
            )));
        }
        // Listeners can use a mapped hook only if the process has a loader that we merely do not call: the hook is then
        // mapped from memory that listeners can open.
        if let Some(emission) = &config.emits
            && survey.way_in.loading == Loading::WithoutLoader
        {
            match &survey.way_in.foreign_call {
                None => return Err(Error::NoPlaceToListen { pid }),
                Some(reason) if emission.file.is_some() => {
                    return Err(Error::Refused(format!(
                        "process {pid} cannot load the hook from a directory, because its loader could call the program's code ({reason}): emit without a directory"
                    )));
                }
                Some(_) => {}
            }
        }
        let mut pads = plan_pads(&survey);
        plan_described(&survey, &config.allocators, &mut pads)?;
        Ok(Planned {
            functions: config.function_ids(),
            survey,
            pads,
            may_count_accesses,
        })
    }

    /// Returns true if this function will be hooked.
    pub fn is_wanted(&self, function: usize) -> bool {
        function >= FIRST_DESCRIBED || self.functions.contains(&function)
    }

    /// Finds the current slots of the functions to hook.
    pub fn find_slots(&self, maps: &[Mapping], copies: &[HookCopy]) -> Result<SlotScan, Error> {
        let survey = &self.survey;
        let wanted =
            |name: &str| function_by_name(name).is_some_and(|f| self.functions.contains(&f));
        Ok(find_slots(
            survey.pid,
            &survey.modules,
            maps,
            &wanted,
            copies,
        )?)
    }

    /// Returns true if reads and writes are counted. This requires that the program reports them and that there is
    /// enough memory. Otherwise, removes the slots that are needed only for counting.
    pub fn counts_accesses(&mut self, scan: &mut SlotScan) -> bool {
        let is_listener = |slot: &memhook_process::Slot| slot.symbol == ACCESS_LISTENER;
        if self.may_count_accesses && scan.slots.iter().any(is_listener) {
            return true;
        }
        scan.slots.retain(|slot| !touches(&slot.symbol));
        let is_needed = |f: usize| HOOKED_FUNCTIONS[f].role != Role::Touches;
        self.functions.retain(|&f| is_needed(f));
        false
    }

    /// Converts the plan to rows per module for the user.
    pub fn into_modules(mut self) -> Result<Vec<PlannedModule>, Error> {
        let pid = self.survey.pid;
        let copies = hook_copies(pid, &self.survey.maps);
        let mut scan = self.find_slots(&self.survey.maps, &copies)?;
        // An attach first restores slots that earlier attaches have left patched.
        scan.slots.append(&mut scan.held);
        self.counts_accesses(&mut scan);
        let Surveyed { maps, object, .. } = &self.survey;
        let modules = self.survey.modules.iter();
        let mut planned: Vec<PlannedModule> = modules.map(PlannedModule::nothing_of).collect();
        for slot in &scan.slots {
            let module = &mut planned[slot.module];
            let Some(function) = function_by_name(&slot.symbol) else {
                continue;
            };
            if is_of_allocator(function, &module.image) {
                continue;
            }
            match fate(object, function) {
                Fate::Hooked => {
                    module.slots.push(slot.symbol.clone());
                    module.targets.push(slot.target);
                }
                Fate::Refused(reason) => {
                    let refused = (slot.symbol.clone(), reason);
                    if !module.unhookable.contains(&refused) {
                        module.unhookable.push(refused);
                    }
                }
                Fate::PassedBy => {}
            }
        }
        let live = live_places(pid, maps);
        for pad in &self.pads.pads {
            if let Some(module) = planned.iter_mut().find(|m| m.image.base == pad.bias)
                && self.is_wanted(pad.function)
            {
                module.pads.push((pad.name.clone(), pad.address));
            }
        }
        for refused in &self.pads.refused {
            let of_name = |m: &&mut PlannedModule| m.image.name() == refused.module;
            let Some(module) = planned.iter_mut().find(of_name) else {
                continue;
            };
            if !self.functions.contains(&refused.function) {
                continue;
            }
            let (name, address) = (refused.name.clone(), refused.address);
            // The entry contains the jump of a running attach, so the code there differs from the file.
            let head = address..=address + 4;
            if live.iter().any(|at| head.contains(at)) {
                module.pads.push((name, address));
            } else {
                let refused = (name, address, refused.why.clone());
                module.refused_pads.push(refused);
            }
        }
        for refused in scan.unhookable {
            let module = &mut planned[refused.module];
            module.unhookable.push((refused.symbol, refused.reason));
        }
        Ok(planned)
    }
}

/// Returns true for a slot through which an allocator obtains memory for its own heap. If the allocator is part of the
/// program, the hook recognizes such calls by their callers: it skips calls from inside `malloc`.
pub(crate) fn is_of_allocator(function: usize, module: &ModuleImage) -> bool {
    let hooked = HOOKED_FUNCTIONS.get(function);
    let maps = hooked.is_some_and(|f| f.role == Role::Maps);
    let is_allocator = !module.is_main && module.facts.exported("malloc").is_some();
    maps && (module.is_libc || module.is_loader || is_allocator)
}

/// Returns true if calls of this function are recorded.
pub fn is_hooked(name: &str) -> bool {
    function_by_name(name).is_some_and(|f| HOOKED_FUNCTIONS[f].is_of_allocator())
}
