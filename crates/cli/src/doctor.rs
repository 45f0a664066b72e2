//! `doctor`: everything that decides whether and how well a process can be traced.

use crate::exit_code;
use crate::output::say;
use memhook_abi::function_by_name;
use memhook_attach::{TraceConfig, is_hooked, limit_checks};
use memhook_inject::first_choice;
use memhook_process::{
    AllocatorCalls, Check, ElfView, ModuleImage, TargetRoot, allocator_calls, details, find_slots,
    hook_copies, mappings, modules, preflight,
};
use memhook_report::recorded::source_text;
use memhook_symbols::{ModuleFile, ModuleSymbols, Source, Symbolizer};
use std::{process::ExitCode, time::Duration};

/// Prints every finding; exit code 2 if an attach would refuse.
pub fn run(pid: i32) -> anyhow::Result<ExitCode> {
    let mut checks = preflight(pid);
    if checks.iter().all(|c| c.ok) {
        checks.extend(limit_checks(pid, &TraceConfig::default()));
        checks.extend(details(pid));
        checks.extend(held_thread(pid));
    }
    let mut survey = None;
    if checks.iter().all(|c| c.ok) {
        let surveyed = survey_modules(pid)?;
        checks.push(seen(pid, &surveyed));
        let pools = surveyed.iter().filter_map(|m| Some((m, m.calls.pool?)));
        checks.extend(pools.map(|(m, pool)| Check::note("pools", m.module.name(), pool)));
        survey = Some(surveyed);
    }
    for check in &checks {
        print_check(check);
    }
    if let Some(survey) = &survey {
        print_modules(survey);
    }
    let failed = checks.iter().filter(|c| !c.ok).count();
    let notes = checks.iter().filter(|c| c.ok && c.remedy.is_some());
    match (failed, notes.count()) {
        (0, 0) => say!("\nProcess {pid} can be traced."),
        (0, n) => say!("\nProcess {pid} can be traced; see the {n} notes above."),
        _ => say!("\nProcess {pid} cannot be traced."),
    }
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        exit_code::BAD_INPUT.into()
    })
}

/// What an attach does to the threads.
fn held_thread(pid: i32) -> Option<Check> {
    let choice = first_choice(pid).ok()??;
    let held = format!(
        "an attach holds one thread for milliseconds, {} as of now",
        choice.tid
    );
    Some(if choice.is_disturbed {
        Check::note(
            "held",
            held + ": all threads wait in calls that no kernel restarts after a stop (epoll_wait, sigtimedwait, ...)",
            "the call is made again with the time that is left of it, a seventh more at most; it ends with EINTR only if the attacher is killed at that moment",
        )
    } else {
        Check::good("held", held)
    })
}

fn print_check(check: &Check) {
    let mark = match (check.ok, &check.remedy) {
        (true, None) => "ok  ",
        (true, Some(_)) => "note",
        (false, _) => "FAIL",
    };
    say!("{mark} {:<14} {}", check.name, check.finding);
    if let Some(remedy) = &check.remedy {
        say!("     {:<14} -> {remedy}", "");
    }
}

/// What is known about one module before an attach.
struct Surveyed {
    module: ModuleImage,
    slots: usize,
    refused: Vec<String>,
    calls: AllocatorCalls,
    has_unwind_table: bool,
    symbols: Option<(Source, String)>,
}

fn survey_modules(pid: i32) -> anyhow::Result<Vec<Surveyed>> {
    let maps = mappings(pid)?;
    let loaded = modules(pid, &maps, &mut Default::default())?;
    let wanted = |name: &str| function_by_name(name).is_some();
    let scan = find_slots(pid, &loaded, &maps, &wanted, &hook_copies(pid, &maps))?;
    // An attach puts back first what others left in slots.
    let hookable = scan.slots.iter().chain(&scan.held);
    let symbols = symbols_of(pid, &loaded);
    let mut surveyed = Vec::new();
    for (index, module) in loaded.into_iter().enumerate() {
        if module.is_loader {
            continue;
        }
        let unhookable = scan.unhookable.iter().filter(|u| u.module == index);
        let elf = ElfView::parse(&module.bytes).ok();
        let source = symbols.iter().find(|s| s.0 == module.path);
        surveyed.push(Surveyed {
            slots: hookable.clone().filter(|s| s.module == index).count(),
            refused: unhookable
                .map(|u| format!("{}: {}", u.symbol, u.reason))
                .collect(),
            calls: allocator_calls(&module.bytes, module.is_main, &is_hooked),
            has_unwind_table: elf.is_some_and(|elf| elf.has_section(".eh_frame")),
            symbols: source.map(|s| (s.1, s.2.clone())),
            module,
        });
    }
    Ok(surveyed)
}

