//! The parts of an ELF file that are needed for tracing: dynamic symbols, and the relocations that create GOT slots.

use crate::arch::native::relocations;
use crate::load_segments::{LoadSegment, LoadSegments};
use goblin::container::Ctx;
use goblin::elf::{Elf, ProgramHeader, dynamic, program_header, sym};
use memhook_abi::{ACCESS_LISTENER, MARK_LISTENER};
use std::collections::HashMap;
use std::ops::Range;

/// Name of the ELF notes that give the addresses of the pointers that a program provides for memhook-rs: see
/// `hook-cxx/access_runtime.cc` and `memhook_mark.h`.
const LISTENER_NOTE_NAME: &str = "memhook";
const LISTENERS: [(u32, &str); 2] = [(1, ACCESS_LISTENER), (2, MARK_LISTENER)];

/// Origin of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotKind {
    /// JUMP_SLOT: a PLT slot, bound at load time or lazily.
    JumpSlot,
    /// GLOB_DAT: a GOT entry for an address or a call without PLT.
    GlobDat,
    /// A word with an address: a function pointer in data.
    Data64,
}

/// A relocation against a symbol.
#[derive(Clone, Debug)]
pub struct Relocation {
    /// Address of the slot (svma).
    pub svma: u64,
    /// Name of the symbol.
    pub symbol: String,
    /// Origin of the slot.
    pub kind: SlotKind,
}

/// A defined dynamic symbol.
#[derive(Clone, Copy, Debug)]
pub struct Exported {
    /// Address (svma).
    pub svma: u64,
    /// Size in bytes; 0 if not stated.
    pub size: u64,
    /// True if the address is the address of a resolver (STT_GNU_IFUNC).
    pub is_ifunc: bool,
}

/// An ELF file, parsed from its bytes.
pub struct ElfView<'a> {
    elf: Elf<'a>,
    bytes: &'a [u8],
}

