//! The table of blocks: open addressing, linear probing, 24 bytes an entry.
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
//! word 2:  bits  0..32  size in bytes; u32::MAX: in the side table
//!          bits 32..64  time of the allocation in milliseconds
//! ```
//!
//! The table is filled to three quarters and then made twice as large as the live entries need,
//! so a live block costs 32 to 48 bytes. Its size is no power of two: the place of a key is the
//! upper half of a multiplication (D. Lemire, "Fast random integer generation in an interval").

use memhook_abi::sequence_before;
use rustc_hash::FxHashMap;

const ADDRESS_MASK: u64 = (1 << 45) - 1;
const ALIVE: u64 = 1 << 45;
const PROVISIONAL: u64 = 1 << 46;
const AGED: u64 = 1 << 47;
const SITE_MASK: u64 = (1 << 26) - 1;
const SEQUENCE_MASK: u64 = (1 << 22) - 1;
const MIN_CAPACITY: usize = 1024;
/// The whole table is visited at least once in this many passes, far less than the pass number's
/// 16 bits hold, so that the age of an entry is never mistaken.
const SWEEP_PASSES: usize = 8192;
/// A visit marks entries from this age on: old enough for every event that the ledger holds back.
pub(crate) const AGED_PASSES: i16 = 16;

/// One place of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry([u64; 3]);

impl Entry {
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
        Self([
            key_of(address) | ALIVE | u64::from(tid_index) << 48,
            u64::from(site) & SITE_MASK
                | (u64::from(sequence) & SEQUENCE_MASK) << 26
                | u64::from(pass) << 48,
            size.min(u64::from(u32::MAX)) | time_ms << 32,
        ])
    }

    pub fn tombstone(address: u64, sequence: u32, pass: u16) -> Self {
        Self([
            key_of(address),
            (u64::from(sequence) & SEQUENCE_MASK) << 26 | u64::from(pass) << 48,
            0,
        ])
    }

    pub fn provisional(mut self) -> Self {
        self.0[0] |= PROVISIONAL;
        self
    }

    pub fn aged(mut self) -> Self {
        self.0[0] |= AGED;
        self
    }

    pub fn address(self) -> u64 {
        (self.0[0] & ADDRESS_MASK) << 3
    }

    pub fn is_alive(self) -> bool {
        self.0[0] & ALIVE != 0
    }

    pub fn is_provisional(self) -> bool {
        self.0[0] & PROVISIONAL != 0
    }

    pub fn tid_index(self) -> u16 {
        (self.0[0] >> 48) as u16
    }

    pub fn site(self) -> u32 {
        (self.0[1] & SITE_MASK) as u32
    }

    pub fn sequence(self) -> u32 {
        (self.0[1] >> 26 & SEQUENCE_MASK) as u32
    }

    pub fn time_ns(self) -> u64 {
        (self.0[2] >> 32) * 1_000_000
    }

    /// Passes from the arrival of this entry's event to `pass`; negative if it arrived later.
    fn age(self, pass: u16) -> i16 {
        pass.wrapping_sub((self.0[1] >> 48) as u16) as i16
    }

    /// Whether everything that arrives in `pass` happened after this entry's event, because all
    /// that happened before it had to arrive by the end of the pass after its own.
    #[inline]
    pub fn precedes_all_of(self, pass: u16) -> bool {
        self.0[0] & AGED != 0 || self.age(pass) >= 2
    }

    /// Whether this entry's event happened before a release of the same address that arrived in
    /// `pass` with number `release`.
    #[inline]
    pub fn is_before_release(self, release: u32, pass: u16) -> bool {
        self.precedes_all_of(pass) || sequence_before(self.sequence(), release)
    }

    /// Whether this tombstone protects nothing any more.
    fn is_expired(self, pass: u16) -> bool {
        !self.is_alive() && self.precedes_all_of(pass)
    }
}

/// Where an address stands, or would.
pub(crate) enum Place {
    /// It stands here.
    Found(usize),
    /// It does not stand anywhere; it may be put here.
    Vacant(usize),
}

pub(crate) struct LiveMap {
    entries: Vec<[u64; 3]>,
    /// Places that are not empty, tombstones included.
    used: usize,
    live: usize,
    /// Sizes that do not fit into an entry, by address.
    large: FxHashMap<u64, u64>,
    sweep_at: usize,
}

fn key_of(address: u64) -> u64 {
    address >> 3 & ADDRESS_MASK
}

