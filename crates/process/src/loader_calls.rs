//! Decides whether a dlopen(3) would run only glibc's own code.
//!
//! glibc's loader allocates with the functions that the program would call. At the program's start, it looks up malloc
//! and related functions in the program's scope (`__rtld_malloc_init_real` in elf/dl-minimal.c; before 2.31 through its
//! own slots), and dlopen(3) itself calls them through slots of libc. It also calls auditors (rtld-audit(7)). Any of
//! these may wait for a lock that is held by a thread which sleeps outside the loader and every allocator. Then the
//! threads' frames would not reveal the lock.
//!
//! Everything that cannot be proved counts as foreign.

use crate::c_library::{is_part_of_glibc, is_rtld};
use crate::hook_copies::is_ours;
use crate::loader::has_variable;
use crate::memory::Pages;
use crate::module::run;
use crate::{Loader, Mapping, ModuleImage, RemoteAddress, open_pagemap, read_memory};
use std::os::unix::fs::FileExt;

/// Allocator functions that the loader calls. The last two are for old loaders and thread-local storage.
const ALLOCATING: [&str; 6] = [
    "malloc",
    "calloc",
    "realloc",
    "free",
    "memalign",
    "aligned_alloc",
];
/// Function that identifies an auditor: the loader immediately unloads a library without it (`load_audit_module` in
/// elf/rtld.c).
const AUDITS: &str = "la_version";

/// Returns the first reason why a `dlopen` in the process might run code that is not glibc's. `None` if it provably
/// runs none.
pub fn foreign_calls_of_loader(
    pid: i32,
    maps: &[Mapping],
    modules: &[ModuleImage],
) -> Option<String> {
    let Ok(mut pages) = Pages::of(pid) else {
        return Some("its memory cannot be read".to_owned());
    };
    let glibc = Glibc::among(modules);
    debug_output(pid)
        .or_else(|| unknown_module(pid, maps, modules, &mut pages))
        .or_else(|| foreign_definition(modules))
        .or_else(|| glibc.foreign_slot(modules, &mut pages))
        .or_else(|| glibc.set_hook(modules, &mut pages))
        .or_else(|| glibc.changed_code(pid, maps))
}

/// Returns the reason if the loader writes a line about each of its steps. The hook would appear in the program's
/// output, and a full pipe would stop the thread with the locks of the loader.
fn debug_output(pid: i32) -> Option<String> {
    let writes = has_variable(pid, |variable| variable.starts_with(b"LD_DEBUG="));
    writes.then(|| {
        "its loader writes about each object that it loads (LD_DEBUG, ld.so(8))".to_owned()
    })
}

/// Returns a module whose definitions are unknown.
fn unknown_module(
    pid: i32,
    maps: &[Mapping],
    modules: &[ModuleImage],
    pages: &mut Pages,
) -> Option<String> {
    let unknown = |name: &str| format!("{name} cannot be read, and its loader may call it");
    for (i, first) in maps.iter().enumerate() {
        let is_file = first.file_id.2 != 0 && first.path.starts_with('/');
        if first.offset != 0 || !is_file || is_ours(first) {
            continue;
        }
        if modules.iter().any(|m| m.contains(first.start)) {
            continue;
        }
        let is_code = |m: &Mapping| m.exec && m.is_same_file(first);
        let has_code = run(&maps[i..]).iter().any(is_code);
        if has_code && pages.bytes(first.start) == Some(*b"\x7fELF") {
            return Some(unknown(first.path.rsplit('/').next().unwrap_or_default()));
        }
    }
    let loader = Loader::find(pid, maps, pages)?;
    let is_known = |at: u64| {
        let is_kernels = |m: &Mapping| m.path == "[vdso]" && m.contains(at);
        modules.iter().any(|m| m.contains(at)) || maps.iter().any(is_kernels) || {
            let mapping = maps.iter().find(|m| m.contains(at));
            mapping.is_some_and(is_ours)
        }
    };
    let mut listed = loader.modules(pages).into_iter();
    let other = listed.find(|linked| !is_known(linked.section))?;
    Some(unknown(&format!("the module at {:#x}", other.bias)))
}

/// Returns a module other than glibc that defines a function called by the loader.
fn foreign_definition(modules: &[ModuleImage]) -> Option<String> {
    let defines = |m: &ModuleImage, name| m.facts.exported(name).is_some();
    if let Some(auditor) = modules.iter().find(|m| defines(m, AUDITS)) {
        return Some(format!(
            "{} audits its loader (rtld-audit(7))",
            auditor.name()
        ));
    }
    let foreign = |m: &&ModuleImage| !is_rtld(m) && !is_part_of_glibc(&m.facts);
    modules.iter().filter(foreign).find_map(|m| {
        let name = ALLOCATING.into_iter().find(|name| defines(m, name))?;
        Some(format!("its loader may call {name} of {}", m.name()))
    })
}

/// Parts of glibc in a process.
struct Glibc<'a> {
    parts: Vec<&'a ModuleImage>,
}

