//! Facts about the loaded modules that the scan needs: their data, the version of the C library,
//! and the names of vtables.

use crate::capture::allocator_code::code_of;
use crate::snapshot::{MUSL, ModuleInfo};
use goblin::container::Ctx;
use goblin::elf::{Elf, ProgramHeader, program_header::PT_LOAD, sym};
use memhook_foreign::class_name;
use memhook_process::{CLibrary, ModuleImage, allocator_code, glibc_version, mappings};
use memhook_symbols::ModuleFile;
use std::collections::BTreeMap;

const PAGE_BYTES: u64 = 4096;

/// Collects the facts about one module.
pub fn module_info(image: &ModuleImage) -> ModuleInfo {
    let mut info = ModuleInfo {
        path: image.path.clone(),
        base: image.base,
        start: image.start,
        end: image.end,
        build_id: image.build_id.clone(),
        ..ModuleInfo::default()
    };
    for header in program_headers(&image.bytes).unwrap_or_default() {
        if header.p_type == PT_LOAD && header.is_write() {
            let start = image.base.wrapping_add(header.p_vaddr);
            let end = start.saturating_add(header.p_memsz);
            let end = end.next_multiple_of(PAGE_BYTES).max(start);
            info.data.push(start & !(PAGE_BYTES - 1)..end);
        }
    }
    let is_defined = |name: &str| image.facts.exported(name).is_some();
    if let Some(code) = allocator_code(image) {
        let constants = image.bytes.section(".rodata");
        let minor = constants.and_then(|constants| glibc_minor(&constants));
        info.glibc_minor = minor.or_else(|| glibc_minor(&image.bytes.whole()));
        info.malloc_code = code;
    } else {
        let known = memhook_abi::known_allocator(is_defined);
        info.allocator = match known {
            Some(allocator) => Some(allocator.to_owned()),
            // The C library of musl is also its loader.
            None if image.is_loader && image.is_libc => Some(MUSL.to_owned()),
            None if !image.is_loader && is_defined("malloc") => {
                Some(format!("the malloc of {}", image.name()))
            }
            None => None,
        };
    }
    info.allocator_code = code_of(image, info.allocator.as_deref());
    info
}

/// Marks the C library that the program itself uses, if there are several (dlmopen(3)).
pub(super) fn mark_programs_libc(pid: i32, modules: &mut [ModuleInfo]) {
    let is_glibc = |module: &&mut ModuleInfo| module.glibc_minor.is_some();
    if modules.iter_mut().filter(is_glibc).count() < 2 {
        return;
    }
    let maps = mappings(pid).unwrap_or_default();
    let Some(libc) = CLibrary::of(pid, &maps) else {
        return;
    };
    for module in modules.iter_mut().filter(is_glibc) {
        module.is_programs_libc = (module.start..module.end).contains(&libc.code.start);
    }
}

pub(super) fn program_headers(elf: &[u8]) -> Option<Vec<ProgramHeader>> {
    let header = Elf::parse_header(elf).ok()?;
    let (at, count) = (
        usize::try_from(header.e_phoff).ok()?,
        usize::from(header.e_phnum),
    );
    ProgramHeader::parse(elf, at, count, Ctx::default()).ok()
}

/// Returns the N of glibc 2.N.
fn glibc_minor(bytes: &[u8]) -> Option<u32> {
    glibc_version(bytes)?.strip_prefix("2.")?.parse().ok()
}

/// Adds class names by vtable address point, from the symbols of a module. The address point of the
/// primary vtable comes after two words (Itanium C++ ABI 2.5.2). A class with secondary vtables has
/// more address points in the same symbol, which RTTI resolves.
pub fn vtable_names(image: &ModuleImage, classes: &mut BTreeMap<u64, String>) {
    let Ok(elf) = Elf::parse(&image.bytes) else {
        return;
    };
    let tables = [(&elf.syms, &elf.strtab), (&elf.dynsyms, &elf.dynstrtab)];
    for (symbols, names) in tables {
        for symbol in symbols.iter() {
            if symbol.st_shndx == 0 || symbol.st_type() != sym::STT_OBJECT || symbol.st_size < 16 {
                continue;
            }
            if let Some(name) = names.get_at(symbol.st_name)
                && let Some(class) = name.strip_prefix("_ZTV")
            {
                let point = image.base.wrapping_add(symbol.st_value).wrapping_add(16);
                classes.entry(point).or_insert_with(|| class_name(class));
            }
        }
    }
}

/// Returns the file with the names of a module's functions.
pub fn module_file(module: &ModuleImage) -> ModuleFile {
    ModuleFile {
        path: module.path.clone(),
        image: module.bytes.in_memory().cloned(),
        opened: module.bytes.file().cloned(),
        candidates: vec![module.file.clone()],
        build_id: module.build_id.clone(),
        base: module.base,
        start: module.start,
        end: module.end,
        named_by: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memhook_process::ModuleBytes;

    #[test]
    fn the_version_of_glibc() {
        let bytes = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6").unwrap();
        let minor = glibc_minor(&bytes);
        assert!(minor.is_some_and(|n| (26..80).contains(&n)));
        let constants = ModuleBytes::from(bytes)
            .section(".rodata")
            .unwrap()
            .into_owned();
        assert_eq!(glibc_minor(&constants), minor);
        assert_eq!(glibc_minor(b"GNU C Library"), None);
    }
}
