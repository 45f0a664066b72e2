//! Structures and offsets of the shared region.

use crate::event::RawEvent;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// One field of a shared structure, as the C++ generator needs it.
pub struct Field {
    /// Field name, the same on both sides.
    pub name: &'static str,
    /// Rust type as written.
    pub rust_type: &'static str,
    /// Byte offset.
    pub offset: usize,
}

macro_rules! shared_struct {
    ($(#[$meta:meta])* $name:ident { $($(#[$fmeta:meta])* $field:ident : $ty:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty,)* }
        impl $name {
            /// Field names, types and offsets, for the C++ header.
            pub const FIELDS: &'static [Field] = &[$(Field {
                name: stringify!($field),
                rust_type: stringify!($ty),
                offset: core::mem::offset_of!($name, $field),
            },)*];
        }
    };
}

/// "MEMHOOK1", little endian.
pub const MAGIC: u64 = 0x314b_4f4f_484d_454d;
/// Changes with every change of this layout; hook and attacher must agree.
pub const ABI_VERSION: u32 = 8;

/// Slots the journal can hold.
pub const MAX_SLOTS: usize = 32_768;
/// Code ranges the module list can hold.
pub const MAX_MODULES: usize = 2_048;
/// Different originals of one function that can be kept apart.
pub const MAX_VARIANTS: usize = 4;
/// Sequence words.
pub const SEQUENCE_WORDS: usize = 16_384;
/// Entries of the stack index, a power of two.
pub const INDEX_ENTRIES: usize = 1 << 20;
/// Bytes of the stack arena.
pub const ARENA_BYTES: usize = 1 << 28;
/// Bytes of an arena granule; a stack id is a granule number.
pub const GRANULE_BYTES: usize = 16;
/// Frames that a stack may have.
pub const MAX_DEPTH: usize = 128;
/// Rings, and so threads traced at one time.
pub const MAX_RINGS: usize = 1_024;
/// Bytes of a ring before its events: header and scratch memory of the unwinder. Untouched pages
/// cost nothing.
pub const RING_PREFIX_BYTES: usize = 1 << 18;
/// Offset of the scratch memory in a ring: frames being collected, on the page of the header, and one
/// page of a stack that is read through the kernel.
pub const RING_SCRATCH_OFFSET: usize = 1_024;
/// Offset of the guides: by which words the remembered backtraces differ that begin alike.
pub const MEMO_GUIDES_OFFSET: usize = 8_192;
/// Guides of a ring.
pub const MEMO_GUIDES: usize = 256;
/// Bytes of one.
pub const MEMO_GUIDE_BYTES: usize = 8;
/// Offset of the PC cache in a ring: PC and rule, on the page of the guides as long as it is small.
pub const PC_CACHE_OFFSET: usize = MEMO_GUIDES_OFFSET + MEMO_GUIDES * MEMO_GUIDE_BYTES;
/// Entries of the PC cache at its largest, a power of two.
pub const PC_CACHE_ENTRIES: usize = 2_048;
/// Entries of the PC cache of a ring at first: what is left of one page.
pub const PC_CACHE_FIRST_ENTRIES: usize = (4_096 - MEMO_GUIDES * MEMO_GUIDE_BYTES) / 16;
/// Offset of the backtraces remembered by a ring's thread; they can take the rest of the prefix.
pub const MEMO_OFFSET: usize = 45_056;
/// Bytes of remembered backtraces that a ring has at first.
pub const MEMO_FIRST_BYTES: usize = 8_192;
/// Fewest bytes of a ring's events: a page.
pub const LEAST_RING_BYTES: usize = 4_096;
/// Entries of the stack index that are used at first, a power of two.
pub const INDEX_FIRST_ENTRIES: usize = 4_096;
/// By how much rings and the stack index grow at a time.
pub const GROWTH: usize = 4;
/// Bytes of a remembered backtrace before its checked words.
pub const MEMO_HEADER_BYTES: usize = 32;
/// Bytes of four checked words with their offsets.
pub const MEMO_BLOCK_BYTES: usize = 40;
/// Counters of the live filter, a power of two.
pub const FILTER_COUNTERS: usize = 1 << 20;
/// Buckets of recorded live blocks, a power of two.
pub const FILTER_BUCKETS: usize = 1 << 17;
/// Blocks in a bucket: a cache line.
pub const FILTER_BUCKET_BLOCKS: usize = 8;
/// Quantiles of the exponential distribution that sampling intervals are drawn from; one more entry
/// closes the last.
pub const SAMPLE_QUANTILES: usize = 1 << 12;
/// Unwind rows of all modules together.
pub const MAX_ROWS: usize = 1 << 24;
/// Distinct unwind rules of all modules together.
pub const MAX_RULES: usize = 1 << 16;

