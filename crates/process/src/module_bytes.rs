//! Bytes of a module's file: the parts that tracing needs are read immediately, and the others on demand.
//!
//! A browser's executable can take 300 MB, of which an attach needs only a hundredth: the symbols, relocations and call
//! frame information. Reading the rest would take most of the time of an attach. Only the parts named by the section
//! table are read, and only if the dynamic section, which the loader relies on, names no others. Any other file is read
//! completely.

use goblin::container::Ctx;
use goblin::elf::{
    Elf, ProgramHeader, SectionHeader, dynamic::*, program_header::*, section_header::*,
};
use memhook_foreign::{Extent, read_exactly};
use std::{
    borrow::Cow, fs::File, ops::Deref, ops::Range, os::unix::fs::FileExt,
    os::unix::fs::MetadataExt, sync::Arc,
};

/// Size below which files are read completely: many small reads would take longer.
const SMALL_BYTES: u64 = 256 << 10;
/// Number of bytes at the start of a file that contain the program headers in nearly all files.
const START_BYTES: u64 = 4096;

/// Identity of a file, which changes with its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub bytes: u64,
    changed: (i64, i64),
}

impl Version {
    pub fn of(file: &File) -> Option<Version> {
        let metadata = file.metadata().ok()?;
        Some(Version {
            bytes: metadata.len(),
            changed: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

/// Bytes of one file. Dereferencing gives the parts that tracing needs, each at its offset; bytes that were not read
/// are zero. Relocations without a symbol are omitted.
#[derive(Debug)]
pub struct ModuleBytes {
    bytes: Arc<Vec<u8>>,
    /// File from which the other parts can be read, as long as it is unchanged.
    rest: Option<(Arc<File>, Version)>,
}

impl ModuleBytes {
    /// Reads the parts of a file that tracing needs; `None` if the file must be read completely.
    pub(crate) fn parts(file: File, version: Version) -> Option<ModuleBytes> {
        if version.bytes <= SMALL_BYTES || !Extent::of(&file).ok()?.may_hold(version.bytes) {
            return None;
        }
        let mut parts = Parts {
            file: &file,
            bytes: vec![0; usize::try_from(version.bytes).ok()?],
            read: Vec::new(),
            left: version.bytes,
        };
        parts.read_needed()?;
        Some(ModuleBytes {
            bytes: Arc::new(parts.bytes),
            rest: Some((Arc::new(file), version)),
        })
    }

    /// Returns all bytes. Bytes that have become unreadable are zero.
    pub fn whole(&self) -> Cow<'_, [u8]> {
        let read = |(file, version): &(Arc<File>, Version)| {
            let is_same = || Version::of(file) == Some(*version);
            let bytes = is_same().then(|| read_exactly(file, version.bytes))?;
            bytes.ok().filter(|_| is_same())
        };
        let whole = self.rest.as_ref().and_then(read);
        whole.map_or(Cow::Borrowed(&self.bytes), Cow::Owned)
    }

    /// Returns at most `most` bytes at an offset of the file.
    pub fn at(&self, offset: usize, most: usize) -> Option<Cow<'_, [u8]>> {
        let end = offset.checked_add(most)?.min(self.bytes.len());
        let known = self.bytes.get(offset..end)?;
        let Some((file, version)) = &self.rest else {
            return Some(Cow::Borrowed(known));
        };
        let mut read = vec![0; known.len()];
        file.read_exact_at(&mut read, offset as u64).ok()?;
        (Version::of(file) == Some(*version)).then_some(Cow::Owned(read))
    }

    /// Returns all bytes if they were read.
    pub fn in_memory(&self) -> Option<&Arc<Vec<u8>>> {
        self.rest.is_none().then_some(&self.bytes)
    }

    /// Returns the file if only parts of it were read.
    pub fn file(&self) -> Option<&Arc<File>> {
        self.rest.as_ref().map(|(file, _)| file)
    }
}

impl From<Vec<u8>> for ModuleBytes {
    fn from(bytes: Vec<u8>) -> ModuleBytes {
        ModuleBytes {
            bytes: Arc::new(bytes),
            rest: None,
        }
    }
}

impl Deref for ModuleBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A file that is being read in parts.
struct Parts<'a> {
    file: &'a File,
    bytes: Vec<u8>,
    read: Vec<Range<u64>>,
    /// Number of bytes that may still be read. It is limited because the tables of a damaged file may all name the same
    /// part of the file.
    left: u64,
}

impl Parts<'_> {
    fn has(&self, start: u64, bytes: u64) -> bool {
        let end = start.checked_add(bytes);
        let covers =
            |range: &Range<u64>| range.start <= start && end.is_some_and(|e| e <= range.end);
        bytes == 0 || self.read.iter().any(covers)
    }

