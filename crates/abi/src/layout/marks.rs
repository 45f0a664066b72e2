//! Marks that somebody sets while a process is traced.

use super::shared_struct::shared_struct;
use std::sync::atomic::AtomicU64;

/// Words of a mark's name.
pub const MARK_WORDS: usize = 14;
/// Bytes of a mark's name, at most; it is filled up with zeros.
pub const MARK_BYTES: usize = MARK_WORDS * 8;
/// Marks that can wait for the attacher at one time.
pub const MARKS: usize = 24;
/// In [`MarkEntry::time_ns`]: the program has set the mark itself, at the time in the other bits, and the attacher has
/// not seen it yet.
pub const MARK_BY_PROGRAM: u64 = 1 << 63;

shared_struct! {
    /// A mark. Who sets it takes a number from [`super::Control`], writes the name and then the number;
    /// the attacher answers with the time. A mark of the program itself has the time already
    /// ([`MARK_BY_PROGRAM`]).
    report MarkEntry {
        /// Number + 1, once the name is there; 0 while it is written.
        number: AtomicU64,
        /// Its time in nanoseconds since the attach, once the attacher has seen it; 0: not yet.
        time_ns: AtomicU64,
        /// The name, UTF-8.
        name: [u64; 14],
    }
}
