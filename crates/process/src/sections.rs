//! Single sections of a module's file, read on demand.

use crate::ModuleBytes;
use goblin::container::Ctx;
use goblin::elf::section_header::{SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE, SHT_PROGBITS};
use goblin::elf::{Elf, SectionHeader};
use std::borrow::Cow;
use std::ffi::CStr;

/// Read-only sections that contain no strings: unwind and exception tables.
const TABLES: [&[u8]; 3] = [b".eh_frame", b".eh_frame_hdr", b".gcc_except_table"];

impl ModuleBytes {
    /// Returns the contents of the section of this name.
    pub fn section(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let sections = self.sections()?;
        let mut named = sections.iter();
        let (section, _) = named.find(|(_, found)| *found == name.as_bytes())?;
        self.contents(section)
    }

    /// Returns the read-only sections that may contain strings; `None` if the file has no section table.
    pub fn constants(&self) -> Option<Vec<Cow<'_, [u8]>>> {
        let kind = u64::from(SHF_ALLOC | SHF_EXECINSTR | SHF_WRITE);
        let is_constant = |(section, name): &&(SectionHeader, &[u8])| {
            let is_read_only = section.sh_flags & kind == u64::from(SHF_ALLOC);
            is_read_only && section.sh_type == SHT_PROGBITS && !TABLES.contains(name)
        };
        let sections = self.sections()?;
        let constants = sections.iter().filter(is_constant);
        constants
            .map(|(section, _)| self.contents(section))
            .collect()
    }

    fn contents(&self, section: &SectionHeader) -> Option<Cow<'_, [u8]>> {
        let place = section.file_range()?;
        self.at(place.start, place.len())
    }

    /// Returns the section table, with names.
    fn sections(&self) -> Option<Vec<(SectionHeader, &[u8])>> {
        let header = Elf::parse_header(self).ok()?;
        let at = usize::try_from(header.e_shoff).ok().filter(|&at| at > 0)?;
        let context = Ctx::new(header.container().ok()?, header.endianness().ok()?);
        let table = SectionHeader::parse(self, at, usize::from(header.e_shnum), context).ok()?;
        let names = table.get(usize::from(header.e_shstrndx))?.file_range()?;
        let names = self.get(names)?;
        let name = |section: &SectionHeader| {
            let text = names.get(section.sh_name..)?;
            Some(CStr::from_bytes_until_nul(text).ok()?.to_bytes())
        };
        let named = table
            .iter()
            .map(|s| (s.clone(), name(s).unwrap_or_default()));
        Some(named.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_of_the_c_library() {
        let bytes = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6").unwrap();
        let banner = b"GNU C Library";
        let holds = |bytes: &[u8]| memchr::memmem::find(bytes, banner).is_some();
        let file = ModuleBytes::from(bytes.clone());
        assert!(holds(&file.section(".rodata").unwrap()));
        assert!(file.section(".no_such").is_none());
        let constants = file.constants().unwrap();
        assert!(constants.iter().any(|section| holds(section)));
        let size = |sections: &[Cow<[u8]>]| sections.iter().map(|s| s.len()).sum::<usize>();
        assert!(size(&constants) < bytes.len() / 2);
        // Without a section table.
        let mut stripped = bytes;
        stripped[0x28..0x30].fill(0);
        assert!(ModuleBytes::from(stripped).constants().is_none());
        assert!(
            ModuleBytes::from(b"no ELF file".to_vec())
                .section(".rodata")
                .is_none()
        );
    }
}
