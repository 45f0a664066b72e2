//! The table of blocks: open addressing with linear probing, in segments.
//!
//! All blocks in one window of addresses are in the same segment. So blocks that a program allocates or releases in
//! sequence are found in memory that is already cached, and within few pages. The position in a segment is chosen by a
//! hash (`segment`).
//!
//! The table grows by one segment at a time (W. Litwin, "Linear hashing: a new tool for file and table addressing",
//! 1980): with 2^n + m segments, the first m and the last m are distinguished by one more bit of the window's hash than
//! the others. A new segment gets entries from only one other segment, so growing is never slow, and memory never
//! contains two tables.

use crate::Ledger;
use crate::entry::{Entry, key_of};
use crate::segment::Segment;
use crate::thinning::{Census, Thinning};
use rustc_hash::FxHashMap;

/// Number of bytes in a window of addresses, as a power of two: a window contains as many blocks of usual sizes as a
/// segment has entries.
const WINDOW_BITS: u32 = 19;
/// Average number of places of a segment.
const SEGMENT_PLACES: usize = 10240;
/// Number of segments, a power of two, into which the first segment is split.
const FIRST_SEGMENTS: usize = 8;
/// Minimum number of places in a segment.
const LEAST_PLACES: usize = 32;
/// Minimum number of places for the only segment of a small table.
const LEAST_PLACES_ALONE: usize = 1024;
/// Number of places below which the table has several places for each entry (`ROOMY`). A table of that size takes
/// little memory, and searches are shorter.
const ROOMY_PLACES: usize = 1 << 16;
/// Places per entry in such a small table.
const ROOMY: usize = 4;
/// Places per 100 entries of a segment of a larger table, directly after it was resized.
const PERCENT: usize = 144;
/// Range of the number that is added to `PERCENT`. The number differs by segment.
const PERCENT_MORE: usize = 32;
/// Number of passes in which each segment is visited once. The 16 bits of a pass number distinguish far more passes, so
/// the age of an entry is never ambiguous.
const SWEEP_PASSES: usize = 8192;
/// Factor by which a segment must be larger than its entries require, so that a visit makes it smaller.
const MUCH_TOO_LARGE: usize = 4;
/// Number of bytes of the table that one pass searches for blocks to drop, while events wait in the rings.
const SHED_BYTES: usize = 8 << 20;

/// Position in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    segment: u32,
    index: u32,
}

/// Result of a search for an address.
pub(crate) enum Place {
    /// The address was found here.
    Found(At),
    /// The address is not in the table, and may be inserted here.
    Vacant(At),
}

pub(crate) struct LiveMap {
    segments: Vec<Segment>,
    /// One less than the largest power of two that does not exceed the number of segments.
    mask: usize,
    live: usize,
    /// Number of places of all segments.
    capacity: usize,
    /// Sizes that do not fit into an entry, by address.
    large: FxHashMap<u64, u64>,
    /// Rule for the blocks that are kept. Segments that were not rebuilt since the last change of the rule may contain
    /// other blocks.
    thinning: Thinning,
    /// Number of segments, counted from the first, that must still be rebuilt for the rule.
    unshed: usize,
}

/// Hashes the window of an address. The low bits choose the segment. The bytes are swapped because a multiplication
/// mixes the high bits best.
#[inline]
fn window_hash(address: u64) -> usize {
    let window = (address >> WINDOW_BITS) as u32;
    window.wrapping_mul(0x9e37_79b9).swap_bytes() as usize
}

/// Returns the position of an address in the order of a walk ([`LiveMap::live_from`]).
#[inline]
fn position_of(address: u64) -> u64 {
    u64::from((window_hash(address) as u32).reverse_bits())
}

