//! `doctor`: everything that decides whether and how well a process can be traced.

use crate::target::Target;
use crate::tracing::Allocators;
use crate::{exit_code, output::say};
use memhook_attach::module_file;
use memhook_attach::{DescribedReach, DiagnosedModule, Diagnosis, FoundFunction, diagnose};
use memhook_process::{Check, TargetRoot};
use memhook_report::recorded::source_text;
use memhook_symbols::{ModuleSymbols, Source, Symbolizer};
use std::{process::ExitCode, time::Duration};

/// Options of `doctor`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    allocators: Allocators,
}

/// Prints every finding; the exit code says whether an attach would refuse.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pid = args.target.pid()?;
    let Diagnosis {
        checks,
        modules,
        functions,
        described,
    } = diagnose(pid, &args.allocators.all())?;
    checks.iter().for_each(print_check);
    if !modules.is_empty() {
        print_modules(&modules, &names_from(pid, &modules));
    }
    print_functions(&functions);
    print_described(&described);
    let failed = checks.iter().filter(|c| !c.ok).count();
    let notes = checks.iter().filter(|c| c.ok && c.remedy.is_some());
    match (failed, notes.count()) {
        (0, 0) => say!("\nProcess {pid} can be traced."),
        (0, n) => say!("\nProcess {pid} can be traced; see the {n} notes above."),
        _ => say!("\nProcess {pid} cannot be traced."),
    }
    Ok(ExitCode::from(if failed == 0 {
        exit_code::DONE
    } else {
        exit_code::BAD_INPUT
    }))
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

/// Each allocator function: where it is, and how it is reached.
fn print_functions(functions: &[FoundFunction]) {
    if functions.is_empty() {
        return;
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
    say!(
        "\n{:<of_names$}  {:<of_modules$}  {:<18}  reached by",
        "allocator function",
        "module",
        "address"
    );
    for (name, found) in names.iter().zip(functions) {
        let reach = match (found.slots, found.has_pad, &found.why_no_pad) {
            (0, true, _) => "a pad at its entry".to_owned(),
            (0, false, None) if found.function.hooked().is_none() => {
                "no need: it calls another of these".to_owned()
            }
            (0, false, Some(why)) => format!("not at all: {why}"),
            (0, false, None) => "not at all: calls of it use no slot".to_owned(),
            (1, has_pad, _) => format!("1 slot{}", and_pad(has_pad)),
            (slots, has_pad, _) => format!("{slots} slots{}", and_pad(has_pad)),
        };
        say!(
            "{name:<of_names$}  {:<of_modules$}  {:#018x}  {reach}",
            found.module,
            found.address
        );
    }
}

/// Each function that the user has described: where it is, and how it would be reached.
fn print_described(described: &[DescribedReach]) {
    if described.is_empty() {
        return;
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
    say!(
        "\n{:<of_names$}  {:<of_heaps$}  {:<of_modules$}  {:<18}  reached by",
        "described function",
        "heap",
        "module",
        "address"
    );
    for reach in described {
        let (address, how) = match &reach.found {
            Ok((_, address)) => (format!("{address:#018x}"), "a pad at its entry".to_owned()),
            Err(why) => ("-".to_owned(), format!("not at all: {why}")),
        };
        say!(
            "{:<of_names$}  {:<of_heaps$}  {:<of_modules$}  {address:<18}  {how}",
            reach.function,
            reach.heap,
            module(reach)
        );
    }
}

fn and_pad(has_pad: bool) -> &'static str {
    if has_pad {
        " and a pad at its entry"
    } else {
        ""
    }
}

/// Opens every module's symbols, as a report with a frame in each would: path, kind, and the kind in words.
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

fn print_modules(modules: &[DiagnosedModule], names: &[(String, Source, String)]) {
    let name = |m: &DiagnosedModule| m.plan.image.name().to_owned();
    let names_of = |m: &DiagnosedModule| names.iter().find(|(path, ..)| *path == m.plan.image.path);
    let width = modules.iter().map(|m| name(m).len()).max().unwrap_or(0);
    say!(
        "\n{:<width$}  slots  calls seen  not seen  unwind table  names from",
        "module"
    );
    for m in modules {
        say!(
            "{:<width$}  {:>5}  {:>10}  {:>8}  {:<12}  {}",
            name(m),
            m.plan.slots.len(),
            m.calls.through_slots,
            m.calls.direct_count() + m.plan.unhookable.len() as u64,
            if m.has_unwind_table { "yes" } else { "NO" },
            names_of(m).map_or("nothing", |found| &found.2),
        );
        for (symbol, reason) in &m.plan.unhookable {
            say!("{:<width$}  -> {symbol}: {reason}", "");
        }
        for (symbol, _, why) in &m.plan.refused_pads {
            say!("{:<width$}  -> {symbol}: {why}", "");
        }
    }
    if modules.iter().any(|m| !m.has_unwind_table) {
        say!("-> stacks are cut short at modules without an unwind table");
    }
    let is_poor = |m: &&DiagnosedModule| {
        let source = names_of(m).map_or(Source::Nothing, |found| found.1);
        !m.plan.slots.is_empty() && source < Source::Symbols
    };
    let poor: Vec<String> = modules.iter().filter(is_poor).map(name).collect();
    if !poor.is_empty() {
        say!(
            "-> for names and lines install the debug symbols of {}",
            poor.join(", ")
        );
    }
}
