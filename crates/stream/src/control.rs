//! The control block: configuration of an attach, clock, module requests.

use crate::memory::tally;
use crate::python::is_possible;
use crate::selection::table_entries;
use crate::{Error, Plan, PythonConfig, Region};
use memhook_abi::{
    ABI_VERSION, Control, DESCRIBED_OFFSET, DescribedFunction, HEAP_WINDOWS, MAGIC, MAX_DEPTH,
    MAX_DESCRIBED, MAX_EXACT_SIZES, MAX_HEAPS, SLOTS_OFFSET, WINDOWS_OFFSET, flags,
};
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Settings of one attach for the hook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Attach number, 1..=4095; differs from the previous attach's.
    pub epoch: u32,
    /// Bytes of one ring's events; must match the region.
    pub ring_bytes: u64,
    /// Frames to collect, 1..=128.
    pub depth: u32,
    /// Clock mode, one of [`memhook_abi::clock_mode`].
    pub clock_mode: u32,
    /// Bits of [`memhook_abi::flags`].
    pub flags: u32,
    /// Smallest recorded size in bytes.
    pub min_size: u64,
    /// Largest recorded size in bytes.
    pub max_size: u64,
    /// Exact sizes in bytes to record, at most 16; empty: all sizes.
    pub exact_sizes: Vec<u64>,
    /// Address of the vDSO's `clock_gettime` in the target (avma), or 0.
    pub vdso_clock: u64,
    /// Mean number of bytes between sampled allocations; needed with [`memhook_abi::flags::SAMPLE`] and
    /// [`memhook_abi::flags::ADAPT_WHEN_FULL`]. With [`memhook_abi::flags::BUDGET`], the largest distance that the
    /// attacher will set.
    pub sample_bytes: u64,
    /// Mean number of bytes between samples at the start of a trace within a budget (flag `BUDGET`); 0: every
    /// allocation is recorded.
    pub first_order: u64,
    /// Pid of the attacher in its own namespace.
    pub attacher_pid: u32,
    /// Process of the region ([`Control::owner`]); not 0.
    pub owner: u64,
    /// Address of the C library's `dl_iterate_phdr` in the target (avma).
    pub iterate_modules: u64,
    /// Bounds of the stack of the target's initial thread (avma).
    pub main_stack: Range<u64>,
    /// True if memory is charged when it is mapped ([`Control::charges_mappings`]).
    pub charges_mappings: bool,
    /// Plan for the attach's memory.
    pub plan: Plan,
    /// The process's CPython interpreter, if its frames can be found.
    pub python: Option<PythonConfig>,
    /// Functions of allocators that the user has described, indexed by their numbers, which start at 0.
    pub described: Vec<(usize, DescribedFunction)>,
}

impl Config {
    fn draws_samples(&self) -> bool {
        let drawn = flags::SAMPLE | flags::ADAPT_WHEN_FULL | flags::BUDGET;
        self.flags & drawn != 0
    }
}