impl LiveMap {
    pub fn new() -> Self {
        Self {
            segments: vec![Segment::default()],
            mask: 0,
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

    /// Returns the bytes of memory that the table takes.
    pub fn table_bytes(&self) -> usize {
        self.capacity * size_of::<Entry>()
            + self.segments.capacity() * size_of::<Segment>()
            + self.large.capacity() * size_of::<(u64, u64, u8)>()
    }

    /// Returns the rule for the blocks that are kept.
    #[inline]
    pub fn thinning(&self) -> Thinning {
        self.thinning
    }

    /// Returns true if not all blocks are kept.
    #[inline(always)]
    pub fn is_thinned(&self) -> bool {
        self.thinning.is_on()
    }

    /// Returns a thinning that keeps about `room` of the current entries.
    pub fn thinning_for(&self, room: f64, pass: u16) -> Thinning {
        let mut census = Census::default();
        for &entry in self.segments.iter().flat_map(Segment::places) {
            let entry = self.as_kept(entry);
            if entry.is_alive() {
                census.count(self.size_of(entry));
            } else if !entry.is_empty() && !entry.is_expired(pass) {
                census.tombstones += 1;
            }
        }
        self.thinning.to_fit(&census, room)
    }

    /// Keeps fewer blocks from now on; their places are freed gradually.
    pub fn thin(&mut self, thinning: Thinning) {
        self.thinning = thinning;
        self.unshed = self.segments.len();
    }

    /// Frees places of blocks that are not kept. Returns true if there may be more of them.
    pub fn shed_some(&mut self, pass: u16) -> bool {
        let mut bytes = 0;
        while self.unshed > 0 && bytes < SHED_BYTES {
            self.unshed -= 1;
            bytes += size_of_val(self.segments[self.unshed].places());
            self.rebuild(self.unshed, pass);
        }
        if self.large.len() < self.large.capacity() / 4 {
            self.large.shrink_to_fit();
        }
        self.unshed > 0
    }

    /// Returns an entry as it would be if all excess blocks had been dropped immediately. A dead entry still protects
    /// against the same late events.
    #[inline]
    fn as_kept(&self, entry: Entry) -> Entry {
        if !self.thinning.is_on() || entry.is_empty() {
            return entry;
        }
        if self.thinning.excludes(entry.address()) {
            return Entry::default();
        }
        if entry.is_alive() && !self.thinning.keeps(entry.address(), self.size_of(entry)) {
            return entry.dead();
        }
        entry
    }

    /// Returns the bits of a window's hash that are the index of its segment.
    #[inline(always)]
    fn bits_for(&self, hash: usize) -> usize {
        let is_split = (hash & self.mask) + self.mask + 1 < self.segments.len();
        // No branch: it would be unpredictable while the table grows.
        self.mask << usize::from(is_split) | usize::from(is_split)
    }

    #[inline(always)]
    fn segment_of(&self, address: u64) -> usize {
        if self.segments.len() == 1 {
            return 0;
        }
        let hash = window_hash(address);
        hash & self.bits_for(hash)
    }

    /// Prefetches the first place where an address may be.
    #[inline]
    pub fn expect(&self, address: u64) {
        self.segments[self.segment_of(address)].expect(key_of(address));
    }

    /// Returns the entry at the first place where an address may be, even if the entry belongs to another address: the
    /// lookup often ends there, and then finds the place in the cache.
    #[inline]
    pub fn first_look(&self, address: u64) -> Entry {
        self.segments[self.segment_of(address)].first_look(key_of(address))
    }

    /// Looks up an address and makes sure that there is room for it.
    #[inline(always)]
    pub fn find(&mut self, address: u64, pass: u16) -> Place {
        let mut segment = self.segment_of(address);
        if self.segments[segment].is_full() {
            self.make_room(segment, pass);
            segment = self.segment_of(address);
        }
        let at = |index: usize| At {
            segment: segment as u32,
            index: index as u32,
        };
        match self.segments[segment].find(key_of(address), pass) {
            Ok(index) => Place::Found(at(index)),
            Err(index) => Place::Vacant(at(index)),
        }
    }

    #[inline(always)]
    pub fn get(&self, at: At) -> Entry {
        let entry = self.segments[at.segment as usize].get(at.index as usize);
        if self.thinning.is_on() && entry.is_alive() {
            return self.as_kept(entry);
        }
        entry
    }

    /// Returns the entry of a block that lives at an address.
    pub fn alive_at(&self, address: u64) -> Option<Entry> {
        let segment = &self.segments[self.segment_of(address)];
        // A segment that never contained an entry has no places.
        if segment.places().is_empty() {
            return None;
        }
        let index = segment.find(key_of(address), 0).ok()?;
        Some(segment.get(index)).filter(|entry| entry.is_alive())
    }

    /// Returns the size in bytes of a live entry of this map.
    #[inline]
    pub fn size_of(&self, entry: Entry) -> u64 {
        entry.small_size().unwrap_or_else(|| {
            let size = self.large.get(&entry.address()).copied();
            size.unwrap_or(u64::from(u32::MAX))
        })
    }

    /// Puts an entry at the position that `find` returned. `size` is the size of a live entry.
    #[inline(always)]
    pub fn put(&mut self, at: At, entry: Entry, size: u64) {
        let old = self.segments[at.segment as usize].put(at.index as usize, entry);
        self.live += usize::from(entry.is_alive());
        if old.is_alive() {
            self.live -= 1;
            if old.small_size().is_none() {
                self.large.remove(&old.address());
            }
        }
        if entry.is_alive() && entry.small_size().is_none() {
            self.large.insert(entry.address(), size);
        }
    }

    /// Returns the segment at a position of a walk: its number of places, its live entries, and the following position.
    /// `None` at the end, the only position that is not a `u32`.
    ///
    /// A walk follows the hashes of the windows, read from the lowest bit on. Both halves of a split segment stay in
    /// the same part of that order, so a walk sees no entry twice. If the table was divided during the walk and its
    /// segments are larger now, entries before the position are skipped.
    pub fn live_from(&self, position: u64) -> Option<(usize, impl Iterator<Item = Entry>, u64)> {
        if position > u64::from(u32::MAX) {
            return None;
        }
        let hash = (position as u32).reverse_bits() as usize;
        let bits = self.bits_for(hash);
        let length = 1 << (32 - bits.count_ones());
        let begin = position & !(length - 1);
        let next = begin + length;
        let places = self.segments[hash & bits].places();
        // Dropped blocks may remain until the segment is rebuilt.
        let live = places.iter().copied();
        let live = live.filter(|e| e.is_alive() && self.as_kept(*e).is_alive());
        let live = live.filter(move |e| begin == position || position_of(e.address()) >= position);
        Some((places.len(), live, next))
    }

    /// Iterates over all live entries, in no order.
    pub fn iter_live(&self) -> impl Iterator<Item = Entry> + '_ {
        let places = self.segments.iter().flat_map(Segment::places);
        let live = places.copied();
        live.filter(|e| e.is_alive() && self.as_kept(*e).is_alive())
    }

    /// Moves entries to the shards that `of` returns for their addresses. This ledger is shard 0.
    pub fn divide(&mut self, others: &mut [Ledger], pass: u16, of: impl Fn(u64) -> usize) {
        let old = std::mem::replace(self, Self::new());
        let others = others.iter_mut().map(|other| &mut other.map);
        let mut maps: Vec<_> = std::iter::once(self).chain(others).collect();
        for entry in old.segments.iter().flat_map(Segment::entries) {
            if entry.is_expired(pass) {
                continue;
            }
            let map = &mut maps[of(entry.address())];
            if let Place::Vacant(at) = map.find(entry.address(), pass) {
                let size = if entry.is_alive() {
                    old.size_of(entry)
                } else {
                    0
                };
                map.put(at, entry.aged_by(pass), size);
            }
        }
    }

    /// Ages a part of the table. Called once per pass.
    pub fn sweep(&mut self, pass: u16) {
        let mut segment = usize::from(pass) % SWEEP_PASSES;
        while segment < self.segments.len() {
            let needed = self.segments[segment].age(pass);
            let places = self.segments[segment].places().len();
            if places > self.places_for(segment, needed).0 * MUCH_TOO_LARGE {
                self.rebuild(segment, pass);
            }
            segment += SWEEP_PASSES;
        }
    }

    /// Returns the number of places for a segment with the given number of entries, and how many of the places may be
    /// used.
    fn places_for(&self, segment: usize, entries: usize) -> (usize, usize) {
        let roomy = entries * ROOMY;
        if self.capacity + roomy <= ROOMY_PLACES {
            let places = roomy.max(if self.segments.len() == 1 {
                LEAST_PLACES_ALONE
            } else {
                LEAST_PLACES
            });
            return (places, places / 2);
        }
        // The number varies by segment, so that segments that fill at the same rate are not all rebuilt within a few
        // passes.
        let percent = PERCENT + segment % PERCENT_MORE;
        let places = entries * percent / 100 + LEAST_PLACES;
        (places, places - places / 8)
    }

    /// Empties a segment. Returns its entries without dropped blocks and expired tombstones.
    fn taken(&mut self, segment: usize, pass: u16) -> Segment {
        let mut old = std::mem::take(&mut self.segments[segment]);
        self.capacity -= old.places().len();
        if self.thinning.is_on() {
            for entry in old.places_mut() {
                let kept = self.as_kept(*entry);
                if entry.is_alive() && !kept.is_alive() {
                    self.live -= 1;
                    self.large.remove(&entry.address());
                }
                *entry = kept;
            }
        }
        old.drop_expired(pass);
        old
    }

    /// Makes a segment for the given number of entries.
    fn make(&mut self, segment: usize, entries: usize) {
        let (places, most) = self.places_for(segment, entries);
        self.capacity += places;
        self.segments[segment] = Segment::new(places, most);
    }

    /// Drops a segment's expired tombstones and excess blocks, and adapts its size to the remaining entries.
    fn rebuild(&mut self, segment: usize, pass: u16) {
        let old = self.taken(segment, pass);
        self.make(segment, old.entries().count());
        for entry in old.entries() {
            self.segments[segment].add(entry);
        }
    }

    /// Makes room in a full segment, and adds a segment if the table has too few for its number of places.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, segment: usize, pass: u16) {
        let len = self.segments.len();
        if len == 1 && self.capacity >= ROOMY_PLACES {
            // If the new segments were split off one after the other, most entries would move several times.
            return self.split(0, FIRST_SEGMENTS - 1, pass);
        }
        let next = len & self.mask;
        let splits = len > 1 && self.capacity > len * SEGMENT_PLACES;
        if splits {
            self.split(next, 1, pass);
        }
        if !splits || next != segment {
            self.rebuild(segment, pass);
        }
    }

    /// Adds segments that get their entries from segment `from`.
    fn split(&mut self, from: usize, more: usize, pass: u16) {
        let old = self.taken(from, pass);
        let new = self.segments.len();
        self.segments.resize_with(new + more, Segment::default);
        self.mask = (1 << self.segments.len().ilog2()) - 1;
        let of = |to: usize| if to == from { 0 } else { to - new + 1 };
        let mut counts = vec![0; more + 1];
        for entry in old.entries() {
            counts[of(self.segment_of(entry.address()))] += 1;
        }
        self.make(from, counts[0]);
        (new..)
            .zip(&counts[1..])
            .for_each(|(to, &count)| self.make(to, count));
        for entry in old.entries() {
            let to = self.segment_of(entry.address());
            self.segments[to].add(entry);
        }
    }
}
