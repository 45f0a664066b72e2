//! GOT slots of the hooked functions.

use crate::{ElfView, Error, Exported, Mapping, ModuleImage, SlotKind, memory::Pages};
use std::collections::{HashMap, HashSet};

/// A slot that can be patched.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Address (avma).
    pub address: u64,
    /// The dynamic symbol.
    pub symbol: String,
    /// What makes the slot.
    pub kind: SlotKind,
    /// Index of its module.
    pub module: usize,
    /// What it holds now.
    pub value: u64,
    /// The function that a call through it reaches: `value`, or for a slot that lazy binding has
    /// not resolved yet, what it will resolve to.
    pub target: u64,
    /// PROT_* bits of its page.
    pub protection: u32,
}

/// Allocator calls of a module that no slot carries.
#[derive(Clone, Debug)]
pub struct Unhookable {
    /// Index of the module.
    pub module: usize,
    /// The function.
    pub symbol: String,
    /// Why.
    pub reason: &'static str,
}

/// The result of [`find_slots`].
#[derive(Clone, Debug, Default)]
pub struct SlotScan {
    /// Patchable slots.
    pub slots: Vec<Slot>,
    /// What cannot be hooked.
    pub unhookable: Vec<Unhookable>,
}

/// Finds the slots of every module (the loader excepted: its own allocations are not the
/// program's) for the symbols that `wanted` accepts. `original_of` says which function stands behind
/// a slot's value, if it is a replacement; a slot that holds one is left out.
pub fn find_slots(
    pid: i32,
    modules: &[ModuleImage],
    maps: &[Mapping],
    wanted: &dyn Fn(&str) -> bool,
    original_of: &dyn Fn(u64) -> Option<u64>,
) -> Result<SlotScan, Error> {
    let views: Vec<Option<ElfView>> = modules
        .iter()
        .map(|m| ElfView::parse(&m.bytes).ok())
        .collect();
    let stubs: HashSet<u64> = modules
        .iter()
        .zip(&views)
        .filter_map(|(module, view)| Some((module.base, view.as_ref()?)))
        .flat_map(|(base, view)| {
            let plt = view.canonical_plt(wanted).into_iter();
            plt.map(move |svma| base.wrapping_add(svma))
        })
        .collect();
    let mut pages = Pages::of(pid)?;
    let mut scan = SlotScan::default();
    let mut unresolved = Vec::new();
    // What each symbol resolved to, as seen in slots.
    let mut resolved: HashMap<String, u64> = HashMap::new();
    for (index, (module, view)) in modules.iter().zip(&views).enumerate() {
        let Some(view) = view else { continue };
        if module.is_loader {
            continue;
        }
        for relocation in view.slots(wanted) {
            let address = module.base.wrapping_add(relocation.svma);
            let at = maps.partition_point(|m| m.end <= address);
            let Some(mapping) = maps.get(at).filter(|m| m.start <= address) else {
                continue;
            };
            let Some(value) = pages.word(address) else {
                continue;
            };
            if value == 0 {
                continue; // a weak symbol that nobody defines
            }
            // It leads to the program's own slot, where the call is seen; as the original of that slot it would
            // lead back to it.
            if stubs.contains(&value) {
                continue;
            }
            if let Some(original) = original_of(value) {
                resolved.entry(relocation.symbol).or_insert(original);
                continue;
            }
            let protection = u32::from(mapping.read)
                | u32::from(mapping.write) << 1
                | u32::from(mapping.exec) << 2;
            let slot = Slot {
                address,
                symbol: relocation.symbol,
                kind: relocation.kind,
                module: index,
                value,
                target: value,
                protection,
            };
            // A value inside the module itself is either its PLT (lazy binding) or its own
            // definition of the function.
            let is_own = |e: Exported| module.base.wrapping_add(e.svma) == value;
            // Looked up last: it is a search through all symbols.
            if slot.kind == SlotKind::JumpSlot
                && module.contains(value)
                && !view.exported(&slot.symbol).is_some_and(is_own)
            {
                unresolved.push(slot);
            } else {
                resolved.entry(slot.symbol.clone()).or_insert(value);
                scan.slots.push(slot);
            }
        }
        if view.is_symbolic() && view.exported("malloc").is_some() && wanted("malloc") {
            scan.unhookable.push(Unhookable {
                module: index,
                symbol: "malloc".into(),
                reason: "binds to its own allocator (-Bsymbolic)",
            });
        }
    }
    for mut slot in unresolved {
        // What other modules' slots resolved to is what the loader found; else look it up as the
        // loader will, in load order, with the executable first.
        slot.target = match resolved.get(&slot.symbol) {
            Some(&other) => other,
            None => look_up(modules, &views, &slot.symbol).unwrap_or(0),
        };
        if slot.target == 0 {
            scan.unhookable.push(Unhookable {
                module: slot.module,
                symbol: slot.symbol,
                reason: "not bound yet, and not found in any module",
            });
        } else {
            scan.slots.push(slot);
        }
    }
    scan.slots.sort_by_key(|s| s.address);
    Ok(scan)
}

/// The first definition, preferring allocator libraries that stand before libc in the link order
/// by being preloaded or linked: those are found first because libc is searched last.
fn look_up(modules: &[ModuleImage], views: &[Option<ElfView>], symbol: &str) -> Option<u64> {
    let is_libc =
        |m: &ModuleImage| m.name().starts_with("libc.so") || m.name().starts_with("libc-");
    let find = |libc: bool| {
        modules
            .iter()
            .zip(views)
            .filter(|(m, _)| is_libc(m) == libc && !m.is_loader)
            .find_map(|(m, v)| {
                let e = v.as_ref()?.exported(symbol)?;
                (!e.is_ifunc).then(|| m.base.wrapping_add(e.svma))
            })
    };
    find(false).or_else(|| find(true))
}
