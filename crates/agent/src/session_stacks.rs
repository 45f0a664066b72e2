//! The call stacks of a traced process, as reports ask for them.

use memhook_attach::{Session, module_file};
use memhook_report::recorded::{made_module, python_of};
use memhook_report::{Backtrace, Backtraces};
use memhook_symbols::ModuleFile;
use std::sync::Arc;

/// The modules that addresses of backtraces may be in.
pub fn module_files(session: &Session) -> Vec<ModuleFile> {
    let modules = session.modules().iter().chain(session.gone_modules());
    let python = python_of(Arc::clone(session.shared_region()));
    let made = session.made_names().map(|names| made_module(names as _));
    modules
        .map(module_file)
        .chain([python])
        .chain(made)
        .collect()
}

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
