//! ELF module as its loader has mapped it, and as the loader itself sees it. The module's file, which may be large,
//! deleted, replaced or unreachable, is not needed.

use crate::memory::Pages;
use goblin::elf::{dynamic, program_header, sym};

/// Upper bound on the number of entries of a dynamic section, and of symbols with the same hash.
const MOST_ENTRIES: u64 = 4096;

/// Parts of a loaded module that the loader itself uses (gABI, "Dynamic Section").
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadedElf {
    /// Load bias: avma = bias + svma.
    bias: u64,
    symbols: u64,
    strings: u64,
    gnu_hash: u64,
    versions: Option<u64>,
    soname: Option<u64>,
}

/// A symbol that other modules can bind to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadedSymbol {
    pub address: u64,
    pub kind: u8,
}

impl LoadedElf {
    /// Reads a module whose ELF header is at `start` (avma).
    pub(crate) fn at_header(pages: &mut Pages, start: u64) -> Option<LoadedElf> {
        if pages.bytes(start)? != *b"\x7fELF\x02" {
            return None;
        }
        // Elf64_Ehdr: e_phoff at 32, e_phnum at 56.
        let headers = start.checked_add(pages.word(start.checked_add(32)?)?)?;
        let count = u16::from_le_bytes(pages.bytes(start.checked_add(56)?)?);
        let (mut lowest, mut section) = (None, None);
        for at in (0..u64::from(count)).map(|i| headers.wrapping_add(i * 56)) {
            // Elf64_Phdr: p_type at 0, p_vaddr at 16.
            let svma = pages.word(at.wrapping_add(16))?;
            match pages.half(at)? {
                program_header::PT_LOAD if lowest.is_none() => lowest = Some(svma & !0xfff),
                program_header::PT_DYNAMIC => section = Some(svma),
                _ => {}
            }
        }
        let bias = start.wrapping_sub(lowest?);
        LoadedElf::with_dynamic(pages, bias, bias.wrapping_add(section?))
    }

    /// Reads a module with this load bias and its dynamic section at `section` (avma).
    pub(crate) fn with_dynamic(pages: &mut Pages, bias: u64, section: u64) -> Option<LoadedElf> {
        let mut elf = LoadedElf {
            bias,
            ..LoadedElf::default()
        };
        // glibc adds the bias to the addresses in this section; other loaders do not. No module is nearly as large as
        // its bias, so a smaller value still lacks the bias.
        let place = |value: u64| {
            if value >= bias {
                value
            } else {
                bias.wrapping_add(value)
            }
        };
        let mut soname = None;
        for at in (0..MOST_ENTRIES).map(|i| section.wrapping_add(i * 16)) {
            let value = pages.word(at.wrapping_add(8))?;
            match pages.word(at)? {
                dynamic::DT_NULL => break,
                dynamic::DT_SYMTAB => elf.symbols = place(value),
                dynamic::DT_STRTAB => elf.strings = place(value),
                dynamic::DT_GNU_HASH => elf.gnu_hash = place(value),
                dynamic::DT_VERSYM => elf.versions = Some(place(value)),
                dynamic::DT_SONAME => soname = Some(value),
                _ => {}
            }
        }
        elf.soname = soname.map(|offset| elf.strings.wrapping_add(offset));
        (elf.symbols != 0 && elf.strings != 0).then_some(elf)
    }

    /// Returns true if other modules refer to this one by this name (DT_SONAME).
    pub(crate) fn is_named(&self, pages: &mut Pages, name: &str) -> bool {
        self.soname.is_some_and(|at| pages.has_string(at, name))
    }

    /// Returns a symbol that the module defines. If there are several versions, returns the default version, to which a
    /// program linked today would bind.
    pub(crate) fn symbol(&self, pages: &mut Pages, name: &str) -> Option<LoadedSymbol> {
        let mut found = None;
        for index in self.candidates(pages, name)? {
            let index = u64::from(index);
            // Elf64_Sym: st_name at 0, st_info at 4, st_shndx at 6, st_value at 8.
            let at = self.symbols.wrapping_add(index * 24);
            let name_at = self.strings.wrapping_add(pages.half(at)?.into());
            let [info, _, shndx @ ..] = pages.bytes::<4>(at.wrapping_add(4))?;
            if shndx == [0, 0] || !pages.has_string(name_at, name) {
                continue;
            }
            let symbol = LoadedSymbol {
                address: self.bias.wrapping_add(pages.word(at.wrapping_add(8))?),
                kind: info & 0xf,
            };
            // The top bit marks a version that is found only by its own name (LSB, "Symbol Version Table").
            let version = self
                .versions
                .map(|table| table.wrapping_add(index * 2))
                .and_then(|at| pages.bytes(at).map(u16::from_le_bytes));
            if version.is_none_or(|version| version & 0x8000 == 0) {
                return Some(symbol);
            }
            found = Some(symbol);
        }
        found
    }

    /// Returns the address (avma) of a function. A function chosen by a resolver (STT_GNU_IFUNC) does not count,
    /// because its symbol is the resolver.
    pub(crate) fn function(&self, pages: &mut Pages, name: &str) -> Option<u64> {
        let symbol = self.symbol(pages, name)?;
        (symbol.kind == sym::STT_FUNC).then_some(symbol.address)
    }

    /// Returns the symbols with a name's hash (see binutils' bfd/elflink.c for the format).
    fn candidates(&self, pages: &mut Pages, name: &str) -> Option<Vec<u32>> {
        let table = self.gnu_hash;
        if table == 0 {
            return None;
        }
        let mut header = |offset| pages.half(table.wrapping_add(offset));
        let (buckets, first, bloom_words) = (header(0)?, header(4)?, header(8)?);
        let hash = gnu_hash(name);
        let buckets_at = table.wrapping_add(16 + u64::from(bloom_words) * 8);
        let bucket = u64::from(hash.checked_rem(buckets)?);
        let begin = pages.half(buckets_at.wrapping_add(bucket * 4))?;
        let chains_at = buckets_at.wrapping_add(u64::from(buckets) * 4);
        let mut found = Vec::new();
        for index in (begin..).take(MOST_ENTRIES as usize) {
            let in_chains = u64::from(index.checked_sub(first)?);
            let entry = pages.half(chains_at.wrapping_add(in_chains * 4))?;
            if entry | 1 == hash | 1 {
                found.push(index);
            }
            if entry & 1 != 0 {
                break;
            }
        }
        Some(found)
    }
}

fn gnu_hash(name: &str) -> u32 {
    let step = |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte));
    name.bytes().fold(5381, step)
}
