//! The part of `doctor` that plans an attach without making it.

mod touches;

use super::diagnosis::Diagnosis;
use memhook_attach::{DescribedReach, DiagnosedModule, FoundFunction, Touches, diagnose};
use memhook_heap::module_file;
use memhook_probe::Allocator;
use memhook_process::{Check, TargetRoot};
use memhook_report::recorded::source_text;
use memhook_symbols::{ModuleSymbols, Source, Symbolizer};
use serde_json::json;
use std::fmt::Write as _;
use std::time::Duration;

/// Examines a process as an attach that also traces these allocators would. `only_looks`: no thread is held.
pub(super) fn of(
    pid: i32,
    allocators: &[Allocator],
    only_looks: bool,
) -> anyhow::Result<Diagnosis> {
    let found = diagnose(pid, allocators, only_looks)?;
    let mut details = String::new();
    // Writing into a String cannot fail.
    if !found.modules.is_empty() {
        let names = names_from(pid, &found.modules);
        let _ = add_modules(&mut details, &found.modules, &names);
    }
    let _ = add_functions(&mut details, &found.functions);
    let _ = add_described(&mut details, &found.described);
    let is_well = found.checks.iter().all(|check| check.ok);
    let commands = match is_well {
        true => touches::of_commands(pid, found.touches.as_ref()),
        false => Vec::new(),
    };
    if is_well {
        let _ = touches::add(&mut details, &commands);
    }
    let command = |one: &Touches| {
        json!({
            "command": one.command,
            "stops": one.stops,
            "calls": one.calls,
            "mapped_bytes": one.mapped_bytes,
            "writes": one.writes,
        })
    };
    Ok(Diagnosis {
        modules: found.modules.into_iter().map(|m| m.plan.image).collect(),
        checks: found.checks,
        details,
        commands: commands.iter().map(command).collect(),
    })
}

/// Returns nothing: processes can be traced on this processor.
pub(super) fn only_looked_at() -> Option<Check> {
    None
}

/// Describes where each allocator function is, and how calls reach it.
fn add_functions(out: &mut String, functions: &[FoundFunction]) -> std::fmt::Result {
    if functions.is_empty() {
        return Ok(());
    }
    let function_name = |found: &FoundFunction| {
        let name = memhook_foreign::demangle(&found.function.name);
        let allocator = found.function.allocator;
        allocator.map_or(name.clone(), |allocator| format!("{name} ({allocator})"))
    };
    let names: Vec<String> = functions.iter().map(function_name).collect();
    let width = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0);
    let of_names = width(&mut names.iter().map(String::len)).max("allocator function".len());
    let of_modules = width(&mut functions.iter().map(|f| f.module.len())).max("module".len());
    writeln!(
        out,
        "\n{:<of_names$}  {:<of_modules$}  {:<18}  reached by",
        "allocator function", "module", "address"
    )?;
    for (name, found) in names.iter().zip(functions) {
        let reach = match (found.slots, found.has_pad, &found.why_no_pad) {
            (0, true, _) => "a pad at its entry".to_owned(),
            (0, false, None) if found.function.hooked.is_none() => {
                let is_reached = |f: &FoundFunction| f.slots > 0 || f.has_pad;
                let is_callee = |f: &&FoundFunction| f.function.hooked.is_some() && is_reached(f);
                match functions.iter().find(is_callee) {
                    Some(_) => "no need: it calls another of these".to_owned(),
                    None => "not at all, and none that it may call is known".to_owned(),
                }
            }
            (0, false, Some(why)) => format!("not at all: {why}"),
            (0, false, None) => "not at all: calls of it use no slot".to_owned(),
            (1, has_pad, _) => format!("1 slot{}", and_pad(has_pad)),
            (slots, has_pad, _) => format!("{slots} slots{}", and_pad(has_pad)),
        };
        writeln!(
            out,
            "{name:<of_names$}  {:<of_modules$}  {:#018x}  {reach}",
            found.module, found.address
        )?;
    }
    Ok(())
}

