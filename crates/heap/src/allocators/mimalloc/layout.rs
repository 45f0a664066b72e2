//! Layouts of `mi_segment_t` and `mi_page_t` (mimalloc 2, include/mimalloc/types.h).

/// Location of the first block of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageStart {
    /// The first block begins 384 bytes into the page if blocks are small (segment.c,
    /// `_mi_segment_page_start_from_slice`).
    Shifted,
    /// In a page of the smallest blocks, the first block begins at the fourth or second multiple of the block size
    /// (same function).
    AtMultiple,
    /// `mi_page_t` contains the address of the first block at this offset.
    Field(u64),
    /// `mi_page_t` has a 32-bit field at this offset: the distance from the `mi_page_t` to the first block, in machine
    /// words.
    Distance(u64),
    /// The same distance in bytes, in a 64-bit field at this offset.
    DistanceInBytes(u64),
}

/// Field offsets in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Releases that have this layout.
    pub versions: &'static str,
    /// `mi_segment_t`.
    pub used: u64,
    pub cookie: u64,
    pub segment_slices: u64,
    pub info_slices: u64,
    pub kind: u64,
    pub entries: u64,
    pub thread: u64,
    pub slices: u64,
    /// `mi_page_t`, and its size in bytes.
    pub page_bytes: u64,
    pub page_used: u64,
    /// True if `used` has 32 bits instead of 16.
    pub is_used_wide: bool,
    pub block_bytes: u64,
    /// True if the block size has 64 bits instead of 32.
    pub is_size_wide: bool,
    pub local_free: u64,
    pub thread_free: u64,
    pub heap: u64,
    pub start: PageStart,
    /// Keys with which free lists are encoded, in builds with `MI_SECURE`.
    pub keys: Option<u64>,
    /// True if blocks have padding at their ends, as in secure builds since 2.1.
    pub has_padding: bool,
    /// `mi_heap_t`: `thread_delayed_free`, which precedes the thread's id. If build options change the offset, both
    /// offsets are listed.
    pub delayed: &'static [u64],
}

/// All layouts begin with the page's slice count, and share the offsets of `capacity`, `reserved` and the free list.
pub const SLICE_COUNT: u64 = 0;
pub const CAPACITY: u64 = 10;
pub const RESERVED: u64 = 12;
pub const FREE: u64 = 16;

const IN_2_0_9: Layout = Layout {
    versions: "2.0.9",
    used: 208,
    cookie: 216,
    segment_slices: 224,
    info_slices: 232,
    kind: 240,
    entries: 248,
    thread: 256,
    slices: 264,
    page_bytes: 80,
    page_used: 24,
    is_used_wide: true,
    block_bytes: 28,
    is_size_wide: false,
    local_free: 32,
    thread_free: 40,
    heap: 48,
    start: PageStart::Shifted,
    keys: None,
    has_padding: false,
    delayed: &[2840, 2848],
};

const TO_2_1_9: Layout = Layout {
    versions: "2.1.4 to 2.1.9",
    page_bytes: 96,
    page_used: 32,
    is_used_wide: false,
    block_bytes: 40,
    is_size_wide: true,
    local_free: 24,
    thread_free: 56,
    heap: 64,
    start: PageStart::Field(48),
    delayed: &[8],
    ..IN_2_0_9
};

/// Layout of the last releases of version 2.
pub const SINCE_2_2: Layout = Layout {
    versions: "2.2 or 2.3",
    used: 216,
    cookie: 224,
    segment_slices: 248,
    info_slices: 256,
    kind: 264,
    entries: 272,
    thread: 280,
    slices: 288,
    ..TO_2_1_9
};

/// Returns the layout of a build with encoded lists.
const fn secure(layout: Layout) -> Layout {
    Layout {
        page_bytes: layout.page_bytes + 16,
        keys: Some(layout.thread_free),
        has_padding: true,
        thread_free: layout.thread_free + 16,
        heap: layout.heap + 16,
        ..layout
    }
}

const TO_2_1_2: Layout = Layout {
    versions: "2.1.0 to 2.1.2",
    start: PageStart::AtMultiple,
    ..IN_2_0_9
};

/// All known layouts.
pub const LAYOUTS: [Layout; 8] = [
    IN_2_0_9,
    TO_2_1_2,
    TO_2_1_9,
    SINCE_2_2,
    Layout {
        has_padding: false,
        ..secure(IN_2_0_9)
    },
    secure(TO_2_1_2),
    secure(TO_2_1_9),
    secure(SINCE_2_2),
];
