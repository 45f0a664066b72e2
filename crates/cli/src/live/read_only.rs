//! Support for commands that may only read a process.

use memhook_heap::Limits;

/// The option of commands that need only read the process.
#[derive(clap::Args, Clone, Copy)]
#[group(skip)]
pub struct ReadOnly {
    /// Only look: change nothing in the process
    ///
    /// memhook-rs calls, writes, maps and protects nothing in the process, and makes no child of it. It reads the
    /// memory, and at most stops threads for --max-hold. It does not stop threads whose system call would be ended by a
    /// stop. The first lines of the report list what it cannot know in this way.
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
