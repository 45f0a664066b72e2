//! Granting and freeing the region's memory.
//!
//! A page of a memory file belongs to the control group of the process that touches it first (`mem_cgroup_charge` in
//! mm/memcontrol.c, called by `shmem_alloc_and_add_folio` for the faulting process). So this process touches memory for
//! the hook before it grants the memory. Then our control group is charged and not the target's, and the sum stays
//! below an allowance. Rings begin small. Busy rings get more memory, and the ring of an ended thread is emptied.

use crate::Region;
use crate::memory::tally;
use crate::rings::bounds_offset;
use memhook_abi::{
    ARENA_BYTES, ARENA_OFFSET, Control, GRANULE_BYTES, GROWTH, INDEX_ENTRIES, INDEX_FIRST_ENTRIES,
    INDEX_OFFSET, LEAST_RING_BYTES, MAX_RINGS, MEMO_FIRST_BYTES, MEMO_GUIDES_OFFSET, MEMO_OFFSET,
    PYTHON_CHAINS_OFFSET, RING_PREFIX_BYTES, RINGS_OFFSET, RawEvent, RingHeader, SEQUENCE_OFFSET,
    SEQUENCE_WORDS, python_state, ring_state,
};
use std::mem::offset_of;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Bytes of a ring, apart from its events, that are in use from the beginning: the header with the frames that are
/// being collected, the guides with the PC cache, and remembered backtraces.
const SMALL_PREFIX_BYTES: usize = 2 * PAGE + MEMO_FIRST_BYTES;
/// Number of rings that are kept ready for new threads.
const SPARE_RINGS: usize = 4;
/// Maximum number of rings that are made ready before the target begins.
const MOST_AT_ONCE: usize = 256;
/// Offset of the caches, whose pages are not part of a ring at first.
const FIRST_CACHES: usize = MEMO_GUIDES_OFFSET + PAGE;
/// Maximum number of event slots that a ring gets before it has proved to need more.
const MOST_AT_FIRST: u64 = 16 << 10;
/// Bytes of the stack arena that are touched ahead of use.
const ARENA_AHEAD: usize = 64 << 10;
/// Number of unwound backtraces after which a thread gets space to remember more of them.
const MANY_UNWINDINGS: u64 = 128;
/// Fill level, in thousandths, from which a ring gets more space. It is higher than the level at which passes become
/// more frequent: if a ring gets this full in spite of them, more space helps.
const FULL: u64 = 300;

/// Plan for the memory of an attach, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Maximum memory of the attach in total.
    pub allowance: u64,
    /// Initial size of a ring's events, a power of two and at least [`LEAST_RING_BYTES`].
    pub first_ring: u64,
    /// Largest size of a ring's events, at most the space in the region.
    pub most_ring: u64,
    /// Backtraces with their index.
    pub stacks: u64,
    /// Number of current threads.
    pub threads: usize,
    /// Memory for the index of the target's blocks. It may be charged to the target itself if the target's accesses are
    /// counted.
    pub access_index: u64,
}

impl Plan {
    /// Returns the initial size of a ring with `first_ring` bytes of events. The size includes a page that we do not
    /// touch: the kernel's page table for the ring.
    pub const fn small_ring(first_ring: u64) -> u64 {
        SMALL_PREFIX_BYTES as u64 + first_ring + PAGE as u64
    }

    /// Memory, apart from rings, that every attach needs: control block, sequence words, the first piece of the stack
    /// table, and the kernel's page tables for all of it.
    pub const FIXED: u64 =
        (16 * PAGE + SEQUENCE_WORDS * 4 + INDEX_FIRST_ENTRIES * 8 + ARENA_AHEAD) as u64;