impl Region {
    /// Discards all contents and writes the control block of a new attach, with the magic number last.
    ///
    /// No thread of the target may be recording: the gate is closed, or the hook does not have the region yet. Threads
    /// that are still inside an earlier call keep their rings.
    pub fn initialize(&self, config: &Config) -> Result<(), Error> {
        self.check(config)?;
        let m = &self.memory;
        let mut inside = self.take_inside_before();
        if !self.is_blank() {
            inside.extend(self.marked_inside());
        }
        m.tell64(offset_of!(Control, magic), 0, Release);
        m.clear()?;
        self.clear_guide();
        for (offset, value) in [
            (offset_of!(Control, abi_version), ABI_VERSION),
            (offset_of!(Control, epoch), config.epoch),
            (offset_of!(Control, depth), config.depth),
            (offset_of!(Control, clock_mode), config.clock_mode),
            (
                offset_of!(Control, exact_count),
                config.exact_sizes.len() as u32,
            ),
            (offset_of!(Control, attacher_pid), config.attacher_pid),
        ] {
            m.tell32(offset, value, Relaxed);
        }
        for (offset, value) in [
            (offset_of!(Control, region_bytes), self.len() as u64),
            (offset_of!(Control, ring_bytes), config.ring_bytes),
            (offset_of!(Control, min_size), config.min_size),
            (offset_of!(Control, max_size), config.max_size),
            (offset_of!(Control, vdso_clock), config.vdso_clock),
            (offset_of!(Control, sample_bytes), config.sample_bytes),
            (offset_of!(Control, iterate_modules), config.iterate_modules),
            (offset_of!(Control, main_stack_low), config.main_stack.start),
            (offset_of!(Control, main_stack_high), config.main_stack.end),
            (
                offset_of!(Control, charges_mappings),
                config.charges_mappings.into(),
            ),
        ] {
            m.tell64(offset, value, Relaxed);
        }
        let sizes = config.exact_sizes.iter().copied();
        m.tell_u64s(offset_of!(Control, exact_sizes), sizes);
        // Granule 0 stays empty: stack id 0 means "none".
        m.u64(tally!(arena_next)).store(1, Relaxed);
        if config.draws_samples() {
            self.write_sample_intervals(config.sample_bytes);
            self.order_sampling(config.first_order);
        }
        self.begin_own(config.owner, config.flags);
        let python = config.python.as_ref();
        if let Some(python) = python.filter(|python| is_possible(&python.layout)) {
            self.write_python(&python.layout);
            self.set_evaluation(python.evaluation.clone());
            self.set_python_state(python.layout.state);
        }
        let entries = table_entries(config.plan.allowance);
        m.tell64(offset_of!(Control, table_mask), entries - 1, Relaxed);
        for counter in &self.retired {
            counter.store(0, Relaxed);
        }
        self.begin_grants(&config.plan);
        if config.flags & flags::LIVE_FILTER != 0 {
            // Each release reads the filter, which creates its pages.
            m.touch(memhook_abi::FILTER_OFFSET, memhook_abi::FILTER_PAGES);
            self.note_spent(memhook_abi::FILTER_PAGES as u64);
        }
        let has_budget = config.flags & flags::BUDGET != 0;
        if has_budget
            || config.flags & (flags::ADAPT_WHEN_FULL | flags::LIVE_FILTER)
                == flags::ADAPT_WHEN_FULL
        {
            // The pages of the table are touched here, like those of the rings: the hook may need all of them suddenly,
            // and the memory limit may be low.
            m.touch(memhook_abi::FILTER_TABLE_OFFSET, entries as usize * 8);
            self.note_spent(entries * 8);
        }
        if !config.described.is_empty() {
            let bytes = MAX_HEAPS * HEAP_WINDOWS * 4;
            m.touch(WINDOWS_OFFSET, bytes);
            self.note_spent(bytes as u64);
        }
        for (number, function) in &config.described {
            let at = DESCRIBED_OFFSET + (number % MAX_DESCRIBED) * 8;
            m.tell64(at, function.pack(), Relaxed);
        }
        m.u64(tally!(access_next)).store(1, Relaxed);
        self.grant_accesses();
        for mark in &inside {
            self.retain(mark);
        }
        m.tell64(offset_of!(Control, magic), MAGIC, Release);
        Ok(())
    }

    fn check(&self, config: &Config) -> Result<(), Error> {
        if config.ring_bytes != self.ring_bytes() as u64 {
            return Err(Error::RingSize {
                region_bytes: self.ring_bytes() as u64,
                config_bytes: config.ring_bytes,
            });
        }
        let sizes = config.exact_sizes.len();
        let sampled = config.draws_samples();
        for (ok, what, value, allowed) in [
            (
                (1..=4095).contains(&config.epoch),
                "epoch",
                u64::from(config.epoch),
                "1..=4095",
            ),
            (
                (1..=MAX_DEPTH as u32).contains(&config.depth),
                "depth",
                u64::from(config.depth),
                "1..=128",
            ),
            (
                !sampled || (1..=1 << 30).contains(&config.sample_bytes),
                "mean of the sampling intervals",
                config.sample_bytes,
                "1..=1 GiB",
            ),
            (
                sizes <= MAX_EXACT_SIZES,
                "number of exact sizes",
                sizes as u64,
                "at most 16",
            ),
        ] {
            if !ok {
                return Err(Error::Setting {
                    what,
                    value,
                    allowed,
                });
            }
        }
        Ok(())
    }

