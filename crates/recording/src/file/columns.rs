//! Layout of a frame of events: the meaning of the tag byte, and the columns.

/// Number of events in a full frame.
pub(crate) const FRAME_EVENTS: usize = 1 << 18;
/// Upper bound on events or blocks of a frame. It limits the memory of a decoder. A larger number
/// means that the file is damaged.
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

/// Kind of a tag: bits 0..2.
pub mod kind {
    /// An allocation. Bits 2..5 contain the location of its address; see [`super::place`]. A
    /// further bit is set for each value that equals its prediction: bit 5 for the stack, bit 6 for
    /// the size, bit 7 for the sequence number.
    pub const ALLOCATION: u8 = 0;
    /// A release. Bits 2..6 identify the block, for example by the number of later allocations; see
    /// [`super::age`]. A further bit is set for each value that equals its prediction: bit 6 for
    /// the stack, bit 7 for the sequence number.
    pub const RELEASE: u8 = 1;
    /// The release that announces a `realloc`. Its bits have the same meaning as for a release.
    pub const REALLOC_RELEASE: u8 = 2;
    /// A control tag: not an event, but possibly a supplement to the next event. For bits 2..8, see
    /// [`super::control`].
    pub const CONTROL: u8 = 3;
}

/// Location of an address: bits 2..5 of an allocation's tag.
pub mod place {
    /// The values 0, 1, 2, 3 mean the last, second to last, ... released block of the size class.
    pub const RELEASED: u8 = 0;
    /// The last released block that is older than the frame.
    pub const STRANGER: u8 = 4;
    /// The last released block.
    pub const LAST_RELEASED: u8 = 5;
    /// Directly after the last allocated block.
    pub const BEHIND: u8 = 6;
    /// The address is in the column `addresses`.
    pub const EXPLICIT: u8 = 7;
}

/// Special values of bits 2..6 of a release's tag, which otherwise hold a small age.
pub mod age {
    /// The age is in the column `ages`.
    pub const EXPLICIT: u8 = 14;
    /// The block is older than the frame. Its address is in the column `strangers`.
    pub const STRANGER: u8 = 15;
}

/// Meaning of a control tag: bits 2..8.
pub mod control {
    /// Start of a ring's events. Parameters: ring, thread id.
    pub const RING: u8 = 0;
    /// Start of the events of a ring that this frame has already named, with the same thread.
    /// Parameter: ring.
    pub const RING_AGAIN: u8 = 1;
    /// End of a pass. Parameter: nanoseconds since the end of the previous pass (signed).
    pub const PASS: u8 = 2;
    /// Passes without events. Parameters: nanoseconds (signed), number.
    pub const EMPTY_PASSES: u8 = 3;
    /// Time of the following events. Parameter: nanoseconds since the last time (signed).
    pub const TIME: u8 = 4;
    /// The next tag has the form of a release, but means that the announced `realloc` failed.
    pub const REALLOC_FAILED: u8 = 5;
    /// The next tag has the form of an allocation, but represents pairs. Parameter: their number.
    pub const PAIRS: u8 = 6;
}

pub(crate) const STACK_HIT: u8 = 1 << 5;
pub(crate) const SIZE_HIT: u8 = 1 << 6;
pub(crate) const RELEASE_STACK_HIT: u8 = 1 << 6;
pub(crate) const SEQUENCE_HIT: u8 = 1 << 7;