    /// Returns the best plan for `threads` threads within an allowance (bytes), with rings of at most `ring_bytes`.
    /// `None` if not even the smallest rings fit.
    pub fn within(allowance: u64, threads: usize, ring_bytes: u64) -> Option<Plan> {
        // A burst of three million events a second fits into the pause between two passes over a quiet target. With a
        // quarter of this size, such a burst fits into the pause between two passes over an active target.
        const BEST: u64 = 256 << 10;
        const GOOD: u64 = 64 << 10;
        const FAIR: u64 = 16 << 10;
        let threads = threads.clamp(1, MAX_RINGS) as u64;
        let least = LEAST_RING_BYTES as u64;
        let with = |first: u64| Plan::FIXED + threads * Plan::small_ring(first);
        let first_ring = match allowance {
            // Most of the allowance is reserved for later demand.
            b if b / 64 >= with(BEST) => BEST.min(ring_bytes),
            b if b / 8 >= with(GOOD) => GOOD.min(ring_bytes),
            b if b / 2 >= with(FAIR) => FAIR.min(ring_bytes),
            b if b >= with(least) => least,
            _ => return None,
        };
        // Backtraces get a quarter of the allowance, but at least a quarter of the fixed part.
        let stacks = (allowance / 4).max(Plan::FIXED / 4);
        Some(Plan {
            allowance,
            first_ring,
            most_ring: ring_bytes,
            stacks,
            threads: threads as usize,
            access_index: u64::MAX,
        })
    }
}

impl Default for Plan {
    /// Returns a plan limited only by the region.
    fn default() -> Plan {
        Plan {
            allowance: u64::MAX,
            first_ring: 64 << 10,
            most_ring: u64::MAX,
            stacks: u64::MAX,
            threads: 0,
            access_index: u64::MAX,
        }
    }
}

/// Accounts of granted memory.
pub(crate) struct Accounts {
    /// Bytes that may be granted.
    allowance: u64,
    /// Bytes granted in total.
    spent: u64,
    first_ring: u64,
    most_ring: u64,
    /// Bytes granted, by ring.
    rings: Vec<u64>,
    /// Largest number of event slots that any ring has been granted.
    typical: u64,
    /// Touched bytes of the arena.
    arena: usize,
    /// Touched entries of the index.
    index: usize,
}

impl Accounts {
    pub(crate) fn new() -> Accounts {
        Accounts {
            allowance: 0,
            spent: 0,
            first_ring: LEAST_RING_BYTES as u64,
            most_ring: LEAST_RING_BYTES as u64,
            rings: vec![0; MAX_RINGS],
            typical: 0,
            arena: 0,
            index: 0,
        }
    }

    fn left(&self) -> u64 {
        self.allowance.saturating_sub(self.spent)
    }

    fn spend(&mut self, bytes: u64) -> bool {
        let fits = bytes <= self.left();
        if fits {
            self.spent += bytes;
        }
        fits
    }

    /// Charges memory beyond the minimum. Keeps a quarter of the allowance for new threads.
    fn spend_on_growth(&mut self, bytes: u64) -> bool {
        bytes <= self.left().saturating_sub(self.allowance / 4) && self.spend(bytes)
    }
}

impl Region {
    /// Begins an attach with this plan: writes the plan into the control block and touches the memory that every attach
    /// needs.
    pub(crate) fn begin_grants(&self, plan: &Plan) {
        let mut accounts = self.accounts();
        *accounts = Accounts::new();
        accounts.allowance = plan.allowance;
        accounts.most_ring = plan.most_ring.min(self.ring_bytes() as u64);
        accounts.first_ring = plan.first_ring.min(accounts.most_ring);
        let share = usize::try_from(plan.stacks).unwrap_or(usize::MAX);
        // The index has one entry per 96 bytes of backtraces (10 frames), with half of the entries in use.
        let mut index = INDEX_FIRST_ENTRIES;
        while index * GROWTH <= INDEX_ENTRIES && index * GROWTH * 8 <= share / 4 {
            index *= GROWTH;
        }
        let arena = (share - share / 4).clamp(ARENA_AHEAD, ARENA_BYTES);
        self.memory
            .u64(tally!(index_mask))
            .store(INDEX_FIRST_ENTRIES as u64 - 1, Relaxed);
        for (offset, value) in [
            (offset_of!(Control, first_ring_bytes), accounts.first_ring),
            (offset_of!(Control, arena_limit), arena as u64),
            (offset_of!(Control, index_limit), index as u64 - 1),
            (offset_of!(Control, access_index_limit), plan.access_index),
        ] {
            self.memory.tell64(offset, value, Relaxed);
        }
        self.memory.touch(SEQUENCE_OFFSET, SEQUENCE_WORDS * 4);
        accounts.spent = Plan::FIXED;
        for places in &self.places {
            places.store(0, Relaxed);
        }
        self.grant_stacks(&mut accounts);
        for ring in 0..plan.threads.min(MOST_AT_ONCE) {
            self.prepare_ring(&mut accounts, ring);
        }
        self.limit_rings(&accounts);
    }

