//! GOT slots of the hooked functions.

use crate::{
    Behind, Error, Exported, HookCopy, Loader, Mapping, ModuleImage, SlotKind, behind,
    memory::Pages,
};
use memhook_abi::touches;
use std::collections::{HashMap, HashSet};

/// A slot that can be patched.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Address (avma).
    pub address: u64,
    /// Dynamic symbol.
    pub symbol: String,
    /// Origin of the slot.
    pub kind: SlotKind,
    /// Index of its module.
    pub module: usize,
    /// Current value.
    pub value: u64,
    /// Function that a call through the slot reaches: `value`, or, if lazy binding has not resolved the slot yet, the
    /// function that it will be resolved to.
    pub target: u64,
    /// PROT_* bits of its page.
    pub protection: u32,
    /// True if the slot can be exchanged only while all threads are stopped. One reason is that its page is writable
    /// although the loader makes it read-only after relocation, so relocation of the module may be in progress. The
    /// other is that its loader cannot be made to keep the module in place.
    pub is_unsettled: bool,
    /// True if its module is never unloaded.
    pub is_permanent: bool,
}

/// Allocator calls of a module that go through no slot.
#[derive(Clone, Debug)]
pub struct Unhookable {
    /// Index of the module.
    pub module: usize,
    /// Name of the function.
    pub symbol: String,
    /// Reason.
    pub reason: &'static str,
    /// True if a slot exists, but an unknown version of memhook-rs has put a wrapper into it.
    pub is_foreign_wrapper: bool,
}

/// Result of [`find_slots`].
#[derive(Clone, Debug, Default)]
pub struct SlotScan {
    /// Slots that can be patched.
    pub slots: Vec<Slot>,
    /// Slots that contain a wrapper of ours (`value`), with the function that the wrapper calls (`target`). The wrapper
    /// belongs to this attach or an earlier one, or was inherited from a traced parent.
    pub held: Vec<Slot>,
    /// Slots that cannot be hooked.
    pub unhookable: Vec<Unhookable>,
}

/// Finds the slots in every module (except glibc's loader: its own allocations are not the program's) for the hooked
/// functions that `wanted` accepts. `copies` are the hooks in the process.
pub fn find_slots(
    pid: i32,
    modules: &[ModuleImage],
    maps: &[Mapping],
    wanted: &dyn Fn(&str) -> bool,
    copies: &[HookCopy],
) -> Result<SlotScan, Error> {
    let stubs: HashSet<u64> = modules
        .iter()
        .flat_map(|m| {
            m.facts
                .canonical_plt
                .iter()
                .map(|svma| m.base.wrapping_add(*svma))
        })
        .collect();
    let is_code = |address: u64| mapping_of(maps, address).is_some_and(|m| m.exec);
    let mut pages = Pages::of(pid)?;
    let is_of_program = of_program(pid, modules, maps, &mut pages);
    let may_go = modules_that_may_go(pid, modules, maps, &mut pages);
    let mut data_slots = Vec::new();
    let mut scan = SlotScan::default();
    let mut unresolved = Vec::new();
    // Function to which each symbol was resolved, as shown by the slots of the program and of other modules.
    let mut resolved: HashMap<(bool, String), u64> = HashMap::new();
    for (index, module) in modules.iter().enumerate() {
        // Allocations of glibc's loader are its own; musl's loader is also the C library.
        if module.is_loader && !module.is_libc {
            continue;
        }
        let facts = &module.facts;
        let scope = is_of_program[index];
        for relocation in facts.slots.iter().filter(|slot| wanted(&slot.symbol)) {
            let address = module.base.wrapping_add(relocation.svma);
            let Some(mapping) = mapping_of(maps, address) else {
                continue;
            };
            let Some(value) = pages.word(address) else {
                continue;
            };
            if value == 0 {
                continue; // a weak symbol that nobody defines
            }
            // The slot leads to a PLT stub of the program, which jumps through the program's own slot, where the call
            // is seen. If the stub became the original of that slot, the original would lead back to the slot.
            if stubs.contains(&value) {
                continue;
            }
            let protection = u32::from(mapping.read)
                | u32::from(mapping.write) << 1
                | u32::from(mapping.exec) << 2;
            let slot = |target| Slot {
                address,
                symbol: relocation.symbol.clone(),
                kind: relocation.kind,
                module: index,
                value,
                target,
                protection,
                is_unsettled: mapping.write && facts.relro.contains(&relocation.svma)
                    || may_go[index],
                is_permanent: module.is_permanent,
            };
            match behind(copies, value) {
                Behind::Itself => {}
                Behind::Wrapped(original) => {
                    let key = (scope, relocation.symbol.clone());
                    resolved.entry(key).or_insert(original);
                    scan.held.push(slot(original));
                    continue;
                }
                Behind::Unknown => {
                    scan.unhookable.push(Unhookable {
                        module: index,
                        symbol: relocation.symbol.clone(),
                        reason: "holds a wrapper of another memhook-rs",
                        is_foreign_wrapper: true,
                    });
                    continue;
                }
            }
            // The module is being relocated, so its slots do not contain addresses yet.
            if !is_code(value) {
                continue;
            }
            let slot = slot(value);
            // A data slot is a variable, in which the program may have stored something else.
            if slot.kind == SlotKind::Data64 {
                data_slots.push(slot);
                continue;
            }
            // A value inside the module itself is either its PLT (lazy binding) or its own definition of the function.
            let is_own = |e: Exported| module.base.wrapping_add(e.svma) == value;
            if slot.kind == SlotKind::JumpSlot
                && module.contains(value)
                && !facts.exported(&slot.symbol).is_some_and(is_own)
            {
                unresolved.push(slot);
            } else {
                let key = (scope, slot.symbol.clone());
                resolved.entry(key).or_insert(value);
                scan.slots.push(slot);
            }
        }
        if facts.is_symbolic && facts.exported("malloc").is_some() && wanted("malloc") {
            scan.unhookable.push(Unhookable {
                module: index,
                symbol: "malloc".into(),
                reason: "binds to its own allocator (-Bsymbolic)",
                is_foreign_wrapper: false,
            });
        }
    }
    for slot in data_slots {
        let is_own = |m: &ModuleImage| {
            let exported = m.facts.exported(&slot.symbol);
            exported.is_some_and(|e| m.base.wrapping_add(e.svma) == slot.value)
        };
        let is_resolved = [true, false]
            .iter()
            .any(|scope| resolved.get(&(*scope, slot.symbol.clone())) == Some(&slot.value));
        if is_resolved || modules.iter().any(is_own) {
            scan.slots.push(slot);
        }
    }
    for mut slot in unresolved {
        // Another namespace has its own C library, and this code does not know which one. The allocator of the wrong
        // library would crash the program.
        if !is_of_program[slot.module] && touches(&slot.symbol) {
            continue;
        }
        if !is_of_program[slot.module] {
            scan.unhookable.push(Unhookable {
                module: slot.module,
                symbol: slot.symbol,
                reason: "not bound yet, in a namespace of its own (dlmopen)",
                is_foreign_wrapper: false,
            });
            continue;
        }
        // The slots of other modules show what the loader found. Otherwise, the symbol is looked up as the loader would
        // do it: in load order, with the executable first.
        slot.target = match resolved.get(&(true, slot.symbol.clone())) {
            Some(&other) => other,
            None => look_up(modules, &is_of_program, &slot.symbol, &mut pages).unwrap_or(0),
        };
        // Missed calls of these functions only make usage less exact; no blocks are missed.
        if slot.target == 0 && touches(&slot.symbol) {
            continue;
        }
        if slot.target == 0 {
            scan.unhookable.push(Unhookable {
                module: slot.module,
                symbol: slot.symbol,
                reason: "not bound yet, and not found in any module",
                is_foreign_wrapper: false,
            });
        } else {
            scan.slots.push(slot);
        }
    }
    scan.slots.sort_by_key(|s| s.address);
    scan.held.sort_by_key(|s| s.address);
    Ok(scan)
}

