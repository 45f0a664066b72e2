//! Matching of blocks and releases.
//!
//! The live set and all sums follow from the latest event of each address (`order`). The assignment of releases to
//! blocks does not. A release is first assigned to the latest known block. But rings are emptied one after the other,
//! so another thread's release of that block, and the next allocation, may not have arrived yet. And a block that is
//! known to be gone, because another block was found at its address, has no release yet.
//!
//! In the true order of an address, the release of a block is the event after its allocation. So each release is
//! settled at the end of the pass after its own, when every event that happened before it has arrived: its block is the
//! event before it. Only addresses with contested events need this: if a release was assigned to the wrong block, the
//! events between the two arrive later, and neither finds its counterpart. If the number of a release directly follows
//! that of its block, the release is not examined again, because no event can be between them.
//!
//! A block remains for the two passes after it was noted. It is noted when its release or a later event has arrived, so
//! its release arrives at most one pass later, and is settled within the two passes. A release is settled only once. It
//! remains for one more pass, to separate the blocks before and after it. But its own block may be older and already
//! removed by then, and the block that is now before it may have another release.
//!
//! So if no event is lost, every released block gets its own release.

use crate::Ledger;
use crate::entry::Entry;
use crate::order::Release;
use crate::{BlockOf, ReleaseBy};
use memhook_abi::SEQUENCE_BITS;
use rustc_hash::FxHashMap;

/// A release that was assigned to a block.
struct Taken {
    /// Address; 0 once it was turned into two items.
    address: u64,
    block: Entry,
    size: u64,
    release: u32,
    pass: u32,
    by: ReleaseBy,
    is_past: bool,
}

/// An event of a contested address.
struct Item {
    sequence: u32,
    /// True if this event happened before every item that is not marked.
    is_aged: bool,
    /// Pass in which the event became an item, or in which the release arrived.
    pass: u32,
    what: What,
}

enum What {
    Block {
        block: BlockOf,
        /// Number of the release of this block, as reported to the observer.
        told: Option<(u32, ReleaseBy)>,
        /// True if nothing more about the block is reported to the observer.
        is_past: bool,
    },
    Release(ReleaseBy),
}

impl Item {
    fn told(&self) -> Option<(u32, ReleaseBy)> {
        match self.what {
            What::Block { told, .. } => told,
            What::Release(_) => None,
        }
    }

    /// Returns true if the item is a block for which the release with this number was reported.
    fn is_told(&self, number: u32) -> bool {
        self.told().is_some_and(|told| told.0 == number)
    }

    /// Sets the release of the block.
    fn tell(&mut self, release: Option<(u32, ReleaseBy)>) -> Option<Correction> {
        let What::Block {
            block,
            told,
            is_past,
        } = &mut self.what
        else {
            return None;
        };
        let from = std::mem::replace(told, release);
        Some(Correction {
            block: *block,
            from: from.map(|(_, by)| by),
            to: release.map(|(_, by)| by),
            is_past: *is_past,
        })
    }
}

/// A correction: the block was released by `to`, not by `from` as reported earlier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Correction {
    pub block: BlockOf,
    pub from: Option<ReleaseBy>,
    pub to: Option<ReleaseBy>,
    /// See [`Partners::begin_window`].
    pub is_past: bool,
}

const FILTER_BITS: u64 = 1 << 14;

/// Releases and blocks of the last passes.
pub(crate) struct Partners {
    is_on: bool,
    /// Assigned releases of this pass and the previous one.
    taken: [Vec<Taken>; 2],
    contested: FxHashMap<u64, Vec<Item>>,
    /// Bits that contested addresses set.
    filter: Vec<u64>,
    items: usize,
    /// Numbers of releases, with the blocks for which they were reported. Used for one address at a time.
    told_before: Vec<(u32, usize)>,
}

