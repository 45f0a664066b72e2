//! One attach: loads the hook, fills the journal, patches the slots, follows later modules, and detaches.
//!
//! An attach is a sequence of steps. Each step takes the value of the previous step, so that no code can use facts that
//! do not exist yet. Remains of earlier attaches are [cleared](cleared). Then the process is surveyed and planned
//! (`survey`, `plan`; `doctor` and a dry run end here). Its slots are [found](found), everything is
//! [prepared](prepared), and the hook [enters](entering). The session then runs until the detach.

mod cleared;
mod entering;
mod found;
mod heritage;
mod journal;
mod lone_recorder;
mod made_code;
mod marks;
mod prepared;
mod python;
mod python_names;
mod refused_slots;
mod slots;

pub(crate) use heritage::Heritage;

use crate::config::TraceConfig;
use crate::drain::recorder::OwnCode;
use crate::error::Error;
use crate::hold::reach::Reach;
use crate::hook::listening::Listening;
use crate::hook::presence::{HookInTarget, has_hook};
use crate::leave::inherited::close_inherited;
use crate::pads::TracedHeap;
use crate::plan::hooking::Planned;
use crate::plan::safe_thread::refuse_own_answers;
use crate::survey::known_files::{KnownFiles, SharedFiles};
use crate::survey::memory_allowance::allowance_now;
use cleared::{Cleared, clear_after_failure};
use found::Found;
use marks::Marks;
use memhook_heap::module_file;
use memhook_process::{
    Mapping, ModuleImage, TargetRoot, has_ended, is_executed_still, mappings, open_memory,
    seccomp_filters, still_chosen, thread_state,
};
use memhook_stream::{Config, NamedMoment, Region};
use memhook_symbols::{ModuleFile, PerfMap, made_module, python_module};
use memhook_unwind::walk;
use prepared::{Prepared, limited};
use python_names::PythonOf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pauses before retries of an attach that released its thread because this process got no processor time.
const PAUSES_OF_THE_STARVED: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(1000),
];

/// Running attach to a process.
pub struct Session {
    prepared: Prepared,
    hook: HookInTarget,
    attach_time: Duration,
    /// Time at which the process was found, if it is traced from its birth.
    found: Option<Instant>,
    is_from_start: bool,
    marks: Marks,
    /// If mappings are traced: the mappings that existed at the attach.
    mapped_before: Vec<Mapping>,
    /// Load biases (avma) of modules that were found late, because no dlopen call that we follow had announced them.
    unannounced: Vec<u64>,
}

impl Session {
    /// Attaches to a running process. When it returns, every slot that can be patched is patched.
    pub fn start(pid: i32, config: &TraceConfig) -> Result<Session, Error> {
        Session::start_by(&mut Reach::Running, pid, config, &mut KnownFiles::default())
    }

    /// Like [`Session::start`], but with files that were already read for other processes.
    pub(crate) fn start_sharing(
        pid: i32,
        config: &TraceConfig,
        shared: &SharedFiles,
    ) -> Result<Session, Error> {
        let mut known = shared.known();
        let mut session = Session::start_by(&mut Reach::Running, pid, config, &mut known)?;
        shared.learn(known);
        // Files that only another process uses are closed.
        let prepared = &mut session.prepared;
        let modules = prepared.modules.all();
        prepared.modules.files.keep_only(&modules);
        prepared.tables.keep_only(&modules);
        Ok(session)
    }

    /// Like [`Session::start`], but with another way to hold threads, and with files that were read before.
    ///
    /// If this process gets no processor time, the held thread is released early and all changes are undone. A retry
    /// may then succeed.
    pub(crate) fn start_by(
        reach: &mut Reach<'_>,
        pid: i32,
        settings: &TraceConfig,
        known: &mut KnownFiles,
    ) -> Result<Session, Error> {
        let program = open_memory(pid);
        let has_changed = || matches!(&program, Ok(memory) if !is_executed_still(memory));
        let gone = || match still_chosen(pid) {
            Ok(()) => memhook_inject::Error::TargetGone { pid }.into(),
            Err(replaced) => Error::from(replaced),
        };
        // Whatever is missing after a change is missing because of it.
        let config =
            limited(pid, settings).map_err(|error| if has_changed() { gone() } else { error })?;
        let mut pauses = PAUSES_OF_THE_STARVED.into_iter();
        loop {
            let started = Session::try_to_start(reach, pid, settings, config.clone(), known);
            let (Err(error), Reach::Running) = (&started, &*reach) else {
                return started;
            };
            let let_go = match error {
                Error::Inject(memhook_inject::Error::WentHome { tid, .. }) => Some(*tid),
                // The thread was released and ended, and was not the last one of the process.
                Error::Inject(memhook_inject::Error::TargetGone { .. })
                    if thread_state(pid, pid) == Some('Z') && !has_ended(pid) =>
                {
                    Some(pid)
                }
                _ => None,
            };
            let Some((tid, pause)) = let_go.zip(pauses.next()) else {
                // After an early release no other thread is held, because this process gets no processor time.
                if let_go.is_none() {
                    clear_after_failure(pid);
                }
                if has_ended(pid) || has_changed() {
                    tracing::warn!(pid, %error, "the process ended during the attach");
                    return Err(gone());
                }
                return started;
            };
            tracing::warn!(pid, tid, "the attach had to let go, and is tried again");
            std::thread::sleep(pause);
        }
    }

