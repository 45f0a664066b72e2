//! A core dump (core(5)): registers, memory and the list of mapped files of a process that has ended.
//!
//! Its contents are not trusted: a core dump may come from an untrusted source, and many are truncated because a disk
//! was full.

mod layers;
mod modules;
mod notes;
#[cfg(test)]
mod tests;

pub use modules::{CoreModules, MissingModule};
pub use notes::CoreThread;

use crate::Mapping;
use crate::arch::native::relocations::CORES;
use memhook_foreign::{open_regular, size_text};
use nix::unistd::{Whence, lseek};
use notes::Notes;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

const PAGE_BYTES: u64 = 4096;
const ELF_HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: u64 = 56;
/// e_type of a core (gABI, "ELF Header").
const ET_CORE: u16 = 4;
/// Value of `e_phnum` that means that the number of program headers is in the first section header (elf(5)).
const PN_XNUM: u16 = 0xffff;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
/// Upper bound on the number of segments, far more than vm.max_map_count allows by default.
const MOST_SEGMENTS: u64 = 1 << 22;
/// Upper bound on the size of notes: the size for 10,000 threads with all vector registers.
const MOST_NOTE_BYTES: u64 = 256 << 20;
/// End of user-space addresses (5-level paging). The vsyscall(2) page lies above.
const END_OF_ADDRESSES: u64 = 1 << 56;

/// Reason why a core dump cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// The file cannot be read.
    #[error("{file}: {cause}")]
    Unreadable {
        /// Name of the file.
        file: String,
        /// Error from the kernel. The message already includes it, so it is not also a source.
        cause: io::Error,
    },
    /// The file starts with the LZ4 magic number, like compressed core dumps and saved snapshots.
    #[error("{file}: compressed with LZ4, or a saved snapshot")]
    Lz4 {
        /// Name of the file.
        file: String,
    },
    /// The file is something else, or damaged.
    #[error("{file}: {reason}")]
    Unusable {
        /// Name of the file.
        file: String,
        /// Reason.
        reason: String,
    },
}

/// Range of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreSegment {
    /// Mapping, as far as the core describes it. Only its name shows whether it is shared.
    pub mapping: Mapping,
    /// Offset of its contents in the file.
    offset: u64,
    /// Number of bytes in the file: 0 for memory that was never written to, or that the process excluded
    /// (`coredump_filter`, `MADV_DONTDUMP`).
    pub file_bytes: u64,
}

impl CoreSegment {
    /// Returns the addresses whose contents are in the file.
    pub fn dumped(&self) -> Range<u64> {
        self.mapping.start..self.mapping.start + self.file_bytes
    }
}

/// A core dump.
#[derive(Debug)]
pub struct CoreFile {
    name: String,
    file: File,
    /// Process id.
    pub pid: i32,
    /// Threads; the first is the one whose signal ended the process.
    pub threads: Vec<CoreThread>,
    /// Memory in address order.
    pub segments: Vec<CoreSegment>,
    /// Address of the program headers of the executable (AT_PHDR).
    program_headers: Option<u64>,
    /// Address of the dynamic loader (AT_BASE).
    loader: Option<u64>,
}

/// Reads a little-endian number; `None` beyond the end.
pub(crate) fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    number(bytes, at).map(u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    number(bytes, at).map(u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    number(bytes, at).map(u64::from_le_bytes)
}

struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    file_bytes: u64,
    bytes: u64,
}

impl ProgramHeader {
    fn parse(bytes: &[u8]) -> Option<ProgramHeader> {
        Some(ProgramHeader {
            kind: u32_at(bytes, 0)?,
            flags: u32_at(bytes, 4)?,
            offset: u64_at(bytes, 8)?,
            address: u64_at(bytes, 16)?,
            file_bytes: u64_at(bytes, 32)?,
            bytes: u64_at(bytes, 40)?,
        })
    }
}

/// Magic number of an LZ4 frame (doc/lz4_Frame_format.md in the LZ4 sources).
const LZ4: &[u8] = b"\x04\x22\x4d\x18";

