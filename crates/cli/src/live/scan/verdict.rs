//! `scan --verdict`: writes the leaks of a snapshot to a file, for a later `--reclaim`.

use super::Args;
use super::reclaim::needs_interior;
use anyhow::Context;
use memhook_foreign::{OutputFile, check_output};
use memhook_heap::{MarkOptions, Scan, Types, Verdict};
use memhook_report::{Progress, not_searched, scan_report};
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;

/// Name of a file that means standard output or input.
const STANDARD: &str = "-";

/// Writes a verdict, and reports its contents as scans do, unless the verdict itself goes to
/// standard output. Returns true if all of the heap was searched.
pub fn write(args: &Args, pid: i32, file: &Path) -> anyhow::Result<bool> {
    needs_interior(args)?;
    // The file is opened before the process is touched, so that an error does not affect the
    // process.
    let output = if file == Path::new(STANDARD) {
        None
    } else {
        let snapshot = args.from.as_deref().map(Path::new);
        check_output([file], args.force, snapshot)?;
        Some(OutputFile::create(file, args.force)?)
    };
    let captured = args.capture(pid)?;
    let snapshot = &captured.snapshot;
    let options = MarkOptions::to_reclaim();
    let scan = Progress::during("searching the memory", || Scan::of(snapshot, options))?;
    let source = match &args.from {
        Some(file) => file.clone(),
        None => format!("process {pid}"),
    };
    let verdict = Verdict::of(&source, snapshot, &scan)?;
    let Some(output) = output else {
        let written = verdict.write(BufWriter::new(std::io::stdout().lock()));
        written.context("standard output")?;
        return Ok(not_searched(snapshot, &scan.heap).is_empty());
    };
    verdict
        .write(BufWriter::new(output.file()))
        .and_then(|()| output.keep().map(drop))
        .with_context(|| file.display().to_string())?;
    let mut types = Types::new(snapshot, &captured.images);
    let report = scan_report(snapshot, &scan, &scan.leaks, &mut types, args.top);
    args.json.print(&report)?;
    Ok(report.not_searched.is_empty())
}

/// Reads a verdict.
pub fn read(file: &Path) -> anyhow::Result<Verdict> {
    if file == Path::new(STANDARD) {
        return Ok(Verdict::read("standard input", std::io::stdin().lock())?);
    }
    let name = file.display().to_string();
    let open = File::open(file).map_err(|error| {
        anyhow::anyhow!("cannot open the verdict {name}: {error}; scan --verdict FILE writes one")
    })?;
    Ok(Verdict::read(&name, BufReader::new(open))?)
}
