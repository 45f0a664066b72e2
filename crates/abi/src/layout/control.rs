//! The control block: configuration, clock, counters.

use super::shared_struct::{Address, shared_struct};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Values of [`Control::clock_mode`].
pub mod clock_mode {
    /// The word that the attacher advances.
    pub const COARSE: u32 = 0;
    /// `rdtsc`.
    pub const TSC: u32 = 1;
    /// `clock_gettime(CLOCK_MONOTONIC)` of the vDSO.
    pub const MONOTONIC: u32 = 2;
    /// No time stamps from the target.
    pub const ATTACHER: u32 = 3;
}

/// Values of [`Control::flags`].
pub mod flags {
    /// Record the backtrace of releases too.
    pub const RELEASE_STACKS: u32 = 1;
    /// Drop events when a ring is full instead of waiting.
    pub const DROP_WHEN_FULL: u32 = 2;
    /// Where a thread has waited for room longer than it should, record a sample of its allocations while
    /// its ring is nearly full, by the byte intervals at [`super::SAMPLE_OFFSET`];
    /// [`crate::Op::SamplingChange`] tells when. Not with [`SAMPLE`].
    pub const ADAPT_WHEN_FULL: u32 = 1024;
    /// Only allocations that pass the size filter are recorded.
    pub const SIZE_FILTER: u32 = 4;
    /// Not all allocations are recorded: the live filter knows the blocks that are, and only their releases are
    /// recorded.
    pub const LIVE_FILTER: u32 = 32;
    /// Allocations are sampled by the byte intervals at [`super::SAMPLE_OFFSET`].
    pub const SAMPLE: u32 = 64;
    /// While one thread alone records it may skip locked instructions: the process is registered for
    /// the attacher's membarrier(2).
    pub const LONE_RECORDER: u32 = 256;
    /// Follow frame pointers instead of the unwind tables.
    pub const FRAME_POINTERS: u32 = 8;
    /// Releases may be folded with their allocations: the attacher claims events before it takes them
    /// ([`super::RingHeader::claimed`]).
    pub const FOLD_PAIRS: u32 = 512;
    /// Allocations are sampled as [`super::Tally::sampling_order`] says at the time, and a small random
    /// share of the calls is timed. With [`LIVE_FILTER`]; not with [`SAMPLE`] or [`ADAPT_WHEN_FULL`].
    pub const BUDGET: u32 = 2048;
    /// Unwind again after each hit of a remembered backtrace, and count differences.
    pub const CHECK_MEMO: u32 = 16;
    /// Count reads and writes of blocks ([`super::AccessRecord`]), as the access runtime of a program tells
    /// of them.
    pub const ACCESSES: u32 = 4096;
    /// A random allocation now and then waits until the attacher watches its block, if the attacher has asked for one
    /// ([`super::Tally::look_state`]).
    pub const LOOKS: u32 = 8192;
    /// Record nothing, and tell those who listen to the probes otel_memory:alloc and otel_memory:free. Together with
    /// [`LIVE_FILTER`], whose place the blocks that were told take.
    pub const EMITS: u32 = 16384;
    /// What the allocator takes is timed for a random allocation now and then ([`crate::Op::CallTime`]); of samples,
    /// for many of them. Not with [`LOOKS`], which has the same use of [`super::RingHeader::next_look`].
    pub const CALL_TIMES: u32 = 32768;
}

/// Values of [`Tally::birth`]: of a region that waits for a fork child ([`SPARES_BEHIND_GATE`]).
pub mod birth {
    /// The region was made for the process that an attacher holds.
    pub const NONE: u32 = 0;
    /// The first child that comes may take it.
    pub const OFFERED: u32 = 1;
    /// A child has taken it and is setting itself up.
    pub const TAKEN: u32 = 2;
    /// A child records into it.
    pub const CLAIMED: u32 = 3;
    /// No child may take it.
    pub const CLOSED: u32 = 4;
}

/// Values of [`Tally::look_state`].
pub mod look {
    /// No block is asked for.
    pub const CLOSED: u32 = 0;
    /// The attacher wants the next block that is drawn.
    pub const OPEN: u32 = 1;
    /// A thread writes which block that is.
    pub const NAMED: u32 = 2;
    /// It waits, with the block not yet handed to the program.
    pub const ASKED: u32 = 3;
}

/// Sizes that `--size` can name at once.
pub const MAX_EXACT_SIZES: usize = 16;

