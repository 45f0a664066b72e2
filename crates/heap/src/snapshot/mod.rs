//! A process at one moment: copied memory, registers, mappings, modules.

mod backing;
#[cfg(test)]
mod foreign_file_tests;
mod identity;
mod store;

use crate::arch::native::{self, ByNumber};
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
    /// Copied while the process ran. Pages that were written meanwhile were copied again, and the
    /// threads were held only for the last round.
    Precopy,
    /// Copied from a forked child that never ran. The fork was made with all threads held.
    Fork,
    /// All threads held throughout.
    Stop,
    /// Copied while at least one thread may have run, by a command that may only read the process. The contents may
    /// have changed during the copy.
    Running,
    /// Read from a core dump.
    Core,
}

impl Method {
    /// Returns the method's name on the command line.
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

/// Role of a mapping in the search for pointers.
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
    /// Kind of the mapping.
    pub kind: AreaKind,
    /// Path of the file, or the kernel's name for the mapping.
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
    /// True if the thread is in a system call that ends a thread or a process. The function that made the call will not
    /// use its data again.
    #[serde(default)]
    pub is_exiting: bool,
    /// True if the thread is in a system call.
    #[serde(default)]
    pub is_in_call: bool,
    /// All register words that may be pointers, vector registers included.
    pub words: Vec<u64>,
    /// All registers, by DWARF number. They are present only while the snapshot is taken.
    #[serde(skip)]
    pub registers: Option<ByNumber>,
    /// Bits that pointer authentication uses in its return addresses.
    #[serde(skip)]
    pub signature: u64,
    /// Lowest stack pointer of all frames that the thread will return to. `None` if the stack could not be unwound to
    /// its start. The thread may then run on a coroutine's stack, which can be anywhere, even in a frame of the
    /// thread's own stack.
    #[serde(default)]
    pub lowest_frame: Option<u64>,
}

/// Name of musl's allocator.
pub const MUSL: &str = "musl's malloc";

/// Facts about a module that the scan needs.
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
    /// Writable segments of the module, RELRO included.
    #[serde(with = "pairs")]
    pub data: Vec<Range<u64>>,
    /// `2.N` if this is glibc.
    pub glibc_minor: Option<u32>,
    /// True if the module is the C library of the program itself, not of another namespace (dlmopen(3)).
    #[serde(default)]
    pub is_programs_libc: bool,
    /// Address range of `malloc` and its internal functions, if the module is glibc.
    #[serde(with = "pair")]
    pub malloc_code: Range<u64>,
    /// Name of the allocator other than glibc's that the module contains, if any.
    pub allocator: Option<String>,
    /// Known address ranges of this other allocator's code in the module.
    #[serde(default, with = "pairs")]
    pub allocator_code: Vec<Range<u64>>,
    /// GNU build-id.
    #[serde(default)]
    pub build_id: Option<Vec<u8>>,
}

impl ModuleInfo {
    /// Returns the file name of the module.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// All parts of a snapshot except the memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Meta {
    /// Process id.
    pub pid: i32,
    /// Processor, by the name that Rust has for it.
    #[serde(default = "first_processor")]
    pub processor: String,
    /// Identity of the process; `None` if the snapshot comes from a core dump.
    #[serde(default)]
    pub identity: Option<ProcessIdentity>,
    /// Method of the copy.
    pub method: Method,
    /// Milliseconds for which all threads were held.
    pub held_ms: f64,
    /// How long one thread was held to set up the copy, before all threads were held, in milliseconds.
    pub prepare_held_ms: f64,
    /// Milliseconds that the whole snapshot took.
    pub taken_ms: f64,
    /// Bytes copied while the threads were held.
    pub held_bytes: u64,
    /// Threads that were inside malloc.
    pub in_malloc: u32,
    /// Problems that the snapshot met.
    pub notes: Vec<String>,
    /// The threads.
    pub threads: Vec<ThreadState>,
    /// The copied mappings.
    pub areas: Vec<Area>,
    /// The modules.
    pub modules: Vec<ModuleInfo>,
    /// Pointers that the kernel stores for the process (epoll, timers, pipes).
    #[serde(default)]
    pub kernel_words: Vec<u64>,
    /// Pages that changed while they were copied. Blocks there count as reachable.
    #[serde(default, with = "pairs")]
    pub changed: Runs,
    /// Words of the changed pages that may be addresses and are not in the copy.
    #[serde(default)]
    pub changed_words: Vec<u64>,
    /// Memory that could hold pointers and was not searched.
    #[serde(default)]
    pub unsearched: Vec<String>,
    /// Class names of vtables, by address point.
    pub classes: std::collections::BTreeMap<u64, String>,
    /// Known variables that hold addresses of blocks.
    #[serde(default)]
    pub variables: Vec<Variable>,
    /// Results of the previous snapshots, if there were any.
    #[serde(default)]
    pub earlier: Option<EarlierLook>,
    /// Number of threads that may have been inside an allocator with unknown code, because they had not moved since the
    /// previous snapshot.
    #[serde(default)]
    pub unmoved: u32,
    /// Path of the program that the process emulates, if it is an emulator.
    #[serde(default)]
    pub emulated: Option<String>,
}