    fn read(&mut self, start: u64, bytes: u64) -> Option<()> {
        if self.has(start, bytes) {
            return Some(());
        }
        let end = start.checked_add(bytes)?;
        self.left = self.left.checked_sub(bytes)?;
        let place = self.bytes.get_mut(start as usize..end as usize)?;
        self.file.read_exact_at(place, start).ok()?;
        self.read.push(start..end);
        Some(())
    }

    fn read_needed(&mut self) -> Option<()> {
        self.read(0, START_BYTES)?;
        let header = Elf::parse_header(&self.bytes).ok()?;
        let ctx = Ctx::default();
        if header.e_ident[goblin::elf::header::EI_CLASS] != goblin::elf::header::ELFCLASS64 {
            return None;
        }
        self.read(header.e_phoff, u64::from(header.e_phnum) * 56)?;
        self.read(header.e_shoff, u64::from(header.e_shnum) * 64)?;
        let (at, count) = (header.e_phoff as usize, usize::from(header.e_phnum));
        let segments = ProgramHeader::parse(&self.bytes, at, count, ctx).ok()?;
        let (at, count) = (header.e_shoff as usize, usize::from(header.e_shnum));
        let sections = SectionHeader::parse(&self.bytes, at, count, ctx).ok()?;
        let names = sections.get(usize::from(header.e_shstrndx))?;
        self.read(names.sh_offset, names.sh_size)?;
        for segment in &segments {
            match segment.p_type {
                PT_DYNAMIC | PT_NOTE | PT_INTERP | PT_GNU_EH_FRAME => {
                    self.read(segment.p_offset, segment.p_filesz)?;
                }
                _ => {}
            }
        }
        let plain = self.leave_out_plain_relocations(&segments)?;
        let mut has_frames = false;
        for (index, section) in sections.iter().enumerate() {
            let is_loaded = section.sh_flags & u64::from(SHF_ALLOC) != 0;
            let is_frames = self.is_named(names, section, b".eh_frame\0");
            has_frames |= is_frames;
            let (start, bytes) = (section.sh_offset, section.sh_size);
            match section.sh_type {
                SHT_NOBITS => {}
                _ if is_frames => self.read(start, bytes)?,
                SHT_RELA if is_loaded && plain.start == start => {
                    self.read(plain.end, bytes.checked_sub(plain.end - start)?)?;
                }
                SHT_DYNSYM | SHT_STRTAB | SHT_HASH | SHT_GNU_HASH | SHT_RELA | SHT_GNU_VERSYM
                | SHT_GNU_VERDEF | SHT_GNU_VERNEED
                    if is_loaded =>
                {
                    self.read(start, bytes)?;
                }
                // Names of functions are not needed.
                SHT_SYMTAB => {
                    let kind = (header.e_shoff as usize).checked_add(index * 64 + 4)?;
                    self.bytes.get_mut(kind..kind + 4)?.fill(0);
                }
                _ => {}
            }
        }
        has_frames.then_some(())?;
        self.has_all_of_the_loader(&segments)
    }

    fn is_named(&self, names: &SectionHeader, section: &SectionHeader, name: &[u8]) -> bool {
        let at = names.sh_offset.checked_add(section.sh_name as u64);
        let text = at.and_then(|at| self.bytes.get(at as usize..));
        text.is_some_and(|text| text.starts_with(name))
    }

    fn dynamic(&self, segments: &[ProgramHeader]) -> Option<Dynamic> {
        Dynamic::parse(&self.bytes, segments, Ctx::default()).ok()?
    }

    /// Makes the table of relocations begin after the relocations without a symbol, whose number is DT_RELACOUNT:
    /// glibc's loader processes these without reading their symbols (elf_dynamic_do_Rela in elf/do-rel.h). Returns
    /// their position in the file.
    fn leave_out_plain_relocations(&mut self, segments: &[ProgramHeader]) -> Option<Range<u64>> {
        let info = self.dynamic(segments)?.info;
        let skipped = (info.relacount as u64).checked_mul(24)?;
        let rest = (info.relasz as u64).checked_sub(skipped)?;
        let section = segments.iter().find(|s| s.p_type == PT_DYNAMIC)?;
        let (start, bytes) = (section.p_offset as usize, section.p_filesz as usize);
        let entries = self.bytes.get_mut(start..start.checked_add(bytes)?)?;
        for entry in entries.as_chunks_mut::<16>().0 {
            let (tag, value) = entry.split_at_mut(8);
            let old = u64::from_le_bytes(value.try_into().ok()?);
            let new = match u64::from_le_bytes(tag.try_into().ok()?) {
                DT_NULL => break,
                DT_RELA => old.checked_add(skipped)?,
                DT_RELASZ => rest,
                DT_RELACOUNT => 0,
                _ => continue,
            };
            value.copy_from_slice(&new.to_le_bytes());
        }
        let start = info.rela as u64;
        Some(start..start.checked_add(skipped)?)
    }

