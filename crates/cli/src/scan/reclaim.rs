//! `scan --reclaim`: releases what two scans found unreachable, once or again and again.

use super::release::release;
use super::round::{Round, SCHEMA};
use super::{Args, PointerRule, Scan};
use crate::signals;
use anyhow::{Context, bail};
use memhook_attach::{Claim, claim};
use memhook_foreign::visible_lines;
use memhook_heap::{
    Captured, Fingerprints, MarkOptions, Types, bytes_text, fingerprints, reclaimable, refusal,
    report, text,
};
use memhook_inject::kernel_places;
use memhook_process::filter_may_kill;
use std::collections::HashSet;
use std::fs::File;
use std::io::{IsTerminal, Read, Seek, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Between the two scans where nothing else is asked for.
const PAUSE: Duration = Duration::from_secs(2);

/// The process, for as long as it is the same one, and nobody else's: two that reclaim would release
/// the same blocks, and an attached memhook-rs would not see the releases.
struct Process {
    stat: File,
    _claim: Claim,
}

impl Process {
    fn of(pid: i32) -> anyhow::Result<Process> {
        let stat = File::open(format!("/proc/{pid}/stat"));
        let stat = stat.with_context(|| format!("no process {pid}"))?;
        Ok(Process {
            _claim: claim(pid)?,
            stat,
        })
    }

    /// Whether the process lives. The file is bound to the process, not to its number.
    fn is_alive(&mut self) -> bool {
        let mut bytes = Vec::new();
        let read = self.stat.rewind();
        let read = read.and_then(|()| self.stat.read_to_end(&mut bytes));
        // The name in it may be no text.
        let text = String::from_utf8_lossy(&bytes);
        let state = text.rsplit(')').next().unwrap_or("").trim_start();
        read.is_ok() && !state.starts_with(['Z', 'X'])
    }
}

/// A scan, and what of it may be released.
struct Looked {
    captured: Captured,
    /// The process's memory, opened before it was copied: it ends with an execve.
    memory: File,
    /// For how long one thread was held at most to ask what the kernel uses for it.
    asked: Duration,
    scan: Scan,
    chosen: Vec<u32>,
    /// Why nothing is chosen.
    refused: Option<String>,
}

impl Looked {
    fn now(args: &Args, before: Option<&Fingerprints>) -> anyhow::Result<Looked> {
        let memory = File::open(format!("/proc/{}/mem", args.pid.unwrap_or(0)))?;
        let captured = args.capture()?;
        let options = MarkOptions {
            // Packed structures (`struct epoll_event` is one) hold pointers at odd offsets.
            unaligned: true,
            ..args.mark_options()
        };
        let scan = Scan::of(&captured.snapshot, options)?;
        let refused = refusal(&captured.snapshot, &scan.heap);
        let mut asked = Duration::ZERO;
        let chosen = match (before, &refused) {
            (Some(before), None) => {
                let places = places(&captured, &scan, &mut asked);
                reclaimable(
                    &captured.snapshot,
                    &scan.heap,
                    options,
                    &scan.leaks,
                    before,
                    places.as_deref(),
                )
            }
            _ => Vec::new(),
        };
        Ok(Looked {
            captured,
            memory,
            asked,
            scan,
            chosen,
            refused,
        })
    }

    fn fingerprints(&self) -> Fingerprints {
        let blocks = &self.scan.heap.blocks;
        fingerprints(&self.captured.snapshot, blocks, &self.scan.leaks)
    }

    fn bytes(&self, blocks: &[u32]) -> u64 {
        let blocks = blocks.iter();
        blocks.map(|&b| self.scan.heap.blocks.get(b).bytes).sum()
    }

    fn round(&self, pid: i32, number: u64) -> Round {
        let meta = &self.captured.snapshot.meta;
        Round {
            schema: SCHEMA,
            pid,
            round: number,
            dry_run: true,
            released_bytes: self.bytes(&self.chosen),
            released_blocks: self.chosen.len() as u64,
            kept_blocks: (self.scan.leaks.len() - self.chosen.len()) as u64,
            holds: 0,
            longest_hold_ms: self.asked.as_secs_f64() * 1e3,
            snapshot_method: meta.method.name(),
            snapshot_held_ms: meta.held_ms,
            refused: self.refused.clone(),
        }
    }

    /// What was chosen, as a leak report on standard error: standard output has the rounds.
    fn show(&self, args: &Args) {
        let snapshot = &self.captured.snapshot;
        let mut types = Types::new(snapshot, &self.captured.images);
        let chosen: HashSet<u32> = self.chosen.iter().copied().collect();
        let leaks = self.scan.leaks.iter().copied();
        let leaks: Vec<_> = leaks.filter(|l| chosen.contains(&l.block)).collect();
        let Scan { heap, marked, .. } = &self.scan;
        let report = report(snapshot, heap, marked, &leaks, &mut types, args.top);
        let _ = std::io::stderr()
            .lock()
            .write_all(visible_lines(&text(&report)).as_bytes());
    }
}

/// Memory that the kernel uses for the threads of the process; `None`: unknown, so that nothing can be released.
/// After the scan: who gives some to the kernel later has its address until then, so that it was found
/// reachable.
fn places(captured: &Captured, scan: &Scan, asked: &mut Duration) -> Option<Vec<(u64, u64)>> {
    if scan.leaks.is_empty() {
        return Some(Vec::new());
    }
    let (places, longest) = kernel_places(captured.snapshot.meta.pid).ok()?;
    *asked = longest;
    Some(places)
}

/// Whether to go on. Only a terminal can answer.
fn ask(args: &Args, looked: &Looked) -> bool {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return false;
    }
    let bytes = bytes_text(looked.bytes(&looked.chosen));
    let then = match args.every {
        Some(_) => ", and from now on what is found without asking again",
        None => "",
    };
    eprint!(
        "\nRelease {bytes} in {} blocks{then}? [y/N] ",
        looked.chosen.len()
    );
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// Sleeps; `false` if told to stop meanwhile.
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

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pid = args.pid.unwrap_or(0);
    if matches!(args.pointers, PointerRule::Start) {
        bail!("--reclaim needs --pointers interior: blocks in use may have no other pointers");
    }
    if let Some(why) = memhook_process::first_failure(&memhook_process::preflight(pid)) {
        bail!("{why}");
    }
    if filter_may_kill(pid) {
        bail!("nothing is released: a seccomp filter may end process {pid} for what free() needs");
    }
    let mut process = Process::of(pid)?;
    signals::catch_stops();
    let first = Looked::now(args, None)?;
    if let (Some(why), None) = (&first.refused, args.every) {
        bail!("nothing is released: {why}");
    }
    let mut before = first.fingerprints();
    drop(first);
    let mut may_release = args.yes;
    for number in 1.. {
        if !sleep(args.every.or(args.twice).unwrap_or(PAUSE)) || !process.is_alive() {
            break;
        }
        let mut looked = match Looked::now(args, Some(&before)) {
            Ok(looked) => looked,
            Err(_) if !process.is_alive() => break,
            Err(error) => return Err(error),
        };
        if let (Some(why), None) = (&looked.refused, args.every) {
            bail!("nothing is released: {why}");
        }
        before = looked.fingerprints();
        let mut round = looked.round(pid, number);
        if !may_release && !looked.chosen.is_empty() {
            looked.show(args);
            may_release = ask(args, &looked);
            if may_release {
                // The answer may have taken hours.
                looked = Looked::now(args, Some(&before))?;
                before = looked.fingerprints();
                round = looked.round(pid, number);
            }
        }
        let mut failed = None;
        if may_release {
            let done = release(
                pid,
                &looked.captured,
                &looked.memory,
                &looked.scan.heap,
                &looked.chosen,
            );
            round.dry_run = false;
            round.released_blocks = done.released.len() as u64;
            round.released_bytes = looked.bytes(&done.released);
            round.holds = done.holds;
            round.longest_hold_ms = done.longest.max(looked.asked).as_secs_f64() * 1e3;
            for &block in &done.released {
                // The address may be given out and leaked again before the next scan.
                before.remove(looked.scan.heap.blocks.get(block).address);
            }
            round.refused = round
                .refused
                .or(done.failed.as_ref().map(|e| format!("{e:#}")));
            failed = done.failed;
        }
        super::print(args, &round, Round::text)?;
        match (args.every, failed) {
            (None, Some(error)) => return Err(error),
            (None, None) => break,
            (Some(_), _) => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}
