//! One attach: load the hook, fill the journal, patch; later modules; detach.

mod heritage;
mod lone_recorder;
mod made_code;
mod memory;
mod python;
mod refused_slots;
mod slots;

pub(crate) use heritage::Heritage;

use crate::claim::{Claim, claim};
use crate::config::emission::Emission;
use crate::config::{Accesses, TraceConfig};
use crate::drain::recorder::OwnCode;
use crate::error::Error;
use crate::hold::reach::Reach;
use crate::hold::safe_point::{SAFE_POINT_PATIENCE, SafePoints};
use crate::hook::listening::Listening;
use crate::hook::loading::{Fate, Loading, fate, hook_to_emit};
use crate::hook::object::{EntryPoints, HookObject};
use crate::hook::presence::{any_point, has_hook};
use crate::leave::inherited::close_inherited;
use crate::leave::residue::{Place, residue};
use crate::leave::restore::layout;
use crate::pads::{Pads, TracedHeap};
use crate::plan::hooking::Planned;
use crate::survey::known_files::{KnownFiles, SharedFiles};
use crate::survey::limits::{fitting_room_of_ring, plan};
use crate::survey::process::Surveyed;
use crate::survey::target_facts::{
    charges_mappings, is_filtered, loading_is_filtered, main_stack, thread_numbers,
};
use crate::unwinding::tables::UnwindTables;
use made_code::MadeCode;
use memhook_abi::{self as abi, hook_error, slot_state};
use memhook_inject::{
    Held, IdleThreads, move_region, prepare_to_hold, set_inherited, unmap_region,
};
use memhook_process::{
    CLibraryKind, ElfView, Mapping, ModuleFiles, ModuleImage, RemoteAddress, TargetRoot,
    hook_copies, mappings, seccomp_filters, vdso,
};
use memhook_stream::{Config, NamedMoment, Plan, Region};
use memhook_symbols::PerfMap;
use memhook_unwind::walk;
use python::Python;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a thread is looked for that may call the loader, before the hook is mapped without it.
const LOAD_PATIENCE: Duration = Duration::from_secs(1);
/// How long the held thread waits for a moment in which no other thread unloads modules.
const STILL_PATIENCE: Duration = Duration::from_millis(20);

/// More marks are not kept.
const MOST_MARKS: usize = 100_000;

/// An attach to one process.
pub struct Session {
    pid: i32,
    region: Arc<Region>,
    /// The build of the hook, and what is called in it.
    object: &'static HookObject,
    entry: EntryPoints,
    hook_base: u64,
    /// Its loader may unmap a module while the hook is about to exchange its slots.
    may_lose_modules: bool,
    functions: HashSet<usize>,
    /// The functions that no slot of the GOT leads to.
    pads: Pads,
    /// The heaps of the allocators that the user has described.
    heaps: Vec<TracedHeap>,
    /// Its program is static: there is no loader, and no module comes or goes.
    is_static: bool,
    files: ModuleFiles,
    /// Mappings of files as last seen.
    layout: Vec<Mapping>,
    /// Modules as last seen.
    pub modules: Vec<ModuleImage>,
    /// Modules that were unloaded: they still explain addresses in old backtraces.
    pub gone: Vec<ModuleImage>,
    vdso: Option<ModuleImage>,
    /// The hook itself, once loaded.
    hook: Option<ModuleImage>,
    tables: UnwindTables,
    /// Per module: functions and slots that cannot be hooked, with the reason.
    pub unhookable: Vec<(String, &'static str)>,
    /// Duration of the whole attach.
    pub attach_time: Duration,
    /// The longest time that one thread was held, but for [`Session::idle_held_time`].
    pub held_time: Duration,
    /// How long a thread was held that had nothing to do at the time; zero if none was.
    pub idle_held_time: Duration,
    next_variant: HashMap<(usize, u64), u32>,
    /// What the hook was told.
    config: Config,
    /// If the process has been traced from its birth: when it was found.
    found: Option<Instant>,
    /// Seccomp filters of the process before the hook was told what they allow.
    filters: Option<u32>,
    /// Its file system.
    root: TargetRoot,
    /// What it may take of memory.
    plan: Plan,
    /// Its interpreter.
    python: Python,
    /// The code that is made while it runs.
    made_code: MadeCode,
    /// The marks that were set so far, in order.
    marks: Vec<NamedMoment>,
    next_mark: u64,
    has_missed_marks: bool,
    /// Where mappings are traced: those that there were at the attach.
    pub mapped_before: Vec<Mapping>,
    /// If it tells listeners, and records nothing.
    emission: Option<Emission>,
    /// None of a process that has ended.
    _claim: Option<Claim>,
}

impl Session {
    /// Attaches to a running process; on return every slot that can be patched is.
    pub fn start(pid: i32, config: &TraceConfig) -> Result<Session, Error> {
        Session::start_by(&mut Reach::Running, pid, config, &mut KnownFiles::default())
    }

