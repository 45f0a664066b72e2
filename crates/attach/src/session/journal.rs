//! Journal of an attach: the slots with their wrappers, and the functions that cannot be hooked.

use crate::hook::loading::{Fate, fate};
use crate::hook::object::HookObject;
use crate::pads::Pads;
use crate::plan::hooking::is_of_allocator;
use memhook_abi::{self as abi, HOOKED_FUNCTIONS, Role, function_by_name, slot_state};
use memhook_process::{ModuleImage, SlotScan};
use memhook_stream::{Region, SlotSpec};
use std::collections::{HashMap, HashSet};

/// Chooses the slots that are written to the journal. The slots themselves are in the region.
#[derive(Clone)]
pub(super) struct SlotJournal {
    /// Hook object for which the journal is written.
    object: &'static HookObject,
    /// Ids of the hooked functions.
    functions: HashSet<usize>,
    /// Variant of the wrapper for each original address (avma) of a function. The program may have copied a wrapper's
    /// address, so a variant is never reassigned to another original.
    variants: HashMap<(usize, u64), u32>,
    /// Modules with functions or slots that cannot be hooked, and the reasons.
    pub unhookable: Vec<(String, &'static str)>,
}

impl SlotJournal {
    /// Creates an empty journal.
    pub fn new(
        object: &'static HookObject,
        functions: HashSet<usize>,
        variants: HashMap<(usize, u64), u32>,
    ) -> SlotJournal {
        SlotJournal {
            object,
            functions,
            variants,
            unhookable: Vec::new(),
        }
    }

    /// Returns true if calls of a function are traced.
    pub fn wants(&self, name: &str) -> bool {
        function_by_name(name).is_some_and(|f| self.functions.contains(&f))
    }

    /// Returns true if mappings are traced as well.
    pub fn has_mappings(&self) -> bool {
        let mut functions = self.functions.iter();
        functions.any(|&function| HOOKED_FUNCTIONS[function].role == Role::Maps)
    }

    /// Switches to another hook object, and removes the slots that it does not hook.
    pub fn use_object(
        &mut self,
        object: &'static HookObject,
        region: &Region,
        modules: &[ModuleImage],
    ) {
        if std::ptr::eq(object, self.object) {
            return;
        }
        self.object = object;
        for slot in region.slots() {
            let fate = fate(object, slot.function as usize);
            if fate == Fate::Hooked {
                continue;
            }
            region.set_slot_state(slot.index, slot_state::UNUSED);
            if let Fate::Refused(reason) = fate {
                let module = modules.iter().find(|m| m.base == slot.module_base);
                let name = module.map(|m| m.name().to_owned()).unwrap_or_default();
                self.unhookable.push((name, reason));
            }
        }
    }

    /// Adds the new slots of a scan of these modules, and records the functions that cannot be hooked.
    pub fn write(
        &mut self,
        region: &Region,
        modules: &[ModuleImage],
        pads: &Pads,
        scan: &SlotScan,
    ) {
        let known: HashSet<u64> = region.slots().iter().map(|s| s.address).collect();
        let name = |index: usize| modules[index].name().to_owned();
        let unhookable = scan.unhookable.iter();
        let mut unhookable: Vec<_> = unhookable.map(|u| (name(u.module), u.reason)).collect();
        for slot in &scan.slots {
            let of_cell = pads.function_of_cell(slot.address);
            let Some(function) = of_cell.or_else(|| function_by_name(&slot.symbol)) else {
                continue;
            };
            let module = &modules[slot.module];
            if known.contains(&slot.address) || is_of_allocator(function, module) {
                continue;
            }
            match fate(self.object, function) {
                Fate::Hooked => {}
                Fate::PassedBy => continue,
                Fate::Refused(reason) => {
                    unhookable.push((name(slot.module), reason));
                    continue;
                }
            }
            let Some(variant) = self.variant_of(function, slot.target) else {
                let hooked = HOOKED_FUNCTIONS.get(function);
                if hooked.is_some_and(|f| f.role == Role::Touches) {
                    continue;
                }
                let reason = "more than four different originals of one function";
                unhookable.push((name(slot.module), reason));
                continue;
            };
            let pushed = region.push_slot(SlotSpec {
                address: slot.address,
                original: slot.target,
                expected: slot.value,
                module_base: module.base,
                function: function as u32,
                variant,
                protection: slot.protection,
                by_force: slot.is_unsettled,
                is_permanent: slot.is_permanent,
            });
            if pushed.is_err() {
                unhookable.push((name(slot.module), "there are too many slots"));
            }
        }
        self.unhookable = unhookable;
    }

    /// Returns the variant of the wrapper for an original address. Slots of one symbol may hold
    /// different originals.
    fn variant_of(&mut self, function: usize, original: u64) -> Option<u32> {
        if let Some(&variant) = self.variants.get(&(function, original)) {
            return Some(variant);
        }
        let of_function = self.variants.iter().filter(|((f, _), _)| *f == function);
        let taken: HashSet<u32> = of_function.map(|(_, &variant)| variant).collect();
        let free = (0..abi::MAX_VARIANTS as u32).find(|variant| !taken.contains(variant))?;
        self.variants.insert((function, original), free);
        Some(free)
    }
}
