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
//! A large table is cut into segments by the first bits of the hash, and each grows for itself: to
//! rebuild a table of ten million blocks at once would stop the consumer for a second, and take the
//! memory of two. A segment is filled to three quarters and then made 1.6 to 2 times as large as its
//! entries need, some more and some less, so that they do not all grow within a few passes; a live
//! block costs 32 to 48 bytes, around 40 on average. Its size is no power of two: the place of a
//! key is the upper half of a multiplication (D. Lemire, "Fast random integer generation in an
//! interval").

use crate::BlockOf;
use crate::thinning::{Census, Thinning};
use memhook_abi::sequence_before;
use rustc_hash::FxHashMap;

const ADDRESS_MASK: u64 = (1 << 45) - 1;
const ALIVE: u64 = 1 << 45;
const PROVISIONAL: u64 = 1 << 46;
const AGED: u64 = 1 << 47;
const SITE_MASK: u64 = (1 << 26) - 1;
const SEQUENCE_MASK: u64 = (1 << 22) - 1;
/// Of a table that is cut.
const SEGMENT_BITS: u32 = 10;
/// A table that would need more places is cut.
const WHOLE_CAPACITY: usize = 1 << 16;
/// Places for each entry of a table that is not cut, if that is not too many: what it takes is little, and
/// searches are shorter.
const ROOMY: usize = 4;
/// Places of a table that is not empty, at least, by `bits`.
const fn min_capacity(bits: u32) -> usize {
    if bits == 0 { 1024 } else { 32 }
}
/// All segments are visited once in so many passes, far less than the pass number's 16 bits hold, so
/// that the age of an entry is never mistaken.
const SWEEP_PASSES: usize = 8192;
/// A visit marks entries from this age on: old enough for every event that the ledger holds back.
pub(crate) const AGED_PASSES: i16 = 16;

/// When blocks are to be dropped, so many bytes of the table are looked through in a pass: the rings
/// wait meanwhile.
const SHED_BYTES: usize = 8 << 20;

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

    /// The same event's entry when its block is known to be gone, though no release has come: it protects
    /// what it did, for as long.
    pub fn dead(self) -> Self {
        Self([self.0[0] & (ADDRESS_MASK | AGED), self.0[1] & !SITE_MASK, 0])
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

    /// As observers see it; the size may stand elsewhere.
    pub fn with_size(self, size: u64) -> BlockOf {
        BlockOf {
            site: self.site(),
            thread: self.tid_index(),
            address: self.address(),
            size,
            time_ns: self.time_ns(),
        }
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

    /// Whether this entry's event happened before an allocation of the same address that arrived in
    /// `pass` with this number.
    pub fn is_before_allocation(self, sequence: u32, pass: u16) -> bool {
        self.precedes_all_of(pass) || !sequence_before(sequence, self.sequence())
    }

    /// Whether this tombstone protects nothing any more.
    fn is_expired(self, pass: u16) -> bool {
        !self.is_alive() && self.precedes_all_of(pass)
    }
}

/// A place of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    segment: u32,
    index: u32,
}

/// Where an address is, or would be.
pub(crate) enum Place {
    /// It is here.
    Found(At),
    /// It does not stand anywhere; it may be put here.
    Vacant(At),
}

#[derive(Clone, Default)]
struct Segment {
    entries: Vec<[u64; 3]>,
    /// Places that are not empty, tombstones included.
    used: usize,
}

pub(crate) struct LiveMap {
    segments: Vec<Segment>,
    /// There are 2^bits segments: one, or 2^SEGMENT_BITS.
    bits: u32,
    live: usize,
    /// Places of all segments.
    capacity: usize,
    /// Sizes that do not fit into an entry, by address.
    large: FxHashMap<u64, u64>,
    /// Which blocks are kept. Others may still stand in segments that were not rebuilt since.
    thinning: Thinning,
    /// So many segments, the first ones, are still to be rebuilt to that end.
    unshed: usize,
}

fn key_of(address: u64) -> u64 {
    address >> 3 & ADDRESS_MASK
}