    /// Clears data of an earlier attach or child.
    fn clear_guide(&self) {
        self.memory
            .tell_u64s(0, std::iter::repeat_n(0, SLOTS_OFFSET / 8));
        for index in 0..self.slot_count() {
            self.want_slot(index, false);
        }
        self.forget_stacks();
    }

    /// Returns the attach number in the control block.
    pub fn epoch(&self) -> u32 {
        self.control32(offset_of!(Control, epoch))
    }

    /// Returns the pid of the attacher that initialized the region, in that attacher's namespace.
    pub fn attacher_pid(&self) -> u32 {
        self.control32(offset_of!(Control, attacher_pid))
    }

    /// Clears the attacher's pid: the attacher is done with the process, although it may keep running.
    pub fn forget_attacher(&self) {
        self.memory
            .tell32(offset_of!(Control, attacher_pid), 0, Relaxed);
    }

    /// Returns the numbers of modules that the target's loader had loaded and unloaded when the hook last checked. Call
    /// this before reading the target's mappings, and then pass the result to [`Region::set_loader_count_seen`].
    pub fn loader_count_now(&self) -> u64 {
        let offset = tally!(loader_count_now);
        self.memory.u64(offset).load(Acquire)
    }

    /// Sets the loader's count for which the journal and module list are valid; the hook patches only while the loader
    /// has this count.
    pub fn set_loader_count_seen(&self, count: u64) {
        let offset = offset_of!(Control, loader_count_seen);
        // Release: a hook that sees the count also sees the slots and modules.
        self.memory.tell64(offset, count, Release);
    }

    /// Returns true if the hook knows that a seccomp filter checks its system calls.
    pub fn syscalls_filtered(&self) -> bool {
        self.control32(offset_of!(Control, syscalls_filtered)) != 0
    }

    /// Returns the source of time stamps ([`memhook_abi::clock_mode`]).
    pub fn clock_mode(&self) -> u32 {
        self.control32(offset_of!(Control, clock_mode))
    }

    /// Advances the clock word: nanoseconds since the attach. Call this about every millisecond; a target that waits
    /// for space in a ring considers the attacher dead if the clock stops.
    pub fn set_clock_ns(&self, now_ns: u64) {
        self.memory.u64(tally!(clock_ns)).store(now_ns, Relaxed);
    }

    /// Advances the clock word if it is still `from`. For callers other than the drain thread: they must not overwrite
    /// a later time that the drain thread has written.
    pub fn advance_clock_ns(&self, from: u64, now_ns: u64) {
        let word = self.memory.u64(tally!(clock_ns));
        let _ = word.compare_exchange(from, now_ns, Relaxed, Relaxed);
    }

    /// Returns the clock word, nanoseconds since the attach.
    pub fn clock_ns(&self) -> u64 {
        self.reported64(tally!(clock_ns))
    }

    /// Returns the number of times that the target has loaded or unloaded modules.
    pub fn module_requests(&self) -> u32 {
        self.memory.u32(tally!(module_requests)).load(Acquire)
    }

    /// Returns the last request that was answered.
    pub fn module_answers(&self) -> u32 {
        self.control32(offset_of!(Control, module_answers))
    }

    /// Answers all requests up to `request` (their slots are in the journal), and wakes the threads of the target that
    /// wait for it.
    pub fn answer_modules(&self, request: u32) {
        let offset = offset_of!(Control, module_answers);
        // Release: a thread that sees the answer also sees the slots.
        self.memory.tell32(offset, request, Release);
        self.memory.wake_all(offset);
    }

    /// Returns the value of the stopped clock word, if the hook switched tracing off because it considered this
    /// attacher dead. Everything recorded is from that time or earlier.
    pub fn abandoned_at_ns(&self) -> Option<u64> {
        // Acquire: the time was stored before.
        let abandoned = self.memory.u32(tally!(abandoned));
        (abandoned.load(Acquire) != 0).then(|| self.reported64(tally!(abandoned_ns)))
    }

    /// Tells the hook that this attacher is back, so that the hook records the next hooked call of the target.
    pub fn resume(&self) {
        let abandoned = self.memory.u32(tally!(abandoned));
        // Release: a thread that sees the cleared word also sees the current modules and unwind tables.
        abandoned.store(0, Release);
    }
}
