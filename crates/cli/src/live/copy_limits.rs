//! Limits of commands that copy the memory of a process.

use crate::options::HoldLimit;
use crate::remedies::in_words;
use memhook_foreign::units::size;
use memhook_heap::{Error as HeapError, Limits, Request};

/// Limits of the cost of a copy of the memory.
#[derive(clap::Args, Clone, Copy)]
#[group(skip)]
pub struct CopyLimits {
    #[command(flatten)]
    pub hold: HoldLimit,
    /// Limit of memory for the copy [default: all]
    ///
    /// A heap that is larger, or larger than the memory that is available, is not copied.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_memory: Option<u64>,
}

impl HoldLimit {
    /// Returns the limits for a copy that is searched for unreachable blocks.
    pub fn to_search(self) -> Request {
        let usual = Request::to_search();
        Request {
            limits: Limits {
                hold: self.max_hold.or(usual.limits.hold),
                ..usual.limits
            },
            ..usual
        }
    }
}

impl CopyLimits {
    /// Returns the limits, with the default time for a hold unless another one was given.
    pub fn usual(self) -> Limits {
        Limits {
            hold: self.hold.max_hold.or(Limits::default().hold),
            memory: self.max_memory,
            only_looks: false,
        }
    }
}

/// Describes why a copy for a search was not made, with the option that helps if there is one.
pub fn words_of_a_search(error: &HeapError) -> String {
    match error {
        // Commands that search have no options for the other limits.
        HeapError::TooLong { .. } | HeapError::NoShortHold { .. } | HeapError::LongCall { .. } => {
            in_words(error)
        }
        error => error.to_string(),
    }
}
