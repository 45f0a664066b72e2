//! Figures that an allocator reports about itself, and the memory account based on them.

use crate::resident::{Account, Part};
use std::time::Duration;

/// Note of a read-only run on a process whose allocator could have reported its contents.
pub const ALLOCATOR_NOT_ASKED: &str =
    "read only: the allocator was not asked what it holds, which takes a call";

/// One figure under the allocator's own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Name of the figure.
    pub name: &'static str,
    /// Value in bytes.
    pub bytes: u64,
}

/// Memory of an allocator according to its own statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocatorStatistics {
    /// Name of the allocator.
    pub allocator: &'static str,
    /// Bytes in live blocks, including rounding.
    pub live_bytes: u64,
    /// Bytes that the allocator uses for itself.
    pub overhead_bytes: u64,
    /// Free bytes on pages with blocks of one size, or in caches.
    pub fragmentation_bytes: u64,
    /// Bytes in free pages that the allocator keeps.
    pub free_bytes: u64,
    /// Part of these bytes that the allocator would return on request.
    pub releasable_bytes: u64,
    /// All reported figures.
    pub counters: Vec<Counter>,
    /// Time for which a thread was held for the request.
    pub held: Duration,
}

impl Account {
    /// Splits the memory of an allocator other than glibc's by its own statistics. These also count memory that is not
    /// resident, while the account covers resident memory only.
    pub fn split_by(&mut self, said: AllocatorStatistics) {
        let Some(resident) = self.parts.remove(&Part::ForeignHeap) else {
            // The heap was dissected, so the account is exact. Only the allocator knows the releasable bytes.
            self.trim_bytes = said.releasable_bytes;
            self.allocator = Some(said);
            return;
        };
        let mut rest = resident;
        // Free memory has been in use before. Memory that was handed out or mapped for the allocator itself may never
        // have been written, and is then not resident. The allocator maps more for itself than it needs at first, so
        // its own memory comes last.
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
        self.trim_bytes = said.releasable_bytes;
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
