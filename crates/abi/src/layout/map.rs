//! Sizes and offsets of all parts of the region.

use super::{
    AccessRecord, Control, MARKS, MarkEntry, ModuleEntry, PYTHON_CACHE_ENTRIES,
    PYTHON_CACHE_OFFSET, PYTHON_CHAIN_BYTES, PYTHON_CHAINS, PYTHON_CHAINS_OFFSET, PythonLayout,
    RingHeader, SlotEntry, StackBounds, Tally,
};
use crate::event::RawEvent;

/// "MEMHOOK1", little endian.
pub const MAGIC: u64 = 0x314b_4f4f_484d_454d;
/// Layout version, raised by every change of this layout; hook and attacher must agree.
pub const ABI_VERSION: u32 = 29;

/// Slots the journal can hold.
pub const MAX_SLOTS: usize = 32_768;
/// Code ranges the module list can hold.
pub const MAX_MODULES: usize = 2_048;
/// Separate originals of one function.
pub const MAX_VARIANTS: usize = 4;
/// Sequence words.
pub const SEQUENCE_WORDS: usize = 16_384;
/// Entries of the stack index, a power of two.
pub const INDEX_ENTRIES: usize = 1 << 20;
/// Bytes of the stack arena.
pub const ARENA_BYTES: usize = 1 << 28;
/// Bytes of an arena granule; a stack id is a granule number.
pub const GRANULE_BYTES: usize = 16;
/// Maximum number of frames in a stack.
pub const MAX_DEPTH: usize = 128;
/// Number of rings, which limits the number of threads traced at one time.
pub const MAX_RINGS: usize = 1_024;
/// Bytes of a ring before its events: header and scratch memory of the unwinder. Untouched pages cost nothing.
pub const RING_PREFIX_BYTES: usize = PYTHON_CHAINS_OFFSET + PYTHON_CHAINS * PYTHON_CHAIN_BYTES;
/// Offset of the scratch memory in a ring: frames that are being collected, on the page of the header, and one page of
/// a stack that is read through the kernel.
pub const RING_SCRATCH_OFFSET: usize = 1_024;
/// Offset of the guides: words that distinguish remembered backtraces with the same beginning.
pub const MEMO_GUIDES_OFFSET: usize = 8_192;
/// Guides of a ring.
pub const MEMO_GUIDES: usize = 256;
/// Bytes of one guide.
pub const MEMO_GUIDE_BYTES: usize = 8;
/// Offset of the PC cache in a ring: PC and rule. While the cache is small, it is on the page of the guides.
pub const PC_CACHE_OFFSET: usize = MEMO_GUIDES_OFFSET + MEMO_GUIDES * MEMO_GUIDE_BYTES;
/// Entries of the PC cache at its largest, a power of two.
pub const PC_CACHE_ENTRIES: usize = 2_048;
/// Entries of a ring's initial PC cache: the rest of one page.
pub const PC_CACHE_FIRST_ENTRIES: usize = (4_096 - MEMO_GUIDES * MEMO_GUIDE_BYTES) / 16;
/// Offset of the backtraces that a ring's thread remembers. They can take the memory up to
/// [`PYTHON_CHAINS_OFFSET`](super::PYTHON_CHAINS_OFFSET).
pub const MEMO_OFFSET: usize = PYTHON_CACHE_OFFSET + PYTHON_CACHE_ENTRIES * 64;
/// Initial bytes of remembered backtraces of a ring.
pub const MEMO_FIRST_BYTES: usize = 8_192;
/// Minimum size in bytes of a ring's events: a page.
pub const LEAST_RING_BYTES: usize = 4_096;
/// Initial entries of the stack index, a power of two.
pub const INDEX_FIRST_ENTRIES: usize = 4_096;
/// Factor by which rings and the stack index grow in a step.
pub const GROWTH: usize = 4;
/// Bytes of a remembered backtrace before its checked words.
pub const MEMO_HEADER_BYTES: usize = 32;
/// Bytes of four checked words with their offsets.
pub const MEMO_BLOCK_BYTES: usize = 40;
/// Separate pages of the live filter, a power of two: a byte each.
pub const FILTER_PAGES: usize = 1 << 20;
/// First mark in a byte of the live filter: the page may have recorded blocks that are in the table.
pub const FIRST_ENTERED_MARK: u8 = 1;
/// Mask of both entered marks: `FIRST_ENTERED_MARK` and the next bit.
pub const ENTERED_MARKS: u8 = 3;
/// First mark of pages that may have recorded blocks outside the table.
pub const FIRST_UNSURE_MARK: u8 = 4;
/// Mask of both unsure marks: `FIRST_UNSURE_MARK` and the next bit.
pub const UNSURE_MARKS: u8 = 12;
/// Words of the table of recorded live blocks, a power of two. A word covers 256 bytes of addresses. Bits 0 to 31 mark
/// the groups of eight bytes at which recorded blocks begin. Bits 32 to 63 identify the 256 bytes: bit 8 of the
/// address, and above it the bits from bit 17 on. 0: none. The index of the word, or of the alternative word that
/// differs in the last bit, is bits 8 to 27 of the address, exclusive-or bits 40 to 59 of `(address >> 28) *`
/// [`FILTER_HASH`], modulo the number of used words, which is at least 512.
pub const FILTER_WORDS: usize = 1 << 20;
/// Minimum number of used words of the table: with fewer words, a word has no space for the address bits that its index
/// does not contain.
pub const LEAST_FILTER_WORDS: usize = 512;
/// Multiplier that spreads distant addresses (Fibonacci hashing; Knuth, The Art of Computer Programming, volume 3,
/// section 6.4).
pub const FILTER_HASH: u64 = 0x9e37_79b9_7f4a_7c15;
/// Entries of the table of blocks that were not recorded because a ring was nearly full, a power of two. It replaces
/// the table of recorded blocks, because only one of the two is ever needed.
pub const PASSED_BLOCKS: usize = FILTER_WORDS;
/// Quantiles of the exponential distribution from which sampling intervals are drawn; one more entry closes the last
/// interval.
pub const SAMPLE_QUANTILES: usize = 1 << 12;
/// Records of accesses: limit of the live blocks whose reads and writes can be counted at a time.
pub const ACCESS_RECORDS: usize = 1 << 20;
/// Unwind rows of all modules together.
pub const MAX_ROWS: usize = 1 << 24;
/// Distinct unwind rules of all modules together.
pub const MAX_RULES: usize = 1 << 16;

