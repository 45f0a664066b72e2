//! Diagnosis of whether, and how well, a process can be traced. It only reads the process, unless a thread must be held
//! to learn whether it is at a safe point (`safe_thread.rs`).

use crate::{
    claim::already_traced,
    config::TraceConfig,
    error::Error,
    hook::loading::Loading,
    pads::{DescribedReach, plan_pads, reach_of_described},
    plan::hooking::{Planned, PlannedModule, is_hooked, survey},
    plan::safe_thread::safe_thread,
    plan::touches::{Touches, of_attach},
    survey::limits::limit_checks,
};
use memhook_inject::first_choice;
use memhook_probe::Allocator;
use memhook_process::{
    AllocatorCalls, AllocatorFunction, Check, ElfView, ModuleFiles, ModuleImage, allocator_calls,
    allocator_functions, details, emulated_program, mappings, modules, preflight,
};

/// Findings about a process.
pub struct Diagnosis {
    /// Checks with their findings. An attach refuses unless all are ok.
    pub checks: Vec<Check>,
    /// All modules except glibc's loader; empty if a check of the process itself failed.
    pub modules: Vec<DiagnosedModule>,
    /// Allocator functions in the process that can be called: functions that slots lead to, and functions that are part
    /// of the program.
    pub functions: Vec<FoundFunction>,
    /// Functions that the user has described; empty if a check of the process itself failed.
    pub described: Vec<DescribedReach>,
    /// Effects of an attach on the process; `None` if a check failed.
    pub touches: Option<Touches>,
}

/// Allocator function, and its reach.
pub struct FoundFunction {
    /// The file name of its module.
    pub module: String,
    /// The function.
    pub function: AllocatorFunction,
    /// Address of the function (avma).
    pub address: u64,
    /// Number of slots that lead to it.
    pub slots: usize,
    /// True if the function is hooked at its entry, which also covers calls that use no slot.
    pub has_pad: bool,
    /// Reason why it cannot have a pad, if there is one.
    pub why_no_pad: Option<String>,
}

/// Findings about one module before an attach.
pub struct DiagnosedModule {
    /// Its slots.
    pub plan: PlannedModule,
    /// Calls of allocators in the module.
    pub calls: AllocatorCalls,
    /// False if stacks are cut short in this module.
    pub has_unwind_table: bool,
}

/// Examines the process as for an attach that also traces these allocators. If `only_looks` is true, no thread is held.
pub fn diagnose(pid: i32, allocators: &[Allocator], only_looks: bool) -> Result<Diagnosis, Error> {
    let config = TraceConfig::default();
    let with_allocators = TraceConfig {
        allocators: allocators.to_vec(),
        ..TraceConfig::default()
    };
    with_allocators.check()?;
    let is_well = |checks: &[Check]| checks.iter().all(|check| check.ok);
    let mut checks = preflight(pid);
    if is_well(&checks) {
        checks.extend(other_attacher(pid));
    }
    if is_well(&checks) {
        checks.extend(limit_checks(pid, &config));
        checks.extend(details(pid));
        checks.extend(held_thread(pid));
    }
    let mut diagnosed_modules = Vec::new();
    let mut touches = None;
    if is_well(&checks) {
        match planned_modules(pid, &config) {
            Ok(found) => {
                checks.extend(found.way_in);
                touches = Some(of_attach(pid, &config, found.loading, &found.plan));
                diagnosed_modules.extend(found.plan.into_iter().map(diagnosed));
                checks.push(seen(pid, &diagnosed_modules));
                if is_well(&checks) {
                    checks.push(safe_thread(pid, found.images, only_looks));
                }
            }
            Err(refusal) => checks.push(Check::bad(
                "plan",
                refusal.to_string(),
                "an attach would refuse for the same reason",
            )),
        }
        let pools = diagnosed_modules
            .iter()
            .filter_map(|m| Some((m, m.calls.pool.filter(|p| !p.is_avoided(pid))?.advice)));
        checks.extend(pools.map(|(m, pool)| Check::note("pools", m.plan.image.name(), pool)));
        let emulated = emulated_program(pid, &mappings(pid)?);
        checks.extend(emulated.map(|program| {
            Check::note(
                "emulated",
                format!("process {pid} is an emulator that runs {program}"),
                "only the emulator's own allocations are seen; run the program natively",
            )
        }));
    }
    let described = if is_well(&checks) {
        described_reach(pid, allocators)?
    } else {
        Vec::new()
    };
    let refused = described.iter().filter(|reach| reach.found.is_err());
    if let Some(first) = refused.clone().next() {
        let count = refused.count();
        checks.push(Check::bad(
            "described",
            match count {
                1 => format!("{} cannot be traced", first.function),
                _ => format!("{count} of the described functions cannot be traced"),
            },
            "the described functions are traced together or not at all: see the reasons below",
        ));
    }
    Ok(Diagnosis {
        touches: touches.filter(|_| is_well(&checks)),
        described,
        functions: found_functions(pid, &diagnosed_modules),
        checks,
        modules: diagnosed_modules,
    })
}

/// Reports another attacher. While another attacher traces the process, slots do not hold allocator functions, so no
/// other finding is possible.
fn other_attacher(pid: i32) -> Option<Check> {
    let Error::AlreadyTraced { attacher, .. } = already_traced(pid).ok()?? else {
        return None;
    };
    Some(Check::bad(
        "attacher",
        format!("process {pid} is already traced by memhook-rs {attacher}"),
        "stop that first",
    ))
}

