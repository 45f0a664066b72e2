//! What of a process will be hooked.

use crate::output::say;
use anyhow::bail;
use memhook_abi::{self as abi, HOOKED_FUNCTIONS, function_by_name};
use memhook_process::{find_slots, hook_copies, mappings, modules};
use std::{
    collections::{HashMap, HashSet},
    process::ExitCode,
};

/// Ids of the functions named by `--functions`; module functions always come along.
pub fn selected_functions(names: &[String]) -> anyhow::Result<HashSet<usize>> {
    for name in names {
        if !HOOKED_FUNCTIONS
            .iter()
            .any(|f| f.kind == name || f.name == name)
        {
            bail!(
                "--functions {name}: no such function; known: malloc, free, calloc, realloc, new, delete, ..."
            );
        }
    }
    Ok((0..HOOKED_FUNCTIONS.len())
        .filter(|&i| {
            let f = &HOOKED_FUNCTIONS[i];
            names.is_empty()
                || f.role == abi::Role::Modules
                || names.iter().any(|n| f.kind == n || f.name == n)
        })
        .collect())
}

/// Prints what an attach would patch; the process is only read.
pub fn dry_run(pid: i32, functions: &HashSet<usize>) -> anyhow::Result<ExitCode> {
    let maps = mappings(pid)?;
    let loaded = modules(pid, &maps, &mut HashMap::new())?;
    let wanted = |name: &str| function_by_name(name).is_some_and(|f| functions.contains(&f));
    let scan = find_slots(pid, &loaded, &maps, &wanted, &hook_copies(pid, &maps))?;
    // An attach puts back first what others left in slots.
    let hookable = scan.slots.iter().chain(&scan.held);
    say!("{} slots would be patched:", hookable.clone().count());
    for (index, module) in loaded.iter().enumerate() {
        let names: Vec<&str> = hookable
            .clone()
            .filter(|s| s.module == index)
            .map(|s| s.symbol.as_str())
            .collect();
        if !names.is_empty() {
            say!("  {}: {}", module.path, names.join(" "));
        }
        for u in scan.unhookable.iter().filter(|u| u.module == index) {
            say!("  {}: not {}: {}", module.path, u.symbol, u.reason);
        }
    }
    Ok(ExitCode::SUCCESS)
}
