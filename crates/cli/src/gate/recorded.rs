//! A recording, judged by what it can tell: everything but what is reachable.

use super::judged::{Measure, growth_named};
use super::names::Names;
use super::options::Args;
use super::survivors::{MOMENTS, Survivors};
use crate::report::{note, open, sources};
use anyhow::{Context, bail};
use memhook_abi::flags;
use memhook_gate::{Ending, Evidence, Leak, Subject, Sum};
use memhook_ledger::{LedgerOptions, Totals};
use memhook_recording::{End, Recording};
use std::{path::Path, process::ExitCode, time::Duration};

/// Runs the command.
pub fn run(args: &Args, file: &Path) -> anyhow::Result<ExitCode> {
    let recording = open(file)?;
    check(args, &recording)?;
    let growth = args.running.growth;
    let mut measure = Measure::of(args)?;
    if !growth && !measure.has_baseline() {
        measure.limit_no_leaks();
    }
    let (from, to) = stretch(args, &recording)?;
    let pause = to.saturating_sub(from) / MOMENTS;
    let mut survivors = Survivors::default();
    let (mut next, mut end) = (from, None);
    let options = LedgerOptions {
        track_release_stacks: false,
        ignore_unknown_releases: false,
        ..LedgerOptions::default()
    };
    let replay = recording.replay_with(options, &mut |replay| {
        let now = Duration::from_nanos(replay.now_ns());
        // Several at once where nothing happened meanwhile.
        while growth && next <= now.min(to) {
            survivors.count(replay.ledger(), next, pause);
            next += pause.max(Duration::from_millis(1));
        }
        if now >= to && end.is_none() && to < recorded(&recording) {
            end = Some((replay.totals(), live(replay.ledger())));
        }
    });
    let replay = replay.with_context(|| file.display().to_string())?;
    let (totals, live) = end.unwrap_or_else(|| (replay.totals(), live(replay.ledger())));
    let symbols = sources::symbolizer(&recording, &args.sources)?;
    let mut evidence = match growth {
        true => {
            let grown = survivors.grown(args.running.confidence);
            let names = Names::recorded(&recording, symbols, grown.iter().map(|g| g.0));
            let mut evidence = growth_named(names, &totals, &grown);
            survivors.complete(&mut evidence);
            evidence
        }
        false => {
            let with_sites = args.exceptions.has_baseline() || measure.needs_all_sites();
            let stacks = if with_sites { live.as_slice() } else { &[] };
            let names = Names::recorded(&recording, symbols, stacks.iter().map(|s| s.0));
            live_evidence(names, &totals, stacks, args.exceptions.has_baseline())
        }
    };
    evidence.program = format!("{} ({})", file.display(), note(&recording, "name"));
    evidence.ending = Ending::Recorded;
    evidence.gaps.extend(gaps(&recording));
    let without = "what is reachable is not recorded, so leaks are not looked for";
    evidence.notes.push(without.into());
    if totals.unknown_releases > 0 {
        let before = "blocks from before the recording are not counted";
        evidence.notes.push(before.into());
    }
    let outcome = measure.conclude(args, vec![evidence], false)?;
    Ok(ExitCode::from(outcome.exit_code(args.error_exitcode)))
}

/// Questions that a recording cannot answer, or this one.
fn check(args: &Args, recording: &Recording) -> anyhow::Result<()> {
    const OTHERS: &str =
        "--max-live, --max-peak, --max-allocations, --max-site, --baseline or --growth";
    if recording.is_summary() {
        bail!("the recording holds sums of intervals: a gate needs events (--record events)");
    }
    let chosen = flags::SIZE_FILTER | flags::SAMPLE;
    if recording.meta().flags & chosen != 0 || recording.sample_bytes().is_some() {
        bail!("the recording leaves allocations out (--sample or a size filter): a gate needs all");
    }
    if args.running.growth {
        return Ok(());
    }
    if let Some(option) = args.limits.of_leaks() {
        bail!(
            "{option}: a recording does not tell what is reachable; use {OTHERS}, or judge the program itself"
        );
    }
    if !args.exceptions.has_baseline() && !args.limits.limits()?.has_any_but_leaks() {
        bail!(
            "a recording does not tell what is reachable, so it cannot be judged by its leaks: give {OTHERS}"
        );
    }
    Ok(())
}

/// The part to be judged, as times since the attach.
fn stretch(args: &Args, recording: &Recording) -> anyhow::Result<(Duration, Duration)> {
    let from = match args.running.growth {
        true => args.running.warmup,
        false => Duration::ZERO,
    };
    let all = recorded(recording);
    if from >= all {
        bail!(
            "--warmup {:.0?}: the recording is not longer than {all:.1?}",
            args.running.warmup
        );
    }
    let to = args.running.duration.map_or(all, |d| all.min(from + d));
    Ok((from, to))
}

fn recorded(recording: &Recording) -> Duration {
    Duration::from_nanos(recording.span_ns().1)
}

/// Live blocks by backtrace.
fn live(ledger: &memhook_ledger::Ledger) -> Vec<(u32, Sum)> {
    let sites = ledger.live_by(None).into_iter();
    let sum = |blocks, bytes| Sum { blocks, bytes };
    sites.map(|s| (s.stack, sum(s.blocks, s.bytes))).collect()
}

fn live_evidence(
    mut names: Names<'_>,
    totals: &Totals,
    live: &[(u32, Sum)],
    as_findings: bool,
) -> Evidence {
    let mut rest = Sum {
        blocks: totals.live_blocks,
        bytes: totals.live_bytes,
    };
    let numbered: Vec<(usize, Sum)> = live
        .iter()
        .map(|&(stack, sum)| (names.site(Some(stack)), sum))
        .collect();
    let mut sites = names.into_sites();
    for (site, sum) in numbered {
        sites[site].live.add(sum);
    }
    let mut findings = Vec::new();
    if as_findings {
        for (site, of_site) in sites.iter().enumerate() {
            rest.blocks = rest.blocks.saturating_sub(of_site.live.blocks);
            rest.bytes = rest.bytes.saturating_sub(of_site.live.bytes);
            findings.push(Leak {
                site,
                direct: of_site.live,
                ..Leak::default()
            });
        }
    }
    Evidence {
        subject: Subject::Live,
        sites,
        leaks: findings,
        reachable: rest,
        peak_bytes: totals.peak_live_bytes,
        allocations: totals.allocations,
        ..Evidence::default()
    }
}

/// What the recording misses.
fn gaps(recording: &Recording) -> Vec<String> {
    let losses = recording.losses();
    let mut gaps = Vec::new();
    let lost = losses.dropped + losses.ringless;
    if lost > 0 {
        gaps.push(format!("{lost} events were lost"));
    }
    match recording.end() {
        Some(End::Finished) => {}
        Some(end) => gaps.push(format!("the recording is not the whole run: {end}")),
        None => gaps.push("the end of the recording is missing".into()),
    }
    if recording.part() > 0 {
        gaps.push("parts of the recording before this one are missing".into());
    }
    gaps
}
