//! Locates functions in the files of modules.

use memhook_process::{ElfView, ModuleFiles, ModuleImage, mappings, modules};

/// Returns the path of the target's libc, and the offset of a function in this file.
pub fn in_libc(pid: i32, function: &str) -> Result<(String, u64), String> {
    file_offset(pid, |module| module.is_libc, function)
}

/// Returns the path of the first wanted module, and the offset of a function in this file.
pub fn file_offset(
    pid: i32,
    is_wanted: impl Fn(&ModuleImage) -> bool,
    function: &str,
) -> Result<(String, u64), String> {
    let (module, avma) = find(pid, is_wanted, function)?;
    // The mapping that contains the address has the file offset of its start.
    let maps = mappings(pid).map_err(|e| e.to_string())?;
    let mapping = maps.iter().find(|m| (m.start..m.end).contains(&avma));
    let mapping = mapping.ok_or(format!("{function} is not mapped"))?;
    Ok((module.path.clone(), avma - mapping.start + mapping.offset))
}

/// Returns the address of a function of the program itself (avma).
pub fn address(pid: i32, function: &str) -> Result<u64, String> {
    Ok(find(pid, |module| module.is_main, function)?.1)
}

fn find(
    pid: i32,
    is_wanted: impl Fn(&ModuleImage) -> bool,
    function: &str,
) -> Result<(ModuleImage, u64), String> {
    let maps = mappings(pid).map_err(|e| e.to_string())?;
    let modules = modules(pid, &maps, &mut ModuleFiles::new()).map_err(|e| e.to_string())?;
    let module = modules.into_iter().find(|m| is_wanted(m));
    let module = module.ok_or("the target has no such module")?;
    let elf = ElfView::parse(&module.bytes)?;
    let symbol = elf.exported(function);
    let missing = || format!("{} has no {function}", module.name());
    let avma = module.base + symbol.ok_or_else(missing)?.svma;
    Ok((module, avma))
}
