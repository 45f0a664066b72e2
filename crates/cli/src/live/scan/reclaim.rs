//! `scan --reclaim`: releases blocks that two scans found unreachable, once or repeatedly.

use super::{Args, PointerRule};
use crate::live::{Reclaiming, signals};
use anyhow::bail;
use memhook_foreign::visible_lines;
use memhook_heap::{Candidates, Types};
use memhook_report::{Document, ReclaimRound, Style, counted, scan_report};
use std::collections::HashSet;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Runs the command.
pub fn run(args: &Args, pid: i32) -> anyhow::Result<()> {
    needs_interior(args)?;
    let verdict = args
        .verdict
        .as_deref()
        .map(super::verdict::read)
        .transpose()?;
    let has_verdict = verdict.is_some();
    let mut reclaiming = Reclaiming::begin(pid, args.request(), verdict)?;
    signals::catch_stops();
    if !has_verdict {
        may_go_on(args, &reclaiming.scan()?)?;
    }
    let mut may_release = args.yes;
    for number in 1.. {
        let pause = args.every.or(args.twice).unwrap_or(Reclaiming::PAUSE);
        if !has_verdict && !sleep(pause) {
            break;
        }
        let found = match reclaiming.is_alive() {
            true => Some(reclaiming.scan()),
            false => None,
        };
        let mut found = match found {
            Some(Ok(found)) => found,
            Some(Err(error)) if reclaiming.is_alive() => return Err(error.into()),
            // Repeated rounds continue until the process ends. A single round succeeds or fails.
            _ if args.every.is_some() => break,
            _ => bail!("nothing is released: process {pid} has ended"),
        };
        may_go_on(args, &found)?;
        if !may_release && !found.chosen.is_empty() {
            show(args, &found);
            may_release = ask(args, &found);
            if may_release {
                // The user may have taken hours to answer.
                found = reclaiming.scan()?;
            }
        }
        if !may_release {
            args.json.print(&ReclaimRound::dry(&found, number))?;
        } else {
            let done = reclaiming.release(&found);
            let round = ReclaimRound::done(&found, number, &done);
            args.json.print(&round)?;
            if let (None, Some(error)) = (args.every, done.failed) {
                return Err(error.into());
            }
        }
        if args.every.is_none() {
            break;
        }
    }
    Ok(())
}

/// Refuses options that make a search too imprecise for a release.
pub(super) fn needs_interior(args: &Args) -> anyhow::Result<()> {
    if matches!(args.pointers, PointerRule::Start) {
        bail!("--reclaim needs --pointers interior: blocks in use may have no other pointers");
    }
    Ok(())
}

/// Returns true if reclaiming may continue after a refusal. A refusal ends a single round. With
/// several rounds, the next round may succeed.
fn may_go_on(args: &Args, found: &Candidates) -> anyhow::Result<()> {
    match &found.refused {
        Some(why) if args.every.is_none() => bail!("nothing is released: {why}"),
        _ => Ok(()),
    }
}

/// Sleeps. Returns `false` if a stop was requested in the meantime.
fn sleep(time: Duration) -> bool {
    let until = Instant::now() + time;
    while !signals::stop_requested() {
        memhook_inject::let_late_threads_go();
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
    false
}

/// Shows the chosen blocks as a leak report on standard error, because the results of the rounds go
/// to standard output.
fn show(args: &Args, found: &Candidates) {
    let snapshot = &found.captured.snapshot;
    let mut types = Types::new(snapshot, &found.captured.images);
    let chosen: HashSet<u32> = found.chosen.iter().copied().collect();
    let leaks = found.scan.leaks.iter().copied();
    let leaks: Vec<_> = leaks.filter(|l| chosen.contains(&l.block)).collect();
    let report = scan_report(snapshot, &found.scan, &leaks, &mut types, args.top);
    let text = report.text(Style::default());
    let _ = std::io::stderr()
        .lock()
        .write_all(visible_lines(&text).as_bytes());
}

/// Asks the user whether to continue. Only a terminal can answer.
fn ask(args: &Args, found: &Candidates) -> bool {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return false;
    }
    let bytes = memhook_report::bytes(found.bytes(&found.chosen));
    let then = if args.every.is_some() {
        ", and from now on what is found without asking again"
    } else {
        ""
    };
    eprint!(
        "\nRelease {bytes} in {}{then}? [y/N] ",
        counted(found.chosen.len() as u64, "block")
    );
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}
