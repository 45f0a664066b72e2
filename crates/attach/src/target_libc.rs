//! Functions of the target's C library, found in its own file.

use memhook_process::{ElfView, ModuleImage};

/// Address (avma) of a function that the target's libc exports.
pub fn libc_function(modules: &[ModuleImage], name: &str) -> Option<u64> {
    let libc = |m: &&ModuleImage| m.name().starts_with("libc.so") || m.name().starts_with("libc-2");
    modules.iter().filter(libc).find_map(|m| {
        let svma = ElfView::parse(&m.bytes).ok()?.exported(name)?.svma;
        Some(m.base.wrapping_add(svma))
    })
}
