//! The control block: configuration, clock, counters.

use super::shared_struct::{Address, shared_struct};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Values of [`Control::clock_mode`].
pub mod clock_mode {
    /// The clock word that the attacher advances.
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
    /// Record samples of a thread's allocations while its ring is nearly full, once it has waited too long for space.
    /// The samples follow the byte intervals at [`super::SAMPLE_OFFSET`]; [`crate::Op::SamplingChange`] marks the
    /// times. Excludes [`SAMPLE`].
    pub const ADAPT_WHEN_FULL: u32 = 1024;
    /// Record only allocations that pass the size filter.
    pub const SIZE_FILTER: u32 = 4;
    /// Record only some allocations: the live filter identifies their blocks, and only releases of these blocks are
    /// recorded.
    pub const LIVE_FILTER: u32 = 32;
    /// Sample allocations by the byte intervals at [`super::SAMPLE_OFFSET`].
    pub const SAMPLE: u32 = 64;
    /// Allow a lone recording thread to skip locked instructions: the process is registered for the attacher's
    /// membarrier(2).
    pub const LONE_RECORDER: u32 = 256;
    /// Follow frame pointers instead of the unwind tables.
    pub const FRAME_POINTERS: u32 = 8;
    /// Allow folding of releases with their allocations: the attacher claims events before it takes them
    /// ([`super::RingHeader::claimed`]).
    pub const FOLD_PAIRS: u32 = 512;
    /// Sample allocations by the current [`super::Tally::sampling_order`], and time a small random share of the calls.
    /// Requires [`LIVE_FILTER`]; excludes [`SAMPLE`] and [`ADAPT_WHEN_FULL`].
    pub const BUDGET: u32 = 2048;
    /// Unwind again after each match of a remembered backtrace, and count differences.
    pub const CHECK_MEMO: u32 = 16;
    /// Count reads and writes of blocks ([`super::AccessRecord`]), as reported by a program's access runtime.
    pub const ACCESSES: u32 = 4096;
    /// Sometimes make a random allocation wait until the attacher watches its block, if the attacher has requested a
    /// block ([`super::Tally::look_state`]).
    pub const LOOKS: u32 = 8192;
    /// Record nothing, and notify the listeners of the probes otel_memory:alloc and otel_memory:free. Requires
    /// [`LIVE_FILTER`], which then identifies the reported blocks.
    pub const EMITS: u32 = 16384;
    /// Sometimes time the allocator for a random allocation ([`crate::Op::CallTime`]), or for many of the samples.
    /// Excludes [`LOOKS`], which also uses [`super::RingHeader::next_look`].
    pub const CALL_TIMES: u32 = 32768;
}

/// Values of [`Tally::birth`]: state of a region for a forked child ([`SPARES_BEHIND_GATE`]).
pub mod birth {
    /// The region belongs to the process that an attacher holds.
    pub const NONE: u32 = 0;
    /// The first child that comes may take it.
    pub const OFFERED: u32 = 1;
    /// A child has taken it and is setting itself up.
    pub const TAKEN: u32 = 2;
    /// A child records to it.
    pub const CLAIMED: u32 = 3;
    /// No child may take it.
    pub const CLOSED: u32 = 4;
}

/// Values of [`Tally::look_state`].
pub mod look {
    /// No block is requested.
    pub const CLOSED: u32 = 0;
    /// The attacher requests the next block that is drawn.
    pub const OPEN: u32 = 1;
    /// A thread is writing the block's address and size.
    pub const NAMED: u32 = 2;
    /// The thread waits before it returns the block to the program.
    pub const ASKED: u32 = 3;
}

/// Maximum number of sizes that `--size` can name.
pub const MAX_EXACT_SIZES: usize = 16;