// The guide: written by the attacher for the hook; no other process can write it.

/// Offset of the [`PythonLayout`].
pub const PYTHON_OFFSET: usize = 4_096;
/// Offset of the slot journal.
pub const SLOTS_OFFSET: usize = 8_192;
/// Offset of the two module lists: one is in use while the other is written.
pub const MODULES_OFFSET: usize = SLOTS_OFFSET + MAX_SLOTS * size_of::<SlotEntry>();
/// Offset of the sampling intervals: u64 each, in bytes, ascending quantiles.
pub const SAMPLE_OFFSET: usize = MODULES_OFFSET + 2 * MAX_MODULES * size_of::<ModuleEntry>();
/// Offset of the [`StackBounds`].
pub const BOUNDS_OFFSET: usize = SAMPLE_OFFSET + 65_536;
/// Low bits of a ring's offset in the region that do not select its [`StackBounds`].
pub const BOUNDS_SHIFT: u32 = 18;
/// Bytes of the [`StackBounds`] of the largest region.
const BOUNDS_BYTES: usize = 1 << 24;
/// Maximum size in bytes of a ring's events.
pub const MOST_RING_BYTES: usize = 64 << 20;
/// Offset of the unwind rules (u64 each, see [`crate::unwind_rule`]). All data from here on is needed only for
/// unwinding.
pub const RULES_OFFSET: usize = BOUNDS_OFFSET + BOUNDS_BYTES;
/// Offset of the rows' code offsets (u32, relative to the module's base, ascending in a module).
pub const ROW_OFFSETS_OFFSET: usize = RULES_OFFSET + MAX_RULES * 8;
/// Offset of the rows' rule numbers (u16).
pub const ROW_RULES_OFFSET: usize = ROW_OFFSETS_OFFSET + MAX_ROWS * 4;
/// Bytes of the guide.
pub const GUIDE_BYTES: usize = ROW_RULES_OFFSET + MAX_ROWS * 2;

// The report: from the hook to the attacher; descendants of the target may be able to write it.

