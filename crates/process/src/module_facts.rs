//! Facts about a module that are needed for tracing. They are collected once per file: each `dlopen` of the program
//! examines all libraries again, and the program waits for the result.

use crate::load_segments::LoadSegments;
use crate::python::{EVALUATION, VARIABLES};
use crate::{ElfView, Exported, Relocation, SlotKind};
use memhook_abi::{ALLOCATORS, function_by_name, known_names};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

/// Facts about one file. Addresses are svma, so they do not depend on where the module is mapped.
#[derive(Clone, Debug, Default)]
pub struct ModuleFacts {
    /// Loaded parts of the file, with their addresses.
    pub(crate) loads: LoadSegments,
    /// GNU build-id.
    pub(crate) build_id: Option<Vec<u8>>,
    /// Name by which other modules need it.
    pub(crate) soname: Option<String>,
    /// Names of the libraries that it needs.
    pub(crate) needed: Vec<String>,
    /// Range that becomes read-only after relocation.
    pub(crate) relro: Range<u64>,
    /// True if the module binds its own symbols itself.
    pub(crate) is_symbolic: bool,
    /// Slots of hooked functions.
    pub(crate) slots: Vec<Relocation>,
    /// PLT entries that serve as the address of a hooked function.
    pub(crate) canonical_plt: Vec<u64>,
    /// Resolvers of hooked functions (STT_GNU_IFUNC), and words that contain their results (svma).
    pub(crate) resolved_words: Vec<(u64, u64)>,
    exported: HashMap<&'static str, Exported>,
    /// Variables of a CPython interpreter, if the module is one.
    pub(crate) python: HashMap<&'static str, Exported>,
    /// Hooks of glibc's allocator (malloc_hook(3)) that the module defines (svma). A non-PIC program that refers to a
    /// hook has its own copy of the variable, and glibc uses that copy (R_X86_64_COPY).
    pub(crate) malloc_hooks: Vec<u64>,
    /// Name of an allocator built into the module, set by the first search, which must read all constants.
    pub(crate) built_in_allocator: OnceLock<Option<&'static str>>,
}

/// Other functions to search for.
const ALSO: [&str; 6] = [
    EVALUATION,
    "la_version",
    "malloc_trim",
    "gnu_get_libc_version",
    "fork",
    "dl_iterate_phdr",
];

/// Function-pointer variables through which glibc's allocator made calls before 2.34.
const MALLOC_HOOKS: [&str; 6] = [
    "__malloc_hook",
    "__realloc_hook",
    "__free_hook",
    "__memalign_hook",
    "__morecore",
    "__after_morecore_hook",
];

fn is_hooked(name: &str) -> bool {
    function_by_name(name).is_some()
}

/// Returns the slots of hooked functions: slots of relocations, and the pointers to listeners.
fn slots(elf: &ElfView<'_>) -> Vec<Relocation> {
    let mut slots = elf.slots(&is_hooked);
    let listeners = elf.listeners().map(|(name, svma)| Relocation {
        svma,
        symbol: name.to_owned(),
        // The pointer holds an address from the start, like a GLOB_DAT slot.
        kind: SlotKind::GlobDat,
    });
    slots.extend(listeners);
    slots.sort_by_key(|slot| slot.svma);
    slots
}

impl ModuleFacts {
    /// Examines a file; `None` if it is not a module that can be traced.
    pub(crate) fn of(bytes: &[u8]) -> Option<ModuleFacts> {
        let elf = ElfView::parse(bytes).ok()?;
        let marks = ALLOCATORS.iter().map(|allocator| allocator.mark);
        let names = known_names().chain(marks).chain(ALSO);
        let exported = elf.exported_of(names);
        let python = if exported.contains_key(EVALUATION) {
            elf.variables(&VARIABLES)
        } else {
            HashMap::new()
        };
        let malloc_hooks = elf.variables(&MALLOC_HOOKS).into_values();
        let is_resolver = |svma: u64| exported.values().any(|e| e.is_ifunc && e.svma == svma);
        let resolved_words = if exported.values().any(|e| e.is_ifunc) {
            elf.resolved_words(&is_resolver)
        } else {
            Vec::new()
        };
        Some(ModuleFacts {
            loads: elf.load_segments(),
            build_id: elf.build_id(),
            soname: elf.soname().map(str::to_owned),
            needed: elf.needed().iter().map(|name| (*name).to_owned()).collect(),
            relro: elf.relro().unwrap_or_default(),
            is_symbolic: elf.is_symbolic(),
            slots: slots(&elf),
            canonical_plt: elf.canonical_plt(&is_hooked),
            resolved_words,
            exported,
            python,
            malloc_hooks: malloc_hooks.map(|hook| hook.svma).collect(),
            built_in_allocator: OnceLock::new(),
        })
    }

    /// Returns true if the module is linked to a library whose name `is_one` accepts.
    pub fn needs(&self, is_one: impl Fn(&str) -> bool) -> bool {
        self.needed.iter().any(|name| is_one(name))
    }

    /// Returns an exported function that other modules can bind to: a hooked function, or one of a few other functions.
    pub fn exported(&self, name: &str) -> Option<Exported> {
        self.exported.get(name).copied()
    }
}
