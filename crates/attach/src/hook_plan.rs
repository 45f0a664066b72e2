//! What an attach would patch. The process is only read.

use crate::{config::TraceConfig, error::Error};
use memhook_abi::function_by_name;
use memhook_process::{ModuleFiles, ModuleImage, find_slots, hook_copies, mappings, modules};

/// What would be hooked of one module.
pub struct PlannedModule {
    /// The module.
    pub image: ModuleImage,
    /// The symbol of each slot.
    pub slots: Vec<String>,
    /// What cannot be hooked, and why.
    pub unhookable: Vec<(String, &'static str)>,
}

/// What an attach with this configuration would patch, of all modules.
pub fn hook_plan(pid: i32, config: &TraceConfig) -> Result<Vec<PlannedModule>, Error> {
    let functions = config.function_ids();
    let maps = mappings(pid)?;
    let loaded = modules(pid, &maps, &mut ModuleFiles::new())?;
    let is_wanted = |name: &str| function_by_name(name).is_some_and(|f| functions.contains(&f));
    let scan = find_slots(pid, &loaded, &maps, &is_wanted, &hook_copies(pid, &maps))?;
    let mut planned: Vec<PlannedModule> = loaded
        .into_iter()
        .map(|image| PlannedModule {
            image,
            slots: Vec::new(),
            unhookable: Vec::new(),
        })
        .collect();
    // An attach first puts back what others left in slots.
    for slot in scan.slots.iter().chain(&scan.held) {
        planned[slot.module].slots.push(slot.symbol.clone());
    }
    for refused in scan.unhookable {
        let module = &mut planned[refused.module];
        module.unhookable.push((refused.symbol, refused.reason));
    }
    Ok(planned)
}