/// Offset of the [`Tally`].
pub const TALLY_OFFSET: usize = GUIDE_BYTES;
/// Offset of the marks.
pub const MARKS_OFFSET: usize = TALLY_OFFSET + 1_024;
/// Offset of the states of slots.
pub const SLOT_STATES_OFFSET: usize = TALLY_OFFSET + 4_096;
/// Offset of the sequence words.
pub const SEQUENCE_OFFSET: usize = SLOT_STATES_OFFSET + MAX_SLOTS * 4;
/// Offset of the stack index.
pub const INDEX_OFFSET: usize = SEQUENCE_OFFSET + SEQUENCE_WORDS * 4;
/// Offset of the stack arena.
pub const ARENA_OFFSET: usize = INDEX_OFFSET + INDEX_ENTRIES * 8;
/// Offset of the live filter: a byte for each page, by the address modulo [`FILTER_PAGES`], 0 while no recorded block
/// is live there. Like the table, it is used only with [`flags::LIVE_FILTER`].
pub const FILTER_OFFSET: usize = ARENA_OFFSET + ARENA_BYTES;
/// Offset of the table of recorded live blocks.
pub const FILTER_TABLE_OFFSET: usize = FILTER_OFFSET + FILTER_PAGES;
/// Offset of the tables of windows: for each heap [`HEAP_WINDOWS`](super::HEAP_WINDOWS) u32, the upper half of the
/// addresses + 1, or 0.
pub const WINDOWS_OFFSET: usize = FILTER_TABLE_OFFSET + FILTER_WORDS * 8;
/// Offset of the records of accesses. Number 0 stays unused.
pub const ACCESS_OFFSET: usize = WINDOWS_OFFSET + 16_384;
/// Offset of the first ring.
pub const RINGS_OFFSET: usize = ACCESS_OFFSET + ACCESS_RECORDS * size_of::<AccessRecord>();

/// Returns the bytes of one ring, including its prefix.
pub const fn ring_stride(ring_bytes: usize) -> usize {
    RING_PREFIX_BYTES + ring_bytes
}

/// Returns the bytes of a region with rings of `ring_bytes` (a power of two, at least 4096).
pub const fn region_bytes(ring_bytes: usize) -> usize {
    RINGS_OFFSET + MAX_RINGS * ring_stride(ring_bytes)
}

const _: () = assert!(size_of::<Control>() <= PYTHON_OFFSET);
const _: () = assert!(PYTHON_OFFSET + size_of::<PythonLayout>() <= SLOTS_OFFSET);
const _: () = assert!(size_of::<Tally>() <= MARKS_OFFSET - TALLY_OFFSET);
const _: () = assert!(MARKS_OFFSET + MARKS * size_of::<MarkEntry>() <= SLOT_STATES_OFFSET);
const _: () = assert!(GUIDE_BYTES.is_multiple_of(4096) && BOUNDS_OFFSET.is_multiple_of(4096));
// Each ring has its own bounds, and the bounds of the last ring are still in the guide.
const _: () = assert!(ring_stride(LEAST_RING_BYTES) >= 1 << BOUNDS_SHIFT);
const _: () = assert!(
    BOUNDS_OFFSET + (region_bytes(MOST_RING_BYTES) >> BOUNDS_SHIFT) * size_of::<StackBounds>()
        <= RULES_OFFSET
);
const _: () = assert!(size_of::<RingHeader>() <= RING_SCRATCH_OFFSET);
const _: () = assert!(size_of::<RawEvent>() == 16);
const _: () = assert!(ARENA_OFFSET.is_multiple_of(4096) && RINGS_OFFSET.is_multiple_of(4096));
const _: () = assert!(ARENA_BYTES / GRANULE_BYTES <= 1 << 26);
const _: () = assert!(MEMO_GUIDES_OFFSET >= RING_SCRATCH_OFFSET + MAX_DEPTH * 8 + 4096);
const _: () = assert!(PC_CACHE_FIRST_ENTRIES.is_power_of_two());
const _: () = assert!(PYTHON_CACHE_OFFSET >= PC_CACHE_OFFSET + PC_CACHE_ENTRIES * 16);
const _: () = assert!(MEMO_OFFSET.is_multiple_of(4096) && RING_PREFIX_BYTES.is_multiple_of(4096));
const _: () = assert!((SAMPLE_QUANTILES + 1) * 8 <= 65_536);
const _: () = assert!(size_of::<AccessRecord>() == 128);
const _: () = assert!(RULES_OFFSET.is_multiple_of(4096));
