//! The mapped region.

use memhook_abi::{self as abi, Control, ModuleEntry, RingHeader, SlotEntry, StackEntry};
use memmap2::{MmapOptions, MmapRaw};
use std::{
    fs::File,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

/// A region that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The memfd could not be mapped.
    #[error("cannot map the shared region: {0}")]
    Map(#[from] std::io::Error),
    /// It was made by another version, or is damaged.
    #[error("the shared region in the process is not of this version of memhook-rs")]
    Foreign,
    /// The slot journal is full.
    #[error("more than {} GOT slots", abi::MAX_SLOTS)]
    TooManySlots,
}

/// Settings of one attach.
#[derive(Clone, Debug)]
pub struct Config {
    /// Attach number, 1..=4095.
    pub epoch: u32,
    /// Bytes of a ring, a power of two.
    pub ring_bytes: u64,
    /// Frames to collect.
    pub depth: u32,
    /// [`abi::clock_mode`].
    pub clock_mode: u32,
    /// [`abi::flags`].
    pub flags: u32,
    /// Smallest recorded size in bytes.
    pub min_size: u64,
    /// Largest recorded size in bytes.
    pub max_size: u64,
    /// Exact sizes to record; empty: all between the limits.
    pub exact_sizes: Vec<u64>,
    /// Address of the vDSO's clock_gettime in the target, or 0.
    pub vdso_clock: u64,
    /// Our pid.
    pub attacher_pid: u32,
}

/// A slot to be patched.
#[derive(Clone, Copy, Debug)]
pub struct SlotSpec {
    /// Address of the slot (avma).
    pub address: u64,
    /// The function behind it, put back at the detach.
    pub original: u64,
    /// What the slot holds now.
    pub expected: u64,
    /// Base of its module.
    pub module_base: u64,
    /// Function id.
    pub function: u32,
    /// Variant of the original.
    pub variant: u32,
    /// PROT_* bits of the page.
    pub protection: u32,
}

/// A slot of the journal.
#[derive(Clone, Copy, Debug)]
pub struct SlotView {
    /// Index in the journal.
    pub index: usize,
    /// What was asked for.
    pub spec: SlotSpec,
    /// The wrapper's address once patched.
    pub replacement: u64,
    /// [`abi::slot_state`].
    pub state: u32,
}

/// A ring's owner.
#[derive(Clone, Copy, Debug)]
pub struct RingView {
    /// Index.
    pub index: usize,
    /// [`abi::ring_state`].
    pub state: u32,
    /// Owner's thread id, in the target's pid namespace.
    pub tid: u32,
    /// Stack pointer at the claim.
    pub first_sp: u64,
    /// Thread pointer.
    pub thread_pointer: u64,
    /// End of the stack, 0 while not known.
    pub stack_high: u64,
    /// Events published and not yet taken.
    pub pending: u64,
}

/// An interned backtrace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Function id of the allocation or release.
    pub function: u8,
    /// It was cut short.
    pub truncated: bool,
    /// Return addresses (avma), innermost first.
    pub frames: Vec<u64>,
}

/// What was not recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Events dropped because a ring was full, or because a thread found no ring.
    pub dropped: u64,
    /// Calls from inside the hook (signal handlers) that were passed by.
    pub reentrant: u64,
    /// Stacks cut short, or not stored because the table is full.
    pub truncated: u64,
}

/// The region, mapped into this process.
pub struct Region {
    map: MmapRaw,
    file: File,
}

impl Region {
    /// Maps the memfd of a region.
    pub fn map(file: File) -> Result<Self, Error> {
        let length = file.metadata()?.len();
        if length < abi::RINGS_OFFSET as u64 {
            return Err(Error::Foreign);
        }
        let map = MmapOptions::new().no_reserve_swap().map_raw(&file)?;
        Ok(Region { map, file })
    }

    fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset + size_of::<T>() <= self.map.len());
        // SAFETY: in bounds, as just checked; the mapping lives as long as `self`.
        unsafe { self.map.as_mut_ptr().add(offset).cast() }
    }

    fn control(&self) -> *mut Control {
        self.at(0)
    }

    fn u64_at(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: in bounds (`at`), aligned because all our offsets are, and shared with another
        // process that uses atomic accesses too.
        unsafe { &*self.at::<AtomicU64>(offset) }
    }

    fn u32_at(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as in `u64_at`.
        unsafe { &*self.at::<AtomicU32>(offset) }
    }

    fn control_u32(&self, offset: usize) -> &AtomicU32 {
        self.u32_at(offset)
    }

    /// Whether this is a region of our version with sizes that fit the file.
    pub fn validate(&self) -> Result<(), Error> {
        // SAFETY: in bounds; plain reads of fields that only an attacher writes.
        let (magic, version, bytes, ring_bytes) = unsafe {
            let c = self.control();
            (
                (&raw const (*c).magic).read_volatile(),
                (&raw const (*c).abi_version).read_volatile(),
                (&raw const (*c).region_bytes).read_volatile(),
                (&raw const (*c).ring_bytes).read_volatile(),
            )
        };
        let fits = ring_bytes.is_power_of_two()
            && (4096..=1 << 30).contains(&ring_bytes)
            && bytes == abi::region_bytes(ring_bytes as usize) as u64
            && bytes == self.map.len() as u64;
        if magic == abi::MAGIC && version == abi::ABI_VERSION && fits {
            Ok(())
        } else {
            Err(Error::Foreign)
        }
    }

    /// Writes the settings of a new attach. Rings, stack table, journal and counters start empty.
    ///
    /// pre: no hook records into this region.
    pub fn initialize(&self, config: &Config) -> Result<(), Error> {
        use std::os::fd::AsRawFd;
        // Give every page back: what is left of an earlier attach reads as zero afterwards.
        // SAFETY: fallocate takes plain integers; the file is open.
        let result = unsafe {
            libc::fallocate(
                self.file.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                0,
                self.map.len() as i64,
            )
        };
        if result != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        let c = self.control();
        // SAFETY: in bounds; nobody else uses the region yet.
        unsafe {
            (*c).abi_version = abi::ABI_VERSION;
            (*c).epoch = config.epoch;
            (*c).region_bytes = self.map.len() as u64;
            (*c).ring_bytes = config.ring_bytes;
            (*c).depth = config.depth;
            (*c).clock_mode = config.clock_mode;
            (*c).flags = config.flags;
            (*c).min_size = config.min_size;
            (*c).max_size = config.max_size;
            (*c).exact_count = config.exact_sizes.len().min(abi::MAX_EXACT_SIZES) as u32;
            for (to, from) in (*c).exact_sizes.iter_mut().zip(&config.exact_sizes) {
                *to = *from;
            }
            (*c).vdso_clock = config.vdso_clock;
            (*c).attacher_pid = config.attacher_pid;
            // Id 0 means "no stack".
            (*c).arena_next.store(1, Ordering::Relaxed);
            (*c).clock_ns.store(1, Ordering::Relaxed);
            (&raw mut (*c).magic).write_volatile(abi::MAGIC);
        }
        Ok(())
    }

    /// Attach number.
    pub fn epoch(&self) -> u32 {
        self.control_u32(std::mem::offset_of!(Control, epoch))
            .load(Ordering::Relaxed)
    }

    /// Pid of the attacher that initialized it.
    pub fn attacher_pid(&self) -> u32 {
        self.control_u32(std::mem::offset_of!(Control, attacher_pid))
            .load(Ordering::Relaxed)
    }

    /// Bytes of a ring.
    pub fn ring_bytes(&self) -> usize {
        self.u64_at(std::mem::offset_of!(Control, ring_bytes))
            .load(Ordering::Relaxed) as usize
    }

    /// Advances the clock word; the hook takes a standing clock for a dead attacher.
    pub fn set_clock_ns(&self, now: u64) {
        self.u64_at(std::mem::offset_of!(Control, clock_ns))
            .store(now, Ordering::Relaxed);
    }

    /// Whether the hook has switched itself off.
    pub fn abandoned(&self) -> bool {
        self.control_u32(std::mem::offset_of!(Control, abandoned))
            .load(Ordering::Relaxed)
            != 0
    }

    /// How many times modules were loaded or unloaded.
    pub fn module_requests(&self) -> u32 {
        self.control_u32(std::mem::offset_of!(Control, module_requests))
            .load(Ordering::Acquire)
    }

    /// Answers all requests up to this one: the journal holds the new slots.
    pub fn answer_modules(&self, request: u32) {
        let word = self.control_u32(std::mem::offset_of!(Control, module_answers));
        word.store(request, Ordering::Release);
        // SAFETY: the futex word is valid memory; waking does not access it otherwise.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAKE,
                i32::MAX,
                0,
                0,
                0,
            )
        };
    }

    fn slot(&self, index: usize) -> *mut SlotEntry {
        assert!(index < abi::MAX_SLOTS);
        self.at(abi::SLOTS_OFFSET + index * size_of::<SlotEntry>())
    }

    fn slot_count(&self) -> &AtomicU32 {
        self.control_u32(std::mem::offset_of!(Control, slot_count))
    }

    /// Adds a slot, to be patched by the hook at its next call.
    pub fn push_slot(&self, spec: &SlotSpec) -> Result<usize, Error> {
        let index = self.slot_count().load(Ordering::Relaxed) as usize;
        if index >= abi::MAX_SLOTS {
            return Err(Error::TooManySlots);
        }
        let entry = self.slot(index);
        // SAFETY: in bounds; the hook does not look at it before the count covers it.
        unsafe {
            (*entry).address = spec.address;
            (*entry).original = spec.original;
            (*entry).expected = spec.expected;
            (*entry).replacement = 0;
            (*entry).module_base = spec.module_base;
            (*entry).function = spec.function;
            (*entry).variant = spec.variant;
            (*entry).protection = spec.protection;
            (*entry)
                .state
                .store(abi::slot_state::PENDING, Ordering::Release);
        }
        self.slot_count().store(index as u32 + 1, Ordering::Release);
        Ok(index)
    }

    /// The journal.
    pub fn slots(&self) -> Vec<SlotView> {
        let count = self.slot_count().load(Ordering::Acquire) as usize;
        (0..count.min(abi::MAX_SLOTS))
            .map(|index| {
                let entry = self.slot(index);
                // SAFETY: in bounds; fields are written once, before the state.
                unsafe {
                    SlotView {
                        index,
                        state: (*entry).state.load(Ordering::Acquire),
                        replacement: (&raw const (*entry).replacement).read_volatile(),
                        spec: SlotSpec {
                            address: (*entry).address,
                            original: (*entry).original,
                            expected: (*entry).expected,
                            module_base: (*entry).module_base,
                            function: (*entry).function,
                            variant: (*entry).variant,
                            protection: (*entry).protection,
                        },
                    }
                }
            })
            .collect()
    }

    /// Changes a slot's state: to UNUSED when its module is gone, to PENDING to patch it again.
    pub fn set_slot_state(&self, index: usize, state: u32, expected: Option<u64>) {
        let entry = self.slot(index);
        // SAFETY: in bounds; `expected` is read by the hook only while the state is PENDING.
        unsafe {
            if let Some(expected) = expected {
                (*entry).expected = expected;
            }
            (*entry).state.store(state, Ordering::Release);
        }
    }

    /// Replaces the list of code ranges: (start, end, address of a `ret`).
    pub fn set_modules(&self, modules: &[(u64, u64, u64)]) {
        let count = self.control_u32(std::mem::offset_of!(Control, module_count));
        count.store(0, Ordering::SeqCst);
        for (i, &(start, end, gadget)) in modules.iter().take(abi::MAX_MODULES).enumerate() {
            let entry: *mut ModuleEntry =
                self.at(abi::MODULES_OFFSET + i * size_of::<ModuleEntry>());
            // SAFETY: in bounds; readers look only below the count.
            unsafe {
                (*entry).start = start;
                (*entry).end = end;
                (*entry).ret_gadget = gadget;
            }
        }
        count.store(
            modules.len().min(abi::MAX_MODULES) as u32,
            Ordering::Release,
        );
    }

    fn ring_offset(&self, ring: usize) -> usize {
        abi::RINGS_OFFSET + ring * abi::ring_stride(self.ring_bytes())
    }

    pub(crate) fn ring(&self, ring: usize) -> &RingHeader {
        // SAFETY: in bounds (`at`), aligned; every field that the target writes while we read is
        // an atomic; the plain ones are the producer's own and never read here.
        unsafe { &*self.at::<RingHeader>(self.ring_offset(ring)) }
    }

    pub(crate) fn event_word(&self, ring: usize, index: usize, word: usize) -> u64 {
        self.u64_at(self.ring_offset(ring) + abi::RING_PREFIX_BYTES + index * 16 + word * 8)
            .load(Ordering::Relaxed)
    }

    /// Rings 0..this have been used.
    pub fn rings_used(&self) -> usize {
        (self
            .control_u32(std::mem::offset_of!(Control, rings_used))
            .load(Ordering::Acquire) as usize)
            .min(abi::MAX_RINGS)
    }

    /// The rings that have been used.
    pub fn rings(&self) -> Vec<RingView> {
        (0..self.rings_used())
            .map(|index| {
                let ring = self.ring(index);
                RingView {
                    index,
                    state: ring.state.load(Ordering::Acquire),
                    tid: ring.tid.load(Ordering::Acquire),
                    first_sp: ring.first_sp.load(Ordering::Relaxed),
                    thread_pointer: ring.thread_pointer.load(Ordering::Relaxed),
                    stack_high: ring.stack_high.load(Ordering::Relaxed),
                    pending: ring
                        .head
                        .load(Ordering::Acquire)
                        .wrapping_sub(ring.tail.load(Ordering::Relaxed)),
                }
            })
            .collect()
    }

    /// Tells the hook where a thread's stack is; from then on it reads it directly.
    pub fn set_stack_bounds(&self, ring: usize, low: u64, high: u64) {
        let ring = self.ring(ring);
        // An address is inside only when both bounds say so: low first keeps a half-written pair
        // from covering more than the stack.
        ring.stack_low.store(low, Ordering::SeqCst);
        ring.stack_high.store(high, Ordering::SeqCst);
    }

    /// Gives a ring back whose thread is gone.
    ///
    /// pre: the ring is drained and its thread has ended.
    pub fn free_ring(&self, ring: usize) {
        let header = self.ring(ring);
        header.stack_high.store(0, Ordering::Relaxed);
        header.stack_low.store(0, Ordering::Relaxed);
        header.tid.store(0, Ordering::Relaxed);
        // Head and tail go on from where they are; the next owner's cached tail is merely old,
        // which makes it look again.
        header.state.store(abi::ring_state::FREE, Ordering::Release);
    }

    /// An interned stack; `None` for 0 and for ids that make no sense.
    pub fn stack(&self, id: u32) -> Option<Stack> {
        let offset = id as usize * abi::GRANULE_BYTES;
        if id == 0 || offset + size_of::<StackEntry>() > abi::ARENA_BYTES {
            return None;
        }
        let base = abi::ARENA_OFFSET + offset;
        let head = self.u64_at(base).load(Ordering::Acquire);
        let depth = (head >> 48) as usize;
        if depth > abi::MAX_DEPTH || offset + 8 + depth * 8 > abi::ARENA_BYTES {
            return None;
        }
        Some(Stack {
            function: (head >> 32) as u8,
            truncated: (head >> 40) as u8 != 0,
            frames: (0..depth)
                .map(|i| self.u64_at(base + 8 + i * 8).load(Ordering::Relaxed))
                .collect(),
        })
    }

    /// What was lost since the attach.
    pub fn losses(&self) -> Losses {
        let of = |offset| self.u64_at(offset).load(Ordering::Relaxed);
        let mut losses = Losses {
            dropped: of(std::mem::offset_of!(Control, ringless_events)),
            reentrant: 0,
            truncated: of(std::mem::offset_of!(Control, stacks_dropped)),
        };
        for index in 0..self.rings_used() {
            let ring = self.ring(index);
            losses.dropped += ring.dropped.load(Ordering::Relaxed);
            losses.reentrant += ring.reentrant.load(Ordering::Relaxed);
            losses.truncated += ring.truncated.load(Ordering::Relaxed);
        }
        losses
    }
}
