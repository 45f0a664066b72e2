//! One attach: load the hook, fill the journal, patch; later modules; detach.

use crate::claim::{Claim, claim};
use crate::hook_object::{EntryPoints, HOOK_OBJECT, entry_points, hook_image};
use crate::reach::Reach;
use crate::record::OwnCode;
use crate::refused_slots;
use crate::residue::{any_point, has_hook, hold_with_hook, residue};
use crate::safe_point::{unsafe_ranges, unwind_for_safety};
use crate::unwind_tables::UnwindTables;
use anyhow::{Context, bail};
use memhook_abi::{self as abi, function_by_name, slot_state};
use memhook_inject::{Dlopen, Held, HoldOptions, hold, load_object};
use memhook_process::{
    ElfView, ModuleImage, SlotScan, find_slots, has_seccomp_filter, mappings, modules, thread_ids,
    vdso,
};
use memhook_stream::{Config, Region, SlotSpec};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

/// Files of modules that were read, by device and inode.
type Files = HashMap<(u32, u32, u64), Arc<[u8]>>;

/// An attach to one process.
pub struct Session {
    pid: i32,
    region: Arc<Region>,
    entry: EntryPoints,
    hook_base: u64,
    functions: HashSet<usize>,
    files: Files,
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
    /// The longest time that one thread was held.
    pub held_time: Duration,
    next_variant: HashMap<(usize, u64), u32>,
    _claim: Claim,
}

fn find_dlopen(modules: &[ModuleImage]) -> anyhow::Result<Dlopen> {
    let candidates = [("dlopen", false), ("__libc_dlopen_mode", true)];
    for (name, internal_mode) in candidates {
        for module in modules {
            let named = |prefix: &str| module.name().starts_with(prefix);
            if !(named("libc.so") || named("libc-2") || named("libdl")) {
                continue;
            }
            let exported = ElfView::parse(&module.bytes)
                .ok()
                .and_then(|e| e.exported(name));
            if let Some(e) = exported.filter(|e| !e.is_ifunc) {
                return Ok(Dlopen {
                    address: module.base + e.svma,
                    internal_mode,
                });
            }
        }
    }
    bail!("no dlopen in the process: its libc exports neither dlopen nor __libc_dlopen_mode")
}

/// A function of the target's C library (avma).
fn find_libc(modules: &[ModuleImage], name: &str) -> anyhow::Result<u64> {
    modules
        .iter()
        .filter(|m| m.name().starts_with("libc.so") || m.name().starts_with("libc-2"))
        .find_map(|m| Some(m.base + ElfView::parse(&m.bytes).ok()?.exported(name)?.svma))
        .with_context(|| format!("the process's libc has no {name}"))
}

impl Session {
    /// Attaches; on return every slot that can be patched is.
    pub fn start(pid: i32, config: Config, functions: HashSet<usize>) -> anyhow::Result<Session> {
        Session::start_by(&mut Reach::Running, pid, config, functions)
    }

    /// As [`Session::start`], with another way to its threads.
    pub fn start_by(
        reach: &mut Reach<'_>,
        pid: i32,
        mut config: Config,
        functions: HashSet<usize>,
    ) -> anyhow::Result<Session> {
        let start = Instant::now();
        let maps = mappings(pid)?;
        let mut files = Files::new();
        let loaded = modules(pid, &maps, &mut files)?;
        let wanted = |name: &str| function_by_name(name).is_some_and(|f| functions.contains(&f));
        let scan = find_slots(pid, &loaded, &maps, &wanted, &|_| None)?;
        if scan.slots.is_empty() {
            bail!("process {pid} calls no allocator through a GOT slot: nothing to hook");
        }
        let entry = entry_points()?;
        let claim = claim(pid)?;
        let mut residue = residue(pid, &maps);
        if let Some(attacher) = residue.attacher(pid) {
            bail!("process {pid} is already traced by memhook-rs {attacher}: stop that first");
        }
        let dlopen = find_dlopen(&loaded)?;
        if config.flags & abi::flags::LIBC_BACKTRACE != 0 {
            config.libc_backtrace = find_libc(&loaded, "backtrace")?;
        }
        // With several threads the kernel waits for an RCU grace period when a process announces that
        // it will use membarrier(2): ten milliseconds, for which one thread would be held.
        let is_alone = thread_ids(pid).is_ok_and(|tids| tids.len() == 1);
        if is_alone && !has_seccomp_filter(pid) {
            config.flags |= abi::flags::MEMBARRIER;
        }
        if let Some(v) = vdso(pid, &maps) {
            let clock = ElfView::parse(&v.bytes)
                .ok()
                .and_then(|e| e.exported("__vdso_clock_gettime"));
            config.vdso_clock = clock.map_or(0, |e| v.base + e.svma);
        }
        let mut tables = UnwindTables::default();
        let vdso = vdso(pid, &maps);
        tables.compile(&with(&loaded, &vdso));
        let mut held_time = Duration::ZERO;
        let mut scan = scan;
        let hook_base = residue.hook_base;
        if residue.is_untidy() {
            let mut held = match hook_base {
                Some(base) => hold_with_hook(pid, base)?,
                None => hold(pid, &any_point())?,
            };
            if let Some(base) = hook_base {
                // Slots may still hold our values from an attacher that was killed.
                held.call(base + entry.detach, &[])?;
            }
            residue.close_descriptors(&mut held)?;
            held_time = held_time.max(held.release()?);
            residue.restore_refused(pid)?;
            scan = find_slots(pid, &loaded, &maps, &wanted, &|_| None)?;
        }
        let (region, address, epoch) =
            residue.region_for(reach, pid, config.ring_bytes, &mut held_time)?;
        config.epoch = epoch;
        region.initialize(&config)?;
        let mut session = Session {
            pid,
            region: Arc::new(region),
            entry,
            hook_base: 0,
            functions: functions.clone(),
            files,
            modules: loaded,
            gone: Vec::new(),
            vdso,
            hook: None,
            tables,
            unhookable: Vec::new(),
            attach_time: Duration::ZERO,
            held_time,
            next_variant: HashMap::new(),
            _claim: claim,
        };
        session.journal(&scan)?;
        session.publish_modules()?;
        session.load_and_start(reach, hook_base, dlopen, address)?;
        session.attach_time = start.elapsed();
        Ok(session)
    }

