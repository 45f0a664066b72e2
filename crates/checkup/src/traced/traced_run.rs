//! A traced process, for reports.

use super::SessionStacks;
use memhook_attach::{CallScans, ModuleCoverage, Session};
use memhook_process::process_name;
use memhook_report::recorded::source_text;
use memhook_report::{AttachInfo, Backtrace, Backtraces, Coverage, Mark, Target, TracedRun};
use memhook_stream::Losses;
use memhook_symbols::{ModuleFile, Symbolizer};
use std::time::Duration;

/// A session, with the coverage of its modules.
pub struct Traced<'a> {
    /// Session of the attach.
    pub session: &'a Session,
    /// Counted calls of allocators in modules.
    pub call_scans: &'a mut CallScans,
    /// Maximum number of frames of a call stack.
    pub depth: u32,
}

impl<'a> Traced<'a> {
    /// Wraps the present state of a session.
    pub fn new(session: &'a Session, call_scans: &'a mut CallScans, depth: u32) -> Traced<'a> {
        Traced {
            session,
            call_scans,
            depth,
        }
    }
}

impl Backtraces for Traced<'_> {
    fn described(&self, function: u8) -> Option<String> {
        SessionStacks(self.session).described(function)
    }

    fn backtrace(&self, id: u32) -> Option<Backtrace> {
        SessionStacks(self.session).backtrace(id)
    }
}

impl TracedRun for Traced<'_> {
    fn module_files(&self) -> Vec<ModuleFile> {
        self.session.module_files()
    }

    fn thread_name(&self, tid: u32) -> String {
        self.session.thread_name(tid)
    }

    fn marks(&self) -> Vec<Mark> {
        self.session.marks().iter().map(Mark::from).collect()
    }

    fn losses(&self) -> Losses {
        self.session.region().losses()
    }

    fn target(&self) -> Target {
        let pid = self.session.pid();
        let executable = self.session.modules().first();
        Target {
            pid,
            // After its end, the process has no other name.
            name: Some(process_name(pid))
                .filter(|name| !name.is_empty())
                .or_else(|| Some(executable?.name().to_owned()))
                .unwrap_or_default(),
            exe: executable.map(|m| m.path.clone()).unwrap_or_default(),
        }
    }

    fn attach(&self) -> AttachInfo {
        let session = self.session;
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let (slots, modules) = session.patched();
        AttachInfo {
            attach_ms: milliseconds(session.attach_time()),
            held_ms: milliseconds(session.held_time()),
            idle_held_ms: milliseconds(session.idle_held_time()),
            slots,
            modules,
            depth: self.depth,
            from_start: session.is_from_start(),
        }
    }

    fn request_coverage(&mut self) {
        self.call_scans.request(self.session.modules());
    }

    fn is_coverage_ready(&mut self, wait: Duration) -> bool {
        self.call_scans.is_ready(wait)
    }

    fn coverage(&self, symbols: &Symbolizer) -> Vec<Coverage> {
        let with_names = |found: ModuleCoverage| {
            let source = symbols.sources().find(|s| s.path == found.path);
            Coverage {
                module: found.module,
                hooked: found.hooked,
                unhookable: found.unhookable,
                note: found.reasons.join("; "),
                calls_seen: found.calls_seen,
                symbols: source.map(|s| source_text(s.source)),
                allocator: found
                    .allocator
                    .map_or("", |allocator| allocator.name)
                    .into(),
                is_linked_in: found
                    .allocator
                    .is_some_and(|allocator| allocator.is_linked_in),
                hidden: found.hidden.into(),
            }
        };
        let found = self.call_scans.coverage(self.session);
        found.into_iter().map(with_names).collect()
    }
}