fn hash_of(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Puts an entry that is not there yet into a table with room.
fn insert(entries: &mut [[u64; 3]], bits: u32, entry: Entry) {
    let mut index = home(hash_of(entry.0[0] & ADDRESS_MASK), bits, entries.len());
    while entries[index][0] != 0 {
        index = if index + 1 == entries.len() {
            0
        } else {
            index + 1
        };
    }
    entries[index] = entry.0;
}

#[inline]
fn segment_of(hash: u64, bits: u32) -> usize {
    (hash >> 1 >> (63 - bits)) as usize
}

#[inline]
fn home(hash: u64, bits: u32, capacity: usize) -> usize {
    ((u128::from(hash << bits) * capacity as u128) >> 64) as usize
}

impl LiveMap {
    pub fn new() -> Self {
        Self {
            segments: vec![Segment::default()],
            bits: 0,
            live: 0,
            capacity: 0,
            large: FxHashMap::default(),
            thinning: Thinning::default(),
            unshed: 0,
        }
    }

    pub fn live(&self) -> usize {
        self.live
    }

    /// Bytes of memory that the table takes.
    pub fn table_bytes(&self) -> usize {
        self.capacity * size_of::<Entry>()
            + self.segments.len() * size_of::<Segment>()
            + self.large.capacity() * size_of::<(u64, u64, u8)>()
    }

    /// Which blocks are kept.
    #[inline]
    pub fn thinning(&self) -> Thinning {
        self.thinning
    }

    /// Whether not all blocks are kept.
    #[inline(always)]
    pub fn is_thinned(&self) -> bool {
        self.thinning.is_on()
    }

    /// What keeps about `room` entries of those that are there.
    pub fn thinning_for(&self, room: f64, pass: u16) -> Thinning {
        let mut census = Census::default();
        for entry in self.segments.iter().flat_map(|segment| &segment.entries) {
            let entry = self.as_kept(Entry(*entry));
            if entry.is_alive() {
                census.count(self.size_of(entry));
            } else if entry.0[0] != 0 && !entry.is_expired(pass) {
                census.tombstones += 1;
            }
        }
        self.thinning.to_fit(&census, room)
    }

    /// Keeps fewer blocks from now on; their places are freed by and by.
    pub fn thin(&mut self, thinning: Thinning) {
        self.thinning = thinning;
        self.unshed = self.segments.len();
    }

    /// Frees places of blocks that are not kept; returns whether there may be more.
    pub fn shed_some(&mut self, pass: u16) -> bool {
        let mut bytes = 0;
        while self.unshed > 0 && bytes < SHED_BYTES {
            self.unshed -= 1;
            bytes += self.segments[self.unshed].entries.len() * size_of::<Entry>();
            self.rebuild(self.unshed, pass);
        }
        if self.large.len() < self.large.capacity() / 4 {
            self.large.shrink_to_fit();
        }
        self.unshed > 0
    }

    /// An entry as if everything were dropped at once that is not kept: a block's event still protects
    /// what it did.
    #[inline]
    fn as_kept(&self, entry: Entry) -> Entry {
        if !self.thinning.is_on() || entry.0[0] == 0 {
            return entry;
        }
        if self.thinning.excludes(entry.address()) {
            return Entry([0; 3]);
        }
        if entry.is_alive() && !self.thinning.keeps(entry.address(), self.size_of(entry)) {
            return entry.dead();
        }
        entry
    }

    /// Prefetches the first place where an address may stand.
    #[inline]
    pub fn expect(&self, address: u64) {
        let hash = hash_of(key_of(address));
        let entries = &self.segments[segment_of(hash, self.bits)].entries;
        if let Some(entry) = entries.get(home(hash, self.bits, entries.len())) {
            memhook_abi::prefetch(entry);
        }
    }

    /// The entry at the first place where an address may stand, whosever it is: a look-up that
    /// ends there finds it in the cache afterwards.
    #[inline]
    pub fn first_look(&self, address: u64) -> Entry {
        let hash = hash_of(key_of(address));
        let entries = &self.segments[segment_of(hash, self.bits)].entries;
        let index = home(hash, self.bits, entries.len());
        Entry(entries.get(index).copied().unwrap_or_default())
    }

    /// Looks an address up and makes sure that there is room for it.
    #[inline(always)]
    pub fn find(&mut self, address: u64, pass: u16) -> Place {
        let key = key_of(address);
        let hash = hash_of(key);
        let mut segment = segment_of(hash, self.bits);
        if self.segments[segment].used >= self.segments[segment].entries.len() / 4 * 3 {
            self.rebuild(segment, pass);
            segment = segment_of(hash, self.bits);
        }
        let entries = &self.segments[segment].entries[..];
        let at = |index| At {
            segment: segment as u32,
            index: index as u32,
        };
        let mut index = home(hash, self.bits, entries.len());
        let mut reusable = None;
        loop {
            let entry = Entry(entries[index]);
            let found = entry.0[0] & ADDRESS_MASK;
            if found == key {
                return Place::Found(at(index));
            }
            if found == 0 {
                return Place::Vacant(at(reusable.unwrap_or(index)));
            }
            if reusable.is_none() && entry.is_expired(pass) {
                reusable = Some(index);
            }
            index += 1;
            if index == entries.len() {
                index = 0;
            }
        }
    }

    #[inline(always)]
    pub fn get(&self, at: At) -> Entry {
        let entry = Entry(self.segments[at.segment as usize].entries[at.index as usize]);
        if self.thinning.is_on() && entry.is_alive() {
            return self.as_kept(entry);
        }
        entry
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
    #[inline(always)]
    pub fn put(&mut self, at: At, entry: Entry, size: u64) {
        let segment = &mut self.segments[at.segment as usize];
        let place = &mut segment.entries[at.index as usize];
        let old = Entry(*place);
        *place = entry.0;
        segment.used += usize::from(old.0[0] == 0);
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
    }

    /// In how many segments the table is cut now.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// How many places a segment has, and its live entries; `None` behind the last one.
    pub fn live_of_segment(&self, segment: usize) -> Option<(usize, impl Iterator<Item = Entry>)> {
        let entries = &self.segments.get(segment)?.entries;
        let live = entries.iter().map(|e| Entry(*e));
        // What is not kept may still be there, until the segment is rebuilt.
        let live = live.filter(|e| e.is_alive() && self.as_kept(*e).is_alive());
        Some((entries.len(), live))
    }

    /// All live entries, in no order.
    pub fn iter_live(&self) -> impl Iterator<Item = Entry> + '_ {
        self.segments
            .iter()
            .flat_map(|segment| &segment.entries)
            .map(|e| Entry(*e))
            .filter(|e| e.is_alive() && self.as_kept(*e).is_alive())
    }

    /// Ages a part of the table; once a pass.
    pub fn sweep(&mut self, pass: u16) {
        let every = (SWEEP_PASSES >> self.bits) as u16;
        if pass.is_multiple_of(every) {
            let segment = usize::from(pass / every) % self.segments.len();
            for entry in &mut self.segments[segment].entries {
                *entry = age(Entry(*entry), pass).0;
            }
        }
    }

    /// Drops a segment's expired tombstones and what is not kept, and makes it as large as the rest needs.
    #[cold]
    #[inline(never)]
    fn rebuild(&mut self, segment: usize, pass: u16) {
        let mut old = std::mem::take(&mut self.segments[segment].entries);
        if self.thinning.is_on() {
            for entry in &mut old {
                let kept = self.as_kept(Entry(*entry));
                if Entry(*entry).is_alive() && !kept.is_alive() {
                    self.live -= 1;
                    self.large.remove(&Entry(*entry).address());
                }
                *entry = kept.0;
            }
        }
        let is_kept = |e: &&[u64; 3]| e[0] != 0 && !Entry(**e).is_expired(pass);
        let kept = old.iter().filter(is_kept).count();
        let percent = 160 + 40 * segment / self.segments.len();
        let mut capacity = (kept * percent / 100).max(min_capacity(self.bits));
        if self.bits == 0 && capacity <= WHOLE_CAPACITY {
            capacity = capacity.max((kept * ROOMY).min(WHOLE_CAPACITY));
        }
        self.capacity -= old.len();
        if self.bits == 0 && capacity > WHOLE_CAPACITY {
            self.cut(old.iter().filter(is_kept).map(|e| age(Entry(*e), pass)));
            return;
        }
        let mut entries = vec![[0; 3]; capacity];
        for entry in old.iter().filter(is_kept) {
            insert(&mut entries, self.bits, age(Entry(*entry), pass));
        }
        self.capacity += capacity;
        self.segments[segment] = Segment {
            entries,
            used: kept,
        };
    }

    /// Cuts a table of these entries into segments.
    fn cut(&mut self, entries: impl Iterator<Item = Entry> + Clone) {
        self.bits = SEGMENT_BITS;
        let segment_of = |e: &Entry| segment_of(hash_of(e.0[0] & ADDRESS_MASK), SEGMENT_BITS);
        let mut segments = vec![Segment::default(); 1 << SEGMENT_BITS];
        entries
            .clone()
            .for_each(|e| segments[segment_of(&e)].used += 1);
        for segment in &mut segments {
            let capacity = (segment.used * 2).max(min_capacity(SEGMENT_BITS));
            segment.entries = vec![[0; 3]; capacity];
            self.capacity += capacity;
        }
        entries.for_each(|e| insert(&mut segments[segment_of(&e)].entries, SEGMENT_BITS, e));
        self.segments = segments;
    }
}

fn age(entry: Entry, pass: u16) -> Entry {
    if entry.0[0] != 0 && entry.age(pass) >= AGED_PASSES {
        return entry.aged();
    }
    entry
}
