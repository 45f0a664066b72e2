//! The region as a whole: mapping, geometry, validation.

use crate::memory::{Guide, Memory, tally};
use crate::{Error, Mark, SlotSpec, grants::Accounts};
use memhook_abi::{
    ABI_VERSION, Control, MAGIC, MAX_RINGS, MAX_SLOTS, RINGS_OFFSET, region_bytes, ring_stride,
};
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use std::sync::{Mutex, MutexGuard};

/// The shared region, mapped into this process.
///
/// All methods take `&self` and may be called from any thread, except that rings have one consumer:
/// [`Drain::pass`](crate::Drain::pass) and [`Region::initialize`] must not run at the same time, and neither must two
/// passes. A ring may be freed during a pass.
pub struct Region {
    pub(crate) memory: Memory,
    /// Size of a ring's events, from the file's size, so that the target cannot change it.
    ring_bytes: usize,
    /// Counters of rings that were freed: dropped, reentrant, truncated.
    pub(crate) retired: [AtomicU64; crate::rings::LOSS_FIELDS.len()],
    /// Number of event slots granted to each ring; 0 while a ring has its initial slots. Kept here because the target
    /// can change the ring's own number.
    pub(crate) places: Vec<AtomicU64>,
    accounts: Mutex<Accounts>,
    /// Number of rings whose freeing for the next owner has begun, and number of rings whose freeing is complete.
    freeing: [AtomicU64; 2],
    /// Threads that were inside a wrapper, with a ring in the region that this region replaces.
    inside_before: Mutex<Vec<Mark>>,
    /// Trusted copies of values in the region, because the target and its forks can change the region.
    own: Own,
}

/// Own copies of values that this process has written to the region. Only these copies are trusted.
struct Own {
    /// Journal of slots, except for the parts that the hook changes.
    journal: Mutex<Vec<SlotSpec>>,
    /// Owner in the initial control block.
    owner: AtomicU64,
    flags: AtomicU32,
    /// Code that evaluates Python functions.
    evaluation: Mutex<Range<u64>>,
    /// Upper bound on the rings whose owners' stacks were set.
    stacks_told: AtomicUsize,
}

fn locked<T>(own: &Mutex<T>) -> MutexGuard<'_, T> {
    own.lock().unwrap_or_else(|e| e.into_inner())
}

impl Region {
    /// Maps the report, and the guide in front of it. Their total length equals the length of the report's file, whose
    /// beginning is empty. In all other respects, this is like [`Region::map`].
    pub fn map_parts(report: impl AsFd, guide: Guide) -> Result<Self, Error> {
        let mut memory = Memory::map(report)?;
        memory.put_guide(guide)?;
        Self::of(memory)
    }

    /// Maps the whole file, which must be sealed ([`crate::SEALS`]) and already have the size that [`region_bytes`]
    /// returns for some ring size. Does not check the contents: call [`Region::initialize`] for a new region, or
    /// [`Region::validate`] for a region that was found in a process.
    pub fn map(fd: impl AsFd) -> Result<Self, Error> {
        Self::of(Memory::map(fd)?)
    }

    fn of(memory: Memory) -> Result<Self, Error> {
        let bytes = memory.len();
        let ring_bytes = ring_bytes_of(bytes).ok_or(Error::Size {
            bytes: bytes as u64,
        })?;
        let own = Own {
            journal: Mutex::default(),
            owner: AtomicU64::new(memory.told64(offset_of!(Control, owner))),
            flags: AtomicU32::new(memory.told32(offset_of!(Control, flags))),
            evaluation: Mutex::new(0..0),
            stacks_told: AtomicUsize::new(0),
        };
        Ok(Self {
            memory,
            ring_bytes,
            retired: Default::default(),
            places: (0..MAX_RINGS).map(|_| AtomicU64::new(0)).collect(),
            accounts: Mutex::new(Accounts::new()),
            freeing: Default::default(),
            inside_before: Mutex::default(),
            own,
        })
    }

    /// Sets the current address of the guide in the target (avma).
    pub fn guide_is_at(&self, address: u64) {
        self.memory.guide_is_at(address);
    }

    /// Prepares this region to replace an earlier region of the process, so that threads that return to the earlier
    /// region find their rings. Call this before [`Region::initialize`].
    pub fn replace(&self, earlier: &Region) {
        *locked(&self.inside_before) = if earlier.is_blank() {
            Vec::new()
        } else {
            earlier.marked_inside()
        };
    }

    pub(crate) fn take_inside_before(&self) -> Vec<Mark> {
        std::mem::take(&mut locked(&self.inside_before))
    }

    pub(crate) fn stacks_told(&self) -> &AtomicUsize {
        &self.own.stacks_told
    }

    pub(crate) fn evaluation(&self) -> Range<u64> {
        locked(&self.own.evaluation).clone()
    }

    pub(crate) fn set_evaluation(&self, range: Range<u64>) {
        *locked(&self.own.evaluation) = range;
    }

