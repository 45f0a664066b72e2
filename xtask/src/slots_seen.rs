//! Reads the slots of a target from outside, before the first attach and after each detach.

use memhook_process::{find_slots, mappings, modules};
use std::collections::BTreeMap;

/// Symbol and value by address.
pub struct SlotsSeen(BTreeMap<u64, (String, u64)>);

impl SlotsSeen {
    /// Reads the current slots; `None` if they cannot be read, for example because the target has just ended.
    pub fn of(pid: u32) -> Option<SlotsSeen> {
        let pid = pid as i32;
        let maps = mappings(pid).ok()?;
        let loaded = modules(pid, &maps, &mut Default::default()).ok()?;
        let wanted = |name: &str| memhook_abi::function_by_name(name).is_some();
        let scan = find_slots(pid, &loaded, &maps, &wanted, &[]).ok()?;
        let seen = scan.slots.into_iter();
        Some(SlotsSeen(
            seen.map(|slot| (slot.address, (slot.symbol, slot.value)))
                .collect(),
        ))
    }

    /// Checks the changes since then. Lazy binding may have resolved a slot, but no slot may hold an address of ours or
    /// a different function.
    pub fn compare(&self, pid: u32) -> Result<(), String> {
        let Some(now) = SlotsSeen::of(pid) else {
            return Ok(());
        };
        let maps = mappings(pid as i32).map_err(|e| e.to_string())?;
        let place = |address: u64| {
            let at = maps.iter().find(|m| (m.start..m.end).contains(&address));
            at.map_or("nothing", |m| m.path.as_str())
        };
        let mut wrong = Vec::new();
        for (address, (symbol, value)) in &now.0 {
            let before = self.0.get(address).map(|slot| slot.1);
            let is_ours = place(*value).contains("memhook");
            // An unresolved slot pointed into its own module.
            let was_lazy = before.is_some_and(|before| place(before) == place(*address));
            let changed = before.is_some_and(|before| before != *value) && !was_lazy;
            if is_ours || changed {
                wrong.push(format!(
                    "{symbol} at {address:#x} in {}: {value:#x} in {}, before {:#x}",
                    place(*address),
                    place(*value),
                    before.unwrap_or(0)
                ));
            }
        }
        match wrong.first() {
            None => Ok(()),
            Some(first) => Err(format!("{} slots are not restored: {first}", wrong.len())),
        }
    }
}