    fn try_to_start(
        reach: &mut Reach<'_>,
        pid: i32,
        settings: &TraceConfig,
        config: Config,
        known: &mut KnownFiles,
    ) -> Result<Session, Error> {
        let _span = tracing::info_span!("attach", pid).entered();
        let start = Instant::now();
        let mut cleared = Cleared::of(pid, known.files())?;
        let surveyed = cleared.survey(settings.emits.as_ref())?;
        let planned = Planned::of(surveyed, settings)?;
        if matches!(reach, Reach::Running) {
            refuse_own_answers(pid)?;
        }
        let found = Found::of(reach, planned, settings)?;
        let (prepared, entry) = Prepared::of(reach, cleared, found, settings, config, known)?;
        let mut session = prepared.enter(reach, entry)?;
        close_inherited(pid, start);
        session.attach_time = start.elapsed();
        session.is_from_start = matches!(reach, Reach::AtStart(_));
        let held = session.held_time();
        tracing::info!(took = ?session.attach_time, ?held, "attached");
        if session.traces_mappings() {
            session.mapped_before = mappings(pid).unwrap_or_default();
        }
        Ok(session)
    }

    /// Creates the session of a process that has the hook.
    fn of(prepared: Prepared, hook: HookInTarget) -> Session {
        Session {
            prepared,
            hook,
            attach_time: Duration::ZERO,
            found: None,
            is_from_start: false,
            marks: Marks::default(),
            mapped_before: Vec::new(),
            unannounced: Vec::new(),
        }
    }

    /// Returns the last known modules of the process.
    pub fn modules(&self) -> &[ModuleImage] {
        &self.prepared.modules.now
    }

    /// Returns the unloaded modules, needed to symbolize addresses in old backtraces.
    pub fn gone_modules(&self) -> &[ModuleImage] {
        &self.prepared.modules.gone
    }

