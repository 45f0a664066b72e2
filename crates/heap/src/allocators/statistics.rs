//! Figures that an allocator reports about itself, and the account with them.

use crate::resident::{Account, Part};
use std::time::Duration;

/// One figure under the allocator's own name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The name.
    pub name: &'static str,
    /// Bytes.
    pub bytes: u64,
}

/// Memory that an allocator holds by its own statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocatorStatistics {
    /// Its name.
    pub allocator: &'static str,
    /// Bytes in live blocks, including the rounding of their sizes.
    pub live_bytes: u64,
    /// Bytes for its own use.
    pub overhead_bytes: u64,
    /// Free, but on pages that belong to blocks of one size, or in caches.
    pub fragmentation_bytes: u64,
    /// Free pages that it keeps.
    pub free_bytes: u64,
    /// Bytes among those that it would return on request.
    pub releasable_bytes: u64,
    /// All that it said.
    pub counters: Vec<Counter>,
    /// Time for which a thread was held to ask.
    pub held: Duration,
}

impl Account {
    /// Splits the part that is another allocator's by what that says of itself. What it counts is not always
    /// resident, and the account is about what is.
    pub fn split_by(&mut self, said: AllocatorStatistics) {
        let Some(resident) = self.parts.remove(&Part::ForeignHeap) else {
            // Its heap was dissected, and the account is exact. What it would give back, it knows best.
            let of_others = std::mem::take(&mut self.purgeable_bytes);
            let of_malloc = self.trim_bytes.saturating_sub(of_others);
            self.trim_bytes = of_malloc.saturating_add(said.releasable_bytes);
            self.allocator = Some(said);
            return;
        };
        let mut rest = resident;
        // What was free has been in use. What was handed out, and what it has mapped for itself, may never have been
        // written, and is not resident then; it maps more for itself than it needs at first, so that comes last.
        for (part, bytes) in [
            (Part::FreeInAllocator, said.free_bytes),
            (Part::Fragmentation, said.fragmentation_bytes),
            (Part::LiveHeap, said.live_bytes),
            (Part::AllocatorOverhead, said.overhead_bytes),
        ] {
            let bytes = bytes.min(rest);
            rest -= bytes;
            *self.parts.entry(part).or_default() += bytes;
        }
        *self.parts.entry(Part::Mappings).or_default() += rest;
        let all = [
            said.overhead_bytes,
            said.free_bytes,
            said.fragmentation_bytes,
            said.live_bytes,
        ];
        let all = all.into_iter().fold(0u64, u64::saturating_add);
        if all > resident {
            self.notes.push(format!(
                "{} counts {} more than is resident: memory that it has handed out or keeps for itself, and that \
                 nobody has written to",
                said.allocator,
                memhook_foreign::size_text(all - resident)
            ));
        }
        self.trim_bytes = self.trim_bytes.saturating_add(said.releasable_bytes);
        self.notes
            .retain(|note| !note.contains("its heap is not split"));
        self.allocator = Some(said);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_parts_still_add_up(resident: u32, bytes: [u64; 4]) {
            let resident = u64::from(resident);
            let mut account = Account::default();
            account.parts.insert(Part::ForeignHeap, resident);
            account.split_by(AllocatorStatistics {
                live_bytes: bytes[0],
                overhead_bytes: bytes[1],
                fragmentation_bytes: bytes[2],
                free_bytes: bytes[3],
                ..AllocatorStatistics::default()
            });
            prop_assert_eq!(account.parts.values().sum::<u64>(), resident);
            prop_assert!(!account.parts.contains_key(&Part::ForeignHeap));
        }
    }

    #[test]
    fn what_it_says_is_in_the_parts() {
        let mut account = Account::default();
        account.parts.insert(Part::ForeignHeap, 100);
        account.split_by(AllocatorStatistics {
            live_bytes: 40,
            overhead_bytes: 5,
            fragmentation_bytes: 10,
            free_bytes: 20,
            releasable_bytes: 18,
            ..AllocatorStatistics::default()
        });
        let of = |part| account.parts.get(&part).copied();
        assert_eq!(of(Part::LiveHeap), Some(40));
        assert_eq!(of(Part::AllocatorOverhead), Some(5));
        assert_eq!(of(Part::Fragmentation), Some(10));
        assert_eq!(of(Part::FreeInAllocator), Some(20));
        assert_eq!(of(Part::Mappings), Some(25));
        assert_eq!((account.trim_bytes, account.notes.len()), (18, 0));
    }
}
