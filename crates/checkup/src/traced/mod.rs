//! Processes that are traced or called.

mod allocator;
mod examination;
mod first_look;
mod last_look;
mod mapped_sites;
mod notes;
mod resident;
mod session_stacks;
mod traced_run;

pub use allocator::{CallError, Callable, callable_allocator, said_by_allocator};
pub use examination::{
    Attendant, Examination, ExaminationError, Examined, MemoryLooks, examine, usual_tracing,
};
pub use last_look::{LastLook, Searched};
pub use notes::{kept_overhead, notes};
pub use resident::{LookedAt, PinnedMemory, account_of_trace};
pub use session_stacks::SessionStacks;
pub use traced_run::Traced;

use memhook_attach::Session;
use memhook_report::StackFrame;

/// Names of the call stacks of a session.
pub trait StackNames {
    /// Looks up the names of these backtraces, and waits for them until the wait is cancelled.
    fn look_up(&mut self, session: &Session, stacks: &mut dyn Iterator<Item = u32>);

    /// Returns the kind of a backtrace, true if it was cut short, and its frames with the names
    /// that have arrived.
    fn stack(&mut self, session: &Session, id: u32) -> (String, bool, Vec<StackFrame>);
}