fn mapping_of(maps: &[Mapping], address: u64) -> Option<&Mapping> {
    let at = maps.partition_point(|m| m.end <= address);
    maps.get(at).filter(|m| m.start <= address)
}

/// Returns which modules the loader lists for the program's own namespace, as opposed to modules of other namespaces
/// (dlmopen(3)) and files that are only mapped. If there is no list, all modules count.
fn of_program(pid: i32, modules: &[ModuleImage], maps: &[Mapping], pages: &mut Pages) -> Vec<bool> {
    let listed = Loader::find(pid, maps, pages)
        .map(|loader| loader.modules(pages))
        .unwrap_or_default();
    let is_listed = |m: &ModuleImage| listed.iter().any(|l| m.contains(l.section));
    modules
        .iter()
        .map(|module| listed.is_empty() || is_listed(module))
        .collect()
}

/// Returns which modules may be unmapped while the hook exchanges their slots. glibc's dl_iterate_phdr prevents that,
/// but musl's holds no lock while its callback runs (ldso/dynlink.c).
fn modules_that_may_go(
    pid: i32,
    modules: &[ModuleImage],
    maps: &[Mapping],
    pages: &mut Pages,
) -> Vec<bool> {
    let runs_on_musl = modules.iter().any(|m| m.is_loader && m.is_libc);
    let is_known = |m: &ModuleImage| !runs_on_musl || m.is_permanent;
    if modules.iter().all(is_known) {
        return vec![false; modules.len()];
    }
    let settled = Loader::find(pid, maps, pages)
        .map(|loader| loader.settled_modules(pid))
        .unwrap_or_default();
    let stays = |m: &ModuleImage| is_known(m) || settled.iter().any(|at| m.contains(*at));
    modules.iter().map(|module| !stays(module)).collect()
}

/// Returns the first definition in the program's namespace. Libc is searched last, because a preloaded or linked
/// allocator library precedes it in the link order.
///
/// If an IFUNC resolver chooses the function, it chose one for the module's own calls when the module was loaded.
fn look_up(
    modules: &[ModuleImage],
    is_of_program: &[bool],
    symbol: &str,
    pages: &mut Pages,
) -> Option<u64> {
    let mut find = |libc: bool| {
        modules
            .iter()
            .zip(is_of_program)
            .filter(|(m, of)| **of && m.is_libc == libc && (libc || !m.is_loader))
            .find_map(|(m, _)| {
                let exported = m.facts.exported(symbol)?;
                if exported.is_ifunc {
                    let mut words = m.facts.resolved_words.iter();
                    let (_, word) = words.find(|(resolver, _)| *resolver == exported.svma)?;
                    let chosen = pages.word(m.base.wrapping_add(*word))?;
                    return m.contains(chosen).then_some(chosen);
                }
                Some(m.base.wrapping_add(exported.svma))
            })
    };
    find(false).or_else(|| find(true))
}
