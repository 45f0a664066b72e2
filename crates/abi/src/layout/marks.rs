//! Marks set during a trace.

use super::shared_struct::shared_struct;
use std::sync::atomic::AtomicU64;

/// Words of a mark's name.
pub const MARK_WORDS: usize = 14;
/// Maximum length of a mark's name in bytes; the rest is zeros.
pub const MARK_BYTES: usize = MARK_WORDS * 8;
/// Maximum number of marks that wait for the attacher.
pub const MARKS: usize = 24;
/// Bit in [`MarkEntry::time_ns`]: the program has set the mark itself, at the time in the other bits, and the attacher
/// has not seen it yet.
pub const MARK_BY_PROGRAM: u64 = 1 << 63;

shared_struct! {
    /// A mark. Its setter takes a number from [`super::Tally`], writes the name and then the number; the attacher
    /// answers with the time. A mark of the program itself already has the time ([`MARK_BY_PROGRAM`]).
    report MarkEntry {
        /// Number + 1, once the name is complete; 0 while it is written.
        number: AtomicU64,
        /// Time in nanoseconds since the attach, once the attacher has seen the mark; 0 before.
        time_ns: AtomicU64,
        /// The name, UTF-8.
        name: [u64; 14],
    }
}