impl Glibc<'_> {
    fn among(modules: &[ModuleImage]) -> Glibc<'_> {
        let is_part = |m: &&ModuleImage| is_rtld(m) || is_part_of_glibc(&m.facts);
        Glibc {
            parts: modules.iter().filter(is_part).collect(),
        }
    }

    fn contains(&self, address: u64) -> bool {
        self.parts.iter().any(|m| m.contains(address))
    }

    /// Returns a slot through which the loader reaches an allocator other than glibc's. If a program has taken the
    /// address of such a function without position-independent code, the slot contains a PLT entry of the program,
    /// which leads to one of the program's slots.
    fn foreign_slot(&self, modules: &[ModuleImage], pages: &mut Pages) -> Option<String> {
        let stands_for_others = modules.iter().filter(|m| !m.facts.canonical_plt.is_empty());
        let stubs: Vec<u64> = stands_for_others
            .clone()
            .flat_map(|m| m.facts.canonical_plt.iter().map(|svma| m.base + svma))
            .collect();
        let parts = self.parts.iter().copied();
        for module in parts.chain(stands_for_others) {
            let slots = module.facts.slots.iter();
            for slot in slots.filter(|slot| ALLOCATING.contains(&slot.symbol.as_str())) {
                let at = module.base.wrapping_add(slot.svma);
                let name = || format!("{} in {}", slot.symbol, module.name());
                let Some(value) = pages.word(at) else {
                    return Some(format!("the slot of {} cannot be read", name()));
                };
                // An unbound slot points into its module's own PLT, and will be bound to the function that the loader
                // finds.
                let is_known = module.contains(value) || stubs.contains(&value);
                if value != 0 && !self.contains(value) && !is_known {
                    let to = modules.iter().find(|m| m.contains(value));
                    let to = to.map_or(format!("{value:#x}"), |m| m.name().to_owned());
                    return Some(format!("the slot of {} leads to {to}", name()));
                }
            }
        }
        None
    }

    /// Returns a hook of glibc's allocator that is set to a function outside glibc (malloc_hook(3); nothing calls these
    /// hooks since 2.34).
    fn set_hook(&self, modules: &[ModuleImage], pages: &mut Pages) -> Option<String> {
        for module in modules {
            for svma in &module.facts.malloc_hooks {
                let value = pages.word(module.base.wrapping_add(*svma));
                if value.is_none_or(|value| value != 0 && !self.contains(value)) {
                    return Some(format!(
                        "the program has set a hook of malloc (malloc_hook(3)) in {}",
                        module.name()
                    ));
                }
            }
        }
        None
    }

    /// Returns a difference between the code in memory and glibc's files.
    fn changed_code(&self, pid: i32, maps: &[Mapping]) -> Option<String> {
        let mut parts = self.parts.iter();
        let changed = parts.find(|module| has_changed_code(pid, maps, module))?;
        Some(format!("the code of {} was changed", changed.name()))
    }
}

/// Describes a hook of glibc's allocator that is set to a foreign function.
pub fn set_malloc_hook(pid: i32, modules: &[ModuleImage]) -> Option<String> {
    let Ok(mut pages) = Pages::of(pid) else {
        return Some("its memory cannot be read".to_owned());
    };
    Glibc::among(modules).set_hook(modules, &mut pages)
}

/// Returns true if a module's code differs from its file, or may differ. A private mapping of a file has its own copy
/// of a page only if something has written to it: a debugger, a uprobe, or a library that puts jumps into functions.
pub fn has_changed_code(pid: i32, maps: &[Mapping], module: &ModuleImage) -> bool {
    const PAGE_BYTES: u64 = 4096;
    /// Flags of a page that is in memory or swapped out, and of a page that belongs to a file
    /// (Documentation/admin-guide/mm/pagemap.rst).
    const POPULATED: u64 = 0b11 << 62;
    const OF_FILE: u64 = 1 << 61;
    let Ok(pagemap) = open_pagemap(pid) else {
        return true;
    };
    let is_as_in_file = |mapping: &Mapping, page: u64| {
        let mut bytes = [0; PAGE_BYTES as usize];
        let offset = usize::try_from(mapping.offset + (page - mapping.start));
        let in_file = offset.map(|offset| module.bytes.at(offset, bytes.len()));
        let read = read_memory(pid, RemoteAddress(page), &mut bytes);
        let in_file = in_file.ok().flatten().filter(|_| mapping.file_id.2 != 0);
        read.is_ok()
            && in_file.is_some_and(|in_file| bytes.starts_with(&in_file) && !in_file.is_empty())
    };
    let mut code = maps.iter().filter(|m| m.exec && module.contains(m.start));
    code.any(|mapping| {
        let pages = (mapping.end - mapping.start) / PAGE_BYTES;
        let mut words = vec![0; pages as usize * 8];
        let at = mapping.start / PAGE_BYTES * 8;
        if pagemap.read_exact_at(&mut words, at).is_err() {
            return true;
        }
        let pages = (mapping.start..).step_by(PAGE_BYTES as usize);
        pages.zip(words.as_chunks::<8>().0).any(|(page, word)| {
            let word = u64::from_le_bytes(*word);
            word & POPULATED != 0 && word & OF_FILE == 0 && !is_as_in_file(mapping, page)
        })
    })
}
