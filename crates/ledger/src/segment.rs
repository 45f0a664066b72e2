//! A piece of the table of blocks: open addressing, linear probing.
//!
//! The number of places is not a power of two. The place of a key is the upper half of a product (D. Lemire, "Fast
//! random integer generation in an interval").

use crate::entry::Entry;

/// Usual length of a lookup.
const PLACES_AHEAD: usize = 1;

#[derive(Default)]
pub(crate) struct Segment {
    entries: Vec<Entry>,
    /// Number of empty places that may still be used. Tombstones are not empty.
    room: usize,
}

/// Returns the first place of a key. Multiplying by the golden ratio distributes keys at equal distances, such as the
/// blocks of an allocator, more evenly than random placement would.
#[inline]
fn home(key: u64, places: usize) -> usize {
    let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(hash) * places as u128) >> 64) as usize
}

impl Segment {
    /// Creates a segment with `places` places, of which at most `most`, and never all, are used.
    pub fn new(places: usize, most: usize) -> Self {
        Segment {
            entries: vec![Entry::default(); places],
            room: most,
        }
    }

    /// Adds an entry for an address that is not in the segment yet.
    #[inline(always)]
    pub fn add(&mut self, entry: Entry) {
        let mut index = home(entry.key(), self.entries.len());
        while !self.entries[index].is_empty() {
            index = self.after(index);
        }
        self.put(index, entry);
    }

    #[inline(always)]
    fn after(&self, index: usize) -> usize {
        let next = index + 1;
        if next == self.entries.len() { 0 } else { next }
    }

    /// Returns all places, including empty ones.
    pub fn places(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns all places for modification. After an entry is removed, keys whose probe sequence passes its place must
    /// not be looked up.
    pub fn places_mut(&mut self) -> &mut [Entry] {
        &mut self.entries
    }

    /// Iterates over all entries.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        self.entries
            .iter()
            .copied()
            .filter(|entry| !entry.is_empty())
    }

    /// Returns true if the segment needs more places before another entry is added.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.room == 0
    }

    /// Prefetches the first places where a key may be, which often span two cache lines.
    #[inline(always)]
    pub fn expect(&self, key: u64) {
        let index = home(key, self.entries.len());
        if let Some(entry) = self.entries.get(index) {
            memhook_abi::prefetch(entry);
        }
        if let Some(later) = self.entries.get(index + PLACES_AHEAD) {
            memhook_abi::prefetch(later);
        }
    }

    /// Returns the entry at that place.
    #[inline(always)]
    pub fn first_look(&self, key: u64) -> Entry {
        let entry = self.entries.get(home(key, self.entries.len()));
        entry.copied().unwrap_or_default()
    }

    /// Finds the place of a key, or a place where it may be inserted. Must not be called on a full segment.
    #[inline(always)]
    pub fn find(&self, key: u64, pass: u16) -> Result<usize, usize> {
        let mut index = home(key, self.entries.len());
        let mut reusable = None;
        loop {
            let entry = self.entries[index];
            if entry.key() == key {
                return Ok(index);
            }
            if entry.is_empty() {
                return Err(reusable.unwrap_or(index));
            }
            if reusable.is_none() && entry.is_expired(pass) {
                reusable = Some(index);
            }
            index = self.after(index);
        }
    }

    #[inline(always)]
    pub fn get(&self, index: usize) -> Entry {
        self.entries[index]
    }

    /// Puts an entry at the place that `find` returned. Returns the previous entry.
    #[inline(always)]
    pub fn put(&mut self, index: usize, entry: Entry) -> Entry {
        let old = std::mem::replace(&mut self.entries[index], entry);
        self.room -= usize::from(old.is_empty());
        old
    }

    /// Marks all entries that are old enough. Returns the number of entries that are neither empty nor expired.
    pub fn age(&mut self, pass: u16) -> usize {
        let mut needed = 0;
        for entry in &mut self.entries {
            *entry = entry.aged_by(pass);
            needed += usize::from(!entry.is_empty() && !entry.is_expired(pass));
        }
        needed
    }

    /// Marks entries that are old enough, and drops expired tombstones. After that, the segment cannot be used for
    /// lookups.
    pub fn drop_expired(&mut self, pass: u16) {
        for entry in &mut self.entries {
            let is_expired = entry.is_expired(pass);
            *entry = if is_expired {
                Entry::default()
            } else {
                entry.aged_by(pass)
            };
        }
    }
}