    /// As [`Session::start`], with files that were read for other processes.
    pub(crate) fn start_sharing(
        pid: i32,
        config: &TraceConfig,
        shared: &SharedFiles,
    ) -> Result<Session, Error> {
        let mut known = shared.known();
        let mut session = Session::start_by(&mut Reach::Running, pid, config, &mut known)?;
        shared.learn(known);
        // It holds no file open that only another process uses.
        let modules = with(&session.modules, &session.vdso);
        session.files.keep_only(&modules);
        session.tables.keep_only(&modules);
        Ok(session)
    }

    /// As [`Session::start`], with another way to its threads, and with files that were read before.
    pub(crate) fn start_by(
        reach: &mut Reach<'_>,
        pid: i32,
        settings: &TraceConfig,
        known: &mut KnownFiles,
    ) -> Result<Session, Error> {
        let _span = tracing::info_span!("attach", pid).entered();
        let plan = plan(pid, settings)?;
        let start = Instant::now();
        let mut config = settings.hook_config();
        (config.plan, config.ring_bytes) = (plan, fitting_room_of_ring(pid, settings));
        if settings.accesses == Accesses::Sampled {
            count_accesses(&mut config, abi::flags::LOOKS);
        }
        // First: who holds the claim finds nobody else changing what is looked at here.
        let claim = claim(pid)?;
        prepare_to_hold();
        let idle = IdleThreads::of(pid);
        let maps = mappings(pid)?;
        // A probe that was killed has left its pads.
        crate::probes::remove(pid)?;
        let mut residue = residue(pid, &maps);
        if let Some(attacher) = residue.attacher(pid) {
            return Err(Error::AlreadyTraced { pid, attacher });
        }
        let mut held_time = Duration::ZERO;
        let mut files = known.files();
        if residue.is_untidy() {
            tracing::debug!("what an earlier attach has left is put right");
            held_time = residue.tidy_up(pid, &mut files)?.held;
        }
        let maps = mappings(pid)?;
        if let Some(emission) = &settings.emits {
            residue.hook_base = hook_to_emit(pid, &maps, emission);
        }
        let hook_base = residue.hook_base;
        let survey = Surveyed::of(pid, maps, hook_base, &mut files)?;
        let mut planned = Planned::of(survey, settings)?;
        let to_place = std::mem::take(&mut planned.pads);
        let mut pads = Pads::place(reach, pid, to_place, &|f| planned.is_wanted(f))?;
        held_time = held_time.max(pads.held);
        let maps = mappings(pid)?;
        let copies = hook_copies(pid, &maps);
        let mut scan = planned.find_slots(&maps, &copies)?;
        if planned.counts_accesses(&mut scan) {
            count_accesses(&mut config, abi::flags::ACCESSES);
        } else if settings.accesses == Accesses::Needed {
            return Err(Error::NoAccessRuntime { pid });
        }
        let Planned {
            survey, functions, ..
        } = planned;
        pads.add_to(&mut scan, &survey.modules, &copies);
        tracing::info!(
            modules = survey.modules.len(),
            slots = scan.slots.len(),
            "slots are found"
        );
        if scan.slots.is_empty() {
            return Err(pads.refusal().unwrap_or(Error::NothingToHook { pid }));
        }
        // A static program loads no modules.
        if !survey.is_static {
            config.iterate_modules = survey.function("dl_iterate_phdr")?;
        }
        let Surveyed {
            modules: loaded,
            libc,
            is_static,
            loading,
            object,
            ..
        } = survey;
        config.owner = residue.owner(pid);
        config.main_stack = main_stack(&maps);
        config.charges_mappings = charges_mappings();
        let python = Python::of(pid, &loaded, libc.as_ref().map(|libc| libc.kind));
        let made_code = MadeCode::of(&maps);
        config.python = python.config();
        let mut vdso = vdso(pid, &maps);
        if let Some(v) = &mut vdso {
            known.share_vdso(v);
            let clock = ElfView::parse(&v.bytes)
                .ok()
                .and_then(|e| e.exported("__vdso_clock_gettime"));
            config.vdso_clock = clock.map_or(0, |e| v.base.wrapping_add(e.svma));
        }
        let mut tables = known.tables();
        let all = with(&loaded, &vdso);
        // Both take long, and neither needs the other. Nothing can refuse the attach any more for what was found in the
        // target, and no other thread of it is held meanwhile.
        let idle_held_time = std::thread::scope(|scope| {
            let registers = matches!(reach, Reach::Running) && !lone_recorder::is_alone(pid);
            let registering =
                registers.then(|| scope.spawn(|| lone_recorder::register_idle(pid, &idle)));
            if settings.keep_tables {
                tables.find_or_compile(&all);
            } else {
                tables.compile(&all);
            }
            registering.and_then(|registering| registering.join().ok()?)
        });
        if idle_held_time.is_some() {
            config.flags |= abi::flags::LONE_RECORDER;
        }
        tracing::debug!("unwind tables are made");
        known.learn(&files, &tables, &all);
        // A variant keeps its function: the program may have copied a wrapper's address.
        let next_variant = residue.originals();
        let next_variant = next_variant.map(|(f, variant, o)| ((f as usize, o), variant));
        let next_variant = next_variant.collect();
        pads.number_described(&next_variant)?;
        config.described = pads.described().collect();
        let (region, place, epoch) =
            residue.region_for(reach, pid, config.ring_bytes, &mut held_time)?;
        config.epoch = epoch;
        region.initialize(&config)?;
        // From here on the detach takes care of them.
        pads.keep();
        let mut session = Session {
            pid,
            heaps: pads.heaps(settings.allocators.iter().map(|a| a.name.clone())),
            pads,
            is_static,
            region: Arc::new(region),
            object,
            entry: object.entry_points()?,
            hook_base: 0,
            may_lose_modules: libc.is_some_and(|libc| libc.kind == CLibraryKind::Musl),
            functions,
            layout: layout(&maps),
            files,
            modules: loaded,
            gone: Vec::new(),
            vdso,
            hook: hook_base.and_then(|base| object.image(base).ok()),
            tables,
            unhookable: Vec::new(),
            attach_time: Duration::ZERO,
            held_time,
            idle_held_time: idle_held_time.unwrap_or_default(),
            next_variant,
            config,
            found: None,
            filters: seccomp_filters(pid),
            root: TargetRoot::of(pid),
            plan,
            python,
            made_code,
            marks: Vec::new(),
            next_mark: 0,
            has_missed_marks: false,
            mapped_before: Vec::new(),
            emission: settings.emits.clone(),
            _claim: Some(claim),
        };
        session.journal(&scan);
        session.publish_modules()?;
        if let Err(error) = session.load_and_start(reach, loading, place) {
            // Some slots may hold wrappers by now; what this cannot put back, `detach` can.
            let _ = session.detach();
            return Err(error);
        }
        close_inherited(pid, start);
        session.attach_time = start.elapsed();
        tracing::info!(took = ?session.attach_time, held = ?session.held_time, "attached");
        if session.traces_mappings() {
            session.mapped_before = mappings(pid).unwrap_or_default();
        }
        Ok(session)
    }

