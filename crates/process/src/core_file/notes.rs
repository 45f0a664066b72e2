//! Notes of a core dump: threads, mapped files, and the data that the kernel passed to the program at its start.

use super::{CoreSegment, END_OF_ADDRESSES, PAGE_BYTES, ProgramHeader, u32_at, u64_at};
use crate::Mapping;
use std::collections::HashMap;
use std::ops::Range;

/// Types of notes (include/uapi/linux/elf.h), all of the owner "CORE" except the last.
const NT_PRSTATUS: u32 = 1;
const NT_FPREGSET: u32 = 2;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_FILE: u32 = 0x4649_4c45;
const NT_X86_XSTATE: u32 = 0x202;

/// Offsets of `pr_pid` and `pr_reg` in `struct elf_prstatus`, and of `pr_pid` in `struct elf_prpsinfo`
/// (include/linux/elfcore.h, for 64 bits).
const STATUS_PID: usize = 32;
const STATUS_REGISTERS: usize = 112;
const INFO_PID: usize = 24;

/// Entries of the auxiliary vector (getauxval(3)).
const AT_PHDR: u64 = 3;
const AT_BASE: u64 = 7;
const AT_RANDOM: u64 = 25;
const AT_EXECFN: u64 = 31;
const AT_SYSINFO_EHDR: u64 = 33;

/// Flags of segments (gABI, "Segment Permissions").
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;

/// Upper bound on the number of threads: far more than any process has, but few enough to examine each one.
const MOST_THREADS: usize = 1 << 16;

/// A thread at the end of its process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreThread {
    /// Thread id in its own PID namespace.
    pub tid: i32,
    /// Registers in the order of `struct user_regs_struct`.
    pub registers: [u64; 27],
    /// Vector registers, in the format of XSAVE or of FXSAVE.
    pub extended: Vec<u8>,
}

/// Part of a file that was mapped.
struct MappedFile {
    start: u64,
    end: u64,
    offset: u64,
    path: String,
    /// Number that mappings of the same file share, in place of an inode number.
    file: u64,
}

/// Permissions of memory.
#[derive(Clone, Copy)]
struct Protection {
    read: bool,
    write: bool,
    exec: bool,
}

#[derive(Default)]
pub(super) struct Notes {
    pub pid: Option<i32>,
    pub threads: Vec<CoreThread>,
    pub program_headers: Option<u64>,
    pub loader: Option<u64>,
    files: Vec<MappedFile>,
    vdso: Option<u64>,
    /// Addresses in the stack of the initial thread.
    of_stack: Vec<u64>,
}

