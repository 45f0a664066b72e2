//! Files of modules, each read once.
//!
//! A file may have any length, because a sparse file costs nothing. So files are read in full only as long as their
//! total size is plausible for a program. Beyond that, only the mapped parts are read, which are all that tracing
//! needs.

use crate::module_bytes::{ModuleBytes, Version};
use crate::{Mapping, ModuleFacts, ModuleImage, RemoteAddress, living_thread, read_memory};
use memhook_foreign::{Extent, open_mapped, read_exactly};
use std::{
    collections::{HashMap, HashSet},
    fs::File,
    os::unix::fs::MetadataExt,
    sync::Arc,
};

/// Maximum total bytes of files that are read whole.
const MOST_WHOLE_BYTES: u64 = 4 << 30;
/// Maximum total bytes of all files, including files that are read in part.
const MOST_BYTES: u64 = 6 << 30;

/// Maximum number of files that stay open for reading further parts; more would leave too few descriptors
/// (RLIMIT_NOFILE is usually 1,024).
const MOST_OPEN: usize = 256;

/// A file that was read.
#[derive(Clone)]
pub(crate) struct ModuleFile {
    version: Version,
    /// Time of the last change of its inode (`st_ctime`), which cannot be backdated.
    inode_changed: Option<(i64, i64)>,
    pub bytes: Arc<ModuleBytes>,
    /// `None` if it is not a module.
    pub facts: Option<Arc<ModuleFacts>>,
}

/// Files of modules, each read and examined only once while it does not change.
#[derive(Clone, Default)]
pub struct ModuleFiles {
    /// Files by device and inode.
    known: HashMap<FileId, ModuleFile>,
    /// Files that were read for another process, and have not been compared with the disk since.
    inherited: HashSet<FileId>,
    is_in_parts: bool,
    /// Number of bytes that [`of_path`](ModuleFiles::of_path) has read.
    read_bytes: u64,
}

/// Device and inode, as the kernel shows them for a mapping.
type FileId = (u32, u32, u64);

/// Returns the time of the last change of an inode. Replacing a file also changes that time; from then on, the old file
/// is in use only through existing mappings.
fn inode_changed(file: &File) -> Option<(i64, i64)> {
    let metadata = file.metadata().ok()?;
    Some((metadata.ctime(), metadata.ctime_nsec()))
}

impl ModuleFiles {
    /// Returns an empty set.
    pub fn new() -> ModuleFiles {
        ModuleFiles::default()
    }

    /// Returns an empty set that reads only the needed parts of large files.
    pub fn in_parts() -> ModuleFiles {
        ModuleFiles {
            is_in_parts: true,
            ..ModuleFiles::default()
        }
    }

    /// Returns the files for use with another process. For this, the inode must be unchanged too: a file cannot be
    /// written while a process executes it, but it may have been changed between the two processes.
    pub fn for_another_process(&self) -> ModuleFiles {
        ModuleFiles {
            inherited: self.known.keys().copied().collect(),
            ..self.clone()
        }
    }

    /// Returns the total size of all files.
    pub fn bytes(&self) -> u64 {
        self.known
            .values()
            .map(|file| file.bytes.len() as u64)
            .sum()
    }

    /// Returns the number of files.
    pub fn count(&self) -> usize {
        self.known.len()
    }

    /// Forgets the files of other modules.
    pub fn keep_only(&mut self, modules: &[ModuleImage]) {
        let is_used =
            |file: &ModuleFile| modules.iter().any(|m| Arc::ptr_eq(&m.bytes, &file.bytes));
        self.known.retain(|_, file| is_used(file));
    }