impl<'a> ElfView<'a> {
    /// Parses a 64-bit x86-64 file; the error names the actual kind of file.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        let elf = Elf::parse(bytes).map_err(|e| e.to_string())?;
        if !elf.is_64 {
            return Err("a 32-bit program".into());
        }
        if elf.header.e_machine != relocations::MACHINE {
            return Err(format!(
                "a program for another architecture ({})",
                goblin::elf::header::machine_to_str(elf.header.e_machine)
            ));
        }
        Ok(ElfView { elf, bytes })
    }

    /// Returns the lowest page-aligned address of a PT_LOAD (svma), which corresponds to offset 0 of the file.
    pub fn lowest_load(&self) -> u64 {
        self.load_segments().lowest()
    }

    pub(crate) fn load_segments(&self) -> LoadSegments {
        LoadSegments(self.loads().map(LoadSegment::of).collect())
    }

    fn loads(&self) -> impl Iterator<Item = &program_header::ProgramHeader> {
        self.elf
            .program_headers
            .iter()
            .filter(|p| p.p_type == program_header::PT_LOAD)
    }

    /// Returns the GNU build-id.
    pub fn build_id(&self) -> Option<Vec<u8>> {
        self.elf
            .iter_note_headers(self.bytes)?
            .flatten()
            .find(|n| n.n_type == goblin::elf::note::NT_GNU_BUILD_ID && n.name == "GNU")
            .map(|n| n.desc.to_vec())
    }

    /// Returns the addresses (svma) of the module's pointers to listeners, if any, which belong to the access runtime
    /// and to marks. A note for each pointer contains its distance from the note's own contents.
    pub fn listeners(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let found = |(kind, name)| self.listener(kind).map(|svma| (name, svma));
        LISTENERS.into_iter().filter_map(found)
    }

    fn listener(&self, kind: u32) -> Option<u64> {
        let note = self
            .elf
            .iter_note_headers(self.bytes)?
            .flatten()
            .find(|n| n.n_type == kind && n.name == LISTENER_NOTE_NAME)?;
        let distance = i64::from_le_bytes(note.desc.get(..8)?.try_into().ok()?);
        let offset =
            (note.desc.as_ptr() as usize).checked_sub(self.bytes.as_ptr() as usize)? as u64;
        let holds = |p: &&ProgramHeader| {
            (p.p_offset..p.p_offset.saturating_add(p.p_filesz)).contains(&offset)
        };
        let load = self.loads().find(holds)?;
        let contents = (offset - load.p_offset).checked_add(load.p_vaddr)?;
        let listener = contents.checked_add_signed(distance)?;
        // An 8-byte exchange must be atomic.
        listener.is_multiple_of(8).then_some(listener)
    }

    /// Returns the dynamic string table, starting at an index. It is read from the file, because goblin's table
    /// searches for the string of each index, and there are thousands of symbols.
    fn text_at(&self, index: usize) -> &'a [u8] {
        let table = self.elf.dynamic.as_ref().map(|d| d.info.strtab);
        let at = table.and_then(|table| table.checked_add(index));
        at.and_then(|at| self.bytes.get(at..)).unwrap_or_default()
    }

    /// Returns a function that other modules can bind to. A hidden version (`name@VERSION`) counts only if there is no
    /// other.
    pub fn exported(&self, name: &str) -> Option<Exported> {
        self.exported_of([name].into_iter()).remove(name)
    }

    /// Like [`ElfView::exported`], for many names in one pass.
    pub fn exported_of<'n>(
        &self,
        names: impl Iterator<Item = &'n str>,
    ) -> HashMap<&'n str, Exported> {
        let names: HashMap<&[u8], &str> = names.map(|n| (n.as_bytes(), n)).collect();
        let most = names.keys().map(|name| name.len()).max().unwrap_or(0);
        let mut found: HashMap<&str, (Exported, bool)> = HashMap::new();
        for (i, symbol) in self.functions() {
            let text = self.text_at(symbol.st_name);
            let text = &text[..text.len().min(most + 1)];
            let Some(&name) = memchr::memchr(0, text).and_then(|end| names.get(&text[..end]))
            else {
                continue;
            };
            let this = self.as_exported(i, &symbol);
            let known = found.entry(name).or_insert(this);
            if known.1 {
                *known = this;
            }
        }
        found
            .into_iter()
            .map(|(name, known)| (name, known.0))
            .collect()
    }

    /// Returns the variables with these names that other modules can bind to, in one pass over the symbols.
    pub fn variables<'n>(&self, names: &[&'n str]) -> HashMap<&'n str, Exported> {
        let variables = self.elf.dynsyms.iter().enumerate().filter(|(_, symbol)| {
            symbol.st_type() == sym::STT_OBJECT && symbol.st_shndx != 0 && symbol.st_value != 0
        });
        let named = variables.filter_map(|(i, symbol)| {
            let text = self.text_at(symbol.st_name);
            let is_this = |name: &&&str| {
                text.get(name.len()) == Some(&0) && text.starts_with(name.as_bytes())
            };
            let name = names.iter().find(is_this)?;
            Some((*name, self.as_exported(i, &symbol).0))
        });
        named.collect()
    }

    /// Returns the defined dynamic functions with their indices.
    fn functions(&self) -> impl Iterator<Item = (usize, sym::Sym)> {
        self.elf.dynsyms.iter().enumerate().filter(|(_, symbol)| {
            let is_function = matches!(symbol.st_type(), sym::STT_FUNC | sym::STT_GNU_IFUNC);
            symbol.st_shndx != 0 && symbol.st_value != 0 && is_function
        })
    }

    /// Returns a symbol, and true if only references with its version bind to it.
    fn as_exported(&self, index: usize, symbol: &sym::Sym) -> (Exported, bool) {
        let versions = self.elf.versym.as_ref();
        let version = versions.and_then(|versions| versions.get_at(index));
        let exported = Exported {
            svma: symbol.st_value,
            size: symbol.st_size,
            is_ifunc: symbol.st_type() == sym::STT_GNU_IFUNC,
        };
        (exported, version.is_some_and(|version| version.is_hidden()))
    }

    /// Returns the relocations that create a slot for a symbol that `wanted` accepts.
    pub fn slots(&self, wanted: &dyn Fn(&str) -> bool) -> Vec<Relocation> {
        let tables = [&self.elf.dynrelas, &self.elf.pltrelocs];
        let mut found: Vec<Relocation> = tables
            .iter()
            .flat_map(|table| table.iter())
            .filter_map(|r| {
                let kind = relocations::slot_kind(&r)?;
                if !r.r_offset.is_multiple_of(8) {
                    return None; // an 8-byte exchange must be atomic
                }
                let symbol = self.elf.dynsyms.get(r.r_sym)?;
                let name = self.elf.dynstrtab.get_at(symbol.st_name)?;
                wanted(name).then(|| Relocation {
                    svma: r.r_offset,
                    symbol: name.to_owned(),
                    kind,
                })
            })
            .collect();
        found.sort_by_key(|r| r.svma);
        found.dedup_by_key(|r| r.svma);
        found
    }

    /// Returns words that the loader fills with the result of a resolver when it loads the module, as pairs of resolver
    /// and word (svma). Only resolvers that `wanted` accepts are included.
    pub fn resolved_words(&self, wanted: &dyn Fn(u64) -> bool) -> Vec<(u64, u64)> {
        let tables = [&self.elf.dynrelas, &self.elf.pltrelocs];
        let all = tables.iter().flat_map(|table| table.iter());
        all.filter_map(|r| Some((relocations::resolver(&r)?, r.r_offset)))
            .filter(|(resolver, _)| wanted(*resolver))
            .collect()
    }

    /// Returns PLT entries (svma) that serve as the addresses of functions of other modules. In a program at fixed
    /// addresses, the linker gives the undefined symbol the address of its PLT entry as value (psABI, "Function
    /// Addresses").
    pub fn canonical_plt(&self, wanted: &dyn Fn(&str) -> bool) -> Vec<u64> {
        let is_canonical = |s: &sym::Sym| {
            let is_undefined = s.st_shndx == 0 && s.st_value != 0 && s.st_type() == sym::STT_FUNC;
            is_undefined && self.elf.dynstrtab.get_at(s.st_name).is_some_and(wanted)
        };
        self.elf
            .dynsyms
            .iter()
            .filter(is_canonical)
            .map(|s| s.st_value)
            .collect()
    }

    /// Returns true if references within the module bind to its own symbols (`-Bsymbolic`).
    pub fn is_symbolic(&self) -> bool {
        self.elf.dynamic.as_ref().is_some_and(|d| {
            d.info.flags & dynamic::DF_SYMBOLIC != 0
                || d.dyns.iter().any(|e| e.d_tag == dynamic::DT_SYMBOLIC)
        })
    }

    /// Returns the name by which other modules depend on this module (DT_SONAME).
    pub fn soname(&self) -> Option<&'a str> {
        self.elf.soname
    }

    /// Returns the names of the libraries that the module depends on (DT_NEEDED).
    pub fn needed(&self) -> &[&'a str] {
        &self.elf.libraries
    }

    /// Returns the range (svma) that the loader makes read-only after relocation, cut to whole pages
    /// (`_dl_protect_relro` in glibc's elf/dl-reloc.c).
    pub fn relro(&self) -> Option<Range<u64>> {
        let is_relro =
            |p: &&program_header::ProgramHeader| p.p_type == program_header::PT_GNU_RELRO;
        let relro = self.elf.program_headers.iter().rfind(is_relro)?;
        let end = relro.p_vaddr.saturating_add(relro.p_memsz) & !0xfff;
        Some(relro.p_vaddr & !0xfff..end)
    }

    /// Returns true if a section with this name exists and its contents are in this file.
    pub fn has_section(&self, name: &str) -> bool {
        self.elf.section_headers.iter().any(|s| {
            s.sh_type != goblin::elf::section_header::SHT_NOBITS
                && self.elf.shdr_strtab.get_at(s.sh_name) == Some(name)
        })
    }

    /// Returns the executable segments, as svma and bytes.
    pub fn code(&self) -> impl Iterator<Item = (u64, &'a [u8])> {
        self.loads().filter(|p| p.is_executable()).map(|p| {
            let start = p.p_offset as usize;
            let end = start.saturating_add(p.p_filesz as usize);
            (p.p_vaddr, self.bytes.get(start..end).unwrap_or(&[]))
        })
    }
}