shared_struct! {
    /// At offset 0 of the region: settings from the attacher for the hook. They are written before the hook first sees
    /// the region.
    guide Control {
        /// Magic number: [`MAGIC`].
        magic: u64,
        /// Layout version: [`ABI_VERSION`].
        abi_version: u32,
        /// Attach number, 1..=4095. The hook's gate contains it while tracing is on, except in a child that has claimed
        /// the region ([`Tally::birth_epoch`]).
        epoch: u32,
        /// Bytes of the region.
        region_bytes: u64,
        /// Bytes of one ring's events, a power of two.
        ring_bytes: u64,
        /// Frames to collect.
        depth: u32,
        /// Clock mode: see [`clock_mode`].
        clock_mode: u32,
        /// Bits of [`flags`].
        flags: u32,
        /// Offset of the tid in a thread's TCB (`struct pthread` of glibc), in bytes from the thread pointer.
        tid_offset: u32,
        /// Thread id that is stored for the first thread of a process forked without the C library, but belongs to
        /// another thread. 0 if all ids are right.
        stale_number: u32,
        /// Actual id of that thread.
        true_number: u32,
        /// Pid of the attacher in its own namespace.
        attacher_pid: u32,
        /// Number of `exact_sizes` in use.
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
        /// Lowest address of the initial thread's stack (avma). The stack grows, so not all of it is mapped.
        main_stack_low: Address,
        /// End of that stack (avma); 0 if unknown.
        main_stack_high: Address,
        /// Number of the process that uses the region. The process's hook keeps the number where a fork wipes it
        /// ([`HookDescription::gate`]), so that a region is never mistaken for a child's region.
        owner: u64,
        /// Not 0: memory is charged when it is mapped (proc_sys_vm(5), overcommit_memory 2). A forked child then keeps
        /// the region, because mapping other memory in its place could make later mappings fail.
        charges_mappings: u64,
        /// Mean number of bytes between samples ([`flags::ADAPT_WHEN_FULL`]), or the largest mean that may be ordered
        /// ([`flags::BUDGET`]).
        sample_bytes: u64,
        /// Number of used entries, minus 1, of the table of recorded blocks, or of the table of passed blocks that
        /// replaces it.
        table_mask: u64,
        /// Initial bytes of a ring's events, a power of two.
        first_ring_bytes: u64,
        /// Bytes of the stack arena that may be used.
        arena_limit: u64,
        /// Upper bound of [`Tally::index_mask`].
        index_limit: u64,
        /// Bytes of the target's own memory that its index of blocks may take. The target's control groups are charged
        /// for it.
        access_index_limit: u64,
        /// Version of the module list << 32 | number of entries. The version's lowest bit selects the list.
        module_list: AtomicU64,
        /// Padding that gives the fields that the attacher changes while the hook runs their own cache lines.
        later: [u64; 16],
        /// Entries of the slot journal in use, including pending ones.
        slot_count: AtomicU32,
        /// Operators new that only call another hooked allocation function: bit `(function - first operator) *
        /// MAX_VARIANTS + variant`.
        forwarding_operators: AtomicU32,
        /// Not 0: a seccomp filter checks the target's system calls, so the hook makes none of its own.
        syscalls_filtered: AtomicU32,
        /// Last request that the attacher has answered (futex word).
        module_answers: AtomicU32,
        /// The attach number, once the attacher has made a second recording thread safe.
        recorders_granted: AtomicU32,
        /// Rings that may be claimed.
        ring_limit: AtomicU32,
        /// Numbers of modules that the target's loader had loaded (upper half) and unloaded (lower half) when the
        /// attacher compared the journal with the mappings: `dlpi_adds` and `dlpi_subs`, dl_iterate_phdr(3). If the
        /// numbers have changed, slots and protections in the journal may describe memory that has another use. Both
        /// are needed: glibc counts its own copy in a new namespace only among the present modules, so `dlpi_subs` can
        /// decrease while `dlpi_adds` stays the same.
        loader_count_seen: AtomicU64,
        /// Number of records that may be used. The attacher raises it.
        access_limit: AtomicU64,
        /// Number of searches for rings of ended threads.
        ring_sweeps: AtomicU64,
        /// Mean number of a ring's events between two drawn events ([`flags::LOOKS`]).
        look_distance: AtomicU64,
    }
}