shared_struct! {
    /// Offset 0 of the region: what the attacher tells the hook. Configuration is written before the hook first sees it.
    guide Control {
        /// [`MAGIC`].
        magic: u64,
        /// [`ABI_VERSION`].
        abi_version: u32,
        /// Attach number, 1..=4095; the hook's gate holds it while tracing is on, but for a child that has claimed the
        /// region ([`Tally::birth_epoch`]).
        epoch: u32,
        /// Bytes of the region.
        region_bytes: u64,
        /// Bytes of one ring's events, a power of two.
        ring_bytes: u64,
        /// Frames to collect.
        depth: u32,
        /// [`clock_mode`].
        clock_mode: u32,
        /// [`flags`].
        flags: u32,
        /// Where a thread's TCB (`struct pthread` of glibc) keeps its tid, as an offset in bytes from the
        /// thread pointer.
        tid_offset: u32,
        /// What is kept as the number of the first thread in a process that was forked without the C library, which is
        /// another's; 0: all are right.
        stale_number: u32,
        /// That thread's number.
        true_number: u32,
        /// Pid of the attacher, as it sees itself.
        attacher_pid: u32,
        /// Sizes in `exact_sizes` in use.
        exact_count: u32,
        /// Smallest recorded size in bytes.
        min_size: u64,
        /// Largest recorded size in bytes.
        max_size: u64,
        /// Exact sizes, if `exact_count` is not 0.
        exact_sizes: [u64; 16],
        /// Address of the vDSO's clock_gettime in the target, or 0.
        vdso_clock: Address,
        /// Address of the C library's dl_iterate_phdr in the target (avma).
        iterate_modules: Address,
        /// Where the stack of the initial thread may be (avma); it grows, so not all of it is mapped.
        main_stack_low: Address,
        /// Its end (avma); 0: it is not known.
        main_stack_high: Address,
        /// Which process the region was made for: a number that its hook keeps where a fork wipes it
        /// ([`HookDescription::gate`]), so that a child's region is never taken for its own.
        owner: u64,
        /// Not 0: memory is charged when it is mapped (proc_sys_vm(5), overcommit_memory 2), so a forked child that mapped
        /// some in place of the region could have others refused theirs, and keeps the region.
        charges_mappings: u64,
        /// Mean number of bytes between samples ([`flags::ADAPT_WHEN_FULL`]), or the largest that may be
        /// ordered ([`flags::BUDGET`]).
        sample_bytes: u64,
        /// Entries in use of the table of recorded blocks, or of the one of passed blocks that is in its place; less 1.
        table_mask: u64,
        /// Bytes of events that a ring has at first, a power of two.
        first_ring_bytes: u64,
        /// Bytes of the stack arena that may be used.
        arena_limit: u64,
        /// What [`Tally::index_mask`] may be raised to.
        index_limit: u64,
        /// Bytes of the target's own memory that its index of blocks may take; they are charged to its control groups.
        access_index_limit: u64,
        /// Version of the module list << 32 | its entries; the list is that of the version's lowest
        /// bit.
        module_list: AtomicU64,
        /// Own cache lines: what the attacher changes while the hook runs.
        later: [u64; 16],
        /// Entries of the slot journal in use, including pending ones.
        slot_count: AtomicU32,
        /// Which operators new do nothing but call an allocation function that is hooked too: bit
        /// `(function - first operator) * MAX_VARIANTS + variant`.
        forwarding_operators: AtomicU32,
        /// Not 0: a seccomp filter looks at the target's system calls, so the hook makes none on its own.
        syscalls_filtered: AtomicU32,
        /// The last request that the attacher has answered (futex word).
        module_answers: AtomicU32,
        /// The attach number, once the attacher has made it safe that a second thread records.
        recorders_granted: AtomicU32,
        /// Rings that may be claimed.
        ring_limit: AtomicU32,
        /// How many modules the target's loader had loaded (upper half) and unloaded (lower half) when the
        /// attacher compared the journal with the mappings: `dlpi_adds` and `dlpi_subs`,
        /// dl_iterate_phdr(3). With other numbers now, slots and protections in the journal may be those of
        /// memory that something else uses. Both, because glibc counts its own copy in a new namespace
        /// only among those that are there, so that `dlpi_subs` alone can fall.
        loader_count_seen: AtomicU64,
        /// Records that may be used; raised by the attacher.
        access_limit: AtomicU64,
        /// How often rings of ended threads were looked for.
        ring_sweeps: AtomicU64,
        /// Mean number of events of a ring between two that are drawn ([`flags::LOOKS`]).
        look_distance: AtomicU64,
    }
}

