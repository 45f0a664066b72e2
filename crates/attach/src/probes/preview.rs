//! Preview of what placing probes would write.

use super::error::ProbeError;
use super::gaps::places_near;
use super::mapped::{clusters, places};
use super::planned::{PlannedFunction, ProbePlan, RefusedFunction};
use crate::error::Error;
use memhook_probe::{AreaHeader, CountsLayout, Pad};
use memhook_process::mappings;

/// Preview for one function.
#[derive(Clone, Debug)]
pub struct PadPreview {
    /// The function.
    pub function: PlannedFunction,
    /// The pad.
    pub pad: Pad,
}

/// Preview of the pads and the refusals.
#[derive(Clone, Debug, Default)]
pub struct ProbePreview {
    /// The process.
    pub pid: i32,
    /// Functions with their pads, correct if the process maps no other memory before the probes are
    /// placed.
    pub pads: Vec<PadPreview>,
    /// Functions that cannot be probed.
    pub refused: Vec<RefusedFunction>,
}

/// Returns the writes that placing the probes of a plan would make. Only reads the process.
pub fn preview_probes(plan: ProbePlan) -> Result<ProbePreview, Error> {
    let pid = plan.pid;
    let mut preview = ProbePreview {
        pid,
        pads: Vec::new(),
        refused: plan.refused.clone(),
    };
    let layout = plan.layout();
    let maps = mappings(pid)?;
    for (numbers, near) in clusters(&plan.functions) {
        let (area, owners) = places(&plan, &numbers);
        let bytes = area.bytes() + CountsLayout::TABLE_BYTES;
        let module = || plan.functions[numbers[0]].module.clone();
        let place = places_near(&maps, &near, bytes).first().copied();
        let at = place.ok_or_else(|| ProbeError::NoRoom {
            pid,
            module: module(),
        })?;
        let area = area
            .build(at, AreaHeader::default(), &layout)
            .map_err(|refusal| ProbeError::AllRefused(refusal.to_string()))?;
        for (&number, pad) in owners.iter().zip(area.pads) {
            let function = plan.functions[number].clone();
            match pad {
                Ok(pad) => preview.pads.push(PadPreview { function, pad }),
                Err(refusal) => preview.refused.push(RefusedFunction {
                    function: function.function,
                    module: function.module,
                    why: refusal.to_string(),
                }),
            }
        }
    }
    Ok(preview)
}