/// Opens every module's symbols, as a report with a frame in each would.
fn symbols_of(pid: i32, loaded: &[ModuleImage]) -> Vec<(String, Source, String)> {
    let mut symbols = Symbolizer::new(TargetRoot::of(pid).search_order());
    let file = |m: &ModuleImage| ModuleFile {
        path: m.path.clone(),
        image: Some(m.bytes.clone()),
        candidates: Vec::new(),
        build_id: m.build_id.clone(),
        base: m.base,
        start: m.start,
        end: m.end,
    };
    symbols.set_modules(loaded.iter().map(file).collect());
    symbols.request(loaded.iter().map(|m| m.start + 1));
    symbols.is_ready(Duration::from_secs(60));
    let line = |s: &ModuleSymbols| {
        let mut text = source_text(s.source).to_owned();
        if let Some(path) = &s.debug_file {
            text += &format!(" ({})", path.display());
        }
        for problem in &s.problems {
            text += &format!("; refused: {problem}");
        }
        (s.path.clone(), s.source, text)
    };
    symbols.sources().map(line).collect()
}

/// The share of the calls to allocators that goes through slots.
fn seen(pid: i32, modules: &[Surveyed]) -> Check {
    let slots: usize = modules.iter().map(|m| m.slots).sum();
    if slots == 0 {
        return Check::bad(
            "calls",
            format!("process {pid} calls no allocator through a GOT slot: nothing to hook"),
            "its allocator is linked in statically: link it as a shared library",
        );
    }
    let through: u64 = modules.iter().map(|m| m.calls.through_slots).sum();
    let direct: u64 = modules.iter().map(|m| m.calls.direct_count()).sum();
    let share = memhook_report::percent(through, through + direct);
    let finding = format!(
        "{through} of {} call sites of allocator functions go through {slots} slots ({share:.1} %)",
        through + direct
    );
    let worst = modules.iter().max_by_key(|m| m.calls.direct_count());
    match worst.and_then(|m| Some((m, m.calls.direct_text()?))) {
        None => Check::good("calls", finding),
        Some((m, text)) => Check::note(
            "calls",
            finding,
            format!(
                "{}: {text}; to see them, link that allocator as a shared library",
                m.module.name()
            ),
        ),
    }
}

fn print_modules(modules: &[Surveyed]) {
    let width = modules
        .iter()
        .map(|m| m.module.name().len())
        .max()
        .unwrap_or(0);
    say!(
        "\n{:<width$}  slots  calls seen  not seen  unwind table  names from",
        "module"
    );
    for m in modules {
        say!(
            "{:<width$}  {:>5}  {:>10}  {:>8}  {:<12}  {}",
            m.module.name(),
            m.slots,
            m.calls.through_slots,
            m.calls.direct_count() + m.refused.len() as u64,
            if m.has_unwind_table { "yes" } else { "NO" },
            m.symbols.as_ref().map_or("nothing", |s| s.1.as_str()),
        );
        for reason in &m.refused {
            say!("{:<width$}  -> {reason}", "");
        }
    }
    if modules.iter().any(|m| !m.has_unwind_table) {
        say!("-> stacks are cut short at modules without an unwind table");
    }
    let poor = |m: &&Surveyed| {
        let source = m.symbols.as_ref().map_or(Source::Nothing, |s| s.0);
        m.slots > 0 && source < Source::Symbols
    };
    let poor: Vec<&str> = modules
        .iter()
        .filter(poor)
        .map(|m| m.module.name())
        .collect();
    if !poor.is_empty() {
        say!(
            "-> for names and lines install the debug symbols of {}",
            poor.join(", ")
        );
    }
}
