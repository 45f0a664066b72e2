//! Regions that wait for a forked child of a traced process: see the hook's `birth.hpp`.

use crate::memory::tally;
use crate::{Config, Error, Region, SlotSpec};
use memhook_abi::{Control, birth, slot_state};
use std::mem::offset_of;
use std::sync::atomic::{
    AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// State of a region for a forked child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Birth {
    /// The region is not for a child.
    None,
    /// The region waits for a child.
    Offered,
    /// A child is setting itself up in the region.
    Taken,
    /// The process with this id (in its own pid namespace; 0 if unknown) records to the region.
    Claimed(u32),
    /// The region no longer waits.
    Closed,
}

impl Region {
    /// Discards all contents and prepares the region for a child of `parent`'s process, with the same journal of slots,
    /// because the slots are patched in the child too, and with the same facts. The caller then publishes the unwind
    /// tables and offers the region. The region must not be in use by any process.
    pub fn conceive(&self, config: &Config, parent: &Region) -> Result<(), Error> {
        // No thread of the new process is inside a wrapper, so the marks left by the previous process are cleared.
        self.memory.tell64(offset_of!(Control, magic), 0, Relaxed);
        self.initialize(config)?;
        self.birth_word().store(birth::CLOSED, Relaxed);
        for offset in [
            offset_of!(Control, tid_offset),
            offset_of!(Control, syscalls_filtered),
            offset_of!(Control, forwarding_operators),
        ] {
            let fact = parent.control32(offset);
            self.memory.tell32(offset, fact, Relaxed);
        }
        let seen = parent.control64(offset_of!(Control, loader_count_seen));
        self.set_loader_count_seen(seen);
        self.memory
            .u64(tally!(loader_count_now))
            .store(parent.loader_count_now(), Relaxed);
        self.tell_owner();
        self.copy_slots(parent)
    }

    /// Copies the slots that are patched in the parent. All other slots are not patched in the child either.
    fn copy_slots(&self, parent: &Region) -> Result<(), Error> {
        let slots = parent.slots().into_iter();
        for slot in slots.filter(|slot| slot.state == slot_state::PATCHED) {
            let index = self.push_slot(SlotSpec {
                address: slot.address,
                original: slot.original,
                expected: slot.expected,
                module_base: slot.module_base,
                function: slot.function,
                variant: slot.variant,
                protection: slot.protection,
                by_force: false,
                is_permanent: slot.is_permanent,
            })?;
            self.set_slot_state(index, slot_state::PATCHED);
        }
        Ok(())
    }

    fn birth_word(&self) -> &AtomicU32 {
        self.memory.u32(tally!(birth))
    }

    /// Offers the region to the first child that comes.
    pub fn offer(&self) {
        // Release: a child that takes the region sees it complete.
        self.birth_word().store(birth::OFFERED, Release);
    }

    /// Withdraws the offer. Returns false if there is no offer because a child has taken the region.
    pub fn withdraw(&self) -> bool {
        self.birth_word()
            .compare_exchange(birth::OFFERED, birth::CLOSED, AcqRel, Acquire)
            .is_ok()
    }

    /// Returns the state of the region.
    pub fn birth(&self) -> Birth {
        match self.birth_word().load(Acquire) {
            birth::OFFERED => Birth::Offered,
            birth::TAKEN => Birth::Taken,
            birth::CLAIMED => Birth::Claimed(self.reported32(tally!(birth_pid))),
            birth::CLOSED => Birth::Closed,
            _ => Birth::None,
        }
    }

    /// Returns the number of children of the region's process that found no region to claim.
    pub fn births_missed(&self) -> u64 {
        self.counted(tally!(births_missed))
    }

    /// Records that a search for rings of ended threads has been completed.
    pub fn note_ring_sweep(&self) {
        // Release: a thread that sees the number also sees the rings that were freed before it was stored.
        let offset = offset_of!(Control, ring_sweeps);
        let sweeps = self.control64(offset);
        self.memory.tell64(offset, sweeps.wrapping_add(1), Release);
    }

    /// Returns the level of the fullest ring, in thousandths of its events.
    pub fn fullest_ring(&self) -> u64 {
        let share = |ring: crate::RingView| {
            ring.waiting.saturating_mul(1000) / (self.ring_mask(ring.index) + 1)
        };
        self.rings().map(share).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ThreadNumbers;
    use crate::sealed_file;
    use memhook_abi::region_bytes;

    const RING_BYTES: usize = 1 << 16;

    fn region() -> Region {
        let file = sealed_file(region_bytes(RING_BYTES) as u64).expect("sparse");
        Region::map(&file).expect("mapped")
    }

    fn config(epoch: u32) -> Config {
        Config {
            epoch,
            ring_bytes: RING_BYTES as u64,
            depth: 10,
            owner: u64::from(epoch),
            ..Config::default()
        }
    }

    fn slot(address: u64) -> SlotSpec {
        SlotSpec {
            address,
            original: 0x1000,
            expected: 0x1000,
            module_base: 0x4000,
            function: 0,
            variant: 0,
            protection: 1,
            by_force: false,
            is_permanent: true,
        }
    }

    #[test]
    fn it_is_offered_with_the_patched_slots_of_the_parent() {
        let (parent, child) = (region(), region());
        parent.initialize(&config(1)).expect("initialized");
        for address in [0x5000, 0x5008] {
            parent.push_slot(slot(address)).expect("room");
        }
        parent.set_slot_state(1, slot_state::PATCHED);
        parent.set_thread_numbers(ThreadNumbers {
            offset: 720,
            ..ThreadNumbers::default()
        });
        assert_eq!(parent.birth(), Birth::None);
        assert!(!parent.withdraw());

        child.conceive(&config(2), &parent).expect("conceived");
        assert_eq!(child.birth(), Birth::Closed);
        let slots = child.slots();
        assert_eq!(slots.len(), 1, "{slots:?}");
        assert_eq!(slots[0].address, 0x5008);
        assert_eq!(slots[0].state, slot_state::PATCHED);
        assert_eq!(child.control32(offset_of!(Control, tid_offset)), 720);
        child.validate().expect("complete");

        child.offer();
        assert_eq!(child.birth(), Birth::Offered);
        assert!(child.withdraw());
        assert!(!child.withdraw());
        // The child's counts and patches are gone when the region waits for another child.
        child.set_slot_state(0, slot_state::RESTORED);
        child.conceive(&config(3), &parent).expect("conceived");
        assert_eq!((child.owner(), child.epoch()), (3, 3));
        assert_eq!(child.slots()[0].state, slot_state::PATCHED);
    }
}
