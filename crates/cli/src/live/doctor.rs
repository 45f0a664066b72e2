//! `doctor`: all facts that determine whether, and how well, a process can be traced.

mod machine;
mod problem_report;
mod touches;

use super::read_only::ReadOnly;
use crate::output::{Json, say};
use crate::target::Target;
use crate::tracing::Allocators;
use crate::{exit_code, log};
use memhook_attach::module_file;
use memhook_attach::{
    DescribedReach, DiagnosedModule, Diagnosis, FoundFunction, Touches, diagnose,
};
use memhook_foreign::{OutputFile, visible_json};
use memhook_process::{Check, TargetRoot};
use memhook_report::recorded::source_text;
use memhook_symbols::{ModuleSymbols, Source, Symbolizer};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::{process::ExitCode, time::Duration};
use tracing_subscriber::filter::LevelFilter;

/// Options of `doctor`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    allocators: Allocators,
    #[command(flatten)]
    read_only: ReadOnly,
    #[command(flatten)]
    json: Json,
    /// Also write what a bug report needs into this file
    ///
    /// The file contains versions, the kernel and its settings, the limits of the process, its modules, everything
    /// that is printed here, and the log. It contains no contents of memory, no arguments and no environment.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// With --report: overwrite the file if it exists
    #[arg(long, requires = "report")]
    force: bool,
}

/// Prints every finding. The exit code tells whether an attach would be refused. Without a process, the findings are
/// about the machine.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.target.is_missing() && !args.json.json && args.report.is_none() {
        return Ok(show_machine());
    }
    let report = match &args.report {
        Some(path) => {
            let file = OutputFile::create(path, args.force)?;
            Some((file, log::start_with_copy(LevelFilter::OFF)?))
        }
        None => {
            log::start(log::Format::Text, LevelFilter::OFF)?;
            None
        }
    };
    let pid = args.target.pid()?;
    let diagnosis = diagnose(pid, &args.allocators.all(), args.read_only.read_only);
    let (text, modules) = match &diagnosis {
        Ok(diagnosis) => (findings(pid, diagnosis), &diagnosis.modules[..]),
        Err(error) => (crate::remedies::in_words(error) + "\n", &[][..]),
    };
    if let (Ok(diagnosis), true) = (&diagnosis, args.json.json) {
        let text = json_of(pid, diagnosis).to_string();
        say!("{}", visible_json(&text));
    } else if diagnosis.is_ok() {
        say!("{}", text.trim_end());
    }
    if let (Some((file, log)), Some(path)) = (report, &args.report) {
        problem_report::write(file, pid, modules, &text, &log.text())?;
        say!("\nWrote {}: {}.", path.display(), problem_report::CONTENTS);
    }
    let can_be_traced = diagnosis?.checks.iter().all(|check| check.ok);
    Ok(ExitCode::from(if can_be_traced {
        exit_code::DONE
    } else {
        exit_code::BAD_INPUT
    }))
}

/// Prints the findings about the machine. The exit code says whether anything can be traced.
fn show_machine() -> ExitCode {
    let checks = machine::checks();
    let mut out = String::new();
    // Writing into a String cannot fail.
    let _ = checks
        .iter()
        .try_for_each(|check| add_check(&mut out, check));
    let (verdict, code) = match checks.iter().all(|check| check.ok) {
        true => ("This machine is ready", exit_code::DONE),
        false => ("Nothing can be traced here", exit_code::BAD_INPUT),
    };
    say!("{out}\n{verdict}. To examine a process: memhook-rs doctor PID");
    ExitCode::from(code)
}

/// Name of the JSON schema.
const SCHEMA: &str = "memhook-rs/doctor/1";

/// Returns the checks, and the actions of each command.
fn json_of(pid: i32, diagnosis: &Diagnosis) -> Value {
    let check = |check: &Check| {
        json!({
            "name": check.name,
            "ok": check.ok,
            "finding": check.finding,
            "remedy": check.remedy,
        })
    };
    let command = |one: &Touches| {
        json!({
            "command": one.command,
            "stops": one.stops,
            "calls": one.calls,
            "mapped_bytes": one.mapped_bytes,
            "writes": one.writes,
        })
    };
    let is_well = diagnosis.checks.iter().all(|check| check.ok);
    let commands = match is_well {
        true => touches::of_commands(pid, diagnosis.touches.as_ref()),
        false => Vec::new(),
    };
    json!({
        "schema": SCHEMA,
        "pid": pid,
        "can_be_traced": is_well,
        "checks": diagnosis.checks.iter().map(check).collect::<Vec<_>>(),
        "commands": commands.iter().map(command).collect::<Vec<_>>(),
    })
}

/// Returns all findings as text.
fn findings(pid: i32, diagnosis: &Diagnosis) -> String {
    let Diagnosis {
        checks,
        modules,
        functions,
        described,
        touches,
    } = diagnosis;
    let mut out = String::new();
    // Writing into a String cannot fail.
    let _ = checks
        .iter()
        .try_for_each(|check| add_check(&mut out, check));
    if !modules.is_empty() {
        let _ = add_modules(&mut out, modules, &names_from(pid, modules));
    }
    let _ = add_functions(&mut out, functions);
    let _ = add_described(&mut out, described);
    if checks.iter().all(|check| check.ok) {
        let _ = touches::add(&mut out, &touches::of_commands(pid, touches.as_ref()));
    }
    let failed = checks.iter().filter(|c| !c.ok).count();
    let notes = checks.iter().filter(|c| c.ok && c.remedy.is_some());
    let _ = match (failed, notes.count()) {
        (0, 0) => writeln!(out, "\nProcess {pid} can be traced."),
        (0, 1) => writeln!(out, "\nProcess {pid} can be traced; see the note above."),
        (0, n) => writeln!(
            out,
            "\nProcess {pid} can be traced; see the {n} notes above."
        ),
        _ => writeln!(out, "\nProcess {pid} cannot be traced."),
    };
    out
}

fn add_check(out: &mut String, check: &Check) -> std::fmt::Result {
    let mark = match (check.ok, &check.remedy) {
        (true, None) => "ok  ",
        (true, Some(_)) => "note",
        (false, _) => "FAIL",
    };
    writeln!(out, "{mark} {:<14} {}", check.name, check.finding)?;
    if let Some(remedy) = &check.remedy {
        writeln!(out, "     {:<14} -> {remedy}", "")?;
    }
    Ok(())
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