shared_struct! {
    /// At [`super::TALLY_OFFSET`]: what the hook counts and asks, and numbers of the attacher's that the hook may
    /// change, too.
    report Tally {
        /// Which marks of pages with recorded blocks are set ([`flags::BUDGET`]).
        mark_phase: AtomicU64,
        /// Mean number of bytes between samples that the attacher wants now ([`flags::BUDGET`]): a power
        /// of two up to `sample_bytes`; 0: every allocation is to be recorded.
        sampling_order: AtomicU64,
        /// The clock word: nanoseconds since the attach, advanced by the attacher, and by the hook for marks.
        clock_ns: AtomicU64,
        /// Own cache lines: slow counters of the hook.
        counter_line: [u64; 13],
        /// Next free granule of the stack arena.
        arena_next: AtomicU64,
        /// Stacks that did not fit into the stack table.
        stacks_dropped: AtomicU64,
        /// Events of threads that found no free ring.
        ringless_events: AtomicU64,
        /// Rings ever claimed: rings 0..this are worth looking at.
        rings_used: AtomicU32,
        /// Modules were loaded or unloaded: counted up by the hook.
        module_requests: AtomicU32,
        /// The attach number, once a second thread wants to record ([`flags::LONE_RECORDER`]).
        recorders_asked: AtomicU32,
        /// Set by the hook when it has switched tracing off because the clock word stood still; cleared by
        /// the attacher when tracing may go on, which the next hooked call then sees to.
        abandoned: AtomicU32,
        /// [`Control::loader_count_seen`], as the hook has last found it.
        loader_count_now: AtomicU64,
        /// Entries of the stack index in use, less 1; raised by the hook.
        index_mask: AtomicU64,
        /// Backtraces in the stack table.
        stack_count: AtomicU64,
        /// The clock word that stood still when the hook set `abandoned`.
        abandoned_ns: AtomicU64,
        /// Marks ever set: [`super::MarkEntry`] number `n` is the place of mark `n` modulo their number.
        marks: AtomicU64,
        /// Records of accesses that were ever in use, and the one that stays unused.
        access_next: AtomicU64,
        /// The first of a list of unused records, and above its 32 bits a count of the changes of the list.
        access_unused: AtomicU64,
        /// Blocks that got no record.
        access_missed: AtomicU64,
        /// Bytes that the index of blocks has taken ([`Control::access_index_limit`]).
        access_index_bytes: AtomicU64,
        /// Recordings of allocations that were timed ([`flags::BUDGET`]).
        timed_allocations: AtomicU64,
        /// What they took, in counts of the time stamp counter, with one time stamp each.
        timed_allocation_counts: AtomicU64,
        /// Recordings of releases that were timed.
        timed_releases: AtomicU64,
        /// What they took, with one time stamp each.
        timed_release_counts: AtomicU64,
        /// Time stamps that were timed themselves, one for each recording above.
        timed_stamp_counts: AtomicU64,
        /// Calls that passed through a wrapper for the measurement alone.
        timed_passes: AtomicU64,
        /// What they took.
        timed_pass_counts: AtomicU64,
        /// What all threads have waited for room in their rings, in nanoseconds ([`flags::BUDGET`]).
        waited_ns: AtomicU64,
        /// How many calls have unmapped or replaced something: what orders the mappings of all threads.
        mapping_number: AtomicU64,
        /// [`birth`].
        birth: AtomicU32,
        /// The process that has claimed the region, by the number that it has in its own pid namespace.
        birth_pid: AtomicU32,
        /// The attach number that such a process records under, which no ancestor of it had.
        birth_epoch: AtomicU32,
        /// [`look`].
        look_state: AtomicU32,
        /// Children that found no region to claim, of the process that this one is for.
        births_missed: AtomicU64,
        /// The thread that waits, by the number that its ring has.
        look_tid: AtomicU32,
        /// Keeps what follows aligned.
        padding: u32,
        /// Its block (avma).
        look_address: AtomicU64,
        /// The size of the block.
        look_size: AtomicU64,
    }
}

shared_struct! {
    /// What was read and written of a live block ([`flags::ACCESSES`]). Two cache lines: the first is written by
    /// each access.
    report AccessRecord {
        /// The block's address (avma); 0 while the record is unused.
        address: AtomicU64,
        /// Its size in bytes.
        size: AtomicU64,
        /// Time of the first access, as ticks have it; 0: none.
        first: AtomicU64,
        /// Time of the last one.
        last: AtomicU64,
        /// Offset of the lowest byte accessed.
        low: AtomicU64,
        /// Offset past the highest one.
        high: AtomicU64,
        /// Reads by the first thread that accessed it.
        reads: AtomicU64,
        /// Writes by it.
        writes: AtomicU64,
        /// The thread pointer of that thread; 0: none.
        thread: AtomicU64,
        /// Reads by others.
        other_reads: AtomicU64,
        /// Writes by others.
        other_writes: AtomicU64,
        /// The thread pointer of the last thread that wrote.
        last_writer: AtomicU64,
        /// What it wrote: offset << 16 | bytes.
        last_write: AtomicU64,
        /// How often a thread wrote into the cache line that another one wrote last, but other bytes.
        false_shares: AtomicU64,
        /// While unused: the number of the next unused record.
        next_unused: AtomicU64,
        /// Fills the line.
        pad: u64,
    }
}