    /// Brings the hook in, if it is not there yet, and tells it what it has to know.
    fn load(&mut self, held: &mut Held, loading: Loading) -> Result<(), Error> {
        let pid = self.pid;
        let numbers = thread_numbers(held).ok_or(Error::NoThreadNumber { pid })?;
        let loaded = match &self.emission {
            Some(emission) => loading.load_to_emit(held, emission),
            None => loading.load(held),
        };
        held.let_others_go();
        let (base, object) = loaded?;
        if !std::ptr::eq(object, self.object) {
            self.use_object(object)?;
        }
        self.hook_base = base;
        tracing::debug!(base = format_args!("{base:#x}"), "the hook is in place");
        // The hook's own frames are on the stack of an allocation made below one of its wrappers.
        self.hook = Some(object.image(base)?);
        self.publish_modules()?;
        lone_recorder::register_alone(held, &self.region);
        self.region.set_thread_numbers(numbers);
        let is_filtered = is_filtered(held, self.traces_mappings());
        self.region.set_syscalls_filtered(is_filtered);
        Ok(())
    }

    /// Loads the hook, if it is not there yet, and lets it patch: all that one thread is held for.
    fn load_and_start(
        &mut self,
        reach: &mut Reach<'_>,
        loading: Loading,
        region: Place,
    ) -> Result<(), Error> {
        let (pid, mut region_address) = (self.pid, region.address);
        let region_bytes = abi::region_bytes(self.region.ring_bytes()) as u64;
        // So that nothing slow is left for the hold.
        let anywhere = self.object.image(0)?;
        self.tables.prepare(&self.region, &[anywhere]);
        let (mut held, mut loading) = self.hold_to_load(reach, loading)?;
        // The loader reads and closes its file by a number, which another thread could close.
        let is_in_danger = region.was_disturbed && !held.others_stand_still();
        let is_filtered = matches!(loading, Loading::ByLoader(_)) && loading_is_filtered(&held);
        if self.emission.is_none() && (is_in_danger || is_filtered) {
            loading = loading.without_loader();
        } else if is_filtered {
            let _ = unmap_region(&mut held, RemoteAddress(region_address), region_bytes);
            let call = "what dlopen calls";
            return Err(memhook_inject::Error::CallIsFiltered { pid, call }.into());
        }
        if let Err(error) = self.load(&mut held, loading) {
            // Nobody knows of the region, so nobody would ever use it again.
            let _ = unmap_region(&mut held, RemoteAddress(region_address), region_bytes);
            return Err(error);
        }
        // The hook has children inherit the region when they leave it by themselves, unless one may come back into a
        // call that has been under way since an earlier attach.
        if self.region.awaits_threads() {
            set_inherited(&mut held, RemoteAddress(region_address), region_bytes, true)?;
        }
        if let Some(place) = region.replaces {
            let (from, to) = (RemoteAddress(region_address), RemoteAddress(place));
            move_region(&mut held, from, region_bytes, to)?;
            region_address = place;
        }
        self.region.tell_owner();
        let result = held.call(self.in_hook(self.entry.attach), &[region_address])? as i64;
        let result = self.patch_until_current(&mut held, result);
        if let Reach::AtStart(_) = reach {
            self.fill_cells()?;
        }
        self.held_time = self.held_time.max(held.release()?);
        match result? {
            hook_error::NO_WIPE_ON_FORK => return Err(Error::NoWipeOnFork { pid }),
            // Slots that are still pending are patched with all threads held.
            hook_error::STALE | hook_error::NO_LOADER | 0.. => {}
            code => return Err(Error::HookRefused { pid, code }),
        }
        // The hook has told what the loader counts. Only lists that are known to be of that count tell a wrapped
        // dlopen which instruction of its caller's module it can return through.
        self.look_at_modules()?;
        // If the threads cannot all be held, the slots stay as they are, and the coverage says so.
        if let Ok(all_held) = self.force_slots() {
            self.held_time = self.held_time.max(all_held);
        }
        self.announce_forwarding_operators();
        Ok(())
    }

