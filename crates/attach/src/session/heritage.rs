//! State that a process passes on to the children that it forks, and the session of a child that has taken over this
//! state.

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

/// Divisor for a child's share of its parent's memory allowance: most children do little, and there are many of them.
const SHARE: u64 = 8;

/// Facts that are the same in a process and in the children that it forks now: addresses and properties of the hook,
/// the modules, and the patched slots.
pub(crate) struct Heritage {
    pid: i32,
    /// Configuration with the memory allowance of a child.
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
    /// Returns the state that the children inherit. Returns `None` if this would not suffice to trace a child from its
    /// birth: pads and counted accesses have their own memory, and sampled accesses apply to one process.
    pub(crate) fn heritage(&self) -> Option<Heritage> {
        let own = &self.prepared;
        let has_more =
            own.config.flags & (flags::ACCESSES | flags::LOOKS) != 0 || !own.pads.is_empty();
        if own.modules.is_static || has_more {
            return None;
        }
        let config = Config {
            // The child's epoch must differ from the parent's. A child that claims the region sets its own number.
            epoch: own.config.epoch % 4095 + 1,
            // This flag would need a system call in the child.
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

/// Returns the allowance of a child; `None` if it is too small for a single thread's ring.
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
    /// Prepares a region for a child, except for the offer. No process may be using it.
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

    /// Returns the load bias of the hook (avma).
    pub fn hook_base(&self) -> u64 {
        self.hook.base
    }

    /// Returns the number of the process's children that found no region.
    pub fn births_missed(&self) -> u64 {
        self.region.births_missed()
    }

    /// Returns the session of a child that records to `region`. The child is not touched. `lives`: false if the child
    /// has ended, in which case all facts are taken from its parent.
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
            // Described heaps need pads.
            heaps: Vec::new(),
            tables,
            python,
            made_code: (maps.as_deref())
                .map_or_else(MadeCode::default, |maps| MadeCode::of(pid, maps)),
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
            unannounced: Vec::new(),
        }
    }
}