    pub(crate) fn journal(&self) -> MutexGuard<'_, Vec<SlotSpec>> {
        locked(&self.own.journal)
    }

    /// Returns the number of the process that uses the region ([`Control::owner`]); 0 if it was never initialized.
    pub fn owner(&self) -> u64 {
        self.own.owner.load(Relaxed)
    }

    /// Returns the bits of [`memhook_abi::flags`].
    pub fn flags(&self) -> u32 {
        self.own.flags.load(Relaxed)
    }

    /// Adds a bit of [`memhook_abi::flags`], before the hook begins.
    pub fn add_flag(&self, flag: u32) {
        self.set_flags(self.flags() | flag);
    }

    fn set_flags(&self, flags: u32) {
        self.own.flags.store(flags, Relaxed);
        self.memory
            .tell32(offset_of!(Control, flags), flags, Relaxed);
    }

    /// Resets the trusted copies for the control block of a new attach.
    pub(crate) fn begin_own(&self, owner: u64, flags: u32) {
        self.journal().clear();
        self.own.owner.store(owner, Relaxed);
        self.set_flags(flags);
        self.set_evaluation(0..0);
    }

    /// Writes the owner to the region, directly before the region is passed to a hook. A region without an owner was
    /// never used. If we are killed before that, a process that finds the region unmaps it.
    pub fn tell_owner(&self) {
        self.memory
            .tell64(offset_of!(Control, owner), self.owner(), Release);
    }

    pub(crate) fn accounts(&self) -> MutexGuard<'_, Accounts> {
        locked(&self.accounts)
    }

    /// Returns the number of freed rings; `None` while one is being freed.
    pub(crate) fn rings_freed(&self) -> Option<u64> {
        let [begun, done] = &self.freeing;
        // The order of the loads matters. In this order, equal numbers mean that no ring was being freed at the second
        // load.
        let done = done.load(Acquire);
        (begun.load(Acquire) == done).then_some(done)
    }

    /// Runs `free`, which frees a ring, and counts its beginning and end, so that events of the next owner are not
    /// mistaken for events of the previous one.
    pub(crate) fn freeing<T>(&self, free: impl FnOnce() -> T) -> T {
        let [begun, done] = &self.freeing;
        begun.fetch_add(1, AcqRel);
        let result = free();
        done.fetch_add(1, AcqRel);
        result
    }

    /// Returns the bytes of the region.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns false; exists because `len` does.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of one ring's events, a power of two.
    pub fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    /// Returns true if the region has no control block: it was never initialized, or only partly.
    pub fn is_blank(&self) -> bool {
        self.control64(offset_of!(Control, magic)) == 0
    }

    /// Checks that the region is of this version and that its sizes agree with the file.
    pub fn validate(&self) -> Result<(), Error> {
        let found = self.control64(offset_of!(Control, magic));
        if found != MAGIC {
            return Err(Error::Magic { found });
        }
        let version = self.control32(offset_of!(Control, abi_version));
        if version != ABI_VERSION {
            return Err(Error::Version {
                found: version,
                expected: ABI_VERSION,
            });
        }
        let expect = |what, found, expected, ok| {
            if ok {
                Ok(())
            } else {
                Err(Error::Damaged {
                    what,
                    found,
                    expected,
                })
            }
        };
        let bytes = self.control64(offset_of!(Control, region_bytes));
        let len = self.len() as u64;
        expect("region_bytes", bytes, len, bytes == len)?;
        let ring = self.control64(offset_of!(Control, ring_bytes));
        let wanted = self.ring_bytes as u64;
        expect("ring_bytes", ring, wanted, ring == wanted)?;
        let slots = self.control32(offset_of!(Control, slot_count));
        let rings = self.reported32(tally!(rings_used));
        let epoch = self.control32(offset_of!(Control, epoch));
        for (what, found, limit) in [
            ("slot_count", slots, MAX_SLOTS),
            ("rings_used", rings, MAX_RINGS),
            ("epoch", epoch, 4095),
        ] {
            let found = u64::from(found);
            expect(what, found, limit as u64, found <= limit as u64)?;
        }
        Ok(())
    }

    pub(crate) fn control32(&self, offset: usize) -> u32 {
        self.memory.told32(offset)
    }

    pub(crate) fn control64(&self, offset: usize) -> u64 {
        self.memory.told64(offset)
    }

    pub(crate) fn reported32(&self, offset: usize) -> u32 {
        self.memory.u32(offset).load(Relaxed)
    }

    pub(crate) fn reported64(&self, offset: usize) -> u64 {
        self.memory.u64(offset).load(Relaxed)
    }

    /// Returns the offset of a ring's header.
    ///
    /// Panics if there is no such ring, as indexing does.
    #[inline]
    pub(crate) fn ring_offset(&self, ring: usize) -> usize {
        assert!(ring < MAX_RINGS, "ring {ring} of {MAX_RINGS}");
        RINGS_OFFSET + ring * ring_stride(self.ring_bytes)
    }
}

/// Returns the ring size for a region of `bytes`.
fn ring_bytes_of(bytes: usize) -> Option<usize> {
    let strides = bytes.checked_sub(RINGS_OFFSET)? / MAX_RINGS;
    let ring_bytes = strides.checked_sub(ring_stride(0))?;
    let fits = ring_bytes.is_power_of_two() && ring_bytes >= 4096;
    (fits && region_bytes(ring_bytes) == bytes).then_some(ring_bytes)
}