    /// Holds a thread, and decides which way the hook comes in by where one could be held: `dlopen` only where it is proved
    /// that the thread holds no lock; else the hook is mapped, where that will do, which takes a thread that is outside of
    /// the loader. So it is, too, with the hook in place, which asks the loader to keep still.
    fn hold_to_load(
        &self,
        reach: &mut Reach<'_>,
        loading: Loading,
    ) -> Result<(Held, Loading), Error> {
        let pid = self.pid;
        if self.is_static {
            return Ok((reach.hold(pid, &any_point())?, loading));
        }
        let points = self.safe_points();
        // Where a program starts, nobody holds a lock.
        if matches!(reach, Reach::AtStart(_)) {
            return Ok((points.hold(reach, pid, SAFE_POINT_PATIENCE)?, loading));
        }
        let mut way = loading;
        if let Loading::ByLoader(_) = loading {
            let can_be_mapped = self.emission.is_none();
            let patience = if can_be_mapped {
                LOAD_PATIENCE
            } else {
                SAFE_POINT_PATIENCE
            };
            if !(can_be_mapped && points.never().is_some()) {
                match points.hold_to_load(reach, pid, patience) {
                    Ok(held) => return Ok((held, loading)),
                    Err(memhook_inject::Error::NoSafeThread { .. }) if can_be_mapped => {}
                    Err(error) => return Err(error.into()),
                }
            }
            way = Loading::WithoutLoader;
        }
        let held = points.hold_outside_of_the_loader(reach, pid, SAFE_POINT_PATIENCE)?;
        Ok((held, way))
    }