    /// Returns the file of `first`, which is the mapping of its first byte.
    pub(crate) fn of_mapping(
        &mut self,
        pid: i32,
        maps: &[Mapping],
        first: &Mapping,
    ) -> Option<ModuleFile> {
        let at = first.start..first.end;
        let file = open_mapped(living_thread(pid), &at, &first.path, first.file_id.2).ok();
        let version = file.as_ref().and_then(Version::of);
        let changed = file.as_ref().and_then(inode_changed);
        let is_inherited = self.inherited.remove(&first.file_id);
        let known = self.known.get(&first.file_id);
        let known = known.filter(|known| !is_inherited || known.inode_changed == changed);
        // A file that can no longer be opened was deleted, and another file may have taken over its inode since.
        let is_known = |known: &&ModuleFile| match version {
            Some(now) => now == known.version,
            None => begins_with(pid, first.start, &known.bytes),
        };
        if let Some(known) = known.filter(is_known) {
            return Some(known.clone());
        }
        let read = self
            .known
            .iter()
            .filter(|known| *known.0 != first.file_id)
            .map(|known| known.1.bytes.len() as u64)
            .sum();
        let (file, version) = (file?, version?);
        let bytes = match self.parts(&file, version) {
            Some(bytes) => bytes,
            None => bytes(&file, maps, first, read)?.into(),
        };
        let file = ModuleFile {
            version,
            inode_changed: changed,
            facts: ModuleFacts::of(&bytes).map(Arc::new),
            bytes: Arc::new(bytes),
        };
        self.known.insert(first.file_id, file.clone());
        Some(file)
    }

    /// Returns the bytes of the file that `first` mapped, for a process that has ended.
    pub(crate) fn of_path(
        &mut self,
        file: &File,
        maps: &[Mapping],
        first: &Mapping,
    ) -> Option<Vec<u8>> {
        let bytes = bytes(file, maps, first, self.read_bytes)?;
        self.read_bytes += bytes.len() as u64;
        Some(bytes)
    }

    fn parts(&self, file: &File, version: Version) -> Option<ModuleBytes> {
        let open = self
            .known
            .values()
            .filter(|known| known.bytes.file().is_some());
        if !self.is_in_parts || open.count() >= MOST_OPEN {
            return None;
        }
        ModuleBytes::parts(file.try_clone().ok()?, version)
    }
}

/// Returns true if the first page of a file is at this address. It contains the program headers and, in the usual
/// layout, the build-id.
fn begins_with(pid: i32, address: u64, file: &[u8]) -> bool {
    let expected = &file[..file.len().min(4096)];
    let mut mapped = vec![0; expected.len()];
    read_memory(pid, RemoteAddress(address), &mut mapped).is_ok() && mapped == expected
}

/// Returns the bytes of the file that `first` maps; `read_bytes` is the number of bytes read from other files so far.
fn bytes(file: &File, maps: &[Mapping], first: &Mapping, read_bytes: u64) -> Option<Vec<u8>> {
    let extent = Extent::of(file).ok()?;
    if extent.may_hold(extent.bytes) && read_bytes + extent.bytes <= MOST_WHOLE_BYTES {
        return read_exactly(file, extent.bytes).ok();
    }
    let mapped = maps
        .iter()
        .filter(|m| m.file_id == first.file_id)
        .map(|m| m.offset.saturating_add(m.end - m.start))
        .max()?
        .min(extent.bytes);
    if read_bytes + mapped > MOST_BYTES {
        return None;
    }
    let mut bytes = read_exactly(file, mapped).ok()?;
    without_sections(&mut bytes)?;
    Some(bytes)
}

/// Removes the section table from an ELF header (gABI, "ELF Header"), because the table is not in the mapped part.
fn without_sections(elf: &mut [u8]) -> Option<()> {
    const E_SHOFF: std::ops::Range<usize> = 0x28..0x30;
    /// e_shentsize, e_shnum, e_shstrndx.
    const SECTION_COUNTS: std::ops::Range<usize> = 0x3a..0x40;
    elf.get_mut(E_SHOFF)?.fill(0);
    elf.get_mut(SECTION_COUNTS)?.fill(0);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ElfView;

    #[test]
    fn another_file_is_recognized_by_its_first_page() {
        let pid = std::process::id() as i32;
        let mapped: Vec<u8> = (0..8192u32).map(|n| n as u8).collect();
        let address = mapped.as_ptr().addr() as u64;
        let mut file = mapped.clone();
        file[5000] ^= 1;
        assert!(begins_with(pid, address, &file), "data may have changed");
        file[500] ^= 1;
        assert!(!begins_with(pid, address, &file));
        assert!(!begins_with(pid, 8, &file), "nothing is mapped there");
    }

    #[test]
    fn a_header_without_sections_is_valid() {
        let mut bytes = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6").unwrap();
        without_sections(&mut bytes).unwrap();
        let elf = ElfView::parse(&bytes).unwrap();
        assert!(elf.exported("malloc").is_some());
        assert!(elf.build_id().is_some());
        assert!(!elf.has_section(".text"));
        assert!(without_sections(&mut [0; 20]).is_none());
    }
}
