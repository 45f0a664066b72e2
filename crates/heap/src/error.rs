//! Errors of a scan.

use crate::glibc::layout::NEWEST;
use crate::room::Room;
use memhook_foreign::size_text;
use std::time::Duration;

/// Failure of a scan. Its text is one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel's pages are larger than the page size that copies support.
    #[error(
        "process {pid} cannot be copied: pages of this kernel have {bytes} bytes, and only those of 4096 bytes are known"
    )]
    LargePages {
        /// Process id.
        pid: i32,
        /// Bytes of a page.
        bytes: u64,
    },
    /// The process could not be examined.
    #[error(transparent)]
    Process(#[from] memhook_process::Error),
    /// A core dump could not be read.
    #[error(transparent)]
    Core(#[from] memhook_process::CoreError),
    /// The threads of the process could not be held.
    #[error(transparent)]
    Inject(#[from] memhook_inject::Error),
    /// A file of /proc could not be read.
    #[error("cannot read {path}: {error}")]
    Unread {
        /// The file.
        path: String,
        /// Reason.
        error: std::io::Error,
    },
    /// A copy would not fit into memory.
    #[error(
        "the copy of process {pid} would take about {}, and {room}; the process was left alone",
        size_text(*.needed)
    )]
    NoRoom {
        /// Process id.
        pid: i32,
        /// Required bytes.
        needed: u64,
        /// Available room.
        room: Room,
    },
    /// The address space has no room for a copy.
    #[error(
        "process {pid} has a mapping of {}, and there is no address space for a copy of it (ulimit -v, or \
         vm.overcommit_memory is 2)",
        size_text(*.bytes)
    )]
    NoSpace {
        /// Process id.
        pid: i32,
        /// Bytes.
        bytes: u64,
    },
    /// There is not enough memory to compute retained sizes.
    #[error(
        "computing what {blocks} blocks retain would take about {}, and {room}",
        size_text(*.needed)
    )]
    NoRoomForTree {
        /// Number of blocks.
        blocks: u32,
        /// Required bytes.
        needed: u64,
        /// Available room.
        room: Room,
    },
    /// The target could run out of memory while it shares its pages with a fork.
    #[error(
        "a fork costs process {pid} one more page for each page that it writes to, up to {} in all, and {room}",
        size_text(*.needed)
    )]
    NoRoomToFork {
        /// Process id.
        pid: i32,
        /// Required bytes.
        needed: u64,
        /// Available room.
        room: Room,
    },
    /// The method would hold the threads for too long, or has held them for too long.
    #[error(
        "its threads would be held for about {needed_ms:.0} ms ({reason}), and {allowed_ms:.0} ms are allowed"
    )]
    TooLong {
        /// Estimated time, or the time that it took.
        needed_ms: f64,
        /// The limit.
        allowed_ms: f64,
        /// Cause of the long time.
        reason: String,
    },
    /// Every method would hold its threads for longer than is allowed.
    #[error(
        "all threads of process {pid} would be held for longer than {allowed_ms:.0} ms: {ways}"
    )]
    NoShortHold {
        /// Process id.
        pid: i32,
        /// The limit.
        allowed_ms: f64,
        /// Time that each method would take, with the reason.
        ways: String,
        /// Limit that would allow one of the methods.
        enough_ms: f64,
    },
    /// A call would occupy a thread of the process for longer than is allowed.
    #[error(
        "{call} would keep a thread of process {pid} for about {needed_ms:.0} ms (longer on a busy machine), and \
         {allowed_ms:.0} ms are allowed"
    )]
    LongCall {
        /// Process id.
        pid: i32,
        /// Name of the function.
        call: &'static str,
        /// Estimated time of the call.
        needed_ms: f64,
        /// The limit.
        allowed_ms: f64,
    },
    /// In none of the holds was the final check before a release possible.
    #[error(
        "memhook-rs found no moment at which all threads of process {pid} were outside the allocator ({why}), so nothing \
         more is released"
    )]
    NeverStill {
        /// Process id.
        pid: i32,
        /// Reason why the check was impossible in the last hold.
        why: &'static str,
    },
    /// Holds take too long, because either the target or memhook-rs gets too little processor time.
    #[error(
        "holds of process {pid} last {} ms on average, because it or memhook-rs gets too little processor time, so \
         nothing more is released: a control group may have a quota, or the machine is too busy",
        average.as_millis()
    )]
    LongHolds {
        /// Process id.
        pid: i32,
        /// Average length of the holds.
        average: Duration,
    },
    /// The process uses musl.
    #[error("process {pid} runs on musl: scan cannot read its heap")]
    HeapOfMusl {
        /// Process id.
        pid: i32,
    },
    /// The process has no glibc, or no glibc whose heap layout is known.
    #[error("process {pid}: {reason}")]
    NoHeap {
        /// Process id.
        pid: i32,
        /// Reason.
        reason: String,
    },
    /// The glibc is newer than memhook-rs, and its heap fits none of the known layouts.
    #[error(
        "process {pid}: the heap of glibc 2.{minor} has a layout that scan does not know (it knows those of 2.26 to \
         2.{NEWEST})"
    )]
    UnknownLayout {
        /// Process id.
        pid: i32,
        /// The version is glibc 2.`minor`.
        minor: u32,
    },
    /// The process has called execve since its memory was copied.
    #[error("process {pid} has executed another program")]
    OtherProgram {
        /// Process id.
        pid: i32,
    },
    /// Calls of `free` would run the program's own `__free_hook`.
    #[error("nothing is released: the program has its own hook for free() (__free_hook)")]
    OwnFreeHook,
    /// A saved snapshot cannot be used.
    #[error("{file}: {reason}")]
    Saved {
        /// The file, or `-`.
        file: String,
        /// Reason.
        reason: String,
    },
    /// The snapshot is not good enough for releasing blocks.
    #[error("{file}: there is no verdict: {reason}")]
    NoVerdict {
        /// The snapshot.
        file: String,
        /// Reason.
        reason: String,
    },
    /// The verdict belongs to another process.
    #[error("nothing is released in process {pid}: {reason}")]
    OtherVerdict {
        /// Process id.
        pid: i32,
        /// Difference that shows this.
        reason: String,
    },
    /// The address in a question is not in a block.
    #[error("{address:#x} is not in any block of the heap{hint}")]
    NoBlock {
        /// The address.
        address: u64,
        /// Description of the address, as a hint for the reader.
        hint: String,
    },
}
