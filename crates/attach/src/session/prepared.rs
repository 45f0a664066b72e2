//! The step of an attach before the hook enters the process: writes all data that the hook will need.

use super::cleared::Cleared;
use super::found::Found;
use super::journal::SlotJournal;
use super::lone_recorder;
use super::made_code::MadeCode;
use super::python::Python;
use crate::claim::Claim;
use crate::config::emission::Emission;
use crate::config::{Accesses, TraceConfig};
use crate::error::Error;
use crate::hold::reach::Reach;
use crate::hold::safe_point::SafePoints;
use crate::hook::loading::Loading;
use crate::hook::passage::InProcess;
use crate::leave::residue::Place;
use crate::leave::restore::restore;
use crate::pads::{Pads, TracedHeap};
use crate::survey::known_files::KnownFiles;
use crate::survey::limits::{fitting_room_of_ring, plan};
use crate::survey::target_facts::{charges_mappings, main_stack};
use crate::survey::traced_modules::TracedModules;
use crate::unwinding::tables::UnwindTables;
use memhook_abi::{self as abi, slot_state};
use memhook_inject::{Act, IdleThreads, note};
use memhook_process::{
    ElfView, ModuleImage, RemoteAddress, TargetRoot, find_slots, hook_copies, mappings, read_word,
    seccomp_filters, vdso,
};
use memhook_stream::{Config, Region, barrier};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

/// Longest times that threads were held.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldTimes {
    /// Longest hold of a thread that may have had work.
    pub any: Duration,
    /// Longest hold of a thread that had no work at that time.
    pub idle: Duration,
}

/// Attach whose region, journal and tables have been written. Dropping it frees the region's memory.
pub(super) struct Prepared {
    pub pid: i32,
    pub region: Arc<Region>,
    /// Configuration for the hook.
    pub config: Config,
    pub modules: TracedModules,
    /// The hook as a module, once it is in the process.
    pub hook: Option<ModuleImage>,
    pub journal: SlotJournal,
    /// Passage for exceptions if the hook is mapped.
    pub passage: Option<InProcess>,
    /// Pads of the functions that no GOT slot leads to.
    pub pads: Pads,
    /// Heaps of the allocators that the user has described.
    pub heaps: Vec<TracedHeap>,
    pub tables: UnwindTables,
    pub python: Python,
    /// Code that the process makes at run time.
    pub made_code: MadeCode,
    /// Number of seccomp filters when the hook was configured for them.
    pub filters: Option<u32>,
    /// Root of the file system that the process sees.
    pub root: TargetRoot,
    /// Set if the hook reports to listeners and records nothing.
    pub emission: Option<Emission>,
    pub held: HeldTimes,
    /// `None` for a process that has ended.
    pub _claim: Option<Claim>,
}

/// Way to bring the hook in, and the place of the region.
pub(super) struct Entry {
    pub way: Loading,
    pub region: Place,
    /// Memory of the process, valid as long as the process executes the examined program.
    pub memory: File,
}