/// Offset of the slot journal.
pub const SLOTS_OFFSET: usize = 8_192;
/// Offset of the module list.
pub const MODULES_OFFSET: usize = SLOTS_OFFSET + MAX_SLOTS * size_of::<SlotEntry>();
/// Offset of the sequence words. There are two module lists: one is in use while the other is
/// written.
pub const SEQUENCE_OFFSET: usize = MODULES_OFFSET + 2 * MAX_MODULES * size_of::<ModuleEntry>();
/// Offset of the stack index.
pub const INDEX_OFFSET: usize = SEQUENCE_OFFSET + SEQUENCE_WORDS * 4;
/// Offset of the stack arena.
pub const ARENA_OFFSET: usize = INDEX_OFFSET + INDEX_ENTRIES * 8;
/// Offset of the unwind rules (u64 each, see [`crate::unwind_rule`]).
pub const RULES_OFFSET: usize = ARENA_OFFSET + ARENA_BYTES;
/// Offset of the rows' code offsets (u32, relative to the module's base, ascending in a module).
pub const ROW_OFFSETS_OFFSET: usize = RULES_OFFSET + MAX_RULES * 8;
/// Offset of the rows' rule numbers (u16).
pub const ROW_RULES_OFFSET: usize = ROW_OFFSETS_OFFSET + MAX_ROWS * 4;
/// Offset of the live filter: a byte by a hash of a block's address, above zero while a recorded block
/// with that hash is live. Only in use with [`flags::LIVE_FILTER`], as are the buckets.
pub const FILTER_OFFSET: usize = ROW_RULES_OFFSET + MAX_ROWS * 2;
/// Offset of the buckets: addresses of recorded live blocks, u64 each, 0 where there is none.
pub const FILTER_BUCKETS_OFFSET: usize = FILTER_OFFSET + FILTER_COUNTERS;
/// Offset of the sampling intervals: u64 each, in bytes, ascending quantiles.
pub const SAMPLE_OFFSET: usize = FILTER_BUCKETS_OFFSET + FILTER_BUCKETS * FILTER_BUCKET_BLOCKS * 8;
/// Offset of the first ring.
pub const RINGS_OFFSET: usize = SAMPLE_OFFSET + 65_536;

/// Bytes of one ring with everything that belongs to it.
pub const fn ring_stride(ring_bytes: usize) -> usize {
    RING_PREFIX_BYTES + ring_bytes
}

/// Bytes of a region with rings of `ring_bytes` (a power of two, at least 4096).
pub const fn region_bytes(ring_bytes: usize) -> usize {
    RINGS_OFFSET + MAX_RINGS * ring_stride(ring_bytes)
}

/// Values of [`SlotEntry::state`].
pub mod slot_state {
    /// Entry not in use, or its module is gone.
    pub const UNUSED: u32 = 0;
    /// To be patched by the hook.
    pub const PENDING: u32 = 1;
    /// The hook is about to write, or has written, our value. Set before the write, so that
    /// recovery after a crash of the attacher knows every slot that may hold it.
    pub const PATCHED: u32 = 2;
    /// Held another value than expected; left alone.
    pub const CHANGED: u32 = 3;
    /// The original is back.
    pub const RESTORED: u32 = 4;
    /// The page could not be made writable.
    pub const REFUSED: u32 = 5;
}

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
    /// Only allocations that pass the size filter are recorded.
    pub const SIZE_FILTER: u32 = 4;
    /// Releases of blocks whose counter in the live filter is 0 are not recorded.
    pub const LIVE_FILTER: u32 = 32;
    /// Allocations are sampled by the byte intervals at [`super::SAMPLE_OFFSET`].
    pub const SAMPLE: u32 = 64;
    /// While one thread alone records it may skip locked instructions: the process is registered for
    /// the attacher's membarrier(2).
    pub const LONE_RECORDER: u32 = 256;
    /// Follow frame pointers instead of the unwind tables.
    pub const FRAME_POINTERS: u32 = 8;
    /// Let the C library's `backtrace` unwind.
    pub const LIBC_BACKTRACE: u32 = 128;
    /// Releases may be folded with their allocations: the attacher claims events before it takes them
    /// ([`super::RingHeader::claimed`]).
    pub const FOLD_PAIRS: u32 = 512;
    /// Unwind again after each hit of a remembered backtrace, and count differences.
    pub const CHECK_MEMO: u32 = 16;
}

