//! A process at one moment: copied memory, registers, mappings, modules.

mod backing;
#[cfg(test)]
mod foreign_file_tests;
mod identity;
mod store;

use crate::glibc::walk::Finding;
use crate::ranges::{Runs, pair, pairs, run_bytes};
pub use backing::Backing;
pub use identity::ProcessIdentity;
use serde::{Deserialize, Serialize};
use std::ops::Range;
pub use store::{load, save};

/// How a snapshot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// Copied while the process ran, with the pages written meanwhile copied again; held only for
    /// the last round.
    Precopy,
    /// A child that the process forked for us, with all threads held, and that never ran.
    Fork,
    /// All threads held throughout.
    Stop,
    /// Copied while at least one thread may have run, by a command that may only look: it changed while it was read.
    Running,
    /// Read from a core dump.
    Core,
}

impl Method {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Method::Precopy => "precopy",
            Method::Fork => "fork",
            Method::Stop => "stop",
            Method::Running => "running",
            Method::Core => "core",
        }
    }
}

/// What a mapping is to the scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AreaKind {
    /// `[heap]`, where brk(2) ends.
    Brk,
    /// The initial thread's stack.
    Stack,
    /// Private, without a file.
    Anonymous,
    /// Data of a module, or of another privately mapped file.
    File,
    /// Shared memory without a file on disk.
    Shared,
    /// Pages of private memory that the program has made inaccessible.
    Hidden,
}

/// One mapping that can hold pointers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Area {
    /// First address.
    pub start: u64,
    /// Past the last address.
    pub end: u64,
    /// What it is.
    pub kind: AreaKind,
    /// Path or name.
    pub name: String,
}

/// A thread at the moment of the snapshot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ThreadState {
    /// Kernel thread id.
    pub tid: i32,
    /// Stack pointer.
    pub rsp: u64,
    /// Program counter.
    pub rip: u64,
    /// Thread pointer: address of the TCB.
    pub fs_base: u64,
    /// It is in the system call by which a thread or a process ends, so the function that made the call
    /// needs nothing any more.
    #[serde(default)]
    pub is_exiting: bool,
    /// All register words that may be pointers, vector registers included.
    pub words: Vec<u64>,
    /// All registers, by DWARF number, while the snapshot is taken.
    #[serde(skip)]
    pub registers: Option<[u64; 17]>,
    /// Lowest stack pointer of all frames that the thread will return to. `None` where they could not be followed to
    /// its start: it may run on a coroutine's stack, which may lie anywhere, even in a frame of the thread's own.
    #[serde(default)]
    pub lowest_frame: Option<u64>,
}

/// What the allocator of musl is called.
pub const MUSL: &str = "musl's malloc";

/// A module, as far as the scan needs it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ModuleInfo {
    /// Path as the target sees it.
    pub path: String,
    /// Load bias.
    pub base: u64,
    /// First address.
    pub start: u64,
    /// Past the last address.
    pub end: u64,
    /// Its writable segments, RELRO included.
    #[serde(with = "pairs")]
    pub data: Vec<Range<u64>>,
    /// `2.N` if this is glibc.
    pub glibc_minor: Option<u32>,
    /// It is the C library of the program itself, not one of another namespace (dlmopen(3)).
    #[serde(default)]
    pub is_programs_libc: bool,
    /// Where `malloc` and what it consists of lie, if this is glibc.
    #[serde(with = "pair")]
    pub malloc_code: Range<u64>,
    /// Another allocator's name, if the module is one.
    pub allocator: Option<String>,
    /// Where the code of another allocator in the module lies, as far as that is known.
    #[serde(default, with = "pairs")]
    pub allocator_code: Vec<Range<u64>>,
    /// GNU build-id.
    #[serde(default)]
    pub build_id: Option<Vec<u8>>,
}

impl ModuleInfo {
    /// The file name.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// Everything of a snapshot but the memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Meta {
    /// Process id.
    pub pid: i32,
    /// Which process it was; not known of a core dump's.
    #[serde(default)]
    pub identity: Option<ProcessIdentity>,
    /// How it was taken.
    pub method: Method,
    /// How long all threads were held, in ms.
    pub held_ms: f64,
    /// How long one thread was held before that, to set up the copying, in ms.
    pub prepare_held_ms: f64,
    /// How long the whole snapshot took, in ms.
    pub taken_ms: f64,
    /// Bytes copied while the threads were held.
    pub held_bytes: u64,
    /// Threads that were inside malloc.
    pub in_malloc: u32,
    /// What was not as it should be.
    pub notes: Vec<String>,
    /// The threads.
    pub threads: Vec<ThreadState>,
    /// The mappings copied.
    pub areas: Vec<Area>,
    /// The modules.
    pub modules: Vec<ModuleInfo>,
    /// Pointers that the kernel holds for the process (epoll, timers, pipes).
    #[serde(default)]
    pub kernel_words: Vec<u64>,
    /// What could hold pointers and was not searched.
    #[serde(default)]
    pub unsearched: Vec<String>,
    /// Class names of vtables, by address point.
    pub classes: std::collections::BTreeMap<u64, String>,
    /// Variables that hold addresses of blocks, as far as they are known.
    #[serde(default)]
    pub variables: Vec<Variable>,
    /// What did not parse in the snapshot before this one, if there was one.
    #[serde(default)]
    pub earlier_findings: Option<Vec<Finding>>,
}