impl Prepared {
    /// Writes all data that the hook will need. `config`: the result of [`limited`].
    pub fn of(
        reach: &mut Reach<'_>,
        cleared: Cleared,
        found: Found,
        settings: &TraceConfig,
        mut config: Config,
        known: &mut KnownFiles,
    ) -> Result<(Prepared, Entry), Error> {
        let Cleared {
            pid,
            claim,
            idle,
            residue,
            files,
            memory,
            held,
        } = cleared;
        let Found {
            survey,
            maps,
            functions,
            mut pads,
            scan,
            counts_accesses,
        } = found;
        if counts_accesses {
            count_accesses(&mut config, abi::flags::ACCESSES);
        }
        // A static program loads no modules.
        if !survey.is_static {
            config.iterate_modules = survey.function("dl_iterate_phdr")?;
        }
        config.owner = residue.owner(pid);
        config.main_stack = main_stack(&maps);
        config.charges_mappings = charges_mappings();
        let libc = survey.libc.as_ref().map(|libc| libc.kind);
        let python = Python::of(pid, &survey.modules, libc);
        config.python = python.config();
        let mut vdso = vdso(pid, &maps);
        if let Some(v) = &mut vdso {
            known.share_vdso(v);
            config.vdso_clock = clock_of(v);
        }
        let modules = TracedModules::of(&survey, &maps, files, vdso);
        let mut tables = known.tables();
        // From here on, nothing that we find out about the target can make us refuse the attach.
        let anywhere = [survey.object.image(0)?];
        let registered = make_tables(&mut tables, &modules, reach, &idle, pid);
        // The next process of the same run gets the same hook.
        tables.find_or_compile(&anywhere);
        if registered.is_some() {
            config.flags |= abi::flags::LONE_RECORDER;
        }
        known.learn(&modules.files, &tables, &modules.all());
        let variants = residue.originals();
        let variants = variants.map(|(f, variant, o)| ((f as usize, o), variant));
        let variants = variants.collect();
        pads.number_described(&variants)?;
        config.described = pads.described().collect();
        let mut held = HeldTimes {
            any: held.max(pads.held),
            idle: registered.unwrap_or_default(),
        };
        let present = residue.hook_base;
        let (region, place, epoch) =
            residue.region_for(reach, pid, config.ring_bytes, &mut held.any)?;
        config.epoch = epoch;
        region.initialize(&config)?;
        let mut prepared = Prepared {
            pid,
            region: Arc::new(region),
            modules,
            hook: present.and_then(|base| survey.object.image(base).ok()),
            passage: survey.passage,
            journal: SlotJournal::new(survey.object, functions, variants),
            heaps: pads.heaps(settings.allocators.iter().map(|a| a.name.clone())),
            pads,
            tables,
            python,
            made_code: MadeCode::of(pid, &maps),
            filters: seccomp_filters(pid),
            root: TargetRoot::of(pid),
            config,
            emission: settings.emits.clone(),
            held,
            _claim: Some(claim),
        };
        let (region, modules) = (&prepared.region, &prepared.modules.now);
        let journal = &mut prepared.journal;
        journal.write(region, modules, &prepared.pads, &scan);
        prepared.publish_modules()?;
        // This work is done here so that nothing slow is left for the hold.
        prepared.tables.prepare(&prepared.region, &anywhere);
        let way = survey.way_in.loading;
        let entry = Entry {
            way,
            region: place,
            memory,
        };
        Ok((prepared, entry))
    }

    /// Publishes the addresses of modules and their unwind tables.
    pub fn publish_modules(&mut self) -> Result<(), Error> {
        let all = self.all_code();
        let made = self.made_code.areas();
        self.tables.publish(&self.region, &all, made)
    }

    /// Returns the modules, the vDSO, and the hook.
    fn all_code(&self) -> Vec<ModuleImage> {
        let mut all = self.modules.all();
        all.extend(self.hook.clone());
        all
    }

    /// Returns the points at which threads of the process can be held.
    pub fn safe_points(&self) -> SafePoints {
        SafePoints::new(&self.tables, &self.all_code())
    }

    /// Reads a word of the process.
    pub fn word(&self, address: u64) -> Option<u64> {
        read_word(self.pid, RemoteAddress(address))
    }

    /// Returns true if a slot holds a wrapper of the hook.
    fn leads_to_hook(&self, slot: u64) -> bool {
        let hook = self.hook.as_ref();
        self.word(slot)
            .is_some_and(|word| hook.is_some_and(|hook| hook.contains(word)))
    }

    /// Updates the journal and the module list.
    pub fn look_at_modules(&mut self) -> Result<(), Error> {
        // The count is read before the mappings, so any later change makes the lists out of date.
        let count = self.region.loader_count_now();
        let maps = mappings(self.pid)?;
        if !self.modules.are_as_seen_in(&maps) {
            self.modules.renew(self.pid, &maps)?;
            self.forget_slots();
            let modules = &self.modules.now;
            let copies = hook_copies(self.pid, &maps);
            let wanted = |name: &str| self.journal.wants(name);
            let mut scan = find_slots(self.pid, modules, &maps, &wanted, &copies)?;
            self.pads.add_to(&mut scan, modules, &copies);
            self.journal.write(&self.region, modules, &self.pads, &scan);
            let (modules, slots) = (modules.len(), scan.slots.len());
            self.publish_modules()?;
            self.modules.settle(&maps);
            tracing::debug!(pid = self.pid, modules, slots, "its modules are looked at");
        }
        self.region.set_loader_count_seen(count);
        Ok(())
    }