/// Values of [`RingHeader::state`].
pub mod ring_state {
    /// Can be claimed.
    pub const FREE: u32 = 0;
    /// Belongs to the thread [`super::RingHeader::tid`](crate::RingHeader).
    pub const CLAIMED: u32 = 1;
}

/// Sizes that `--size` can name at once.
pub const MAX_EXACT_SIZES: usize = 16;

shared_struct! {
    /// Offset 0 of the region. Configuration is written before the hook first sees it.
    Control {
        /// [`MAGIC`].
        magic: u64,
        /// [`ABI_VERSION`].
        abi_version: u32,
        /// Attach number, 1..=4095; the hook's gate holds it while tracing is on.
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
        /// Entries of the slot journal in use, including pending ones.
        slot_count: AtomicU32,
        /// Where a thread's TCB (`struct pthread` of glibc) keeps its tid, as an offset in bytes from the
        /// thread pointer; 0: not known.
        tid_offset: u32,
        /// Sizes in `exact_sizes` in use.
        exact_count: u32,
        /// Smallest recorded size in bytes.
        min_size: u64,
        /// Largest recorded size in bytes.
        max_size: u64,
        /// Exact sizes, if `exact_count` is not 0.
        exact_sizes: [u64; 16],
        /// Address of the vDSO's clock_gettime in the target, or 0.
        vdso_clock: u64,
        /// Address of the C library's `backtrace` in the target, or 0.
        libc_backtrace: u64,
        /// Pid of the attacher, as it sees itself.
        attacher_pid: u32,
        /// Set by the hook when it switched tracing off because the attacher is dead.
        abandoned: AtomicU32,
        /// Originals by function and variant; copied by the hook into its private memory.
        originals: [u64; 256],
        /// Own cache line: nanoseconds since the attach, advanced by the attacher.
        clock_line: [u64; 15],
        /// The clock word.
        clock_ns: AtomicU64,
        /// Own cache line: slow counters of the hook.
        counter_line: [u64; 15],
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
        /// The last request that the attacher has answered (futex word).
        module_answers: AtomicU32,
        /// Version of the module list << 32 | its entries; the list is that of the version's lowest
        /// bit.
        module_list: AtomicU64,
        /// The attach number, once a second thread wants to record ([`flags::LONE_RECORDER`]).
        recorders_asked: AtomicU32,
        /// The attach number, once the attacher has made that safe.
        recorders_granted: AtomicU32,
        /// Not 0: a seccomp filter looks at the target's system calls, so the hook makes none on its own.
        syscalls_filtered: AtomicU32,
        /// Low bits of an address that make no difference to its counter in the live filter.
        filter_shift: u32,
        /// Which operators new do nothing but call an allocation function that is hooked too: bit
        /// `(function - first operator) * MAX_VARIANTS + variant`.
        forwarding_operators: AtomicU32,
        /// Rings that may be claimed.
        ring_limit: AtomicU32,
        /// Which process the region was made for: a number that its hook keeps where a fork wipes it
        /// ([`HookDescription::gate`]), so that a child's region is never taken for its own.
        owner: u64,
        /// Address of the C library's dl_iterate_phdr in the target (avma).
        iterate_modules: u64,
        /// How many modules the target's loader had loaded (upper half) and unloaded (lower half) when the
        /// attacher compared the journal with the mappings: `dlpi_adds` and `dlpi_subs`,
        /// dl_iterate_phdr(3). With other numbers now, slots and protections in the journal may be those of
        /// memory that something else uses. Both, because glibc counts its own copy in a new namespace
        /// only among those that are there, so that `dlpi_subs` alone can fall.
        loader_count_seen: AtomicU64,
        /// The same numbers as the hook has last found them.
        loader_count_now: AtomicU64,
        /// Bytes of events that a ring has at first, a power of two.
        first_ring_bytes: u64,
        /// Bytes of the stack arena that may be used.
        arena_limit: u64,
        /// Entries of the stack index in use, less 1; raised by the hook.
        index_mask: AtomicU64,
        /// What it may be raised to.
        index_limit: u64,
        /// Backtraces in the stack table.
        stack_count: AtomicU64,
    }
}