/// Modules that an attach would find and follow.
struct Found {
    /// Modules of the process.
    images: Vec<ModuleImage>,
    /// Method by which the hook would be loaded into the process, with remarks.
    loading: Loading,
    way_in: Option<Check>,
    /// Plan for the relevant modules.
    plan: Vec<PlannedModule>,
}

fn planned_modules(pid: i32, config: &TraceConfig) -> Result<Found, Error> {
    let surveyed = survey(pid)?;
    let (images, loading) = (surveyed.modules.clone(), surveyed.way_in.loading);
    let way_in = surveyed.way_in.check(pid);
    let mut plan = Planned::of(surveyed, config)?.into_modules()?;
    plan.retain(|plan| plan.image.is_libc || !plan.image.is_loader);
    Ok(Found {
        images,
        loading,
        way_in,
        plan,
    })
}

fn described_reach(pid: i32, allocators: &[Allocator]) -> Result<Vec<DescribedReach>, Error> {
    if allocators.is_empty() {
        return Ok(Vec::new());
    }
    let survey = survey(pid)?;
    let own = plan_pads(&survey);
    Ok(reach_of_described(&survey, allocators, &own))
}

/// Finds the allocator functions, even in a process that cannot be attached to.
fn found_functions(pid: i32, diagnosed: &[DiagnosedModule]) -> Vec<FoundFunction> {
    let Ok(maps) = mappings(pid) else {
        return Vec::new();
    };
    let loaded = modules(pid, &maps, &mut ModuleFiles::new()).unwrap_or_default();
    let plans = || diagnosed.iter().map(|module| &module.plan);
    let targets = || plans().flat_map(|plan| &plan.targets);
    let mut found = Vec::new();
    for module in loaded.iter().filter(|m| !m.is_loader || m.is_libc) {
        for function in allocator_functions(&module.bytes.whole()) {
            let address = module.base.wrapping_add(function.svma);
            let slots = targets().filter(|target| **target == address).count();
            let has_pad = plans().any(|plan| plan.pads.iter().any(|(_, at)| *at == address));
            let mut refused = plans().flat_map(|plan| &plan.refused_pads);
            let why_no_pad = refused
                .find(|(_, at, _)| *at == address)
                .map(|(_, _, why)| why.clone());
            // An exported function of a library that nothing imports is never called.
            if slots > 0 || has_pad || module.is_main {
                found.push(FoundFunction {
                    module: module.name().to_owned(),
                    function,
                    address,
                    slots,
                    has_pad,
                    why_no_pad,
                });
            }
        }
    }
    found
}

fn diagnosed(plan: PlannedModule) -> DiagnosedModule {
    let image = &plan.image;
    let bytes = image.bytes.whole();
    let elf = ElfView::parse(&bytes).ok();
    let mut calls = allocator_calls(&bytes, image.is_main, &is_hooked);
    if !plan.pads.is_empty() && plan.refused_pads.is_empty() {
        calls = calls.all_seen();
    }
    DiagnosedModule {
        calls,
        has_unwind_table: elf.is_some_and(|elf| elf.has_section(".eh_frame")),
        plan,
    }
}

/// Reports how an attach would hold threads.
fn held_thread(pid: i32) -> Option<Check> {
    let choice = first_choice(pid).ok()??;
    let held = format!(
        "an attach holds one thread for milliseconds; now it would choose {}",
        choice.tid
    );
    Some(if choice.is_disturbed {
        Check::note(
            "held",
            held + ": all threads wait in calls that no kernel restarts after a stop (epoll_wait, sigtimedwait, ...)",
            "memhook-rs repeats the call with the rest of its time, up to a seventh longer; it returns EINTR only if the attacher is killed at that moment",
        )
    } else {
        Check::good("held", held)
    })
}

/// Reports the share of allocator calls that pass through slots.
fn seen(pid: i32, modules: &[DiagnosedModule]) -> Check {
    let slots: usize = modules.iter().map(|m| m.plan.slots.len()).sum();
    let pads: usize = modules.iter().map(|m| m.plan.pads.len()).sum();
    if slots + pads == 0 {
        let mut refused = modules.iter().flat_map(|m| &m.plan.refused_pads);
        return match refused.next() {
            Some((name, _, why)) => Check::bad(
                "calls",
                format!("{name} cannot have a jump to the hook: {why}"),
                "link the allocator as a shared library",
            ),
            None => Check::bad(
                "calls",
                format!("process {pid} calls no allocator through a GOT slot: nothing to hook"),
                "its allocator is linked in statically: link it as a shared library",
            ),
        };
    }
    let through: u64 = modules.iter().map(|m| m.calls.through_slots).sum();
    let direct: u64 = modules.iter().map(|m| m.calls.direct_count()).sum();
    let all = through + direct;
    let share = through as f64 * 100.0 / all.max(1) as f64;
    let of_pads = match pads {
        0 => String::new(),
        1 => " and a pad".to_owned(),
        pads => format!(" and {pads} pads"),
    };
    let finding = format!(
        "{through} of {all} call sites of allocator functions go through {slots} slots{of_pads} ({share:.1} %)"
    );
    let hidden = |m: &&DiagnosedModule| (m.calls.direct_count(), m.calls.allocator.is_some());
    let worst = modules.iter().max_by_key(hidden);
    match worst.and_then(|m| Some((m, m.calls.direct_text()?))) {
        None => Check::good("calls", finding),
        Some((m, text)) => Check::note(
            "calls",
            finding,
            format!(
                "{}: {text}; to see them, link that allocator as a shared library",
                m.plan.image.name()
            ),
        ),
    }
}
