//! Functions of allocators that are part of a module, found by its symbols.
//!
//! Calls of these functions from inside the module go through no slot. This module finds the functions, but does not
//! decide how to trace them.

use crate::ModuleImage;
use goblin::elf::section_header::SHT_SYMTAB;
use goblin::elf::{Elf, sym};
use memhook_abi::{AllocatorNames, function_by_name};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A function of an allocator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatorFunction {
    /// Symbol of the function.
    pub name: String,
    /// Allocator of the function, if known.
    pub allocator: Option<&'static str>,
    /// Address of the function (svma).
    pub svma: u64,
    /// Size in bytes; 0 if the symbol does not state it.
    pub size: u64,
    /// Id of the hooked function that it implements, ignoring its allocator's prefix. `None` for the functions of
    /// Rust's compiler, which call another allocator.
    pub hooked: Option<usize>,
}

/// Functions that Rust's compiler calls for every allocation: plain names until Rust 1.86, and in the crate `__rustc`
/// since then (compiler/rustc_symbol_mangling/src/v0.rs).
const RUST: [&str; 4] = [
    "__rust_alloc",
    "__rust_dealloc",
    "__rust_realloc",
    "__rust_alloc_zeroed",
];

/// Symbols that identify the C library that a module is or contains. musl exports the last symbol for its loader.
const C_LIBRARIES: [(&str, &str); 4] = [
    ("_int_malloc", "glibc"),
    ("gnu_get_libc_version", "glibc"),
    ("__libc_malloc_impl", "musl"),
    ("_dl_debug_addr", "musl"),
];

/// Symbol of a function.
#[derive(Clone, Copy)]
struct Named<'a> {
    name: &'a str,
    svma: u64,
    size: u64,
}

/// Finds the functions in a file. If a function has several names, the plainest one is used. Without a symbol table,
/// only exported functions are found.
pub fn allocator_functions(bytes: &[u8]) -> Vec<AllocatorFunction> {
    let Ok(elf) = Elf::parse(bytes) else {
        return Vec::new();
    };
    let own = elf.syms.iter().map(|s| (s, elf.strtab.get_at(s.st_name)));
    let exported = elf
        .dynsyms
        .iter()
        .map(|s| (s, elf.dynstrtab.get_at(s.st_name)));
    let named = own
        .chain(exported)
        .filter(|(s, _)| s.st_shndx != 0 && s.st_value != 0 && is_code(s))
        .filter_map(|(s, name)| {
            Some(Named {
                name: name?,
                svma: s.st_value,
                size: s.st_size,
            })
        });
    among(&named.collect::<Vec<_>>())
}

/// Returns the functions of a loaded module that may be called without a slot of another module: all functions of an
/// executable, and those that a library does not export. Reads only the symbol table, and only if it contains names of
/// such functions.
pub fn own_allocator_functions(module: &ModuleImage) -> Vec<AllocatorFunction> {
    let table = SymbolTable::read(&|offset, most| module.bytes.at(offset, most));
    let mut found = table.map_or_else(Vec::new, |table| table.allocator_functions());
    if !module.is_main {
        found.retain(|function| module.facts.exported(&function.name).is_none());
    }
    found
}

/// Symbol table of a file, which `strip` removes.
struct SymbolTable<'a> {
    symbols: Cow<'a, [u8]>,
    names: Cow<'a, [u8]>,
}

/// Upper bound for the symbols of any program.
const MOST_SYMBOL_BYTES: usize = 512 << 20;

/// Returns true if a program contains the functions of an allocator, like a static program that has not been stripped.
pub(crate) fn has_own_allocator(file: &File) -> bool {
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    let read = |offset: usize, most: usize| {
        let bytes = size.saturating_sub(offset as u64).min(most as u64);
        let mut part = vec![0; bytes as usize];
        file.read_exact_at(&mut part, offset as u64).ok()?;
        Some(Cow::Owned(part))
    };
    let functions = SymbolTable::read(&read).map(|table| table.allocator_functions());
    let allocates = |f: &AllocatorFunction| f.hooked.is_some();
    functions.is_some_and(|functions| functions.iter().any(allocates))
}

/// Reads at most the given number of bytes at an offset of a file.
type ReadPart<'a> = dyn Fn(usize, usize) -> Option<Cow<'a, [u8]>> + 'a;

