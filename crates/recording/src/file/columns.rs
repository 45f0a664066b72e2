//! Layout of a frame of events: the meaning of the tag byte, and the columns.

/// Events in a full frame.
pub(crate) const FRAME_EVENTS: usize = 1 << 18;
/// More events or blocks than this in one frame are damage: they bound what a decoder allocates.
pub(crate) const MAX_FRAME_EVENTS: usize = 1 << 20;

/// Names of the columns, in the order in which a frame holds them.
pub const COLUMNS: [&str; 10] = [
    "tags",
    "ages",
    "strangers",
    "addresses",
    "stacks",
    "stack_ids",
    "release_stacks",
    "sizes",
    "sequences",
    "control",
];

pub(crate) const TAGS: usize = 0;
pub(crate) const AGES: usize = 1;
pub(crate) const STRANGERS: usize = 2;
pub(crate) const ADDRESSES: usize = 3;
pub(crate) const STACKS: usize = 4;
pub(crate) const STACK_IDS: usize = 5;
pub(crate) const RELEASE_STACKS: usize = 6;
pub(crate) const SIZES: usize = 7;
pub(crate) const SEQUENCES: usize = 8;
pub(crate) const CONTROL: usize = 9;

/// Bits 0..2 of a tag: what it is.
pub mod kind {
    /// An allocation. Bits 2..5: where its address is, see [`super::place`]; bit 5: the stack, bit
    /// 6: the size, bit 7: the sequence number is as expected.
    pub const ALLOCATION: u8 = 0;
    /// A release. Bits 2..6: how many allocations ago its block was made, or see [`super::age`];
    /// bit 6: the stack, bit 7: the sequence number is as expected.
    pub const RELEASE: u8 = 1;
    /// The release that announces a `realloc`; bits as for a release.
    pub const REALLOC_RELEASE: u8 = 2;
    /// Not an event, or one more thing about the next one. Bits 2..8: see [`super::control`].
    pub const CONTROL: u8 = 3;
}

/// Bits 2..5 of an allocation's tag.
pub mod place {
    /// 0, 1, 2, 3: the last, second last, ... released block of the size class.
    pub const RELEASED: u8 = 0;
    /// The last released block that is older than the frame.
    pub const STRANGER: u8 = 4;
    /// The last released block of all.
    pub const LAST_RELEASED: u8 = 5;
    /// Right behind the block allocated last.
    pub const BEHIND: u8 = 6;
    /// In the column `addresses`.
    pub const EXPLICIT: u8 = 7;
}

/// Bits 2..6 of a release's tag, unless they are a small age.
pub mod age {
    /// In the column `ages`.
    pub const EXPLICIT: u8 = 14;
    /// The block is older than the frame: its address is in the column `strangers`.
    pub const STRANGER: u8 = 15;
}

/// Bits 2..8 of a control tag.
pub mod control {
    /// Events of a ring follow: ring, thread id.
    pub const RING: u8 = 0;
    /// Events of a ring that this frame has named before, with the same thread: ring.
    pub const RING_AGAIN: u8 = 1;
    /// The pass is over: nanoseconds since the end of the last one (signed).
    pub const PASS: u8 = 2;
    /// Passes without events: nanoseconds (signed), number.
    pub const EMPTY_PASSES: u8 = 3;
    /// The time of what follows: nanoseconds since the last time (signed).
    pub const TIME: u8 = 4;
    /// The next tag is written as a release, but says that the `realloc` announced before failed.
    pub const REALLOC_FAILED: u8 = 5;
    /// The next tag is written as an allocation, but means pairs: their number.
    pub const PAIRS: u8 = 6;
}

pub(crate) const STACK_HIT: u8 = 1 << 5;
pub(crate) const SIZE_HIT: u8 = 1 << 6;
pub(crate) const RELEASE_STACK_HIT: u8 = 1 << 6;
pub(crate) const SEQUENCE_HIT: u8 = 1 << 7;