impl Notes {
    /// Reads one note segment. The error describes its defect.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        let mut at = 0;
        while let (Some(name), Some(contents), Some(kind)) = (
            u32_at(bytes, at),
            u32_at(bytes, at + 4),
            u32_at(bytes, at + 8),
        ) {
            let name_end = (at + 12).checked_add(name as usize);
            let begin = name_end.map(|end| end.next_multiple_of(4));
            let end = begin.and_then(|begin| begin.checked_add(contents as usize));
            let (Some(begin), Some(end)) = (begin, end) else {
                return Err("a note is too long");
            };
            let Some(contents) = bytes.get(begin..end) else {
                return Err("a note is too long");
            };
            self.take(kind, contents)?;
            at = end.next_multiple_of(4);
        }
        Ok(())
    }

    fn take(&mut self, kind: u32, contents: &[u8]) -> Result<(), &'static str> {
        match kind {
            NT_PRSTATUS => {
                let tid =
                    u32_at(contents, STATUS_PID).ok_or("the note of a thread is too short")?;
                let mut thread = CoreThread {
                    tid: tid as i32,
                    ..CoreThread::default()
                };
                for (i, register) in thread.registers.iter_mut().enumerate() {
                    *register = u64_at(contents, STATUS_REGISTERS + i * 8)
                        .ok_or("the note of a thread is too short")?;
                }
                if self.threads.len() >= MOST_THREADS {
                    return Err("it has more threads than a process can have");
                }
                self.threads.push(thread);
            }
            // These notes follow the status of their thread. The XSAVE format includes the FXSAVE format.
            NT_FPREGSET | NT_X86_XSTATE => {
                if let Some(thread) = self.threads.last_mut()
                    && contents.len() > thread.extended.len()
                {
                    thread.extended = contents.to_vec();
                }
            }
            NT_PRPSINFO => self.pid = u32_at(contents, INFO_PID).map(|pid| pid as i32),
            NT_AUXV => self.take_auxiliary(contents),
            NT_FILE => self.take_files(contents)?,
            _ => {}
        }
        Ok(())
    }

    fn take_auxiliary(&mut self, contents: &[u8]) {
        for at in (0..contents.len()).step_by(16) {
            let (Some(kind), Some(value)) = (u64_at(contents, at), u64_at(contents, at + 8)) else {
                break;
            };
            match kind {
                AT_PHDR => self.program_headers = Some(value),
                AT_BASE => self.loader = Some(value).filter(|&base| base != 0),
                AT_SYSINFO_EHDR => self.vdso = Some(value),
                AT_RANDOM | AT_EXECFN => self.of_stack.push(value),
                _ => {}
            }
        }
    }

    /// Reads a count and the page size, three words for each mapping, and all names (fill_files_note in
    /// fs/binfmt_elf.c).
    fn take_files(&mut self, contents: &[u8]) -> Result<(), &'static str> {
        const DAMAGED: &str = "its list of mapped files";
        let count = u64_at(contents, 0).ok_or(DAMAGED)?;
        let page = u64_at(contents, 8).ok_or(DAMAGED)?;
        let names_at = count
            .checked_mul(24)
            .and_then(|bytes| bytes.checked_add(16));
        let names_at = names_at.filter(|&at| at <= contents.len() as u64);
        let names = &contents[names_at.ok_or(DAMAGED)? as usize..];
        let mut names = names.split(|&byte| byte == 0);
        let mut numbers = HashMap::new();
        for i in 0..count as usize {
            let word = |n: usize| u64_at(contents, 16 + i * 24 + n * 8).ok_or(DAMAGED);
            let path = String::from_utf8_lossy(names.next().ok_or(DAMAGED)?).into_owned();
            let next = numbers.len() as u64 + 1;
            self.files.push(MappedFile {
                start: word(0)?,
                end: word(1)?,
                offset: word(2)?.checked_mul(page).ok_or(DAMAGED)?,
                file: *numbers.entry(path.clone()).or_insert(next),
                path,
            });
        }
        self.files.sort_by_key(|file| file.start);
        Ok(())
    }

    /// Returns a segment with the file that was mapped there; `None` if it has no addresses.
    pub fn segment(&self, header: &ProgramHeader) -> Option<CoreSegment> {
        let start = header.address;
        let end = start.checked_add(header.bytes)?;
        let is_sound = end <= END_OF_ADDRESSES
            && header.file_bytes <= header.bytes
            && start.is_multiple_of(PAGE_BYTES)
            && end.is_multiple_of(PAGE_BYTES);
        if !is_sound || header.offset.checked_add(header.file_bytes)? > i64::MAX as u64 {
            return None;
        }
        let protection = Protection {
            read: header.flags & PF_R != 0,
            write: header.flags & PF_W != 0,
            exec: header.flags & PF_X != 0,
        };
        let file_bytes = header.file_bytes;
        Some(self.stretch(start..end, (header.offset, file_bytes), protection))
    }

    /// Adds mappings that are in the list of mapped files but not in the sorted `segments`. The kernel writes a segment
    /// for every mapping, but gdb's gcore omits private mappings that cannot be written to and cannot differ from their
    /// file: code and constants.
    pub fn add_unsaved(&self, segments: &mut Vec<CoreSegment>) {
        let protection = Protection {
            read: true,
            write: false,
            exec: true,
        };
        let mut unsaved = Vec::new();
        let mut at = 0;
        for file in &self.files {
            let first = segments.partition_point(|s| s.mapping.end <= file.start);
            let saved = segments[first..].iter().map(|s| &s.mapping);
            let within = saved.take_while(|m| m.start < file.end);
            let mut start = file.start.max(at);
            for next in within
                .map(|m| m.start..m.end)
                .chain(std::iter::once(file.end..file.end))
            {
                let gap = start..next.start;
                let is_sound = [gap.start, gap.end, file.offset]
                    .iter()
                    .all(|bound| bound.is_multiple_of(PAGE_BYTES));
                if gap.start < gap.end && gap.end <= END_OF_ADDRESSES && is_sound {
                    unsaved.push(self.stretch(gap, (0, 0), protection));
                }
                start = start.max(next.end);
            }
            at = start;
        }
        segments.extend(unsaved);
        segments.sort_by_key(|s| s.mapping.start);
    }

    /// Returns the memory at these addresses, with the file that was mapped there, and the position and size of the
    /// stored part.
    fn stretch(
        &self,
        Range { start, end }: Range<u64>,
        (offset, file_bytes): (u64, u64),
        Protection { read, write, exec }: Protection,
    ) -> CoreSegment {
        let after = self.files.partition_point(|file| file.start <= start);
        let file = after.checked_sub(1).and_then(|i| self.files.get(i));
        let file = file.filter(|file| start < file.end);
        let path = file.map_or("", |file| &file.path);
        let (path, deleted) = match path.strip_suffix(" (deleted)") {
            Some(path) => (path, true),
            None => (path, false),
        };
        let is_stack = self.of_stack.iter().any(|at| (start..end).contains(at));
        CoreSegment {
            offset,
            file_bytes,
            mapping: Mapping {
                start,
                end,
                read,
                write,
                exec,
                shared: file.is_some_and(|_| is_shared_memory(path)),
                offset: file.map_or(0, |file| file.offset.saturating_add(start - file.start)),
                file_id: (0, 0, file.map_or(0, |file| file.file)),
                path: if is_stack && file.is_none() {
                    "[stack]".to_owned()
                } else {
                    path.to_owned()
                },
                deleted,
            },
        }
    }

    /// Sets the names of memory that the kernel provides: the vDSO, and the vDSO's data, which is mapped directly below
    /// it.
    pub fn name_of_kernel(&self, segments: &mut [CoreSegment]) {
        let starts = |s: &CoreSegment| Some(s.mapping.start) == self.vdso;
        let Some(vdso) = segments.iter().position(starts) else {
            return;
        };
        segments[vdso].mapping.path = "[vdso]".to_owned();
        let mut end = segments[vdso].mapping.start;
        for segment in segments[..vdso].iter_mut().rev() {
            let mapping = &mut segment.mapping;
            if mapping.end != end || mapping.write || mapping.exec || mapping.file_id.2 != 0 {
                break;
            }
            mapping.path = "[vvar]".to_owned();
            end = mapping.start;
        }
    }
}

/// Returns true if a path names memory shared by processes, and not a file on a disk.
fn is_shared_memory(path: &str) -> bool {
    let names = [
        "/dev/zero",
        "/dev/shm/",
        "/SYSV",
        "/memfd:",
        "/anon_hugepage",
    ];
    names.iter().any(|name| path.starts_with(name))
}