/// "MEMHOOK description", as the hook holds it: two words that stand nowhere else, [`HookDescription::magic`].
pub const DESCRIPTION_MAGIC: [u64; 2] = [0x3d1e_57a9_b60c_42f8, 0x9bc4_706f_18e3_ad25];
/// Of [`HookDescription`]. Unlike [`ABI_VERSION`] it never changes for fields that are only added.
pub const DESCRIPTION_VERSION: u32 = 1;

shared_struct! {
    /// What a loaded hook says of itself, so that whoever finds it in a process, another version of
    /// memhook-rs included, knows which function stands behind each of its wrappers. It is found by its
    /// magic number and its own address in the hook's data.
    HookDescription {
        /// [`DESCRIPTION_MAGIC`].
        magic: [u64; 2],
        /// Where it is (avma).
        own_address: u64,
        /// [`DESCRIPTION_VERSION`].
        version: u32,
        /// Hooked functions.
        functions: u32,
        /// Wrappers of a function, each with an original of its own.
        variants: u32,
        /// Tables of wrappers.
        tables: u32,
        /// Address (avma) of `u64[functions][variants]`: the wrappers.
        wrappers: u64,
        /// The same: those for selective tracing.
        selective_wrappers: u64,
        /// Address (avma) of `u64[functions][variants]`: the originals, 0 where there is none.
        originals: u64,
        /// Address (avma) of the gate, a page that a fork wipes: u32 epoch, u32 last epoch, u64 owner.
        gate: u64,
        /// Address (avma) of the hook's pointer to its region.
        region: u64,
    }
}

shared_struct! {
    /// A word of the target that is to be exchanged: an argument of `memhook_exchange`.
    Exchange {
        /// Where (avma), 8-byte aligned.
        address: u64,
        /// What it must hold.
        from: u64,
        /// What it shall hold.
        to: u64,
        /// PROT_* bits of its page.
        protection: u32,
        /// One of [`slot_state`], filled in by the hook: `RESTORED`, `CHANGED` or `REFUSED`.
        state: u32,
    }
}

/// As what the loader should count, in `memhook_exchange`: anything.
pub const ANY_LOADER_COUNT: u64 = u64::MAX;

/// What the hook's entry points return besides counts.
pub mod hook_error {
    /// The region is not one of this version.
    pub const NOT_OUR_REGION: i64 = -1;
    /// The gate page cannot be kept from fork children, so that tracing would not be safe.
    pub const NO_WIPE_ON_FORK: i64 = -2;
    /// Modules were unloaded since the attacher looked: nothing was exchanged.
    pub const STALE: i64 = -3;
    /// The loader could not be asked to keep still: nothing was exchanged.
    pub const NO_LOADER: i64 = -4;
}

shared_struct! {
    /// One GOT slot in the journal.
    SlotEntry {
        /// Address of the slot (avma).
        address: u64,
        /// What the slot held, and holds again after the detach.
        original: u64,
        /// The wrapper's address, filled in by the hook.
        replacement: u64,
        /// Identity of the module: base avma.
        module_base: u64,
        /// Function id.
        function: u32,
        /// Variant of the original.
        variant: u32,
        /// [`slot_state`].
        state: AtomicU32,
        /// PROT_* bits to put back after patching.
        protection: u32,
        /// What the slot holds before patching: `original`, or the PLT stub of a slot that lazy
        /// binding has not resolved yet.
        expected: u64,
        /// Not 0: the slot's module was loaded with the program and is never unloaded, so that nothing the
        /// loader does makes this entry out of date.
        is_permanent: u64,
    }
}

shared_struct! {
    /// A module; the list is sorted by `start`.
    ModuleEntry {
        /// First byte (avma).
        start: u64,
        /// Past the last byte (avma).
        end: u64,
        /// Address of a `ret` instruction inside, or 0.
        ret_gadget: u64,
        /// Load bias: avma - svma.
        base: u64,
        /// First unwind row.
        first_row: u32,
        /// Unwind rows.
        row_count: u32,
    }
}