/// Names the kind of a file that is not a core dump of a 64-bit x86 program.
fn other_kind(start: &[u8]) -> Option<&'static str> {
    const KINDS: [(&[u8], &str); 5] = [
        (
            b"\x28\xb5\x2f\xfd",
            "compressed with zstd: unpack it first (unzstd)",
        ),
        (
            b"\x1f\x8b",
            "compressed with gzip: unpack it first (gunzip)",
        ),
        (b"\xfd7zXZ\0", "compressed with xz: unpack it first (unxz)"),
        (b"BZh", "compressed with bzip2: unpack it first (bunzip2)"),
        (b"!<arch>", "an archive, not a core dump"),
    ];
    let known = KINDS.iter().find(|(magic, _)| start.starts_with(magic));
    if let Some((_, what)) = known {
        return Some(what);
    }
    if !start.starts_with(b"\x7fELF") {
        return Some("not a core dump");
    }
    let is_core = u16_at(start, 16) == Some(ET_CORE);
    match (start.get(4), start.get(5), u16_at(start, 18)) {
        _ if start.len() < ELF_HEADER_BYTES => Some("the core dump is truncated"),
        _ if !is_core => Some("a program or a library, not a core dump"),
        (Some(1), ..) => Some("a core dump of a 32-bit program: scan cannot read its heap"),
        (Some(2), Some(1), machine) if machine.is_some() && machine == CORES => None,
        _ => Some("a core dump of another architecture: scan reads those of x86-64, on x86-64"),
    }
}

impl CoreFile {
    /// Opens a core dump and reads everything except the memory.
    ///
    /// # Errors
    /// The file is not a core dump of an x86-64 program, or it is damaged or truncated.
    pub fn open(path: &Path) -> Result<CoreFile, CoreError> {
        let name = path.to_string_lossy().into_owned();
        let unreadable = |cause| CoreError::Unreadable {
            file: name.clone(),
            cause,
        };
        let unusable = |reason: String| CoreError::Unusable {
            file: name.clone(),
            reason,
        };
        let damaged = |what: &str| unusable(format!("the core dump is damaged: {what}"));
        let file = open_regular(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        let read = |at: u64, bytes: u64| {
            let mut into = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
            file.read_exact_at(&mut into, at).map(|()| into)
        };
        let mut start = [0; ELF_HEADER_BYTES];
        let known = read_as_much(&file, &mut start).map_err(unreadable)?;
        if start.starts_with(LZ4) {
            return Err(CoreError::Lz4 { file: name });
        }
        if let Some(what) = other_kind(&start[..known]) {
            return Err(unusable(what.into()));
        }
        let field = |at| u64_at(&start, at).unwrap_or(0);
        let (headers_at, sections_at) = (field(0x20), field(0x28));
        let mut count = u64::from(u16_at(&start, 0x38).unwrap_or(0));
        if count == u64::from(PN_XNUM) {
            // sh_info of the first section header.
            let section = read(sections_at, 64).map_err(|_| damaged("its number of segments"))?;
            count = u64::from(u32_at(&section, 44).unwrap_or(0));
        }
        let bytes = count * PROGRAM_HEADER_BYTES;
        let headers_end = headers_at.checked_add(bytes);
        if count > MOST_SEGMENTS || headers_end.is_none_or(|end| end > length) {
            return Err(unusable(format!(
                "the core dump is truncated: its list of {count} segments lies beyond its {length} bytes"
            )));
        }
        let headers = read(headers_at, bytes).map_err(unreadable)?;
        let headers: Vec<ProgramHeader> = headers
            .chunks_exact(PROGRAM_HEADER_BYTES as usize)
            .filter_map(ProgramHeader::parse)
            .collect();
        // The missing part may be a stack, and blocks that the stack points to would look leaked.
        let ends = headers
            .iter()
            .map(|h| h.offset.saturating_add(h.file_bytes));
        let needed = ends.max().unwrap_or(0);
        if needed > length {
            return Err(unusable(format!(
                "the core dump is truncated: it has {} of {}, and the missing part could hold pointers (a full disk, \
                 or ulimit -c)",
                size_text(length),
                size_text(needed)
            )));
        }
        let mut notes = Notes::default();
        for header in headers.iter().filter(|h| h.kind == PT_NOTE) {
            if header.file_bytes > MOST_NOTE_BYTES {
                return Err(damaged("its notes are too long"));
            }
            let bytes = read(header.offset, header.file_bytes).map_err(unreadable)?;
            notes.read(&bytes).map_err(damaged)?;
        }
        if notes.threads.is_empty() {
            return Err(damaged("it has no threads"));
        }
        let loads = headers.iter().filter(|h| h.kind == PT_LOAD);
        let mut segments: Vec<CoreSegment> = loads
            .filter(|h| h.address < END_OF_ADDRESSES && h.bytes > 0)
            .map(|h| notes.segment(h))
            .collect::<Option<_>>()
            .ok_or_else(|| damaged("its memory lies beyond all possible addresses"))?;
        segments.sort_by_key(|s| s.mapping.start);
        if segments
            .windows(2)
            .any(|pair| pair[0].mapping.end > pair[1].mapping.start)
        {
            return Err(damaged("its segments overlap"));
        }
        notes.add_unsaved(&mut segments);
        notes.name_of_kernel(&mut segments);
        Ok(CoreFile {
            pid: notes.pid.unwrap_or(notes.threads[0].tid),
            threads: notes.threads,
            segments,
            program_headers: notes.program_headers,
            loader: notes.loader,
            file,
            name,
        })
    }

    /// Returns the name of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads memory starting at this address, as far as the file contains it. Returns `false` if the buffer was not
    /// filled.
    pub fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let after = self
            .segments
            .partition_point(|s| s.mapping.start <= address);
        let Some(segment) = after.checked_sub(1).and_then(|i| self.segments.get(i)) else {
            return false;
        };
        let within = address - segment.mapping.start;
        let end = within.checked_add(into.len() as u64);
        end.is_some_and(|end| end <= segment.file_bytes)
            && self
                .file
                .read_exact_at(into, segment.offset + within)
                .is_ok()
    }