/// A variable of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    /// First address.
    pub start: u64,
    /// Past the last address.
    pub end: u64,
    /// Its name.
    pub name: String,
}

/// Copied memory without a gap in its addresses.
#[derive(Debug, Default)]
pub struct CopiedRegion {
    /// Address of the first byte.
    pub start: u64,
    /// The bytes; zero where there was no page.
    pub bytes: Backing,
    /// Pages that were there, as ascending address ranges.
    pub runs: Runs,
}

impl CopiedRegion {
    /// Past the last address.
    pub fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// A process at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// Everything but the memory.
    pub meta: Meta,
    /// The memory, in address order. No two of them are adjacent.
    pub regions: Vec<CopiedRegion>,
}

impl Snapshot {
    /// The region that holds an address.
    pub fn region(&self, address: u64) -> Option<&CopiedRegion> {
        let after = self.regions.partition_point(|r| r.start <= address);
        let region = self.regions.get(after.checked_sub(1)?)?;
        (address < region.end()).then_some(region)
    }

    /// The bytes of [start, start + bytes), if all of it was copied.
    pub fn bytes(&self, start: u64, bytes: u64) -> Option<&[u8]> {
        let region = self.region(start)?;
        let from = (start - region.start) as usize;
        let to = from.checked_add(usize::try_from(bytes).ok()?)?;
        region.bytes.get(from..to)
    }

    /// The word at an address.
    pub fn word(&self, address: u64) -> Option<u64> {
        let bytes = self.bytes(address, 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The 32-bit word at an address.
    pub fn half(&self, address: u64) -> Option<u32> {
        let bytes = self.bytes(address, 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Bytes copied.
    pub fn copied_bytes(&self) -> u64 {
        self.regions.iter().map(|r| run_bytes(&r.runs)).sum()
    }

    /// Whether both are of one run of one program; what tells it if they are not.
    pub fn same_program(&self, other: &Snapshot) -> Result<(), &'static str> {
        let (Some(own), Some(others)) = (&self.meta.identity, &other.meta.identity) else {
            return Err("a snapshot does not say which process it is of");
        };
        if own.boot != others.boot {
            return Err("they are of different boots, or machines");
        }
        if own != others {
            return Err("they are of different processes");
        }
        // Where its C library lies is chosen anew for each program that a process executes.
        let library = |snapshot: &Snapshot| {
            let libc = snapshot.libc();
            libc.map(|libc| (libc.path.clone(), libc.base))
        };
        if library(self) != library(other) {
            return Err("the process has executed another program in between");
        }
        Ok(())
    }

    /// The mapping that holds an address.
    pub fn area(&self, address: u64) -> Option<&Area> {
        let areas = &self.meta.areas;
        let after = areas.partition_point(|a| a.start <= address);
        let area = areas.get(after.checked_sub(1)?)?;
        (address < area.end).then_some(area)
    }

    /// The C library of the program itself, if that is glibc.
    pub fn libc(&self) -> Option<&ModuleInfo> {
        let programs = self.libcs().find(|libc| libc.is_programs_libc);
        programs.or_else(|| self.libcs().next())
    }

    /// Every glibc of the process.
    pub(crate) fn libcs(&self) -> impl Iterator<Item = &ModuleInfo> {
        let modules = self.meta.modules.iter();
        modules.filter(|module| module.glibc_minor.is_some())
    }
}

/// The words of a run of bytes, at 8-byte steps.
pub fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|word| u64::from_le_bytes(*word))
}

/// Addresses of user space, without the first page.
const USER_ADDRESSES: Range<u64> = 4096..1 << 47;

/// The words at any offset of these bytes that may be addresses.
pub(crate) fn addresses_anywhere(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let words = bytes.windows(8).filter_map(|window| window.first_chunk());
    let words = words.map(|word| u64::from_le_bytes(*word));
    words.filter(|word| USER_ADDRESSES.contains(word))
}

/// What a snapshot says of threads that were inside malloc.
pub fn inside_malloc_note(threads: u32) -> String {
    let were = if threads == 1 {
        "1 thread was".to_owned()
    } else {
        format!("{threads} threads were")
    };
    format!("{were} inside malloc: what they were changing may look damaged")
}
