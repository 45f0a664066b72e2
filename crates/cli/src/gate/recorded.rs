//! Judges a recording. Reachability is not checked.

use super::judged::Measure;
use super::options::Args;
use crate::report::{open, sources};
use anyhow::{Context, bail};
use memhook_abi::flags;
use memhook_gate::{NameSource, RecordedOptions, recorded_evidence, recorded_time};
use memhook_recording::Recording;
use memhook_report::recorded::note;
use std::{path::Path, process::ExitCode, time::Duration};

/// Runs the command.
pub fn run(args: &Args, file: &Path) -> anyhow::Result<ExitCode> {
    let recording = open(file)?;
    check(args, &recording)?;
    let mut measure = Measure::of(args, false)?;
    if !args.running.growth && !measure.has_baseline() {
        measure.limit_no_leaks();
    }
    let options = RecordedOptions {
        stretch: stretch(args, &recording)?,
        growth_confidence: args.running.growth.then_some(args.running.confidence),
        are_sites_findings: args.exceptions.has_baseline(),
        needs_all_sites: measure.needs_all_sites(),
        scores: args.limits.scores(),
    };
    let symbols = sources::symbolizer(&recording, &args.names)?;
    let source = NameSource::of_recording(&recording, symbols);
    let evidence = recorded_evidence(&recording, source, &options);
    let mut evidence = evidence.with_context(|| file.display().to_string())?;
    evidence.program = format!("{} ({})", file.display(), note(&recording, "name"));
    Ok(ExitCode::from(measure.conclude(vec![evidence])?))
}

/// Refuses options that work for no recording at all, and options that do not work for this one.
fn check(args: &Args, recording: &Recording) -> anyhow::Result<()> {
    const OTHERS: &str =
        "--fail-on with live, peak, allocations, site or a score, --baseline or --growth";
    if recording.is_summary() {
        bail!("the recording holds sums of intervals: a gate needs events (--record events)");
    }
    let chosen = flags::SIZE_FILTER | flags::SAMPLE;
    if recording.meta().flags & chosen != 0 || recording.sample_bytes().is_some() {
        bail!(
            "the recording leaves allocations out (--sample, --overhead or a size filter): a gate needs all"
        );
    }
    if args.limits.need_accesses() {
        let checked = recording.check_accesses();
        checked.context("--fail-on usage-score")?;
    }
    if args.running.growth {
        return Ok(());
    }
    if let Some(option) = args.limits.of_leaks() {
        bail!(
            "--fail-on {option}: a recording does not show what is reachable; use {OTHERS}, or judge the program itself"
        );
    }
    if !args.exceptions.has_baseline() && !args.limits.limits()?.has_any_but_leaks() {
        bail!(
            "a recording does not show what is reachable, so it cannot be judged by its leaks: give {OTHERS}"
        );
    }
    Ok(())
}

/// Returns the period to judge, as times since the attach.
fn stretch(args: &Args, recording: &Recording) -> anyhow::Result<(Duration, Duration)> {
    let from = if args.running.growth {
        args.running.warmup
    } else {
        Duration::ZERO
    };
    let all = recorded_time(recording);
    if from >= all {
        bail!(
            "--warmup {:.0?}: the recording is not longer than {all:.1?}",
            args.running.warmup
        );
    }
    let to = args.running.duration.map_or(all, |d| all.min(from + d));
    Ok((from, to))
}