/// Describes where each described function is, and how calls would reach it.
fn add_described(out: &mut String, described: &[DescribedReach]) -> std::fmt::Result {
    if described.is_empty() {
        return Ok(());
    }
    let width = |title: &str, texts: &mut dyn Iterator<Item = usize>| {
        texts.max().unwrap_or(0).max(title.len())
    };
    let module = |reach: &DescribedReach| {
        let found = reach.found.as_ref().ok();
        found.map_or("-".to_owned(), |(module, _)| module.clone())
    };
    let of_names = width(
        "described function",
        &mut described.iter().map(|r| r.function.len()),
    );
    let of_heaps = width("heap", &mut described.iter().map(|r| r.heap.len()));
    let of_modules = width("module", &mut described.iter().map(|r| module(r).len()));
    writeln!(
        out,
        "\n{:<of_names$}  {:<of_heaps$}  {:<of_modules$}  {:<18}  reached by",
        "described function", "heap", "module", "address"
    )?;
    for reach in described {
        let (address, how) = match &reach.found {
            Ok((_, address)) => (format!("{address:#018x}"), "a pad at its entry".to_owned()),
            Err(why) => ("-".to_owned(), format!("not at all: {why}")),
        };
        writeln!(
            out,
            "{:<of_names$}  {:<of_heaps$}  {:<of_modules$}  {address:<18}  {how}",
            reach.function,
            reach.heap,
            module(reach)
        )?;
    }
    Ok(())
}

fn and_pad(has_pad: bool) -> &'static str {
    if has_pad {
        " and a pad at its entry"
    } else {
        ""
    }
}

/// Opens every module's symbols, as a report with a frame in each module would do. Returns each path, the kind of its
/// symbols, and the kind in words.
fn names_from(pid: i32, modules: &[DiagnosedModule]) -> Vec<(String, Source, String)> {
    let images = modules.iter().map(|module| &module.plan.image);
    let mut symbols = Symbolizer::new(TargetRoot::of(pid).search_order());
    symbols.set_modules(images.clone().map(module_file).collect());
    symbols.request(images.map(|image| image.start + 1));
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

fn add_modules(
    out: &mut String,
    modules: &[DiagnosedModule],
    names: &[(String, Source, String)],
) -> std::fmt::Result {
    let name = |m: &DiagnosedModule| m.plan.image.name().to_owned();
    let names_of = |m: &DiagnosedModule| names.iter().find(|(path, ..)| *path == m.plan.image.path);
    let width = modules.iter().map(|m| name(m).len()).max().unwrap_or(0);
    writeln!(
        out,
        "\n{:<width$}  slots  calls seen  not seen  unwind table  names from",
        "module"
    )?;
    for m in modules {
        writeln!(
            out,
            "{:<width$}  {:>5}  {:>10}  {:>8}  {:<12}  {}",
            name(m),
            m.plan.slots.len(),
            m.calls.through_slots,
            m.calls.direct_count() + m.plan.unhookable.len() as u64,
            if m.has_unwind_table { "yes" } else { "NO" },
            names_of(m).map_or("nothing", |found| &found.2),
        )?;
        for (symbol, reason) in &m.plan.unhookable {
            writeln!(out, "{:<width$}  -> {symbol}: {reason}", "")?;
        }
        for (symbol, _, why) in &m.plan.refused_pads {
            writeln!(out, "{:<width$}  -> {symbol}: {why}", "")?;
        }
    }
    if modules.iter().any(|m| !m.has_unwind_table) {
        writeln!(
            out,
            "-> stacks are cut short at modules without an unwind table"
        )?;
    }
    let is_poor = |m: &&DiagnosedModule| {
        let source = names_of(m).map_or(Source::Nothing, |found| found.1);
        !m.plan.slots.is_empty() && source < Source::Symbols
    };
    let poor: Vec<String> = modules.iter().filter(is_poor).map(name).collect();
    if !poor.is_empty() {
        writeln!(
            out,
            "-> for names and lines install the debug symbols of {}",
            poor.join(", ")
        )?;
    }
    Ok(())
}
