//! The step of an attach that follows the plan: writes the jumps to pads, and finds the slots.

use crate::config::{Accesses, TraceConfig};
use crate::error::Error;
use crate::hold::reach::Reach;
use crate::pads::Pads;
use crate::plan::hooking::Planned;
use crate::survey::process::Surveyed;
use memhook_process::{Mapping, SlotScan, hook_copies, mappings};
use std::collections::HashSet;

/// Slots and pads that will lead to wrappers. Until [`Pads::keep`], dropping this value removes the jumps.
pub(super) struct Found {
    pub survey: Surveyed,
    /// Mappings of the process, including the pads.
    pub maps: Vec<Mapping>,
    /// Ids of the functions to hook.
    pub functions: HashSet<usize>,
    pub pads: Pads,
    pub scan: SlotScan,
    /// True if reads and writes are counted.
    pub counts_accesses: bool,
}

impl Found {
    /// Places pads and finds slots; refuses a process in which nothing could be hooked.
    pub fn of(
        reach: &mut Reach<'_>,
        mut planned: Planned,
        settings: &TraceConfig,
    ) -> Result<Found, Error> {
        let pid = planned.survey.pid;
        let to_place = std::mem::take(&mut planned.pads);
        let pads = Pads::place(reach, pid, to_place, &|f| planned.is_wanted(f))?;
        let maps = mappings(pid)?;
        let copies = hook_copies(pid, &maps);
        let mut scan = planned.find_slots(&maps, &copies)?;
        let counts_accesses = planned.counts_accesses(&mut scan);
        if settings.accesses == Accesses::Needed && !counts_accesses {
            return Err(Error::NoAccessRuntime { pid });
        }
        pads.add_to(&mut scan, &planned.survey.modules, &copies);
        tracing::info!(
            modules = planned.survey.modules.len(),
            slots = scan.slots.len(),
            "slots are found"
        );
        if scan.slots.is_empty() {
            return Err(pads.refusal().unwrap_or(Error::NothingToHook { pid }));
        }
        Ok(Found {
            survey: planned.survey,
            maps,
            functions: planned.functions,
            pads,
            scan,
            counts_accesses,
        })
    }
}
