//! What commands that copy the memory of a process may take.

use memhook_foreign::units::{duration, size};
use memhook_heap::Limits;
use std::time::Duration;

/// What a copy of the memory may cost.
#[derive(clap::Args, Clone, Copy)]
#[group(skip)]
pub struct CopyLimits {
    /// Longest time to hold all threads [default: 50ms]
    ///
    /// What would take longer is done in another way, or refused. On a busy machine it may take longer
    /// than estimated.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub max_hold: Option<Duration>,
    /// Limit of memory for the copy [default: all]
    ///
    /// A heap that is larger, or larger than the memory that is available, is not copied.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_memory: Option<u64>,
}

impl CopyLimits {
    /// With the usual time for a hold, if none was asked for.
    pub fn usual(self) -> Limits {
        Limits {
            hold: self.max_hold.or(Limits::default().hold),
            memory: self.max_memory,
        }
    }
}