    /// Takes another build of the hook than the journal was written for.
    fn use_object(&mut self, object: &'static HookObject) -> Result<(), Error> {
        (self.object, self.entry) = (object, object.entry_points()?);
        for slot in self.region.slots() {
            let fate = fate(object, slot.function as usize);
            if fate == Fate::Hooked {
                continue;
            }
            self.region.set_slot_state(slot.index, slot_state::UNUSED);
            if let Fate::Refused(reason) = fate {
                let of_module = |m: &&ModuleImage| m.base == slot.module_base;
                let module = self.modules.iter().find(of_module);
                let name = module.map(|m| m.name().to_owned()).unwrap_or_default();
                self.unhookable.push((name, reason));
            }
        }
        Ok(())
    }

    /// A function of the hook.
    fn in_hook(&self, offset: u64) -> RemoteAddress {
        RemoteAddress(self.hook_base) + offset
    }

    fn safe_points(&self) -> SafePoints {
        let mut modules = with(&self.modules, &self.vdso);
        modules.extend(self.hook.clone());
        SafePoints::new(&self.tables, &modules)
    }

    /// After an answer of the hook's: if it found that modules came or went since they were looked at,
    /// looks again and has it patch, until it agrees. Returns its last answer.
    fn patch_until_current(&mut self, held: &mut Held, answer: i64) -> Result<i64, Error> {
        let begin = Instant::now();
        let mut answer = answer;
        while answer == hook_error::STALE && begin.elapsed() < STILL_PATIENCE {
            self.look_at_modules()?;
            answer = held.call(self.in_hook(self.entry.patch), &[])? as i64;
        }
        Ok(answer)
    }

    /// Looks for new seccomp filters; called now and then. What a filter forbids that was installed meanwhile
    /// is not known, so
    /// the hook makes no system calls from then on.
    pub fn look_at_filters(&self) {
        if seccomp_filters(self.pid) > self.filters {
            self.region.set_syscalls_filtered(true);
        }
    }

    /// Looks at the interpreter of a Python process as long as that is necessary; called every few milliseconds.
    /// Returns what the user should be told.
    pub fn look_at_python(&mut self) -> Option<String> {
        self.python.look(self.pid, &self.region);
        self.python.take_notice()
    }

    /// Takes the marks that were set since the last time; called every few milliseconds. Returns what the user should
    /// be told.
    pub fn take_marks(&mut self, elapsed: Duration) -> Option<String> {
        let now_ns = elapsed.as_nanos() as u64;
        let (taken, missed) = self.region.take_marks(&mut self.next_mark, now_ns);
        self.marks.extend(taken);
        self.marks.truncate(MOST_MARKS);
        // Once: who sets marks without end is not to fill the screen.
        let is_first = missed > 0 && !std::mem::replace(&mut self.has_missed_marks, true);
        is_first.then(|| {
            let pid = self.pid;
            format!(
                "{missed} marks of process {pid} came too fast after each other and are missing"
            )
        })
    }

    /// The marks that were set so far, in order.
    pub fn marks(&self) -> &[NamedMoment] {
        &self.marks
    }

