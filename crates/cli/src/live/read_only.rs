//! Work of commands that may only read a process.

use memhook_heap::Limits;

/// The option of commands that can do without anything else.
#[derive(clap::Args, Clone, Copy)]
#[group(skip)]
pub struct ReadOnly {
    /// Only look: change nothing in the process
    ///
    /// Nothing is called, written, mapped or protected, and it makes no child. Its memory is read, and its threads are
    /// at most stopped for --max-hold and let go; those in calls that a stop would end are left alone. The first lines
    /// of the report say what cannot be known in this way.
    #[arg(long)]
    pub read_only: bool,
}

impl ReadOnly {
    /// Returns the limits for a copy of the process's memory.
    pub fn of(self, limits: Limits) -> Limits {
        Limits {
            only_looks: self.read_only,
            ..limits
        }
    }
}
