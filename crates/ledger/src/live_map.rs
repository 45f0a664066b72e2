//! The live-block map: open addressing, 32 bytes an entry.
//!
//! A released entry stays as a tombstone with the number of its release: an allocation that happened
//! before may still be on its way from another ring. After two passes nothing older can come
//! (see `order`), and the place is used again.

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A live block; `sequence` is its allocation's.
    Live,
    /// Released; `sequence` is the release's, `time_ms` the pass number.
    Tombstone,
}

/// One entry.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    key: u64, // address >> 3 << 2 | tag; 0: empty
    /// Requested size in bytes.
    pub size: u64,
    /// Stack id.
    pub stack: u32,
    /// Sequence number.
    pub sequence: u32,
    /// Allocation time in ms since the attach; for a tombstone the pass.
    pub time_ms: u32,
    /// Thread that allocated.
    pub tid: u32,
}

const LIVE: u64 = 1;
const TOMBSTONE: u64 = 2;

impl Entry {
    /// A live block.
    pub fn live(
        address: u64,
        size: u64,
        stack: u32,
        sequence: u32,
        time_ms: u32,
        tid: u32,
    ) -> Self {
        Entry {
            key: (address >> 3) << 2 | LIVE,
            size,
            stack,
            sequence,
            time_ms,
            tid,
        }
    }

    /// Block address.
    pub fn address(&self) -> u64 {
        (self.key >> 2) << 3
    }

    /// Live or released.
    pub fn state(&self) -> State {
        if self.key & 3 == LIVE {
            State::Live
        } else {
            State::Tombstone
        }
    }

    /// Makes it a tombstone.
    pub fn bury(&mut self, release: u32, pass: u32) {
        self.key = self.key & !3 | TOMBSTONE;
        self.sequence = release;
        self.time_ms = pass;
    }

    fn expired(&self, pass: u32) -> bool {
        self.key & 3 == TOMBSTONE && pass.wrapping_sub(self.time_ms) > 2
    }
}

/// The map.
pub struct LiveMap {
    entries: Vec<Entry>,
    /// Entries that are not empty.
    used: usize,
    shift: u32,
}

impl LiveMap {
    /// An empty map.
    pub fn new() -> Self {
        Self::with_bits(12)
    }

    fn with_bits(bits: u32) -> Self {
        LiveMap {
            entries: vec![Entry::default(); 1 << bits],
            used: 0,
            shift: 64 - bits,
        }
    }

    fn home(&self, address: u64) -> usize {
        ((address >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// The entry of an address, live or tombstone.
    #[inline]
    pub fn get(&mut self, address: u64) -> Option<&mut Entry> {
        let mask = self.entries.len() - 1;
        let wanted = address >> 3;
        let mut i = self.home(address);
        loop {
            let key = self.entries[i].key;
            if key == 0 {
                return None;
            }
            if key >> 2 == wanted {
                return Some(&mut self.entries[i]);
            }
            i = (i + 1) & mask;
        }
    }

    /// Puts an entry; an existing one of the same address is replaced.
    #[inline]
    pub fn put(&mut self, entry: Entry, pass: u32) {
        if self.used * 8 > self.entries.len() * 7 {
            self.rebuild(pass);
        }
        let mask = self.entries.len() - 1;
        let wanted = entry.key >> 2;
        let mut i = self.home(entry.address());
        let mut reusable = None;
        loop {
            let there = &self.entries[i];
            if there.key == 0 {
                let at = reusable.unwrap_or_else(|| {
                    self.used += 1;
                    i
                });
                self.entries[at] = entry;
                return;
            }
            if there.key >> 2 == wanted {
                self.entries[i] = entry;
                return;
            }
            if reusable.is_none() && there.expired(pass) {
                reusable = Some(i);
            }
            i = (i + 1) & mask;
        }
    }

    /// Drops expired tombstones, and doubles the table if it is still more than half full.
    fn rebuild(&mut self, pass: u32) {
        let kept = self
            .entries
            .iter()
            .filter(|e| e.key != 0 && !e.expired(pass))
            .count();
        let bits = 64 - self.shift;
        let bits = if kept * 2 > self.entries.len() {
            bits + 1
        } else {
            bits
        };
        let old = std::mem::replace(self, LiveMap::with_bits(bits));
        for entry in old.entries {
            if entry.key != 0 && !entry.expired(pass) {
                self.put(entry, pass);
            }
        }
    }

    /// All live entries.
    pub fn live(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|e| e.key & 3 == LIVE)
    }
}