    /// Loads the hook, if it is not there yet, and lets it patch: all that one thread is held for.
    fn load_and_start(
        &mut self,
        reach: &mut Reach<'_>,
        hook_base: Option<u64>,
        dlopen: Dlopen,
        region_address: u64,
    ) -> anyhow::Result<()> {
        let pid = self.pid;
        let modules = self.tables.table_modules(&with(&self.modules, &self.vdso));
        let ranges = unsafe_ranges(&self.modules);
        let unwind = |registers: &memhook_inject::Registers, read: &dyn Fn(u64) -> Option<u64>| {
            let start = (registers.rip, registers.rsp, registers.rbp);
            unwind_for_safety(&modules, &ranges, start, read)
        };
        let options = HoldOptions {
            need_safe_point: hook_base.is_none(),
            deadline: Duration::from_secs(5),
            unsafe_ranges: ranges.clone(),
            unwind: Some(&unwind),
        };
        // So that nothing slow is left for the hold.
        let anywhere = hook_image(0)?;
        self.tables.prepare(&self.region, &[anywhere]);
        let mut held = reach.hold(pid, &options)?;
        self.hook_base = match hook_base {
            Some(base) => base,
            None => load_object(&mut held, dlopen, HOOK_OBJECT)?.base,
        };
        // The hook's own frames are on the stack of an allocation made below one of its wrappers.
        self.hook = Some(hook_image(self.hook_base)?);
        self.publish_modules()?;
        let backtrace = self.region.libc_backtrace();
        if backtrace != 0 {
            // Its first call loads libgcc_s, which must not happen below an allocation.
            held.call(backtrace, &[region_address + abi::ARENA_OFFSET as u64, 0])?;
        }
        let result = held.call(self.hook_base + self.entry.attach, &[region_address])? as i64;
        self.held_time = self.held_time.max(held.release()?);
        if result < 0 {
            bail!("the hook refused to start in process {pid} (code {result})");
        }
        // If the threads cannot all be held, the slots stay as they are, and the coverage says so.
        let _ = refused_slots::patch(pid, &self.region);
        Ok(())
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

    /// What [`Session::stack`] leaves out of backtraces.
    pub fn own_code(&self) -> OwnCode {
        OwnCode::new(self.hook.as_ref(), self.tables.gadgets().clone())
    }

    /// The name of a live thread (tid as the target sees it), or an empty string.
    pub fn thread_name(&self, tid: u32) -> String {
        std::fs::read_to_string(format!("/proc/{}/task/{tid}/comm", self.pid))
            .map(|name| name.trim_end().to_owned())
            .unwrap_or_default()
    }

    /// Slots that hold our value, or did until the detach, and modules that have one.
    pub fn patched(&self) -> (u64, u64) {
        let slots: Vec<_> = self
            .region
            .slots()
            .into_iter()
            .filter(|s| matches!(s.state, slot_state::PATCHED | slot_state::RESTORED))
            .collect();
        let modules: HashSet<u64> = slots.iter().map(|s| s.module_base).collect();
        (slots.len() as u64, modules.len() as u64)
    }

    /// Writes the slots of a scan into the journal, those that are not in it yet.
    fn journal(&mut self, scan: &SlotScan) -> anyhow::Result<()> {
        let known: HashSet<u64> = self
            .region
            .slots()
            .iter()
            .filter(|s| s.state != slot_state::UNUSED)
            .map(|s| s.address)
            .collect();
        for slot in &scan.slots {
            let Some(function) = function_by_name(&slot.symbol) else {
                continue;
            };
            if known.contains(&slot.address) {
                continue;
            }
            // Where slots of one symbol hold different originals, each keeps its own.
            let of_function = self
                .next_variant
                .keys()
                .filter(|(f, _)| *f == function)
                .count() as u32;
            let variant = *self
                .next_variant
                .entry((function, slot.target))
                .or_insert(of_function);
            let module = &self.modules[slot.module];
            if variant as usize >= abi::MAX_VARIANTS {
                self.unhookable.push((
                    module.name().to_owned(),
                    "more than four different originals of one function",
                ));
                continue;
            }
            self.region.push_slot(SlotSpec {
                address: slot.address,
                original: slot.target,
                expected: slot.value,
                module_base: module.base,
                function: function as u32,
                variant,
                protection: slot.protection,
            })?;
        }
        for u in &scan.unhookable {
            let name = self.modules[u.module].name().to_owned();
            self.unhookable.push((name, u.reason));
        }
        Ok(())
    }

    fn publish_modules(&mut self) -> anyhow::Result<()> {
        let mut all = with(&self.modules, &self.vdso);
        all.extend(self.hook.clone());
        self.tables.publish(&self.region, &all)
    }

    /// Answers dlopen and dlclose calls of the target: new slots go into the journal, slots of
    /// modules that are gone are forgotten.
    pub fn follow_modules(&mut self, answered: &mut u32) -> anyhow::Result<()> {
        let request = self.region.module_requests();
        if request == *answered {
            return Ok(());
        }
        let maps = mappings(self.pid)?;
        let now = modules(self.pid, &maps, &mut self.files)?;
        for slot in self.region.slots() {
            let there = now
                .iter()
                .any(|m| m.base == slot.module_base && m.contains(slot.address));
            if !there && slot.state != slot_state::UNUSED {
                self.region.set_slot_state(slot.index, slot_state::UNUSED);
            }
        }
        let functions = self.functions.clone();
        let wanted = |name: &str| function_by_name(name).is_some_and(|f| functions.contains(&f));
        for module in std::mem::replace(&mut self.modules, now) {
            let same = |m: &ModuleImage| m.base == module.base && m.path == module.path;
            if !self.modules.iter().chain(&self.gone).any(same) {
                self.gone.push(module);
            }
        }
        let originals: HashMap<u64, u64> = self
            .region
            .slots()
            .iter()
            .map(|s| (s.replacement, s.original))
            .collect();
        let original_of = |value: u64| originals.get(&value).copied();
        let scan = find_slots(self.pid, &self.modules, &maps, &wanted, &original_of)?;
        self.journal(&scan)?;
        self.publish_modules()?;
        *answered = request;
        self.region.answer_modules(request);
        Ok(())
    }

    /// Patches slots again that a lazy resolver, already under way at the attach, has overwritten.
    pub fn verify_slots(&self) -> anyhow::Result<()> {
        let mut again = false;
        for slot in self.region.slots() {
            let mut word = [0; 8];
            if slot.state != slot_state::PATCHED
                || memhook_process::read_memory(self.pid, slot.address, &mut word).is_err()
            {
                continue;
            }
            if u64::from_le_bytes(word) == slot.original {
                // A new entry, which expects what the resolver wrote.
                self.region.set_slot_state(slot.index, slot_state::UNUSED);
                self.region.push_slot(SlotSpec {
                    address: slot.address,
                    original: slot.original,
                    expected: slot.original,
                    module_base: slot.module_base,
                    function: slot.function,
                    variant: slot.variant,
                    protection: slot.protection,
                })?;
                again = true;
            }
        }
        if again {
            self.remote(|held, session| held.call(session.hook_base + session.entry.patch, &[]))?;
        }
        Ok(())
    }

    fn remote<T>(
        &self,
        call: impl FnOnce(&mut Held, &Session) -> Result<T, memhook_inject::Error>,
    ) -> anyhow::Result<T> {
        let mut held = hold_with_hook(self.pid, self.hook_base)?;
        let result = call(&mut held, self)?;
        held.release()?;
        Ok(result)
    }

    /// Closes the gate and restores the slots; returns how many could not be restored.
    pub fn detach(&self) -> anyhow::Result<i64> {
        let mut left = -1;
        for _ in 0..5 {
            left = self
                .remote(|held, session| held.call(session.hook_base + session.entry.detach, &[]))
                .with_context(|| format!("cannot restore the slots of process {}", self.pid))?
                as i64;
            if left >= 0 {
                break;
            }
        }
        if left > 0 {
            refused_slots::restore(self.pid, &self.region)?;
            left = 0;
        }
        Ok(left)
    }
}

/// The modules and the vDSO.
fn with(modules: &[ModuleImage], vdso: &Option<ModuleImage>) -> Vec<ModuleImage> {
    modules.iter().chain(vdso).cloned().collect()
}