    /// Limits the number of rings that may be claimed, so that they fit into the allowance.
    fn limit_rings(&self, accounts: &Accounts) {
        let prepared = accounts.rings.iter().filter(|bytes| **bytes > 0).count() as u64;
        let more = accounts.left() / Plan::small_ring(accounts.first_ring);
        let limit = prepared.saturating_add(more).min(MAX_RINGS as u64);
        let offset = offset_of!(Control, ring_limit);
        if self.control32(offset) != limit as u32 {
            self.memory.tell32(offset, limit as u32, Relaxed);
        }
    }

    /// Changes the allowance (bytes). Granted memory stays granted.
    pub fn set_allowance(&self, allowance: u64) {
        self.accounts().allowance = allowance;
    }

    /// Returns the granted bytes that the attach has taken.
    pub fn memory_granted(&self) -> u64 {
        self.accounts().spent
    }

    /// Grants more memory where it is needed, within the allowance. Call this after each pass. `waiting` is the number
    /// of events in each ring that is not empty.
    pub fn grant(&self, waiting: impl Iterator<Item = (usize, u64)>) {
        let mut accounts = self.accounts();
        let used = self.rings_used();
        for ring in 0..(used + SPARE_RINGS).min(MAX_RINGS) {
            if accounts.rings[ring] == 0 {
                self.prepare_ring(&mut accounts, ring);
            }
        }
        for (ring, waiting) in waiting {
            if accounts.rings[ring] > 0 {
                self.grow_ring(&mut accounts, ring, waiting);
            }
        }
        self.grant_stacks(&mut accounts);
        self.limit_rings(&accounts);
        drop(accounts);
        self.grant_accesses();
    }

    /// Touches a small ring if the allowance permits it.
    fn prepare_ring(&self, accounts: &mut Accounts, ring: usize) {
        let small = Plan::small_ring(accounts.first_ring);
        if !accounts.spend(small) {
            return;
        }
        let start = self.ring_offset(ring);
        self.memory.touch(bounds_offset(start) / PAGE * PAGE, PAGE);
        self.memory.touch(start, PAGE);
        self.memory.touch(start + MEMO_GUIDES_OFFSET, PAGE);
        self.memory.touch(start + MEMO_OFFSET, MEMO_FIRST_BYTES);
        let events = accounts.first_ring as usize;
        self.memory.touch(start + RING_PREFIX_BYTES, events);
        accounts.rings[ring] = small;
        let places = (events / size_of::<RawEvent>()) as u64;
        self.places[ring].store(places, Relaxed);
        // If earlier threads were busy and needed more, new threads will too. By the time they have filled their first
        // slots, they find more slots granted, and never wait.
        let typical = accounts.typical.min(MOST_AT_FIRST);
        if typical > places {
            self.grow_events(accounts, ring, places, typical);
        }
    }