fn bit_of(address: u64) -> (usize, u64) {
    let hash = (address >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let bit = hash % FILTER_BITS;
    ((bit / 64) as usize, 1 << (bit % 64))
}

impl Partners {
    /// Creates an empty set; `is_on`: corrections are wanted.
    pub fn new(is_on: bool) -> Self {
        Self {
            is_on,
            taken: Default::default(),
            contested: FxHashMap::default(),
            filter: vec![0; if is_on { FILTER_BITS as usize / 64 } else { 0 }],
            items: 0,
            told_before: Vec::new(),
        }
    }

    /// Forgets everything, now and from now on.
    pub fn close(&mut self) {
        *self = Self::new(false);
    }

    /// Returns the approximate bytes of memory.
    pub fn bytes(&self) -> usize {
        let taken: usize = self.taken.iter().map(Vec::capacity).sum();
        taken * size_of::<Taken>()
            + self.items * size_of::<Item>()
            + self.contested.capacity() * (size_of::<(u64, Vec<Item>)>() + 1)
    }

    /// Notes that a release was assigned to the latest block.
    #[inline(always)]
    pub fn take(&mut self, block: Entry, size: u64, release: Release, by: ReleaseBy, pass: u32) {
        if !self.is_on {
            return;
        }
        let follows = block.sequence().wrapping_add(1) & ((1 << SEQUENCE_BITS) - 1);
        if follows == release.sequence && !block.is_old(pass as u16) {
            return;
        }
        self.taken[pass as usize % 2].push(Taken {
            address: release.address,
            block,
            size,
            release: release.sequence,
            pass,
            by,
            is_past: false,
        });
    }

    fn add(&mut self, address: u64, item: Item) {
        if !self.is_on {
            return;
        }
        let (word, bit) = bit_of(address);
        self.filter[word] |= bit;
        self.items += 1;
        self.contested.entry(address).or_default().push(item);
    }

    /// Notes that a block is gone. `told` is the release that was reported for the block by mistake, and has been
    /// removed.
    pub fn add_block(
        &mut self,
        block: Entry,
        size: u64,
        told: Option<(u32, ReleaseBy)>,
        pass: u32,
    ) {
        let items = self.contested.get_mut(&block.address());
        let mut items = items.into_iter().flatten();
        if let Some((number, _)) = told
            && let Some(known) = items.find(|item| item.is_told(number))
        {
            known.pass = pass;
            return;
        }
        let what = What::Block {
            block: block.with_size(size),
            told,
            is_past: false,
        };
        let item = Item {
            sequence: block.sequence(),
            is_aged: block.is_old(pass as u16),
            pass,
            what,
        };
        self.add(block.address(), item);
    }

    /// Notes a release without a block.
    pub fn add_release(&mut self, release: Release, by: ReleaseBy) {
        let item = Item {
            sequence: release.sequence,
            is_aged: false,
            pass: release.pass,
            what: What::Release(by),
        };
        self.add(release.address, item);
    }

    /// Removes a release that turned out not to be one. The report about its block stays.
    pub fn remove(&mut self, release: Release) {
        let (address, number) = (release.address, release.sequence);
        for taken in self.taken.iter_mut().flatten() {
            if taken.address == address && taken.release == number {
                taken.address = 0;
            }
        }
        let Some(items) = self.contested.get_mut(&address) else {
            return;
        };
        let before = items.len();
        items.retain(|item| !matches!(item.what, What::Release(_) if item.sequence == number));
        self.items -= before - items.len();
    }

    /// Removes a release that turned out not to be one. The block for which it was reported lives again.
    pub fn reinstate(&mut self, release: Release) {
        if let Some(items) = self.contested.get_mut(&release.address) {
            let before = items.len();
            items.retain(|item| !item.is_told(release.sequence));
            self.items -= before - items.len();
        }
    }

    /// Stops reports about blocks that have been released so far.
    pub fn begin_window(&mut self) {
        for taken in self.taken.iter_mut().flatten() {
            taken.is_past = true;
        }
        for item in self.contested.values_mut().flatten() {
            if let What::Block { is_past, .. } = &mut item.what {
                *is_past = true;
            }
        }
    }

    /// Moves the items to the shards that `of` returns for their addresses. This ledger is shard 0.
    pub fn divide(&mut self, others: &mut [Ledger], of: impl Fn(u64) -> usize) {
        let all = std::mem::replace(self, Self::new(self.is_on));
        if !self.is_on {
            others.iter_mut().for_each(|other| other.partners.close());
            return;
        }
        let others = others.iter_mut().map(|other| &mut other.partners);
        let mut shards: Vec<_> = std::iter::once(self).chain(others).collect();
        for (list, taken) in all.taken.into_iter().enumerate() {
            for taken in taken {
                shards[of(taken.address)].taken[list].push(taken);
            }
        }
        for (address, items) in all.contested {
            let shard = &mut shards[of(address)];
            let (word, bit) = bit_of(address);
            shard.filter[word] |= bit;
            shard.items += items.len();
            shard.contested.insert(address, items);
        }
    }

    /// Ends `pass`: settles the releases of the previous pass.
    pub fn settle(&mut self, pass: u32, corrected: &mut Vec<Correction>) {
        if !self.contested.is_empty() {
            self.collect_taken();
            self.filter.fill(0);
            let mut left = 0;
            let (filter, told_before) = (&mut self.filter, &mut self.told_before);
            self.contested.retain(|&address, items| {
                sort(items);
                correct(items, pass, told_before, corrected);
                items.retain(|item| pass.wrapping_sub(item.pass) < 2);
                left += items.len();
                if !items.is_empty() {
                    let (word, bit) = bit_of(address);
                    filter[word] |= bit;
                }
                !items.is_empty()
            });
            self.items = left;
        }
        self.taken[pass.wrapping_add(1) as usize % 2].clear();
    }

    /// Turns the assigned releases at contested addresses into items.
    fn collect_taken(&mut self) {
        let Self {
            taken,
            contested,
            filter,
            items: count,
            ..
        } = self;
        for taken in taken.iter_mut().flatten() {
            let (word, bit) = bit_of(taken.address);
            if filter[word] & bit == 0 {
                continue;
            }
            let Some(items) = contested.get_mut(&taken.address) else {
                continue;
            };
            items.push(Item {
                sequence: taken.block.sequence(),
                is_aged: taken.block.is_old(taken.pass as u16),
                pass: taken.pass,
                what: What::Block {
                    block: taken.block.with_size(taken.size),
                    told: Some((taken.release, taken.by)),
                    is_past: taken.is_past,
                },
            });
            items.push(Item {
                sequence: taken.release,
                is_aged: false,
                pass: taken.pass,
                what: What::Release(taken.by),
            });
            *count += 2;
            taken.address = 0;
        }
    }
}

/// Sorts items into their true order. They span few passes, so the order follows from their numbers. The sort keys are
/// numbers, because comparing pairs would not be a consistent order if the data are damaged.
fn sort(items: &mut [Item]) {
    let Some(middle) = items.iter().find(|item| !item.is_aged) else {
        return;
    };
    let (middle, unused) = (middle.sequence, 32 - SEQUENCE_BITS);
    items.sort_by_key(|item| {
        let distance = (item.sequence.wrapping_sub(middle) << unused) as i32;
        let is_block = matches!(item.what, What::Block { .. });
        // An allocation comes after the release with the same number.
        (!item.is_aged, distance, is_block)
    });
}

/// Assigns blocks to the releases that are due.
fn correct(
    items: &mut [Item],
    pass: u32,
    told_before: &mut Vec<(u32, usize)>,
    corrected: &mut Vec<Correction>,
) {
    told_before.clear();
    told_before.extend(items.iter().enumerate().filter_map(|(at, item)| {
        let number = item.told().map(|(number, _)| number);
        number.map(|number| (number, at))
    }));
    told_before.sort_unstable();
    for at in 1..items.len() {
        let What::Release(by) = items[at].what else {
            continue;
        };
        // In an earlier pass, the block may not have arrived yet; in a later one, it may have been removed.
        let (number, is_due) = (items[at].sequence, pass.wrapping_sub(items[at].pass) == 1);
        let is_of_block = matches!(items[at - 1].what, What::Block { .. });
        let is_told = items[at - 1].is_told(number);
        if !is_due || !is_of_block || is_told {
            continue;
        }
        corrected.extend(items[at - 1].tell(Some((number, by))));
        let found = told_before.binary_search_by_key(&number, |told| told.0);
        if let Ok(found) = found
            && let other = &mut items[told_before[found].1]
            && other.is_told(number)
        {
            corrected.extend(other.tell(None));
        }
    }
}