/// Facts that a snapshot keeps from earlier snapshots.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EarlierLook {
    /// Parts of the heap that did not parse.
    pub findings: Vec<Finding>,
    /// Address and size of each block that was unreachable in one of the earlier snapshots, in address order. `None` if
    /// one snapshot is enough, because any thread inside an allocator would have been noticed.
    pub unreached: Option<Vec<(u64, u64)>>,
    /// The memory of each of these snapshots changed while it was copied.
    #[serde(default)]
    pub is_torn: bool,
}

/// Returns the processor of snapshots that do not name one.
fn first_processor() -> String {
    "x86_64".to_owned()
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

/// Copied memory with contiguous addresses.
#[derive(Debug, Default)]
pub struct CopiedRegion {
    /// Address of the first byte.
    pub start: u64,
    /// The bytes. Pages that did not exist read as zeros.
    pub bytes: Backing,
    /// Address ranges of the pages that existed, in ascending order.
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
    /// All facts except the memory.
    pub meta: Meta,
    /// The memory, in address order. No two regions are adjacent.
    pub regions: Vec<CopiedRegion>,
}

impl Snapshot {
    /// Returns the region that holds an address.
    pub fn region(&self, address: u64) -> Option<&CopiedRegion> {
        let after = self.regions.partition_point(|r| r.start <= address);
        let region = self.regions.get(after.checked_sub(1)?)?;
        (address < region.end()).then_some(region)
    }

    /// Returns the bytes of [start, start + bytes), if the whole range was copied.
    pub fn bytes(&self, start: u64, bytes: u64) -> Option<&[u8]> {
        let region = self.region(start)?;
        let from = (start - region.start) as usize;
        let to = from.checked_add(usize::try_from(bytes).ok()?)?;
        region.bytes.get(from..to)
    }

    /// Returns the 64-bit word at an address.
    pub fn word(&self, address: u64) -> Option<u64> {
        let bytes = self.bytes(address, 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Returns the 32-bit word at an address.
    pub fn half(&self, address: u64) -> Option<u32> {
        let bytes = self.bytes(address, 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Returns the number of copied bytes.
    pub fn copied_bytes(&self) -> u64 {
        self.regions.iter().map(|r| run_bytes(&r.runs)).sum()
    }

    /// Succeeds if both snapshots belong to one run of one program. The error names the difference.
    pub fn same_program(&self, other: &Snapshot) -> Result<(), &'static str> {
        let (Some(own), Some(others)) = (&self.meta.identity, &other.meta.identity) else {
            return Err("a snapshot does not say which process it is from");
        };
        if own.boot != others.boot {
            return Err("they are from different boots or machines");
        }
        if own != others {
            return Err("they are from different processes");
        }
        // The kernel chooses a new address for the C library whenever a process executes a program.
        let library = |snapshot: &Snapshot| {
            let libc = snapshot.libc();
            libc.map(|libc| (libc.path.clone(), libc.base))
        };
        if library(self) != library(other) {
            return Err("the process has executed another program in between");
        }
        Ok(())
    }

    /// Returns the mapping that holds an address.
    pub fn area(&self, address: u64) -> Option<&Area> {
        let areas = &self.meta.areas;
        let after = areas.partition_point(|a| a.start <= address);
        let area = areas.get(after.checked_sub(1)?)?;
        (address < area.end).then_some(area)
    }

    /// Returns the C library of the program itself, if it is glibc.
    pub fn libc(&self) -> Option<&ModuleInfo> {
        let programs = self.libcs().find(|libc| libc.is_programs_libc);
        programs.or_else(|| self.libcs().next())
    }

    /// Returns every copy of glibc in the process.
    pub(crate) fn libcs(&self) -> impl Iterator<Item = &ModuleInfo> {
        let modules = self.meta.modules.iter();
        modules.filter(|module| module.glibc_minor.is_some())
    }
}

/// Iterates over the 64-bit words of some bytes, in steps of 8 bytes.
pub fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|word| u64::from_le_bytes(*word))
}

/// Addresses of user space, without the first page.
pub(crate) const USER_ADDRESSES: Range<u64> = 4096..native::END_OF_ADDRESSES;

/// Returns the words at every byte offset that may be addresses.
pub(crate) fn addresses_anywhere(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let words = bytes.windows(8).filter_map(|window| window.first_chunk());
    let words = words.map(|word| u64::from_le_bytes(*word));
    words.filter(|word| USER_ADDRESSES.contains(word))
}

/// Returns the snapshot's note about threads that have not moved since the previous snapshot, for an allocator with
/// unknown code.
pub fn unmoved_note(threads: u32) -> String {
    let (did, were) = if threads == 1 {
        ("1 thread has".to_owned(), "it was")
    } else {
        (format!("{threads} threads have"), "they were")
    };
    format!(
        "{did} not run between two copies of the memory: a block that {were} allocating or releasing may look leaked"
    )
}

/// Returns the snapshot's note about threads that were inside malloc.
pub fn inside_malloc_note(threads: u32) -> String {
    let were = if threads == 1 {
        "1 thread was".to_owned()
    } else {
        format!("{threads} threads were")
    };
    format!("{were} inside malloc: data that they were changing may look damaged")
}
