//! Where a function of libc is in its file.

use memhook_process::{ElfView, ModuleFiles, mappings, modules};

/// The file of the target's libc, and the offset of a function in it.
pub fn in_libc(pid: i32, function: &str) -> Result<(String, u64), String> {
    let maps = mappings(pid).map_err(|e| e.to_string())?;
    let modules = modules(pid, &maps, &mut ModuleFiles::new()).map_err(|e| e.to_string())?;
    let libc = modules.iter().find(|m| m.is_libc);
    let libc = libc.ok_or("the target has no C library")?;
    let elf = ElfView::parse(&libc.bytes)?;
    let symbol = elf.exported(function);
    let svma = symbol.ok_or(format!("libc has no {function}"))?.svma;
    // The mapping that the address is in says where that part of the file begins.
    let avma = libc.base + svma;
    let mapping = maps.iter().find(|m| (m.start..m.end).contains(&avma));
    let mapping = mapping.ok_or(format!("{function} is not mapped"))?;
    Ok((libc.path.clone(), avma - mapping.start + mapping.offset))
}
