//! The call stacks of a traced process, for reports.

use memhook_attach::Session;
use memhook_report::{Backtrace, Backtraces};

/// The backtraces of a session.
pub struct SessionStacks<'a>(pub &'a Session);

impl Backtraces for SessionStacks<'_> {
    fn described(&self, function: u8) -> Option<String> {
        let functions = self.0.heaps().iter().flat_map(|heap| &heap.functions);
        let found = functions.into_iter().find(|(id, _)| *id == function);
        found.map(|(_, name)| name.clone())
    }

    fn backtrace(&self, id: u32) -> Option<Backtrace> {
        let (function, addresses) = self.0.stack(id)?;
        let stack = self.0.region().stack(id);
        Some(Backtrace {
            function,
            addresses,
            truncated: stack.is_some_and(|stack| stack.truncated),
        })
    }
}
