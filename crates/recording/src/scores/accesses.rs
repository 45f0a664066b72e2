//! Usage and useful lifetime scores of Byma and Larus from the reads and writes of a site's chunks,
//! and further findings from them.
//!
//! The *access interval* of a chunk reaches from the lowest to the highest accessed byte. A chunk
//! that was never read or never written has no interval. If a chunk was read although its allocator
//! does not zero memory, something must have written it first, perhaps a library that does not
//! report accesses. So only a zeroed chunk can count as never written. The usage score of a site is
//! the sum of the intervals divided by the sum of the sizes. The *active life* of a chunk reaches
//! from its first access to its last. The useful lifetime score is the mean, over the chunks, of
//! active life divided by lifetime.

use memhook_abi::Accesses;
use rustc_hash::FxHashMap;

/// Upper bound on releases that await their block.
const MOST_WAITING: usize = 1 << 18;

/// Sums over the chunks of a site with known reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AccessSums {
    /// Number of such chunks.
    pub chunks: u64,
    /// Bytes of these chunks.
    pub bytes: u64,
    /// Sum of the chunks' access intervals in bytes.
    pub accessed_bytes: u64,
    /// Sum of the chunks' active lives, each divided by the chunk's lifetime.
    pub active: f64,
    /// Chunks that were neither read nor written.
    pub untouched: u64,
    /// Chunks that were written and never read.
    pub never_read: u64,
    /// Chunks that were read while they contained the allocator's zeros, and were never written.
    pub never_written: u64,
    /// Number of reads of all chunks.
    pub reads: u64,
    /// Number of writes to all chunks.
    pub writes: u64,
    /// Offset past the furthest accessed byte in any chunk.
    pub furthest: u64,
    /// Chunks that several threads accessed.
    pub by_several: u64,
    /// Number of times that a thread wrote to a cache line directly after another thread had
    /// written to other bytes of it.
    pub false_shares: u64,
    /// Sum of the lifetimes of the touched chunks, in nanoseconds.
    pub lifetimes_ns: u128,
    /// Sum of the times from an allocation to the first access.
    pub before_ns: u128,
    /// Sum of the times from the last access to the release, or the end.
    pub after_ns: u128,
    /// Sum of the times before the first access, multiplied by the sizes of the chunks: possible
    /// savings, in byte nanoseconds.
    pub before_byte_ns: f64,
    /// Like [`AccessSums::before_byte_ns`], for the times after the last access.
    pub after_byte_ns: f64,
    /// Sum of size times lifetime of the untouched chunks, in byte nanoseconds.
    pub untouched_byte_ns: f64,
}

impl AccessSums {
    /// Returns the usage score; `None` if nothing is known, or if the chunks have no bytes.
    pub fn usage(&self) -> Option<f64> {
        (self.bytes > 0).then(|| self.accessed_bytes as f64 / self.bytes as f64)
    }

    /// Returns the useful lifetime score; `None` if nothing is known.
    pub fn useful_lifetime(&self) -> Option<f64> {
        (self.chunks > 0).then(|| self.active / self.chunks as f64)
    }

    /// Adds a chunk of this size and lifetime. `is_zeroed` is true if the allocator wrote zeros.
    pub(super) fn add(
        &mut self,
        accesses: &Accesses,
        is_zeroed: bool,
        size: u64,
        (start_ns, end_ns): (u64, u64),
    ) {
        self.chunks += 1;
        self.bytes = self.bytes.saturating_add(size);
        self.reads = self.reads.saturating_add(accesses.reads);
        self.writes = self.writes.saturating_add(accesses.writes);
        let lifetime_ns = end_ns.saturating_sub(start_ns).max(1);
        let byte_ns = |ns: u64| ns as f64 * size as f64;
        match (accesses.reads, accesses.writes) {
            (0, 0) => {
                self.untouched += 1;
                self.untouched_byte_ns += byte_ns(lifetime_ns);
                return;
            }
            (0, _) => self.never_read += 1,
            (_, 0) if is_zeroed => self.never_written += 1,
            _ => {
                // The allocator may have returned more bytes than requested.
                let interval = accesses.high.min(size).saturating_sub(accesses.low);
                self.accessed_bytes = self.accessed_bytes.saturating_add(interval);
            }
        }
        self.furthest = self.furthest.max(accesses.high.min(size));
        self.by_several += u64::from(accesses.by_several);
        self.false_shares = self.false_shares.saturating_add(accesses.false_shares);
        // Clocks of two processors may differ slightly.
        let first_ns = accesses.first_ns.clamp(start_ns, end_ns);
        let last_ns = accesses.last_ns.clamp(first_ns, end_ns);
        self.active += (last_ns - first_ns) as f64 / lifetime_ns as f64;
        self.lifetimes_ns += u128::from(lifetime_ns);
        self.before_ns += u128::from(first_ns - start_ns);
        self.after_ns += u128::from(end_ns - last_ns);
        self.before_byte_ns += byte_ns(first_ns - start_ns);
        self.after_byte_ns += byte_ns(end_ns - last_ns);
    }
}

/// Reported accesses of blocks whose release has not been counted.
#[derive(Default)]
pub(super) struct Known {
    /// Reports by the number that the release carries.
    released: FxHashMap<u32, Accesses>,
    /// Reports by address.
    live: FxHashMap<u64, Accesses>,
}

impl Known {
    /// Stores the accesses of a block whose future release carries this number.
    pub fn will_be_released(&mut self, number: u32, accesses: &Accesses) {
        self.released.insert(number, *accesses);
        if self.released.len() > MOST_WAITING {
            // Old entries belong to releases of unknown blocks.
            let newest = |key: &u32| number.wrapping_sub(*key) < (MOST_WAITING / 2) as u32;
            self.released.retain(|key, _| newest(key));
        }
    }

    /// Stores the accesses of a block that is live at the end.
    pub fn is_live(&mut self, accesses: &Accesses) {
        self.live.insert(accesses.address, *accesses);
    }

    /// Returns the known accesses of the block whose release carries this number.
    pub fn of_release(&mut self, number: u32) -> Option<Accesses> {
        if self.released.is_empty() {
            return None;
        }
        self.released.remove(&number)
    }

    /// Returns the known accesses of a block that is live at the end.
    pub fn of_live(&self, address: u64) -> Option<Accesses> {
        self.live.get(&address).copied()
    }
}
