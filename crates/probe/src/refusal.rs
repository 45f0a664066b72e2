//! Reason why a function gets no pad.

/// Reason why a function gets no pad.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is not enough space for the jump.
    #[error("it is too short: a jump takes 5 bytes, and it has {bytes}")]
    TooShort {
        /// Number of bytes that can be displaced.
        bytes: usize,
    },
    /// The jump would overlap the code after an instruction that ends the flow of control.
    #[error("it returns or jumps away after {bytes} bytes, and a jump takes 5")]
    LeavesTooEarly {
        /// Number of bytes up to and including that instruction.
        bytes: usize,
    },
    /// The jump would have to be written in two pieces.
    #[error("the jump would cross the end of a page, and could not be written in one piece")]
    CrossesPage,
    /// An instruction would behave differently at another address.
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
    /// Code jumps into the bytes that the jump would overwrite.
    #[error("code at {from:#x} jumps into its first bytes")]
    BranchTarget {
        /// Address of the code that jumps there, or of a table of addresses (svma).
        from: u64,
    },
    /// A loop begins at the entry, so its iterations would count as calls.
    #[error("a loop jumps back to its first instruction, so iterations would count as calls")]
    LoopsToEntry,
    /// The code does not look like that of a compiled function.
    #[error("its code cannot be decoded beyond {at:#x}")]
    Undecodable {
        /// Address where decoding fails (svma).
        at: u64,
    },
    /// The latency cannot be measured: there is not enough space for a jump at an exit of the
    /// function.
    #[error(
        "its latency cannot be measured: it returns at {at:#x}, where there is no room for a jump"
    )]
    NoRoomAtExit {
        /// Address of the exit (svma).
        at: u64,
    },
    /// The latency cannot be measured: it is unknown whether a jump leaves the function.
    #[error("its latency cannot be measured: '{instruction}' may leave it or stay in it")]
    UnclearExit {
        /// The jump.
        instruction: String,
    },
    /// An address that the code refers to is too far from the pad.
    #[error("it refers to an address beyond the reach of its pad")]
    OutOfReach,
}
