//! A traced process as reports see it.

use memhook_attach::{CallScans, ModuleCoverage, Session, process_name};
use memhook_process::ModuleImage;
use memhook_report::recorded::{made_module, python_of, source_text};
use memhook_report::{AttachInfo, Backtrace, Backtraces, Coverage, Mark, Target, TracedRun};
use memhook_stream::Losses;
use memhook_symbols::{ModuleFile, Symbolizer};
use std::sync::Arc;
use std::time::Duration;

/// The modules that addresses of backtraces may be in.
pub fn module_files(session: &Session) -> Vec<ModuleFile> {
    let modules = session.modules.iter().chain(&session.gone);
    let python = python_of(Arc::clone(session.shared_region()));
    let made = session.made_names().map(|names| made_module(names as _));
    modules
        .map(module_file)
        .chain([python])
        .chain(made)
        .collect()
}

/// Where the names of a module come from.
pub fn module_file(m: &ModuleImage) -> ModuleFile {
    ModuleFile {
        path: m.path.clone(),
        image: m.bytes.in_memory().cloned(),
        opened: m.bytes.file().cloned(),
        candidates: vec![m.file.clone()],
        build_id: m.build_id.clone(),
        base: m.base,
        start: m.start,
        end: m.end,
        named_by: None,
    }
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

/// A session, and what is known of how much of its modules is seen.
pub struct Traced<'a> {
    pub session: &'a Session,
    pub call_scans: &'a mut CallScans,
    pub depth: u32,
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
        module_files(self.session)
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
        let executable = self.session.modules.first();
        Target {
            pid,
            // One that has ended has no other name any more.
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
            attach_ms: milliseconds(session.attach_time),
            held_ms: milliseconds(session.held_time),
            idle_held_ms: milliseconds(session.idle_held_time),
            slots,
            modules,
            depth: self.depth,
        }
    }

    fn request_coverage(&mut self) {
        self.call_scans.request(&self.session.modules);
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
            }
        };
        let found = self.call_scans.coverage(self.session);
        found.into_iter().map(with_names).collect()
    }
}