fn home(key: u64, capacity: usize) -> usize {
    let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(hash) * capacity as u128) >> 64) as usize
}

impl LiveMap {
    pub fn new() -> Self {
        Self {
            entries: vec![[0; 3]; MIN_CAPACITY],
            used: 0,
            live: 0,
            large: FxHashMap::default(),
            sweep_at: 0,
        }
    }

    pub fn live(&self) -> usize {
        self.live
    }

    /// Bytes of memory that the table takes.
    pub fn table_bytes(&self) -> usize {
        self.entries.len() * size_of::<Entry>()
    }

    /// Looks an address up and makes sure that there is room for it.
    #[inline]
    pub fn find(&mut self, address: u64, pass: u16) -> Place {
        if self.used >= self.entries.len() / 4 * 3 {
            self.rebuild(pass);
        }
        let key = key_of(address);
        let capacity = self.entries.len();
        let mut at = home(key, capacity);
        let mut reusable = None;
        loop {
            let entry = Entry(self.entries[at]);
            let found = entry.0[0] & ADDRESS_MASK;
            if found == key {
                return Place::Found(at);
            }
            if found == 0 {
                return Place::Vacant(reusable.unwrap_or(at));
            }
            if reusable.is_none() && entry.is_expired(pass) {
                reusable = Some(at);
            }
            at += 1;
            if at == capacity {
                at = 0;
            }
        }
    }

    #[inline]
    pub fn get(&self, at: usize) -> Entry {
        Entry(self.entries[at])
    }

    /// Size in bytes of a live entry of this map.
    #[inline]
    pub fn size_of(&self, entry: Entry) -> u64 {
        let size = entry.0[2] & 0xffff_ffff;
        if size == u64::from(u32::MAX) {
            return self.large.get(&entry.address()).copied().unwrap_or(size);
        }
        size
    }

    /// Puts an entry where `find` said. `size` is that of a live entry.
    #[inline]
    pub fn put(&mut self, at: usize, entry: Entry, size: u64) {
        let old = Entry(self.entries[at]);
        self.used += usize::from(old.0[0] == 0);
        self.live += usize::from(entry.is_alive());
        if old.is_alive() {
            self.live -= 1;
            if old.0[2] & 0xffff_ffff == u64::from(u32::MAX) {
                self.large.remove(&old.address());
            }
        }
        if entry.is_alive() && size >= u64::from(u32::MAX) {
            self.large.insert(entry.address(), size);
        }
        self.entries[at] = entry.0;
    }

    /// All live entries, in no order.
    pub fn iter_live(&self) -> impl Iterator<Item = Entry> + '_ {
        self.entries
            .iter()
            .map(|e| Entry(*e))
            .filter(|e| e.is_alive())
    }

    /// Ages a part of the table; once a pass.
    pub fn sweep(&mut self, pass: u16) {
        let end = self
            .entries
            .len()
            .min(self.sweep_at + self.entries.len() / SWEEP_PASSES + 1);
        for entry in &mut self.entries[self.sweep_at..end] {
            *entry = age(Entry(*entry), pass).0;
        }
        self.sweep_at = if end == self.entries.len() { 0 } else { end };
    }

    /// Drops expired tombstones, and grows or shrinks to what the live entries need.
    #[cold]
    fn rebuild(&mut self, pass: u16) {
        let kept = self
            .entries
            .iter()
            .filter(|e| e[0] != 0 && !Entry(**e).is_expired(pass))
            .count();
        let wanted = (kept * 2).max(MIN_CAPACITY);
        let capacity = if wanted > self.entries.len() || wanted < self.entries.len() / 4 {
            wanted
        } else {
            self.entries.len()
        };
        let old = std::mem::replace(&mut self.entries, vec![[0; 3]; capacity]);
        for entry in old {
            let entry = Entry(entry);
            if entry.0[0] == 0 || entry.is_expired(pass) {
                continue;
            }
            let mut at = home(entry.0[0] & ADDRESS_MASK, capacity);
            while self.entries[at][0] != 0 {
                at = if at + 1 == capacity { 0 } else { at + 1 };
            }
            self.entries[at] = age(entry, pass).0;
        }
        self.used = kept;
        self.sweep_at = 0;
    }
}

fn age(entry: Entry, pass: u16) -> Entry {
    if entry.0[0] != 0 && entry.age(pass) >= AGED_PASSES {
        return entry.aged();
    }
    entry
}