/// Returns the executable segments of an ELF file: their addresses (svma), and the offset of the first segment in the
/// file. Examines nothing else, so it also works on files that [`ElfView`] refuses.
pub fn code_places(bytes: &[u8]) -> Vec<(Range<u64>, u64)> {
    let headers = || {
        let header = Elf::parse_header(bytes).ok()?;
        let at = usize::try_from(header.e_phoff).ok()?;
        let count = usize::from(header.e_phnum);
        let context = Ctx::new(header.container().ok()?, header.endianness().ok()?);
        ProgramHeader::parse(bytes, at, count, context).ok()
    };
    let is_code = |p: &ProgramHeader| p.p_type == program_header::PT_LOAD && p.is_executable();
    let code = headers().unwrap_or_default().into_iter().filter(is_code);
    code.map(|p| (p.p_vaddr..p.p_vaddr.saturating_add(p.p_filesz), p.p_offset))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn libc() -> Vec<u8> {
        std::fs::read("/lib/x86_64-linux-gnu/libc.so.6").unwrap()
    }

    #[test]
    fn libc_exports_and_calls_malloc() {
        let bytes = libc();
        let elf = ElfView::parse(&bytes).unwrap();
        assert!(
            elf.exported("malloc")
                .is_some_and(|e| !e.is_ifunc && e.size > 0)
        );
        assert!(elf.exported("no_such_function").is_none());
        assert!(
            elf.slots(&|n| n == "malloc")
                .iter()
                .any(|r| r.symbol == "malloc")
        );
        assert!(elf.build_id().is_some_and(|id| id.len() == 20));
        assert!(!code_places(&bytes).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn mutated_files_do_not_panic(at in 0usize..4096, byte: u8, cut in 1usize..200_000) {
            let mut bytes = std::fs::read("/bin/true").unwrap();
            let length = bytes.len();
            bytes[at % length] = byte;
            bytes.truncate(cut.max(64));
            code_places(&bytes);
            if let Ok(elf) = ElfView::parse(&bytes) {
                elf.slots(&|_| true);
                elf.build_id();
                elf.exported("malloc");
                elf.lowest_load();
            }
        }
    }
}
