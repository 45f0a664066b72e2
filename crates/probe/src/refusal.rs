//! Reason why a function gets no pad.

/// Reason why a function gets no pad.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no room for the jump.
    #[error("it is too short: a jump takes 5 bytes, and it has {bytes}")]
    TooShort {
        /// Number of bytes that can be displaced.
        bytes: usize,
    },
    /// The jump would reach into the code behind an instruction after which nothing follows.
    #[error("it leaves after {bytes} bytes, and a jump takes 5")]
    LeavesTooEarly {
        /// Number of bytes up to and including that instruction.
        bytes: usize,
    },
    /// The jump would be written in two pieces.
    #[error("the jump would cross the end of a page, and could not be written in one piece")]
    CrossesPage,
    /// An instruction that would not do the same elsewhere.
    #[error("'{instruction}' at its entry cannot be moved")]
    Immovable {
        /// The instruction.
        instruction: String,
    },
    /// A call would return into the jump.
    #[error("'{instruction}' at its entry would return into the jump")]
    ReturnsIntoJump {
        /// The instruction.
        instruction: String,
    },
    /// Code jumps to what the jump would overwrite.
    #[error("code at {from:#x} jumps into its first bytes")]
    BranchTarget {
        /// Where that code, or a table of addresses, is (svma).
        from: u64,
    },
    /// A loop begins at the entry, so its rounds would count as calls.
    #[error("a loop jumps back to its first instruction, so that rounds would count as calls")]
    LoopsToEntry,
    /// The code is not what compilers make of functions.
    #[error("its code cannot be decoded to its end (at {at:#x})")]
    Undecodable {
        /// Where decoding fails (svma).
        at: u64,
    },
    /// The latency cannot be measured: there is no room for a jump where the function is left.
    #[error("its latency cannot be measured: at {at:#x}, where it returns, is no room for a jump")]
    NoRoomAtExit {
        /// Where (svma).
        at: u64,
    },
    /// The latency cannot be measured: it is not known whether a jump leaves the function.
    #[error("its latency cannot be measured: '{instruction}' may leave it or stay in it")]
    UnclearExit {
        /// The jump.
        instruction: String,
    },
    /// Something that it refers to is too far from the pad.
    #[error("it refers to something beyond the reach of its pad")]
    OutOfReach,
}
