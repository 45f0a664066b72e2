//! What an attach would patch. The process is only read.

use crate::hook::loading::{CANNOT_THROW, Loading, leaves_alone};
use crate::hook::object::hook_at;
use crate::pads::areas::live_places;
use crate::pads::{PadPlan, plan_described, plan_pads};
use crate::{config::TraceConfig, error::Error};
use memhook_abi::{ACCESS_LISTENER, HOOKED_FUNCTIONS, Role, function_by_name, touches};
use memhook_process::{
    CLibrary, Mapping, ModuleFiles, ModuleImage, Slot, find_slots, hook_copies, mappings, modules,
};

/// What would be hooked of one module.
pub struct PlannedModule {
    /// The module.
    pub image: ModuleImage,
    /// The symbol of each slot.
    pub slots: Vec<String>,
    /// The function (avma) that each slot leads to.
    pub targets: Vec<u64>,
    /// The functions of an allocator that is part of the module, which are hooked at their entries: symbols, and where
    /// they are (avma).
    pub pads: Vec<(String, u64)>,
    /// Those of them that cannot be hooked, and why.
    pub refused_pads: Vec<(String, u64, String)>,
    /// What cannot be hooked, and why.
    pub unhookable: Vec<(String, &'static str)>,
}

/// What an attach with this configuration would patch, of all modules.
pub fn hook_plan(pid: i32, config: &TraceConfig) -> Result<Vec<PlannedModule>, Error> {
    let functions = config.function_ids();
    let maps = mappings(pid)?;
    let loaded = modules(pid, &maps, &mut ModuleFiles::new())?;
    let images = loaded.clone();
    let is_wanted = |name: &str| function_by_name(name).is_some_and(|f| functions.contains(&f));
    let mut scan = find_slots(pid, &loaded, &maps, &is_wanted, &hook_copies(pid, &maps))?;
    let tells = |slot: &Slot| slot.symbol == ACCESS_LISTENER;
    if !scan.slots.iter().chain(&scan.held).any(tells) {
        scan.slots.retain(|slot| !touches(&slot.symbol));
        scan.held.retain(|slot| !touches(&slot.symbol));
    }
    let mut planned: Vec<PlannedModule> = loaded
        .into_iter()
        .map(|image| PlannedModule {
            image,
            slots: Vec::new(),
            targets: Vec::new(),
            pads: Vec::new(),
            refused_pads: Vec::new(),
            unhookable: Vec::new(),
        })
        .collect();
    let loading = loading_of(pid, &maps);
    let is_left_alone = |symbol: &str| {
        let loading = loading.zip(function_by_name(symbol));
        loading.is_some_and(|(loading, function)| leaves_alone(loading.object(pid), function))
    };
    // An attach first puts back what others left in slots.
    for slot in scan.slots.iter().chain(&scan.held) {
        let module = &mut planned[slot.module];
        if function_by_name(&slot.symbol).is_some_and(|f| is_of_allocator(f, &module.image)) {
            continue;
        }
        if is_left_alone(&slot.symbol) && touches(&slot.symbol) {
            continue;
        }
        if is_left_alone(&slot.symbol) {
            let refused = (slot.symbol.clone(), CANNOT_THROW);
            if !module.unhookable.contains(&refused) {
                module.unhookable.push(refused);
            }
        } else {
            module.slots.push(slot.symbol.clone());
            module.targets.push(slot.target);
        }
    }
    let (mut pads, must_return) = own_pads(pid, &maps, &images);
    plan_described(
        pid,
        &maps,
        &images,
        &config.allocators,
        must_return,
        &mut pads,
    )?;
    let live = live_places(pid, &maps);
    for pad in pads.pads {
        if let Some(module) = planned.iter_mut().find(|m| m.image.base == pad.bias)
            && (pad.does.is_some() || functions.contains(&pad.function))
        {
            module.pads.push((pad.name, pad.address));
        }
    }
    for refused in pads.refused {
        let of_name = |m: &&mut PlannedModule| m.image.name() == refused.module;
        let Some(module) = planned.iter_mut().find(of_name) else {
            continue;
        };
        if !functions.contains(&refused.function) {
            continue;
        }
        // The jump of an attach under way is there; its code is not that of the file.
        let head = refused.address..=refused.address + 4;
        if live.iter().any(|at| head.contains(at)) {
            module.pads.push((refused.name, refused.address));
        } else {
            module
                .refused_pads
                .push((refused.name, refused.address, refused.why));
        }
    }
    for refused in scan.unhookable {
        let module = &mut planned[refused.module];
        module.unhookable.push((refused.symbol, refused.reason));
    }
    Ok(planned)
}

/// How the hook would come into the process, if it can.
fn loading_of(pid: i32, maps: &[Mapping]) -> Option<Loading> {
    let mut present = hook_copies(pid, maps).into_iter().map(|copy| copy.base);
    let present = present.find(|base| hook_at(pid, *base).is_some());
    let libc = CLibrary::of(pid, maps);
    Loading::of(pid, libc.as_ref(), present).ok()
}

/// The pads for the allocators that are part of the modules, and whether no exception can pass through the hook.
pub(crate) fn own_pads(pid: i32, maps: &[Mapping], images: &[ModuleImage]) -> (PadPlan, bool) {
    let loading = loading_of(pid, maps);
    let is_left_alone = |function: usize| {
        loading.is_some_and(|loading| leaves_alone(loading.object(pid), function))
    };
    let pads = plan_pads(pid, maps, images, &is_left_alone);
    let must_return = loading.is_some_and(|loading| loading.object(pid).is_mapped);
    (pads, must_return)
}

/// Whether a slot is one through which an allocator gets its memory, which belongs to its heap. An allocator
/// that is a part of the program is told from it by its callers: what is called inside `malloc` is passed by.
pub(crate) fn is_of_allocator(function: usize, module: &ModuleImage) -> bool {
    let hooked = HOOKED_FUNCTIONS.get(function);
    let maps = hooked.is_some_and(|f| f.role == Role::Maps);
    let is_allocator = !module.is_main && module.facts.exported("malloc").is_some();
    maps && (module.is_libc || module.is_loader || is_allocator)
}

/// Whether calls of this function are recorded.
pub fn is_hooked(name: &str) -> bool {
    function_by_name(name).is_some_and(|f| HOOKED_FUNCTIONS[f].is_of_allocator())
}