    /// Returns the modules with functions or slots that cannot be hooked, and the reasons.
    pub fn unhookable(&self) -> &[(String, &'static str)] {
        &self.prepared.journal.unhookable
    }

    /// Records modules that were found late.
    pub(crate) fn note_unannounced(&mut self, modules: &[u64]) {
        self.unannounced.extend(modules);
    }

    /// Returns true if the process may have used the module before memhook-rs found it.
    pub(crate) fn is_unannounced(&self, module: &ModuleImage) -> bool {
        self.unannounced.contains(&module.base)
    }

    /// Returns true if the process is traced from its first instruction, so that no block is older than the trace.
    pub fn is_from_start(&self) -> bool {
        self.is_from_start
    }

    /// Returns the duration of the whole attach.
    pub fn attach_time(&self) -> Duration {
        self.attach_time
    }

    /// Returns the longest time that a thread was held, except [`Session::idle_held_time`].
    pub fn held_time(&self) -> Duration {
        self.prepared.held.any
    }

    /// Returns how long an idle thread was held; zero if none was.
    pub fn idle_held_time(&self) -> Duration {
        self.prepared.held.idle
    }

    /// Records the duration of a hold.
    pub(crate) fn note_held(&mut self, held: Duration) {
        self.prepared.held.any = self.prepared.held.any.max(held);
    }

    /// If mappings are traced, returns the mappings that existed at the attach.
    pub fn mapped_before(&self) -> &[Mapping] {
        &self.mapped_before
    }

    /// Adjusts the memory that tracing may take, because memory may have become scarce. Call this periodically.
    pub fn look_at_memory(&self) {
        let region = self.region();
        let allowance = allowance_now(&self.prepared.config.plan, region.memory_granted());
        region.set_allowance(allowance);
    }

    /// Checks for new seccomp filters. Call this periodically. The rules of a new filter are unknown, so after a filter
    /// is found, the hook makes no system calls.
    pub fn look_at_filters(&self) {
        let is_new = seccomp_filters(self.pid()) > self.prepared.filters;
        if is_new && !self.region().syscalls_filtered() {
            self.region().set_syscalls_filtered(true);
            tracing::debug!(pid = self.pid(), "a new seccomp filter");
        }
    }

    /// Returns true if the process is known to divide larger blocks into small objects.
    pub(crate) fn uses_pools(&self) -> bool {
        self.prepared.python.uses_pools()
    }

    /// Examines the interpreter of a Python process as long as necessary. Call this every few milliseconds. Returns a
    /// message for the user.
    pub fn look_at_python(&mut self) -> Option<String> {
        let prepared = &mut self.prepared;
        prepared.python.look(prepared.pid, &prepared.region);
        prepared.python.take_notice()
    }

    /// Takes new marks from the region. Call it every few milliseconds. Returns a message for the user.
    pub fn take_marks(&mut self, elapsed: Duration) -> Option<String> {
        let missed = self.marks.take(&self.prepared.region, elapsed)?;
        let pid = self.pid();
        let what = "followed each other too closely and are missing";
        Some(format!("{missed} marks of process {pid} {what}"))
    }

    /// Returns all marks in order.
    pub fn marks(&self) -> &[NamedMoment] {
        self.marks.all()
    }

    /// Finds areas of code that the process generates at run time. Call this every few milliseconds.
    pub fn look_at_made_code(&mut self, now: Duration) {
        if self.prepared.made_code.look(self.prepared.pid, now) {
            // If the list is full, backtraces end at such code and count as truncated.
            let _ = self.prepared.publish_modules();
        }
    }

    /// Returns the path of the program whose code the process translates, if it is an emulator. No allocation of that
    /// program is traced.
    pub fn emulated(&self) -> Option<&str> {
        self.prepared.made_code.emulated()
    }

    /// Returns the names of run-time code, as far as the process has published them.
    pub fn made_names(&self) -> Option<Arc<PerfMap>> {
        self.prepared.made_code.names(self.pid(), self.root())
    }

    /// Returns everything that can contain addresses of backtraces: modules, unloaded modules, Python functions, and
    /// code generated at run time.
    pub fn module_files(&self) -> Vec<ModuleFile> {
        let modules = self.modules().iter().chain(self.gone_modules());
        let python = python_module(Arc::new(PythonOf(Arc::clone(self.shared_region()))));
        let made = self.made_names().map(|names| made_module(names as _));
        modules
            .map(module_file)
            .chain([python])
            .chain(made)
            .collect()
    }

    /// Returns the areas of code made at run time (avma).
    pub fn made_areas(&self) -> &[std::ops::Range<u64>] {
        self.prepared.made_code.areas()
    }

    /// Returns how many bytes tracing may take if memory is limited.
    pub(crate) fn memory_allowance(&self) -> u64 {
        self.prepared.config.plan.allowance
    }

    /// Returns the load bias of the hook (avma).
    pub(crate) fn hook_base(&self) -> u64 {
        self.hook.base
    }

    /// Returns the place where listeners find the hook's probes.
    pub fn listening(&self) -> Result<Listening, Error> {
        Listening::of(self.pid(), self.hook.base)
    }

    /// Returns the time at which a process traced from its birth was found, at its first call of an allocator; `None`
    /// after an attach.
    pub fn found(&self) -> Option<Instant> {
        self.found
    }

    /// Returns the heaps of the allocators that the user has described, in order.
    pub fn heaps(&self) -> &[TracedHeap] {
        &self.prepared.heaps
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.prepared.pid
    }

    /// Returns true if its program is static.
    pub fn is_static(&self) -> bool {
        self.prepared.modules.is_static
    }

    /// Returns the root of the file system that the process sees.
    pub fn root(&self) -> &TargetRoot {
        &self.prepared.root
    }

    /// The shared region, for other threads.
    pub fn shared_region(&self) -> &Arc<Region> {
        &self.prepared.region
    }

    /// The shared region.
    pub fn region(&self) -> &Region {
        &self.prepared.region
    }

    /// Returns true if the hook is still there: an execve removes it without ending the process.
    pub fn is_in_target(&self) -> bool {
        has_hook(self.pid(), self.hook.base)
    }

    /// Returns an interned backtrace: the id of the allocating function, and the frames. Omits the hook's own frames
    /// and the `ret` instruction through which a wrapped dlopen returns.
    pub fn stack(&self, id: u32) -> Option<(u8, Vec<u64>)> {
        let stack = self.region().stack(id)?;
        let (hook, tables) = (&self.prepared.hook, &self.prepared.tables);
        let is_of_hook = |pc: u64| hook.as_ref().is_some_and(|hook| hook.contains(pc));
        let ours = |&pc: &u64| is_of_hook(pc) || tables.is_gadget(pc);
        let frames = stack.frames.into_iter().filter(|pc| !ours(pc)).collect();
        Some((stack.function, frames))
    }

    /// Returns the frames of a thread with these registers (rip, rsp, rbp), innermost first, as far as `read` can read
    /// its stack.
    pub fn unwind(
        &self,
        start: (u64, u64, u64),
        read: &dyn Fn(u64) -> Option<u64>,
        depth: usize,
    ) -> Vec<u64> {
        let modules = self.prepared.modules.all();
        let tables = self.prepared.tables.table_modules(&modules);
        walk(&tables, start, read, depth).0
    }

    /// Returns the code that [`Session::stack`] omits from backtraces.
    pub fn own_code(&self) -> OwnCode {
        OwnCode::new(
            self.prepared.hook.as_ref(),
            self.prepared.tables.gadgets().clone(),
        )
    }

    /// Returns the name of a live thread (tid in the target's namespace), or an empty string.
    pub fn thread_name(&self, tid: u32) -> String {
        memhook_process::thread_name(self.pid(), tid as i32).unwrap_or_default()
    }
}