    fn grow_events(&self, accounts: &mut Accounts, ring: usize, places: u64, more: u64) {
        let bytes = (more - places) as usize * size_of::<RawEvent>();
        if !accounts.spend_on_growth(bytes as u64) {
            return;
        }
        let end = RING_PREFIX_BYTES + places as usize * size_of::<RawEvent>();
        self.memory.touch(self.ring_offset(ring) + end, bytes);
        accounts.rings[ring] += bytes as u64;
        accounts.typical = accounts.typical.max(more);
        self.places[ring].store(more, Relaxed);
        // Release ordering: a thread that sees the grant also sees the pages.
        self.ring64(ring, offset_of!(RingHeader, granted))
            .store(more, Release);
    }

    fn grow_ring(&self, accounts: &mut Accounts, ring: usize, waiting: u64) {
        let word = |field| self.ring64(ring, field);
        let state = self.ring32(ring, offset_of!(RingHeader, state));
        if state.load(Acquire) != ring_state::CLAIMED {
            return;
        }
        let start = self.ring_offset(ring);
        let places = self.places[ring].load(Relaxed);
        let most = accounts.most_ring / size_of::<RawEvent>() as u64;
        let has_taken = self.ring_mask(ring) + 1 >= places;
        if has_taken && places < most && waiting * 1000 > places * FULL {
            let more = (places * GROWTH as u64).min(most);
            self.grow_events(accounts, ring, places, more);
        }
        let caches = word(offset_of!(RingHeader, granted_caches));
        let misses = word(offset_of!(RingHeader, memo_misses)).load(Relaxed);
        let has_python = self.python_state() != python_state::OFF;
        // An interpreter may be loaded, or found, after the other caches were granted.
        let missing = match caches.load(Relaxed) {
            0 if misses > MANY_UNWINDINGS && has_python => Some((FIRST_CACHES, RING_PREFIX_BYTES)),
            0 if misses > MANY_UNWINDINGS => Some((FIRST_CACHES, PYTHON_CHAINS_OFFSET)),
            1 if has_python => Some((PYTHON_CHAINS_OFFSET, RING_PREFIX_BYTES)),
            _ => None,
        };
        if let Some((first, end)) = missing {
            let bytes = end - first;
            if accounts.spend_on_growth(bytes as u64) {
                self.memory.touch(start + first, bytes);
                accounts.rings[ring] += bytes as u64;
                caches.store(1 + u64::from(has_python), Release);
            }
        }
    }

    /// Touches the next piece of the stack arena, and the part of the index that the hook has begun to use.
    fn grant_stacks(&self, accounts: &mut Accounts) {
        let next = self.reported64(tally!(arena_next)) as usize;
        let limit = self.control64(offset_of!(Control, arena_limit)) as usize;
        let wanted = next
            .saturating_mul(GRANULE_BYTES)
            .saturating_add(ARENA_AHEAD);
        // The hook's number is not trusted.
        let wanted = wanted.min(ARENA_BYTES).next_multiple_of(PAGE);
        let wanted = wanted.min(limit);
        // The first piece is already charged.
        if wanted > accounts.arena
            && (accounts.arena == 0 || accounts.spend((wanted - accounts.arena) as u64))
        {
            let first = accounts.arena;
            self.memory.touch(ARENA_OFFSET + first, wanted - first);
            accounts.arena = wanted;
        }
        let entries = self.reported64(tally!(index_mask)) as usize;
        let entries = entries.saturating_add(1).min(INDEX_ENTRIES);
        if entries > accounts.index {
            let (first, bytes) = (accounts.index * 8, (entries - accounts.index) * 8);
            if first == 0 || accounts.spend(bytes as u64) {
                self.memory.touch(INDEX_OFFSET + first, bytes);
            }
            accounts.index = entries;
        }
    }

    /// Frees the memory of a ring that has no owner and no events. Everything in the ring then reads as zero, which
    /// makes the ring free.
    pub(crate) fn empty_ring(&self, ring: usize) -> bool {
        let mut accounts = self.accounts();
        let start = self.ring_offset(ring);
        let bytes = RING_PREFIX_BYTES + self.ring_bytes();
        if self.memory.discard(start, bytes).is_err() {
            return false;
        }
        let granted = std::mem::take(&mut accounts.rings[ring]);
        self.places[ring].store(0, Relaxed);
        accounts.spent = accounts.spent.saturating_sub(granted);
        true
    }