    /// Returns true if everything named by the dynamic section was read.
    fn has_all_of_the_loader(&self, segments: &[ProgramHeader]) -> Option<()> {
        let info = self.dynamic(segments)?.info;
        let begins = |at: usize| self.has(at as u64, 1);
        let has_symbols = info.symtab != 0 && begins(info.symtab);
        let is_whole = has_symbols
            && info.gnu_hash.is_some_and(|at| begins(at as usize))
            && self.has(info.strtab as u64, info.strsz as u64)
            && self.has(info.rela as u64, info.relasz as u64)
            && self.has(info.jmprel as u64, info.pltrelsz as u64);
        is_whole.then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModuleFacts;

    fn parts_of(path: &str) -> Option<ModuleBytes> {
        let file = File::open(path).ok()?;
        let version = Version::of(&file)?;
        ModuleBytes::parts(file, version)
    }

    /// Reads the libraries of this machine, including the C library.
    #[test]
    fn parts_tell_the_same_as_whole_files() {
        let directory = std::fs::read_dir("/usr/lib/x86_64-linux-gnu").unwrap();
        let mut paths: Vec<_> = directory
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.is_file() && path.to_string_lossy().contains(".so"))
            .collect();
        paths.sort();
        paths.truncate(200);
        paths.push("/usr/lib/x86_64-linux-gnu/libc.so.6".into());
        let mut in_parts = 0;
        for path in paths {
            let whole = std::fs::read(&path).unwrap();
            let Some(parts) = parts_of(&path.to_string_lossy()) else {
                continue;
            };
            in_parts += 1;
            let facts = |bytes: &[u8]| format!("{:?}", ModuleFacts::of(bytes).map(Sorted::of));
            assert_eq!(facts(&parts), facts(&whole), "{}", path.display());
            assert_eq!(*parts.whole(), whole[..], "{}", path.display());
            let middle = whole.len() / 2;
            assert_eq!(
                *parts.at(middle, 5000).unwrap(),
                whole[middle..][..5000.min(middle)]
            );
        }
        assert!(in_parts > 0);
    }

    /// Facts in an order that does not depend on hashing.
    #[derive(Debug)]
    #[allow(dead_code)]
    struct Sorted(String, Vec<String>);

    impl Sorted {
        fn of(facts: ModuleFacts) -> Sorted {
            let mut exported: Vec<String> = memhook_abi::HOOKED_FUNCTIONS
                .iter()
                .map(|f| format!("{}: {:?}", f.name, facts.exported(f.name)))
                .collect();
            exported.sort();
            let rest = (
                &facts.slots,
                &facts.canonical_plt,
                &facts.build_id,
                &facts.soname,
                &facts.needed,
                &facts.relro,
                facts.loads.lowest(),
                facts.is_symbolic,
            );
            Sorted(format!("{rest:?}"), exported)
        }
    }

    /// Even if a file's tables are wrong, unread bytes must not be mistaken for its contents.
    #[test]
    fn a_file_whose_tables_disagree_is_read_whole() {
        let path = std::env::temp_dir().join(format!("memhook-parts-{}", std::process::id()));
        let libc = std::fs::read("/usr/lib/x86_64-linux-gnu/libc.so.6").unwrap();
        let in_parts = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            parts_of(&path.to_string_lossy()).is_some()
        };
        assert!(in_parts(&libc));
        let table = u64::from_le_bytes(libc[0x28..0x30].try_into().unwrap()) as usize;
        let count = usize::from(u16::from_le_bytes(libc[0x3c..0x3e].try_into().unwrap()));
        for (kind, offset) in [(SHT_DYNSYM, 24), (SHT_RELA, 24), (SHT_GNU_HASH, 4)] {
            let mut damaged = libc.clone();
            for section in (0..count).map(|n| table + n * 64) {
                let of = u32::from_le_bytes(damaged[section + 4..section + 8].try_into().unwrap());
                if of == kind {
                    // Another offset in the file (sh_offset), or another type.
                    damaged[section + offset..section + offset + 4].fill(0x11);
                }
            }
            assert!(!in_parts(&damaged), "{kind}");
        }
        let mut without_sections = libc.clone();
        without_sections[0x28..0x30].fill(0);
        without_sections[0x3c..0x3e].fill(0);
        assert!(!in_parts(&without_sections));
        assert!(!in_parts(&libc[..libc.len() - 100]));
        // The file has changed since: the parts already read remain, and are not mixed with the new contents.
        std::fs::write(&path, &libc).unwrap();
        let parts = parts_of(&path.to_string_lossy()).unwrap();
        std::fs::write(&path, vec![0x55; libc.len() + 1]).unwrap();
        assert_eq!(*parts.whole(), parts[..]);
        std::fs::remove_file(&path).unwrap();
    }
}
