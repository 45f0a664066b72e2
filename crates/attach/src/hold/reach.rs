//! Ways to hold a thread of the target: in a running process, or in a started program that waits at its start.

use memhook_inject::{Child, Error, Held, HoldOptions, hold};

/// The way.
pub enum Reach<'a> {
    /// The process runs, and one of its threads is stopped.
    Running,
    /// We started the process, and it is stopped at its start point, which is safe.
    AtStart(&'a mut Child),
}

impl Reach<'_> {
    /// Holds a thread of the target.
    pub fn hold(&mut self, pid: i32, options: &HoldOptions<'_>) -> Result<Held, Error> {
        match self {
            Reach::Running => hold(pid, options),
            Reach::AtStart(child) => child.hold(pid),
        }
    }
}
