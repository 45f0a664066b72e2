//! Heritage that a process hands down to the children that it forks, and the session of a child that has used it.

use super::Session;
use super::journal::SlotJournal;
use super::made_code::MadeCode;
use super::marks::Marks;
use super::prepared::{HeldTimes, Prepared};
use super::python::Python;
use crate::claim::claim;
use crate::error::Error;
use crate::hook::presence::HookInTarget;
use crate::leave::residue::new_owner;
use crate::pads::Pads;
use crate::survey::traced_modules::TracedModules;
use crate::unwinding::tables::{KnownTables, UnwindTables};
use memhook_abi::flags;
use memhook_process::{CLibrary, Mapping, ModuleImage, TargetRoot, mappings, seccomp_filters};
use memhook_stream::{Config, Plan, Region};
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
    hook: HookInTarget,
    hook_image: Option<ModuleImage>,
    modules: TracedModules,
    journal: SlotJournal,
    tables: KnownTables,
    made: Vec<Range<u64>>,
}

impl Session {
    /// Returns what children inherit; `None` where a child could not be traced from its birth by that alone: pads and
    /// counted accesses have memory of their own, and looks concern one process.
    pub(crate) fn heritage(&self) -> Option<Heritage> {
        let own = &self.prepared;
        let has_more =
            own.config.flags & (flags::ACCESSES | flags::LOOKS) != 0 || !own.pads.is_empty();
        if own.modules.is_static || has_more {
            return None;
        }
        let config = Config {
            // Another than the parent's: whoever claims the region says so, too.
            epoch: own.config.epoch % 4095 + 1,
            // That would take a system call of the child.
            flags: own.config.flags & !flags::LONE_RECORDER,
            plan: share_of(&own.config)?,
            ..own.config.clone()
        };
        let mut tables = KnownTables::default();
        own.tables.tell(&mut tables);
        Some(Heritage {
            pid: own.pid,
            config,
            region: Arc::clone(&own.region),
            hook: self.hook,
            hook_image: own.hook.clone(),
            modules: own.modules.clone(),
            journal: own.journal.clone(),
            tables,
            made: own.made_code.areas().to_vec(),
        })
    }
}

/// Returns the share of a child; `None` if not even one thread's ring would fit.
fn share_of(parent: &Config) -> Option<Plan> {
    let whole = parent.plan;
    if whole.allowance == u64::MAX {
        return Some(Plan {
            threads: 1,
            ..whole
        });
    }
    let share = Plan::within(whole.allowance / SHARE, 1, whole.most_ring)?;
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
        let mut all = self.modules.all();
        all.extend(self.hook_image.clone());
        tables.publish(region, &all, &self.made)?;
        Ok(tables)
    }

    /// Where the hook is (avma).
    pub fn hook_base(&self) -> u64 {
        self.hook.base
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
            Python::of(pid, &self.modules.now, of_libc(maps))
        });
        let prepared = Prepared {
            pid,
            region,
            config: self.config.clone(),
            modules: self.modules.clone(),
            hook: self.hook_image.clone(),
            journal: self.journal.clone(),
            passage: None,
            pads: Pads::none(pid),
            // They take pads.
            heaps: Vec::new(),
            tables,
            python,
            made_code: maps.as_deref().map_or_else(MadeCode::default, MadeCode::of),
            filters: seccomp_filters(pid),
            root: TargetRoot::of(if lives { pid } else { self.pid }),
            emission: None,
            held: HeldTimes::default(),
            _claim: if lives { claim(pid).ok() } else { None },
        };
        Session {
            prepared,
            hook: self.hook,
            attach_time: Duration::ZERO,
            is_from_start: false,
            found: Some(found),
            marks: Marks::default(),
            mapped_before: maps.unwrap_or_default(),
        }
    }
}