shared_struct! {
    /// Head of a ring. The producer's and the consumer's words keep 128 bytes apart: the adjacent
    /// line prefetcher pulls lines in pairs.
    RingHeader {
        /// Events ever published; written by the owning thread with release order.
        head: AtomicU64,
        /// The producer need not look at `tail` as long as `head` stays so far below this that a
        /// record fits.
        limit: u64,
        /// The frame of the outermost wrapper of this thread, bit 0: while recording. 0: none.
        outer: u64,
        /// Time of the last tick written.
        last_tick: u64,
        /// `head` + 1 while the owner may change the last two events, else 0.
        folding: AtomicU64,
        /// Places for events - 1; written by the owner, raised when [`RingHeader::granted`] is.
        mask: AtomicU64,
        /// Remembered backtraces - 1.
        memo_mask: u64,
        /// Entries of the PC cache - 1.
        pc_mask: u64,
        /// Bounds of the thread's stack (avma), filled in by the attacher; 0: not known.
        stack_low: AtomicU64,
        /// End of the thread's stack.
        stack_high: AtomicU64,
        /// Version of the module list that the caches were filled under, plus 1; 0: clear them.
        cache_version: u64,
        /// Bytes until the next sampled allocation, signed.
        sample_left: u64,
        /// State of the owner's random numbers; 0: not yet in use.
        random: u64,
        /// Unwindings done because no remembered backtrace fitted.
        memo_misses: AtomicU64,
        /// `head` some unwindings ago << 1; bit 0: unwindings were many before that.
        memo_window: u64,
        /// Events dropped because the ring was full.
        dropped: AtomicU64,
        /// Calls passed by because they came from inside the hook (signal handlers).
        reentrant: AtomicU64,
        /// Stacks cut short.
        truncated: AtomicU64,
        /// The owner's thread pointer (fs base): the TCB stands at the top of a thread's stack.
        thread_pointer: AtomicU64,
        /// Stack pointer at the claim, for the attacher to find the bounds.
        first_sp: AtomicU64,
        /// Remembered backtraces checked ([`flags::CHECK_MEMO`]).
        memo_checked: AtomicU64,
        /// Those found wrong.
        memo_wrong: AtomicU64,
        /// Calls passed by as part of the same outer one since `nested_head`.
        nested: u64,
        /// `head` when the first of them came.
        nested_head: u64,
        /// Keeps the consumer's line apart.
        producer_pad: [u64; 15],
        /// Events taken; written by the attacher.
        tail: AtomicU64,
        /// Events that the owner may not change any more; written by the attacher.
        claimed: AtomicU64,
        /// Places for events that the owner may use, a power of two; 0: those of the beginning.
        granted: AtomicU64,
        /// Not 0: the owner may use the whole room for what it remembers.
        granted_caches: AtomicU64,
        /// Keeps the state apart from the tail.
        consumer_pad: [u64; 15],
        /// [`ring_state`].
        state: AtomicU32,
        /// Kernel thread id of the owner, in the target's pid namespace.
        tid: AtomicU32,
    }
}

shared_struct! {
    /// Head of an interned stack; its frames (u64 avma return addresses, innermost first) follow.
    StackEntry {
        /// Hash of the frames.
        hash: u32,
        /// Function id of the allocation.
        function: u8,
        /// 1: cut short.
        truncated: u8,
        /// Frames.
        depth: u16,
    }
}

const _: () = assert!(size_of::<Control>() <= SLOTS_OFFSET);
const _: () = assert!(size_of::<RingHeader>() <= RING_SCRATCH_OFFSET);
const _: () = assert!(size_of::<RawEvent>() == 16);
const _: () = assert!(ARENA_OFFSET.is_multiple_of(4096) && RINGS_OFFSET.is_multiple_of(4096));
const _: () = assert!(ARENA_BYTES / GRANULE_BYTES <= 1 << 26);
const _: () = assert!(MEMO_GUIDES_OFFSET >= RING_SCRATCH_OFFSET + MAX_DEPTH * 8 + 4096);
const _: () = assert!(PC_CACHE_FIRST_ENTRIES.is_power_of_two());
const _: () = assert!(MEMO_OFFSET >= PC_CACHE_OFFSET + PC_CACHE_ENTRIES * 16);
const _: () = assert!(MEMO_OFFSET.is_multiple_of(4096) && RING_PREFIX_BYTES.is_multiple_of(4096));
const _: () = assert!((SAMPLE_QUANTILES + 1) * 8 <= 65_536);
const _: () = assert!(RULES_OFFSET.is_multiple_of(4096));
const _: () = assert!(crate::HOOKED_FUNCTIONS.len() * MAX_VARIANTS <= 256);