impl<'a> SymbolTable<'a> {
    fn read(part: &ReadPart<'a>) -> Option<SymbolTable<'a>> {
        // Elf64_Ehdr: e_shoff at 40, e_shentsize at 58, e_shnum at 60; Elf64_Shdr: sh_type at 4, sh_offset at 24,
        // sh_size at 32, sh_link at 40.
        let head = part(0, 64)?;
        let word = |part: &[u8], at: usize| {
            let word = part.get(at..)?.first_chunk()?;
            usize::try_from(u64::from_le_bytes(*word)).ok()
        };
        let half = |at: usize| Some(u16::from_le_bytes(*head.get(at..)?.first_chunk()?));
        let (start, each, count) = (word(&head, 40)?, half(58)?.into(), half(60)?.into());
        if each < 64 {
            return None;
        }
        let sections = part(start, each * count)?;
        let section = |n: usize| sections.get(n * each..)?.get(..each);
        let content = |section: &[u8]| {
            let (offset, size) = (word(section, 24)?, word(section, 32)?);
            let content = part(offset, Some(size).filter(|s| *s <= MOST_SYMBOL_BYTES)?)?;
            (content.len() == size).then_some(content)
        };
        let is_table = |s: &&[u8]| s.get(4..8) == Some(&SHT_SYMTAB.to_le_bytes()[..]);
        let table = (0..count).filter_map(section).find(is_table)?;
        let link = u32::from_le_bytes(*table.get(40..)?.first_chunk()?) as usize;
        Some(SymbolTable {
            symbols: content(table)?,
            names: content(section(link)?)?,
        })
    }

    fn allocator_functions(&self) -> Vec<AllocatorFunction> {
        // Nearly all programs contain no allocator, and these names show that immediately.
        let mut marks = [b"malloc\0".as_slice(), b"_Znwm\0", b"mallocx\0"].into_iter();
        if marks.any(|name| memchr::memmem::find(&self.names, name).is_some()) {
            among(&self.functions())
        } else {
            Vec::new()
        }
    }

    /// Elf64_Sym: st_name at 0, st_info at 4, st_shndx at 6, st_value at 8, st_size at 16.
    fn functions(&self) -> Vec<Named<'_>> {
        let (symbols, _) = self.symbols.as_chunks::<24>();
        let named = symbols.iter().filter_map(|symbol| {
            let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| symbol[at + n]));
            let is_defined = symbol[6..8] != [0, 0] && word(8) != 0;
            if !is_defined || symbol[4] & 0xf != sym::STT_FUNC {
                return None;
            }
            let at = word(0) as u32 as usize;
            let rest = self.names.get(at..)?;
            let end = memchr::memchr(0, rest)?;
            Some(Named {
                name: std::str::from_utf8(&rest[..end]).ok()?,
                svma: word(8),
                size: word(16),
            })
        });
        named.collect()
    }
}

fn among(named: &[Named<'_>]) -> Vec<AllocatorFunction> {
    let names = AllocatorNames::among(named.iter().map(|symbol| symbol.name));
    let has = |mark: &str| named.iter().any(|symbol| symbol.name == mark);
    let of_plain = memhook_abi::known_allocator(has).or_else(|| {
        C_LIBRARIES
            .iter()
            .find(|(mark, _)| has(mark))
            .map(|(_, name)| *name)
    });
    let mut found: BTreeMap<u64, AllocatorFunction> = BTreeMap::new();
    for symbol in named {
        let Some((allocator, hooked)) = owner(symbol.name, of_plain, &names) else {
            continue;
        };
        let function = AllocatorFunction {
            name: symbol.name.to_owned(),
            allocator,
            svma: symbol.svma,
            size: symbol.size,
            hooked,
        };
        let plainness = |name: &str| (name.starts_with('_'), name.len());
        found
            .entry(symbol.svma)
            .and_modify(|known| {
                if plainness(symbol.name) < plainness(&known.name) {
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

/// Returns the allocator that a function belongs to, if any, and the hooked function that it implements.
fn owner(
    name: &str,
    of_plain: Option<&'static str>,
    names: &AllocatorNames,
) -> Option<(Option<&'static str>, Option<usize>)> {
    if is_rusts(name) {
        return Some((Some("Rust"), None));
    }
    if let Some(allocator) = names.allocator(name) {
        let whose = allocator.map(|a| a.name).or(of_plain);
        return Some((whose, names.function(name)));
    }
    let is_operator = name.starts_with("_Zn") || name.starts_with("_Zd");
    let function = function_by_name(name).filter(|_| is_operator)?;
    Some((Some("C++"), Some(function)))
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
        let owner =
            |name, of_plain| super::owner(name, of_plain, &AllocatorNames::default()).map(|o| o.0);
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

    /// This test program is static, and written in Rust.
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
