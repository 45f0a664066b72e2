//! Entry of the table of blocks: the state of one address, in 24 bytes.
//!
//! ```text
//! word 0:  bits  0..45  block address >> 3; an empty place is all zero
//!          bit  45      alive (else a tombstone: the address was released)
//!          bit  46      tombstone of a realloc that may still turn out to have failed
//!          bit  47      aged: whatever arrives now happened after this entry's event
//!          bits 48..64  index of the allocating thread
//! word 1:  bits  0..26  index of the allocation site
//!          bits 26..48  sequence number of the event
//!          bits 48..64  consumer pass in which the event arrived, low bits
//! word 2:  bits  0..32  size in bytes; u32::MAX: in a table beside this one
//!          bits 32..64  time of the allocation in milliseconds
//! ```

use crate::BlockOf;
use memhook_abi::sequence_before;

const ADDRESS_MASK: u64 = (1 << 45) - 1;
const ALIVE: u64 = 1 << 45;
const PROVISIONAL: u64 = 1 << 46;
const AGED: u64 = 1 << 47;
const SITE_MASK: u64 = (1 << 26) - 1;
const SEQUENCE_MASK: u64 = (1 << 22) - 1;
const SIZE_MASK: u64 = u32::MAX as u64;
/// Age at which entries are marked as aged. It exceeds the delay of any event that the ledger holds back.
pub(crate) const AGED_PASSES: i16 = 16;

/// Entry of the table. The words are not an array, because the compiler would keep an array in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry(u64, u64, u64);

/// Returns the key of an address, which determines the position in the table.
#[inline]
pub(crate) fn key_of(address: u64) -> u64 {
    address >> 3 & ADDRESS_MASK
}

impl Entry {
    #[inline(always)]
    pub fn block(
        address: u64,
        sequence: u32,
        pass: u16,
        site: u32,
        size: u64,
        time_ns: u64,
        tid_index: u16,
    ) -> Self {
        let time_ms = (time_ns / 1_000_000).min(u64::from(u32::MAX));
        Self(
            key_of(address) | ALIVE | u64::from(tid_index) << 48,
            u64::from(site) & SITE_MASK
                | (u64::from(sequence) & SEQUENCE_MASK) << 26
                | u64::from(pass) << 48,
            size.min(SIZE_MASK) | time_ms << 32,
        )
    }

    #[inline(always)]
    pub fn tombstone(address: u64, sequence: u32, pass: u16) -> Self {
        Self(
            key_of(address),
            (u64::from(sequence) & SEQUENCE_MASK) << 26 | u64::from(pass) << 48,
            0,
        )
    }

    /// Marks the block as dead although its release was not seen. The entry continues to protect against the same
    /// events.
    #[inline]
    pub fn dead(self) -> Self {
        Self(self.0 & (ADDRESS_MASK | AGED), self.1 & !SITE_MASK, 0)
    }

    #[inline]
    pub fn provisional(mut self) -> Self {
        self.0 |= PROVISIONAL;
        self
    }

    /// Returns the entry, marked as aged.
    #[inline]
    pub fn aged(mut self) -> Self {
        self.0 |= AGED;
        self
    }

    /// Returns the entry, marked as aged if it is old enough.
    #[inline]
    pub fn aged_by(self, pass: u16) -> Self {
        if !self.is_empty() && self.age(pass) >= AGED_PASSES {
            return self.aged();
        }
        self
    }

    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the key of the entry's address ([`key_of`]), or 0 if the entry is empty.
    #[inline]
    pub fn key(self) -> u64 {
        self.0 & ADDRESS_MASK
    }

    /// Returns the size in bytes, or `None` if it does not fit into an entry.
    #[inline]
    pub fn small_size(self) -> Option<u64> {
        let size = self.2 & SIZE_MASK;
        (size != SIZE_MASK).then_some(size)
    }

    #[inline]
    pub fn address(self) -> u64 {
        (self.0 & ADDRESS_MASK) << 3
    }

    #[inline]
    pub fn is_alive(self) -> bool {
        self.0 & ALIVE != 0
    }

    #[inline]
    pub fn is_provisional(self) -> bool {
        self.0 & PROVISIONAL != 0
    }

    #[inline]
    pub fn tid_index(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Returns the entry in the form that observers get. The caller passes the size, which may be stored outside the
    /// entry.
    #[inline]
    pub fn with_size(self, size: u64) -> BlockOf {
        BlockOf {
            site: self.site(),
            thread: self.tid_index(),
            address: self.address(),
            size,
            time_ns: self.time_ns(),
        }
    }

    #[inline]
    pub fn site(self) -> u32 {
        (self.1 & SITE_MASK) as u32
    }

    #[inline]
    pub fn sequence(self) -> u32 {
        (self.1 >> 26 & SEQUENCE_MASK) as u32
    }

    #[inline]
    pub fn time_ns(self) -> u64 {
        (self.2 >> 32) * 1_000_000
    }

    /// Returns the number of passes from the arrival of this entry's event to `pass`; negative if the event arrived
    /// later.
    #[inline]
    fn age(self, pass: u16) -> i16 {
        pass.wrapping_sub((self.1 >> 48) as u16) as i16
    }

    /// Returns true if every event that arrives in `pass` happened after this entry's event. Any earlier event must
    /// have arrived by the end of the pass after the entry's own.
    #[inline]
    pub fn precedes_all_of(self, pass: u16) -> bool {
        self.0 & AGED != 0 || self.age(pass) >= 2
    }

    /// Returns true if the entry's sequence number is too old to be compared with numbers of this pass.
    #[inline]
    pub fn is_old(self, pass: u16) -> bool {
        self.0 & AGED != 0 || self.age(pass) > 4
    }

    /// Returns true if this entry's event happened before a release of the same address that arrived in `pass` with the
    /// sequence number `release`.
    #[inline]
    pub fn is_before_release(self, release: u32, pass: u16) -> bool {
        self.precedes_all_of(pass) || sequence_before(self.sequence(), release)
    }

    /// Returns true if this entry's event happened before an allocation of the same address that arrived in `pass` with
    /// the given sequence number.
    #[inline]
    pub fn is_before_allocation(self, sequence: u32, pass: u16) -> bool {
        self.precedes_all_of(pass) || !sequence_before(sequence, self.sequence())
    }

    /// Returns true if this tombstone no longer protects anything.
    #[inline]
    pub fn is_expired(self, pass: u16) -> bool {
        !self.is_alive() && self.precedes_all_of(pass)
    }
}
