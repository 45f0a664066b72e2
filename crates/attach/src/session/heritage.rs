//! What a process hands down to the children that it forks, and the session of a child that has used it.

use super::made_code::MadeCode;
use super::python::Python;
use super::{Session, with};
use crate::claim::claim;
use crate::error::Error;
use crate::hook::object::{EntryPoints, HookObject};
use crate::leave::residue::new_owner;
use crate::pads::Pads;
use crate::unwinding::tables::{KnownTables, UnwindTables};
use memhook_abi::flags;
use memhook_process::{
    CLibrary, Mapping, ModuleFiles, ModuleImage, TargetRoot, mappings, seccomp_filters,
};
use memhook_stream::{Config, Plan, Region};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A child's share of what its parent may take of memory: most children do little, and there are many.
const SHARE: u64 = 8;

/// All that is the same in a process and in the children that it forks now: where the hook, the modules and the
/// patched slots are, and what is known of them.
pub(crate) struct Heritage {
    pid: i32,
    /// With what a child may take of memory.
    config: Config,
    region: Arc<Region>,
    object: &'static HookObject,
    entry: EntryPoints,
    pub hook_base: u64,
    may_lose_modules: bool,
    functions: HashSet<usize>,
    files: ModuleFiles,
    layout: Vec<Mapping>,
    modules: Vec<ModuleImage>,
    gone: Vec<ModuleImage>,
    vdso: Option<ModuleImage>,
    hook: Option<ModuleImage>,
    tables: KnownTables,
    unhookable: Vec<(String, &'static str)>,
    next_variant: HashMap<(usize, u64), u32>,
    made: Vec<Range<u64>>,
}

impl Session {
    /// What children inherit; `None` where a child could not be traced from its birth by that alone: pads, and
    /// counted accesses, have memory of their own, and looks are at one process.
    pub(crate) fn heritage(&self) -> Option<Heritage> {
        let has_more =
            self.config.flags & (flags::ACCESSES | flags::LOOKS) != 0 || !self.pads.is_empty();
        if self.is_static || has_more {
            return None;
        }
        let config = Config {
            // Another than the parent's: whoever claims the region says so, too.
            epoch: self.config.epoch % 4095 + 1,
            // That would take a system call of the child.
            flags: self.config.flags & !flags::LONE_RECORDER,
            plan: share_of(&self.config)?,
            ..self.config.clone()
        };
        let mut tables = KnownTables::default();
        self.tables.tell(&mut tables);
        Some(Heritage {
            pid: self.pid,
            config,
            region: Arc::clone(&self.region),
            object: self.object,
            entry: self.entry,
            hook_base: self.hook_base,
            may_lose_modules: self.may_lose_modules,
            functions: self.functions.clone(),
            files: self.files.clone(),
            layout: self.layout.clone(),
            modules: self.modules.clone(),
            gone: self.gone.clone(),
            vdso: self.vdso.clone(),
            hook: self.hook.clone(),
            tables,
            unhookable: self.unhookable.clone(),
            next_variant: self.next_variant.clone(),
            made: self.made_code.areas().to_vec(),
        })
    }
}

/// What a child may take; `None`: not even one thread's ring would fit.
fn share_of(parent: &Config) -> Option<Plan> {
    let whole = parent.plan;
    if whole.budget == u64::MAX {
        return Some(Plan {
            threads: 1,
            ..whole
        });
    }
    let share = Plan::within(whole.budget / SHARE, 1, whole.most_ring)?;
    Some(Plan {
        first_ring: share.first_ring.min(whole.first_ring),
        ..share
    })
}

impl Heritage {
    /// Makes a region ready for a child, but for the offer. Nobody may be using it.
    pub fn conceive(&self, region: &Region) -> Result<UnwindTables, Error> {
        let config = Config {
            owner: new_owner(),
            ..self.config.clone()
        };
        region.conceive(&config, &self.region)?;
        let mut tables = UnwindTables::with_known(&self.tables);
        let mut all = with(&self.modules, &self.vdso);
        all.extend(self.hook.clone());
        tables.publish(region, &all, &self.made)?;
        Ok(tables)
    }

    /// Children of the process that found no region.
    pub fn births_missed(&self) -> u64 {
        self.region.births_missed()
    }

    /// The session of a child that records into such a region. Nothing is done to the child.
    /// `lives`: whether it has not ended yet; else everything is as it was in its parent.
    pub fn session(
        &self,
        pid: i32,
        region: Arc<Region>,
        tables: UnwindTables,
        found: Instant,
        lives: bool,
    ) -> Session {
        let maps = if lives { mappings(pid).ok() } else { None };
        let of_libc = |maps: &Vec<Mapping>| CLibrary::of(pid, maps).map(|libc| libc.kind);
        let python = maps.as_ref().map_or_else(Python::default, |maps| {
            Python::of(pid, &self.modules, of_libc(maps))
        });
        Session {
            pid,
            region,
            object: self.object,
            entry: self.entry,
            hook_base: self.hook_base,
            may_lose_modules: self.may_lose_modules,
            functions: self.functions.clone(),
            pads: Pads::none(pid),
            // They take pads.
            heaps: Vec::new(),
            is_static: false,
            files: self.files.clone(),
            layout: self.layout.clone(),
            modules: self.modules.clone(),
            gone: self.gone.clone(),
            vdso: self.vdso.clone(),
            hook: self.hook.clone(),
            tables,
            unhookable: self.unhookable.clone(),
            attach_time: Duration::ZERO,
            held_time: Duration::ZERO,
            idle_held_time: Duration::ZERO,
            next_variant: self.next_variant.clone(),
            config: self.config.clone(),
            found: Some(found),
            filters: seccomp_filters(pid),
            root: TargetRoot::of(if lives { pid } else { self.pid }),
            plan: self.config.plan,
            python,
            made_code: maps.as_deref().map_or_else(MadeCode::default, MadeCode::of),
            marks: Vec::new(),
            next_mark: 0,
            has_missed_marks: false,
            mapped_before: maps.unwrap_or_default(),
            emission: None,
            _claim: if lives { claim(pid).ok() } else { None },
        }
    }
}
