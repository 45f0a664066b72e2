//! Errors of a region.

/// Reason why a region cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The unwind tables have more rows than the region holds.
    #[error("{wanted} more unwind rows do not fit into a region that holds {limit}")]
    RowsFull {
        /// Number of rows to write.
        wanted: usize,
        /// Number of rows that a region can hold.
        limit: usize,
    },
    /// The memfd could not be mapped.
    #[error("cannot map the shared region: {0}")]
    Map(std::io::Error),
    /// Another process could change the size of the file.
    #[error(
        "the shared memory in the process is not sealed against resizing: another program made it, or an older version"
    )]
    NotSealed,
    /// No ring size results in a region of this size.
    #[error("a shared region of {bytes} bytes belongs to no version that this program knows")]
    Size {
        /// Size of the file in bytes.
        bytes: u64,
    },
    /// The configuration and the region have different ring sizes.
    #[error("the region has rings of {region_bytes} bytes, not the requested {config_bytes}")]
    RingSize {
        /// Bytes of a ring in the region.
        region_bytes: u64,
        /// Bytes of a ring in the configuration.
        config_bytes: u64,
    },
    /// A setting is outside its range.
    #[error("{what} is {value}, but must be {allowed}")]
    Setting {
        /// Name of the setting.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Allowed range.
        allowed: &'static str,
    },
    /// The region does not begin with the magic number.
    #[error("not a memhook region (it begins with {found:#x})")]
    Magic {
        /// Value found there.
        found: u64,
    },
    /// The region has the layout of another version.
    #[error(
        "the region in the process has layout version {found}, this program has {expected}: detach with the version that attached"
    )]
    Version {
        /// Layout version in the region.
        found: u32,
        /// Layout version of this program.
        expected: u32,
    },
    /// A size in the control block contradicts the size of the region.
    #[error("damaged region: {what} is {found}, expected {expected}")]
    Damaged {
        /// Field of the control block.
        what: &'static str,
        /// Its value.
        found: u64,
        /// Required value (an upper bound for counts).
        expected: u64,
    },
    /// The old contents could not be discarded.
    #[error("cannot clear the shared region: {0}")]
    Clear(std::io::Error),
    /// The slot journal is full.
    #[error("slot {address:#x} cannot be hooked: the journal is full ({limit} slots)")]
    SlotsFull {
        /// Address of the slot that did not fit (avma).
        address: u64,
        /// Entries of the journal.
        limit: usize,
    },
    /// The module list is full.
    #[error("code range {start:#x} cannot be recorded: the list is full ({limit} ranges)")]
    ModulesFull {
        /// Start of the range (avma).
        start: u64,
        /// Entries of the list.
        limit: usize,
    },
    /// The function or variant does not exist.
    #[error("there is no function {function} variant {variant}")]
    Function {
        /// Function id.
        function: u32,
        /// Variant.
        variant: u32,
    },
}