    /// Returns the stored parts of a segment, by address. The kernel leaves a hole for a page that is zero or was never
    /// touched. A core dump written through a pipe has no holes.
    pub fn stored(&self, segment: &CoreSegment) -> Vec<Range<u64>> {
        let (start, end) = (segment.offset, segment.offset + segment.file_bytes);
        let address = |offset: u64| segment.mapping.start + (offset - start);
        let seek = |at: u64, whence| {
            let at = i64::try_from(at).ok()?;
            lseek(&self.file, at, whence).ok()
        };
        let mut found: Vec<Range<u64>> = Vec::new();
        let mut at = start;
        while at < end {
            let data = match seek(at, Whence::SeekData) {
                Some(data) => (data as u64).max(at),
                // ENXIO: only a hole remains up to the end of the file. Other errors come from file systems that do not
                // report holes, so the contents are read.
                None if nix::errno::Errno::last() == nix::errno::Errno::ENXIO => break,
                None => at,
            };
            if data >= end {
                break;
            }
            let hole = seek(data, Whence::SeekHole).map_or(end, |hole| hole as u64);
            let hole = hole.clamp(data + 1, end);
            at = hole;
            // Whole pages, wherever they begin in the file.
            let first = address(data) & !(PAGE_BYTES - 1);
            let stored_end = segment.dumped().end;
            let last = address(hole).next_multiple_of(PAGE_BYTES).min(stored_end);
            match found.last_mut() {
                Some(before) if before.end >= first => before.end = last,
                _ => found.push(first..last),
            }
        }
        found
    }
}

/// Reads up to the end of the file, or until the buffer is full.
fn read_as_much(file: &File, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match file.read_at(&mut into[filled..], filled as u64)? {
            0 => break,
            more => filled += more,
        }
    }
    Ok(filled)
}