shared_struct! {
    /// At [`super::TALLY_OFFSET`]: counts and requests from the hook, and numbers from the attacher that the hook may
    /// also change.
    report Tally {
        /// Phase of the marks of pages with recorded blocks ([`flags::BUDGET`]).
        mark_phase: AtomicU64,
        /// Mean number of bytes between samples that the attacher currently orders ([`flags::BUDGET`]): a power of two
        /// up to `sample_bytes`; 0: record every allocation.
        sampling_order: AtomicU64,
        /// Clock word: nanoseconds since the attach. The attacher advances it, and the hook does so for marks.
        clock_ns: AtomicU64,
        /// Padding that gives the hook's rarely used counters their own cache lines.
        counter_line: [u64; 13],
        /// Next free granule of the stack arena.
        arena_next: AtomicU64,
        /// Stacks that did not fit into the stack table.
        stacks_dropped: AtomicU64,
        /// Events of threads that found no free ring.
        ringless_events: AtomicU64,
        /// Number of rings ever claimed. All rings in use have a lower index.
        rings_used: AtomicU32,
        /// Number of times that modules were loaded or unloaded, counted by the hook.
        module_requests: AtomicU32,
        /// Attach number, once a second thread wants to record ([`flags::LONE_RECORDER`]).
        recorders_asked: AtomicU32,
        /// Set by the hook when it switches tracing off because the clock word has stopped. The attacher clears it when
        /// tracing may continue, and the next hooked call resumes.
        abandoned: AtomicU32,
        /// Last value of [`Control::loader_count_seen`] that the hook has seen.
        loader_count_now: AtomicU64,
        /// Number of used entries of the stack index, minus 1. The hook raises it.
        index_mask: AtomicU64,
        /// Backtraces in the stack table.
        stack_count: AtomicU64,
        /// Value of the stopped clock word when the hook set `abandoned`.
        abandoned_ns: AtomicU64,
        /// Number of marks ever set: mark `n` is in [`super::MarkEntry`] number `n` modulo their number.
        marks: AtomicU64,
        /// Number of access records that were ever used, including the one that stays unused.
        access_next: AtomicU64,
        /// Lower 32 bits: first entry of the list of unused records. Upper bits: number of changes to the list.
        access_unused: AtomicU64,
        /// Blocks without a record.
        access_missed: AtomicU64,
        /// Bytes that the index of blocks has taken ([`Control::access_index_limit`]).
        access_index_bytes: AtomicU64,
        /// Timed recordings of allocations ([`flags::BUDGET`]).
        timed_allocations: AtomicU64,
        /// Time of the recordings above, in ticks of the time stamp counter, including one time stamp each.
        timed_allocation_counts: AtomicU64,
        /// Timed recordings of releases.
        timed_releases: AtomicU64,
        /// Time of the recordings above, including one time stamp each.
        timed_release_counts: AtomicU64,
        /// Time taken by the time stamps themselves, one for each recording above.
        timed_stamp_counts: AtomicU64,
        /// Timed calls that only passed through a wrapper.
        timed_passes: AtomicU64,
        /// Time of the passes above.
        timed_pass_counts: AtomicU64,
        /// Time that all threads have waited for space in their rings, in nanoseconds ([`flags::BUDGET`]).
        waited_ns: AtomicU64,
        /// Number of calls that unmapped or replaced a mapping. It orders the mappings of all threads.
        mapping_number: AtomicU64,
        /// State of a region for a forked child: see [`birth`].
        birth: AtomicU32,
        /// Id of the process that has claimed the region, in the process's own pid namespace.
        birth_pid: AtomicU32,
        /// Attach number under which that process records. None of its ancestors has used it.
        birth_epoch: AtomicU32,
        /// State of a request for a block: see [`look`].
        look_state: AtomicU32,
        /// Children of the region's process that found no region to claim.
        births_missed: AtomicU64,
        /// Waiting thread, by the number in its ring.
        look_tid: AtomicU32,
        /// Keeps the next field aligned.
        padding: u32,
        /// Block of the waiting thread (avma).
        look_address: AtomicU64,
        /// The size of the block.
        look_size: AtomicU64,
        /// Number of libraries that the program opened and used before their slots were patched.
        unwatched_libraries: AtomicU64,
        /// The loader's count of loaded modules up to which these libraries have been counted: see
        /// [`Control::loader_count_seen`].
        unwatched_until: AtomicU64,
    }
}

shared_struct! {
    /// Reads and writes of a live block ([`flags::ACCESSES`]). Two cache lines: each access writes to the first.
    report AccessRecord {
        /// The block's address (avma); 0 while the record is unused.
        address: AtomicU64,
        /// Size of the block in bytes.
        size: AtomicU64,
        /// Time of the first access, as in ticks; 0: none.
        first: AtomicU64,
        /// Time of the last access.
        last: AtomicU64,
        /// Offset of the lowest accessed byte.
        low: AtomicU64,
        /// Offset past the highest accessed byte.
        high: AtomicU64,
        /// Reads by the first thread that accessed it.
        reads: AtomicU64,
        /// Writes by that thread.
        writes: AtomicU64,
        /// The thread pointer of that thread; 0: none.
        thread: AtomicU64,
        /// Reads by other threads.
        other_reads: AtomicU64,
        /// Writes by other threads.
        other_writes: AtomicU64,
        /// The thread pointer of the last thread that wrote.
        last_writer: AtomicU64,
        /// Last write of that thread: offset << 16 | bytes.
        last_write: AtomicU64,
        /// Number of times that a thread wrote to a cache line that another thread had written last, but to other
        /// bytes.
        false_shares: AtomicU64,
        /// While unused: the number of the next unused record.
        next_unused: AtomicU64,
        /// Fills the line.
        pad: u64,
    }
}
