//! What commands that copy the memory of a process may take.

use crate::options::HoldLimit;
use memhook_foreign::units::size;
use memhook_heap::{Limits, Request};

/// What a copy of the memory may cost.
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
    /// For a copy that is searched for what nothing reaches.
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
    /// With the usual time for a hold, if none was asked for.
    pub fn usual(self) -> Limits {
        Limits {
            hold: self.hold.max_hold.or(Limits::default().hold),
            memory: self.max_memory,
        }
    }
}
