//! Blocks, and the events that concern them.

use memhook_ledger::{BlockOf, ReleaseBy};
use std::ops::Range;
use std::time::Duration;

/// Id of a call stack; [`Attached::backtrace`](crate::Attached::backtrace) returns its frames. Equal stacks have equal
/// ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BacktraceId(pub(crate) u32);

/// Id of a thread of the process; [`Attached::thread`](crate::Attached::thread) returns its kernel id and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadId(pub(crate) u16);

/// A block that the process has allocated since the attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// Address in the process.
    pub address: u64,
    /// Requested size in bytes.
    pub size: u64,
    /// Call stack of the allocation.
    pub backtrace: BacktraceId,
    /// Thread that allocated it.
    pub thread: ThreadId,
    /// Time of the allocation since the attach, to the millisecond.
    pub time: Duration,
}

impl Block {
    pub(crate) fn of(found: &BlockOf, stack: u32) -> Block {
        Block {
            address: found.address,
            size: found.size,
            backtrace: BacktraceId(stack),
            thread: ThreadId(found.thread),
            time: Duration::from_nanos(found.time_ns),
        }
    }

    /// Returns the addresses of its bytes.
    pub fn range(&self) -> Range<u64> {
        self.address..self.address.saturating_add(self.size)
    }
}

/// The release of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Free {
    /// Thread that released it; `None` if the call was not seen and the release was inferred because the address was
    /// reused.
    pub thread: Option<ThreadId>,
    /// Call stack of the release; requires [`Options::free_backtraces`](crate::Options::free_backtraces).
    pub backtrace: Option<BacktraceId>,
}

impl Free {
    pub(crate) fn of(by: Option<ReleaseBy>) -> Free {
        let stack = by.map(|by| by.stack).filter(|&stack| stack != 0);
        Free {
            thread: by.map(|by| ThreadId(by.thread)),
            backtrace: stack.map(BacktraceId),
        }
    }
}

/// A watch that was set by [`Attached::watch`](crate::Attached::watch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId(pub(crate) u64);

/// An access to watched memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Access {
    /// The watch.
    pub watch: WatchId,
    /// Address of the accessed eight-byte word, or of the accessed part of it.
    pub address: u64,
    /// Thread id in the PID namespace of the process.
    pub tid: u32,
    /// Time since the attach.
    pub time: Duration,
    /// True if the kernel made the access on behalf of the thread, as in `read(2)`.
    pub by_kernel: bool,
    /// Call stack of the access: the address after the accessing instruction, then return addresses, innermost
    /// first. [`Attached::names`](crate::Attached::names) returns their names. Empty if unknown.
    pub frames: Vec<u64>,
}
