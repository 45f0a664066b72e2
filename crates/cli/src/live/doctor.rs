//! `doctor`: all facts that determine whether, and how well, a process can be traced.

mod machine;
mod problem_report;

use super::diagnosed::{self, only_looked_at};
use super::diagnosis::Diagnosis;
use super::read_only::ReadOnly;
use crate::output::{Json, say};
use crate::target::Target;
use crate::tracing::Allocators;
use crate::{exit_code, log};
use memhook_foreign::{OutputFile, visible_json};
use memhook_process::Check;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
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
    let diagnosis = diagnosed::of(pid, &args.allocators.all(), args.read_only.read_only);
    let (text, modules) = match &diagnosis {
        Ok(diagnosis) => (findings(pid, diagnosis), &diagnosis.modules[..]),
        Err(error) => (crate::remedies::in_words(error.as_ref()) + "\n", &[][..]),
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
    let checks = machine::checks().into_iter().chain(only_looked_at());
    let checks: Vec<Check> = checks.collect();
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
    let is_well = diagnosis.checks.iter().all(|check| check.ok);
    json!({
        "schema": SCHEMA,
        "pid": pid,
        "can_be_traced": is_well,
        "checks": diagnosis.checks.iter().map(check).collect::<Vec<_>>(),
        "commands": diagnosis.commands,
    })
}

/// Returns all findings as text.
fn findings(pid: i32, diagnosis: &Diagnosis) -> String {
    let checks = &diagnosis.checks;
    let mut out = String::new();
    // Writing into a String cannot fail.
    let _ = checks
        .iter()
        .try_for_each(|check| add_check(&mut out, check));
    out += &diagnosis.details;
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
