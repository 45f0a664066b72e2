//! Code of a module's file, in the form that the planner needs.

use memhook_process::ModuleImage;
use memhook_unwind::{CodeRange, Sections, code_ranges};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{LittleEndian, Object, ObjectSection, RelocationFlags};
use std::borrow::Cow;
use std::ops::Range;

/// Parts of a module with their addresses (svma), and the call frame information of its code.
pub(super) struct ModuleCode<'a> {
    pub text: Vec<(u64, &'a [u8])>,
    /// All loaded parts: tables may be in any of them.
    pub loaded: Vec<(u64, &'a [u8])>,
    /// By address.
    pub ranges: Vec<CodeRange>,
    /// Addresses of code that the data contains.
    pub pointers: Vec<u64>,
    /// True if the module contains Go code, which may be interrupted at any point and continue on a different stack.
    pub has_go: bool,
}

/// Returns all bytes of a module's file.
pub(super) fn file_of(module: &ModuleImage) -> Cow<'_, [u8]> {
    module.bytes.whole()
}

impl<'a> ModuleCode<'a> {
    /// Reads the code of a whole file; `None` if the file is invalid.
    pub fn of(file: &'a [u8]) -> Option<ModuleCode<'a>> {
        let elf = ElfFile64::<LittleEndian>::parse(file).ok()?;
        let endian = LittleEndian;
        let (mut text, mut loaded, mut data) = (Vec::new(), Vec::new(), Vec::new());
        for header in elf.elf_program_headers() {
            if header.p_type(endian) != object::elf::PT_LOAD {
                continue;
            }
            let piece = (header.p_vaddr(endian), header.data(endian, file).ok()?);
            loaded.push(piece);
            let flags = header.p_flags(endian);
            if flags.contains(object::elf::PF_X) {
                text.push(piece);
            } else if flags.contains(object::elf::PF_W) {
                data.push(piece);
            }
        }
        let is_code = |address: u64| {
            let ends = |&(start, bytes): &(u64, &[u8])| start..start + bytes.len() as u64;
            text.iter()
                .map(ends)
                .any(|range: Range<u64>| range.contains(&address))
        };
        let words = data.iter().flat_map(|(_, bytes)| bytes.as_chunks::<8>().0);
        let mut pointers: Vec<u64> = words.map(|word| u64::from_le_bytes(*word)).collect();
        for (_, relocation) in elf.dynamic_relocations().into_iter().flatten() {
            if let RelocationFlags::Elf { .. } = relocation.flags() {
                pointers.push(relocation.addend() as u64);
            }
        }
        pointers.retain(|&address| is_code(address));
        pointers.sort_unstable();
        pointers.dedup();
        let ranges = Sections::of(file).map(|sections| code_ranges(&sections));
        Some(ModuleCode {
            ranges: ranges.unwrap_or_default(),
            pointers,
            has_go: elf.sections().any(|s| s.name() == Ok(".gopclntab")),
            text,
            loaded,
        })
    }

    /// Returns the call frame information at an address.
    pub fn range_at(&self, svma: u64) -> Option<&CodeRange> {
        let behind = self.ranges.partition_point(|r| r.range.start <= svma);
        self.ranges[..behind]
            .last()
            .filter(|r| r.range.contains(&svma))
    }
}