    /// Looks where the process has code that is made while it runs; called every few milliseconds.
    pub fn look_at_made_code(&mut self, now: Duration) {
        if self.made_code.look(self.pid, now) {
            // Where there is no room for the list, backtraces end at such code, and are counted as cut short.
            let _ = self.publish_modules();
        }
    }

    /// The names that the process gives to the code that it makes, as far as it tells them by now.
    pub fn made_names(&self) -> Option<Arc<PerfMap>> {
        self.made_code.names(self.pid, &self.root)
    }

    /// Where such code is (avma).
    pub fn made_areas(&self) -> &[std::ops::Range<u64>] {
        self.made_code.areas()
    }

    /// What tracing may take of memory that is limited, in bytes.
    pub(crate) fn memory_budget(&self) -> u64 {
        self.plan.budget
    }

    /// Where the hook is (avma).
    pub(crate) fn hook_base(&self) -> u64 {
        self.hook_base
    }

    /// Where listeners find the probes of the hook.
    pub fn listening(&self) -> Result<Listening, Error> {
        Listening::of(self.pid, self.hook_base)
    }

    /// When a process was found that has been traced from its birth, by its first call of an allocator; `None` of
    /// one that was attached to.
    pub fn found(&self) -> Option<Instant> {
        self.found
    }

    /// The heaps of the allocators that the user has described, in their order.
    pub fn heaps(&self) -> &[TracedHeap] {
        &self.heaps
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether its program is static.
    pub fn is_static(&self) -> bool {
        self.is_static
    }

    /// The file system that the process sees.
    pub fn root(&self) -> &TargetRoot {
        &self.root
    }

    /// The shared region, for other threads.
    pub fn shared_region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The shared region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Whether the hook is still there: an execve takes it away without ending the process.
    pub fn is_in_target(&self) -> bool {
        has_hook(self.pid, self.hook_base)
    }

    /// An interned backtrace: function id of the allocation, and frames. Frames of the hook itself
    /// and the `ret` instruction that a wrapped dlopen returns through are left out.
    pub fn stack(&self, id: u32) -> Option<(u8, Vec<u64>)> {
        let stack = self.region.stack(id)?;
        let ours = |pc: &u64| {
            self.hook.as_ref().is_some_and(|hook| hook.contains(*pc)) || self.tables.is_gadget(*pc)
        };
        let frames = stack.frames.into_iter().filter(|pc| !ours(pc)).collect();
        Some((stack.function, frames))
    }

    /// The frames of a thread with these registers (rip, rsp, rbp), innermost first, as far as `read` has its
    /// stack.
    pub fn unwind(
        &self,
        start: (u64, u64, u64),
        read: &dyn Fn(u64) -> Option<u64>,
        depth: usize,
    ) -> Vec<u64> {
        let modules = with(&self.modules, &self.vdso);
        walk(&self.tables.table_modules(&modules), start, read, depth).0
    }

    /// What [`Session::stack`] leaves out of backtraces.
    pub fn own_code(&self) -> OwnCode {
        OwnCode::new(self.hook.as_ref(), self.tables.gadgets().clone())
    }

    /// The name of a live thread (tid as the target sees it), or an empty string.
    pub fn thread_name(&self, tid: u32) -> String {
        memhook_process::proc_text(format!("/proc/{}/task/{tid}/comm", self.pid))
            .map(|name| name.trim_end().to_owned())
            .unwrap_or_default()
    }

    fn publish_modules(&mut self) -> Result<(), Error> {
        let mut all = with(&self.modules, &self.vdso);
        all.extend(self.hook.clone());
        self.tables
            .publish(&self.region, &all, self.made_code.areas())
    }
}

/// Reads and writes are counted, or seen of some blocks, as a flag says, and dated more exactly than by the coarse
/// clock, in one step of which a short-lived block has all of its accesses.
fn count_accesses(config: &mut Config, flag: u32) {
    config.flags |= flag;
    config.flags &= !abi::flags::FOLD_PAIRS;
    if config.clock_mode == abi::clock_mode::COARSE {
        config.clock_mode = abi::clock_mode::TSC;
    }
}

/// The modules and the vDSO.
fn with(modules: &[ModuleImage], vdso: &Option<ModuleImage>) -> Vec<ModuleImage> {
    modules.iter().chain(vdso).cloned().collect()
}
