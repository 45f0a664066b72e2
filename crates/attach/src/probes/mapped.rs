//! Memory of probes: how functions are distributed among areas, where the areas are, and how they are mapped.

use super::error::ProbeError;
use super::events::{Events, prepare};
use super::gaps::map_near;
use super::planned::{PlannedFunction, ProbePlan};
use crate::error::Error;
use crate::hook::presence::any_point;
use crate::survey::limits::check_shared_memory;
use crate::survey::memory_allowance::check_charge;
use memhook_inject::{CodeArea, create_region, hold, set_inherited, write_bytes};
use memhook_probe::{AreaFunction, AreaHeader, AreaPlan, CountsLayout, Role};
use memhook_process::thread_ids;
use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Name of an area in /proc.
const AREA_NAME: &std::ffi::CStr = c"memhook-probe";
/// Maximum distance of modules that share an area.
const CLUSTER_BYTES: u64 = 1 << 30;

/// Mapped area, and the numbers of its functions.
pub(super) struct Mapped {
    pub area: CodeArea,
    pub functions: Vec<usize>,
    pub bytes: u64,
}

/// Returns the area for these functions, and, for each pad, the number of its function. Pads at exits come first,
/// because an exit pad has no effect before its entry pad is active.
pub(super) fn places<'p>(plan: &'p ProbePlan, numbers: &[usize]) -> (AreaPlan<'p>, Vec<usize>) {
    let (mut pads, mut owners) = (Vec::new(), Vec::new());
    for &probe in numbers {
        let function = &plan.functions[probe];
        let at_entry = if plan.has_latency {
            Role::Begins
        } else {
            Role::Counts
        };
        let exits = function.exits.iter().map(|exit| (exit, Role::Ends));
        for (plan, role) in exits.chain([(&function.plan, at_entry)]) {
            pads.push(AreaFunction {
                plan,
                bias: function.base,
                probe,
                role,
            });
            owners.push(probe);
        }
    }
    (AreaPlan::new(pads, &plan.conditions), owners)
}

/// Groups functions whose modules are close to each other. Returns the numbers of the functions and the address range
/// of the modules.
pub(super) fn clusters(functions: &[PlannedFunction]) -> Vec<(Vec<usize>, Range<u64>)> {
    let mut order: Vec<usize> = (0..functions.len()).collect();
    order.sort_by_key(|&n| functions[n].module_range.start);
    let mut found: Vec<(Vec<usize>, Range<u64>)> = Vec::new();
    for n in order {
        let range = &functions[n].module_range;
        match found.last_mut() {
            Some((numbers, all)) if range.end - all.start.min(range.start) <= CLUSTER_BYTES => {
                numbers.push(n);
                all.end = all.end.max(range.end);
            }
            _ => found.push((vec![n], range.clone())),
        }
    }
    found
}

/// Returns the bytes that are charged to the process: a copy of each changed page of code, and the counters of its
/// threads. Our own process writes the pads, so they are charged to us.
fn charged_bytes(pid: i32, plan: &ProbePlan, layout: &CountsLayout) -> u64 {
    const PAGE_BYTES: u64 = 4096;
    let changed = plan.functions.iter().flat_map(|function| {
        let plans = function.exits.iter().chain([&function.plan]);
        plans.map(|plan| plan.at.wrapping_add(function.base) / PAGE_BYTES)
    });
    let pages = changed.collect::<BTreeSet<u64>>().len() as u64;
    let threads = thread_ids(pid).map_or(1, |threads| threads.len()) as u64 + 1;
    pages * PAGE_BYTES
        + threads * layout.likely_bytes().next_multiple_of(PAGE_BYTES)
        + CountsLayout::TABLE_BYTES
}

/// Mappings of probes.
pub(super) struct MappedProbes {
    pub counts: File,
    pub header: AreaHeader,
    pub areas: Vec<Mapped>,
    pub events: Option<Events>,
}

/// Maps the counters, the table of threads and the areas. At this point, none of these has an effect.
pub(super) fn map_all(
    pid: i32,
    plan: &ProbePlan,
    layout: &CountsLayout,
) -> Result<MappedProbes, Error> {
    let areas: Vec<u64> = clusters(&plan.functions)
        .iter()
        .map(|(functions, _)| places(plan, functions).0.bytes())
        .collect();
    let largest = areas.into_iter().max().unwrap_or(0);
    check_shared_memory(pid, layout.shared_bytes().max(largest))?;
    check_charge(pid, charged_bytes(pid, plan, layout))?;
    let prepared = prepare(pid, &plan.events)?;
    let mut held = hold(pid, &any_point())?;
    let region = create_region(&mut held, c"memhook-probe-counts", layout.shared_bytes())?;
    // Forked processes count too.
    set_inherited(&mut held, region.address, layout.shared_bytes(), true)?;
    let mut mapped: Vec<Mapped> = Vec::new();
    for (functions, near) in clusters(&plan.functions) {
        let bytes = places(plan, &functions).0.bytes();
        // The table of threads follows the first area.
        let wiped = if mapped.is_empty() {
            CountsLayout::TABLE_BYTES
        } else {
            0
        };
        let area = map_near(&mut held, AREA_NAME, &near, bytes, wiped)?;
        let module = || plan.functions[functions[0]].module.clone();
        let area = area.ok_or_else(|| ProbeError::NoRoom {
            pid,
            module: module(),
        })?;
        mapped.push(Mapped {
            area,
            functions,
            bytes,
        });
    }
    let shared_at = region.address.0;
    let counts = File::from(region.fd);
    let events = if layout.has_events() {
        let (options, at) = (&plan.events, shared_at);
        Some(Events::map(
            &mut held, prepared, options, layout, at, &counts,
        )?)
    } else {
        None
    };
    held.release()?;
    let header = describe(pid, &counts, shared_at, &mapped, layout)?;
    Ok(MappedProbes {
        counts,
        header,
        areas: mapped,
        events,
    })
}

/// Fills in the addresses of the counters.
fn describe(
    pid: i32,
    counts: &File,
    shared_at: u64,
    mapped: &[Mapped],
    layout: &CountsLayout,
) -> Result<AreaHeader, Error> {
    let cannot = |cause| ProbeError::Pads { pid, cause };
    counts
        .write_all_at(&CountsLayout::shared_words(), CountsLayout::TAKEN)
        .map_err(cannot)?;
    let mut header = AreaHeader {
        attacher: std::process::id(),
        shared_at,
        shared_bytes: layout.shared_bytes(),
        ..AreaHeader::default()
    };
    if let Some(first) = mapped.first() {
        let table = first.area.address + first.bytes;
        header.table_at = table.0;
        header.table_bytes = CountsLayout::TABLE_BYTES;
        let words = CountsLayout::table_words(shared_at);
        write_bytes(pid, table + CountsLayout::IS_LIVE, &words)?;
    }
    Ok(header)
}