    /// Removes three kinds of slots: slots of unloaded modules, patched slots that no longer hold our value because
    /// their module was unloaded and another is mapped in its place, and slots that are not patched. For the last kind,
    /// the journal's page facts may describe an earlier module while another one is being relocated now.
    fn forget_slots(&self) {
        for slot in self.region.slots() {
            let modules = self.modules.now.iter();
            let there = modules
                .filter(|m| m.base == slot.module_base)
                .any(|m| m.contains(slot.address) || self.pads.has_cell(slot.address));
            let is_patched = slot.state == slot_state::PATCHED && self.leads_to_hook(slot.address);
            if !there || !is_patched {
                self.region.set_slot_state(slot.index, slot_state::UNUSED);
            }
        }
    }

    /// Closes the gate and restores the slots. Returns the number of slots that could not be restored. `hook`: load
    /// bias of the hook (avma), if it is in the process.
    pub fn leave(&mut self, hook: Option<u64>) -> Result<u64, Error> {
        let pid = self.pid;
        let safe = self.safe_points();
        let restored = restore(pid, hook, Some(safe), &mut self.modules.files);
        let restored = restored.map_err(|source| Error::Restore {
            pid,
            source: Box::new(source),
        })?;
        barrier();
        let mut places = Vec::new();
        for slot in self.region.slots() {
            if slot.state == slot_state::PATCHED && !self.leads_to_hook(slot.address) {
                self.region.set_slot_state(slot.index, slot_state::RESTORED);
                places.push(slot.address);
            }
        }
        note(pid, Act::SlotsBack(places));
        Ok(restored.left)
    }
}

impl Drop for Prepared {
    /// The gate is closed and all data has been read. If the gate could not be closed, the hook finds rings without an
    /// owner, and then neither waits nor counts.
    fn drop(&mut self) {
        // The claim is released after this, so the next attacher can start before this process has ended.
        self.region.forget_attacher();
        self.region.give_all_back();
    }
}

/// Returns the part of the hook's configuration that settings and limits determine. Refuses if memory is too scarce.
pub(super) fn limited(pid: i32, settings: &TraceConfig) -> Result<Config, Error> {
    let mut config = settings.hook_config();
    config.plan = plan(pid, settings)?;
    config.ring_bytes = fitting_room_of_ring(pid, settings);
    if settings.accesses == Accesses::Sampled {
        count_accesses(&mut config, abi::flags::LOOKS);
    }
    Ok(config)
}

/// Configures counted or sampled accesses, as the flag requests. Time stamps must be finer than the coarse clock,
/// because all accesses of a short-lived block fall into one step of that clock.
fn count_accesses(config: &mut Config, flag: u32) {
    config.flags |= flag;
    config.flags &= !abi::flags::FOLD_PAIRS;
    if config.clock_mode == abi::clock_mode::COARSE {
        config.clock_mode = abi::clock_mode::TSC;
    }
}

/// Makes the unwind tables while a sleeping thread registers the process for barriers: both take a long time and are
/// independent. Returns how long that thread was held, if one registered. No other thread is held meanwhile.
fn make_tables(
    tables: &mut UnwindTables,
    modules: &TracedModules,
    reach: &Reach<'_>,
    idle: &IdleThreads,
    pid: i32,
) -> Option<Duration> {
    let held = std::thread::scope(|scope| {
        let registers = matches!(reach, Reach::Running) && !lone_recorder::is_alone(pid);
        let registering =
            registers.then(|| scope.spawn(|| lone_recorder::register_idle(pid, idle)));
        tables.find_or_compile(&modules.all());
        registering.and_then(|registering| registering.join().ok()?)
    });
    tracing::debug!("unwind tables are made");
    held
}

/// Returns the address (avma) of the vDSO's clock function, which the hook calls without the C library, or 0 if the
/// vDSO has none.
fn clock_of(vdso: &ModuleImage) -> u64 {
    let elf = ElfView::parse(&vdso.bytes).ok();
    let clock = elf.and_then(|elf| elf.exported("__vdso_clock_gettime"));
    clock.map_or(0, |clock| vdso.base.wrapping_add(clock.svma))
}