    /// Frees the memory of all rings and everything that only the hook reads, after the detach and the last pass. A
    /// thread that is still inside a wrapper keeps the page with its mark. Other writes by such a thread, or by a
    /// thread that is about to leave a wrapper, go to pages that the next attach clears.
    pub fn give_rings_back(&self) {
        let mut accounts = self.accounts();
        self.retire_losses();
        let (used, ring_bytes) = (self.rings_used(), RING_PREFIX_BYTES + self.ring_bytes());
        let mut still_used = 0;
        // If the kernel refuses, the memory remains as it is.
        for ring in 0..used {
            let outer = self.ring64(ring, offset_of!(RingHeader, outer));
            let kept = if outer.load(Acquire) != 0 { PAGE } else { 0 };
            if kept != 0 {
                still_used = ring + 1;
            }
            let _ = self
                .memory
                .discard(self.ring_offset(ring) + kept, ring_bytes - kept);
        }
        let behind = RINGS_OFFSET + used * ring_bytes;
        let _ = self.memory.discard(behind, self.len() - behind);
        self.memory
            .u32(tally!(rings_used))
            .store(still_used as u32, Release);
        let _ = self
            .memory
            .discard(SEQUENCE_OFFSET, INDEX_OFFSET - SEQUENCE_OFFSET);
        accounts.rings.fill(0);
        accounts.spent = 0;
    }

    /// Frees the memory of the report, except the tally, when no more backtraces will be read.
    pub fn give_all_back(&self) {
        self.give_rings_back();
        let _ = self
            .memory
            .discard(SEQUENCE_OFFSET, RINGS_OFFSET - SEQUENCE_OFFSET);
    }

    /// Charges memory (bytes) beyond the initial need. Returns false if the allowance does not permit it.
    pub(crate) fn spend_on_growth(&self, bytes: u64) -> bool {
        self.accounts().spend_on_growth(bytes)
    }

    /// Charges memory (bytes) that this process wrote because the target needs it.
    pub(crate) fn note_spent(&self, bytes: u64) {
        self.accounts().spent += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sealed_file;
    use memhook_abi::region_bytes;

    /// The target would be charged for pages that it touches first.
    #[test]
    fn caches_of_python_are_granted_when_an_interpreter_is_found_later() {
        const RING_BYTES: usize = 1 << 16;
        let file = sealed_file(region_bytes(RING_BYTES) as u64).expect("sparse");
        let region = Region::map(&file).expect("mapped");
        region.begin_grants(&Plan {
            allowance: 64 << 20,
            first_ring: LEAST_RING_BYTES as u64,
            most_ring: LEAST_RING_BYTES as u64,
            stacks: 1 << 20,
            threads: 1,
            access_index: 0,
        });
        let state = region.ring32(0, offset_of!(RingHeader, state));
        state.store(ring_state::CLAIMED, Release);
        let granted = || {
            region.grant([(0, 1)].into_iter());
            let caches = region.ring64(0, offset_of!(RingHeader, granted_caches));
            (caches.load(Relaxed), region.memory_granted())
        };
        let (caches, at_first) = granted();
        assert_eq!(caches, 0);
        let misses = region.ring64(0, offset_of!(RingHeader, memo_misses));
        misses.store(MANY_UNWINDINGS + 1, Relaxed);
        let native = (PYTHON_CHAINS_OFFSET - FIRST_CACHES) as u64;
        assert_eq!(granted(), (1, at_first + native));
        region.set_python_state(python_state::CAREFUL);
        let all = (RING_PREFIX_BYTES - FIRST_CACHES) as u64;
        assert_eq!(granted(), (2, at_first + all));
        assert_eq!(granted(), (2, at_first + all));
    }
}
