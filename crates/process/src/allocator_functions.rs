//! The functions of allocators that are part of a module, by its symbols.
//!
//! Calls of them from inside of a static program go through no slot. So this does not say what can be traced,
//! but where the functions are.

use goblin::elf::{Elf, sym};
use memhook_abi::{allocator_function, function_by_name};
use std::collections::BTreeMap;

/// One function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatorFunction {
    /// Its symbol.
    pub name: String,
    /// Whose it is, if that is known.
    pub allocator: Option<&'static str>,
    /// Its address (svma).
    pub svma: u64,
    /// Its size in bytes; 0 if the symbol does not state it.
    pub size: u64,
}

/// What Rust's compiler calls for every allocation: the plain names until Rust 1.86, and since then in the crate
/// `__rustc` (compiler/rustc_symbol_mangling/src/v0.rs).
const RUST: [&str; 4] = [
    "__rust_alloc",
    "__rust_dealloc",
    "__rust_realloc",
    "__rust_alloc_zeroed",
];

/// Symbols that tell which C library a module is, or has in it. musl exports the last one for its loader.
const C_LIBRARIES: [(&str, &str); 4] = [
    ("_int_malloc", "glibc"),
    ("gnu_get_libc_version", "glibc"),
    ("__libc_malloc_impl", "musl"),
    ("_dl_debug_addr", "musl"),
];

/// Finds them in a file; of several names for one function, the plainest. Without a symbol table nothing is found but
/// what the module exports.
pub fn allocator_functions(bytes: &[u8]) -> Vec<AllocatorFunction> {
    let Ok(elf) = Elf::parse(bytes) else {
        return Vec::new();
    };
    let named = || {
        let own = elf.syms.iter().map(|s| (s, elf.strtab.get_at(s.st_name)));
        let exported = elf
            .dynsyms
            .iter()
            .map(|s| (s, elf.dynstrtab.get_at(s.st_name)));
        own.chain(exported)
            .filter(|(s, _)| s.st_shndx != 0 && s.st_value != 0 && is_code(s))
            .filter_map(|(s, name)| Some((s, name?)))
    };
    let has = |mark: &str| named().any(|(_, name)| name == mark);
    let of_plain = memhook_abi::known_allocator(has).or_else(|| {
        C_LIBRARIES
            .iter()
            .find(|(mark, _)| has(mark))
            .map(|(_, name)| *name)
    });
    let mut found: BTreeMap<u64, AllocatorFunction> = BTreeMap::new();
    for (symbol, name) in named() {
        let Some(allocator) = owner(name, of_plain) else {
            continue;
        };
        let function = AllocatorFunction {
            name: name.to_owned(),
            allocator,
            svma: symbol.st_value,
            size: symbol.st_size,
        };
        let plainness = |name: &str| (name.starts_with('_'), name.len());
        found
            .entry(symbol.st_value)
            .and_modify(|known| {
                if plainness(name) < plainness(&known.name) {
                    *known = function.clone();
                }
            })
            .or_insert(function);
    }
    found.into_values().collect()
}

fn is_code(symbol: &sym::Sym) -> bool {
    matches!(symbol.st_type(), sym::STT_FUNC | sym::STT_GNU_IFUNC)
}

/// Whose function this is, if it is an allocator's at all.
fn owner(name: &str, of_plain: Option<&'static str>) -> Option<Option<&'static str>> {
    if is_rusts(name) {
        return Some(Some("Rust"));
    }
    if let Some(allocator) = allocator_function(name) {
        return Some(allocator.map(|a| a.name).or(of_plain));
    }
    let is_operator = name.starts_with("_Zn") || name.starts_with("_Zd");
    (is_operator && function_by_name(name).is_some()).then_some(Some("C++"))
}

fn is_rusts(name: &str) -> bool {
    let is_mangled = |function: &&str| {
        let tail = format!("7___rustc{}_{function}", function.len());
        name.starts_with("_R") && name.ends_with(&tail)
    };
    RUST.contains(&name) || RUST.iter().any(is_mangled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_whose_a_function_is() {
        let glibc = Some("glibc");
        assert_eq!(owner("malloc", glibc), Some(glibc));
        assert_eq!(owner("_rjem_malloc", glibc), Some(Some("jemalloc")));
        assert_eq!(owner("mi_calloc", None), Some(Some("mimalloc")));
        assert_eq!(owner("_Znwm", None), Some(Some("C++")));
        assert_eq!(owner("__rust_dealloc", None), Some(Some("Rust")));
        let mangled = "_RNvCsdBezzDwma51_7___rustc12___rust_alloc";
        assert_eq!(owner(mangled, None), Some(Some("Rust")));
        assert_eq!(owner("malloc_trim", None), None);
        assert_eq!(owner("dlopen", None), None);
        assert_eq!(owner("_ZNSt6vectorIiE4dataEv", None), None);
    }

    /// This test program is static, and Rust's.
    #[test]
    fn a_static_program_has_its_allocator_inside() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let found = allocator_functions(&bytes);
        let of = |name: &str| found.iter().find(|f| f.name == name);
        for name in ["malloc", "free", "calloc", "realloc"] {
            let function = of(name).unwrap_or_else(|| panic!("{name}: {found:?}"));
            assert_eq!(function.allocator, Some("glibc"), "{function:?}");
            assert!(function.size > 0);
        }
        let of_rust = found.iter().filter(|f| f.allocator == Some("Rust"));
        assert!(of_rust.count() >= 3, "{found:?}");
    }

    #[test]
    fn a_library_exports_what_it_has() {
        let bytes = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6").unwrap();
        let found = allocator_functions(&bytes);
        let malloc = found.iter().find(|f| f.name == "malloc").unwrap();
        assert_eq!(malloc.allocator, Some("glibc"));
        assert!(allocator_functions(b"no ELF file").is_empty());
    }
}
