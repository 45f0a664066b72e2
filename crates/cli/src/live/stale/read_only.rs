//! `stale --read-only`: traces and protects nothing. It reads the memory twice, and reports blocks
//! with unchanged contents as possibly stale.

use super::{Args, job};
use crate::live::signals;
use crate::output;
use anyhow::bail;
use memhook_access::{Compared, Contents, EarlierBlocks};
use memhook_foreign::visible;
use memhook_heap::{Limits, Method, Request, capture};
use memhook_process::{first_failure, has_ended, preflight_of_search, process_name};
use memhook_report::{
    Progress, ReportStream, StaleEvidence, StaleReport, StaleSite, StaleTotals, Target,
};
use std::collections::HashSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time between two checks of the remaining time.
const PAUSE: Duration = Duration::from_millis(20);
/// Limitation of this evidence, stated in each report.
const BOUND: &str = "contents were compared, which shows neither reads nor writes of the same bytes: at most the \
                     unchanged blocks are stale, and their call stacks are not known";

/// Compares one process with itself.
pub(super) fn run(args: &Args, pid: i32) -> anyhow::Result<ExitCode> {
    if let Some(why) = first_failure(&preflight_of_search(pid)) {
        bail!("{why}");
    }
    signals::catch_stops();
    let name = process_name(pid);
    let begin = Instant::now();
    let before = Look::take(args, pid)?;
    let read = Instant::now();
    if !args.quiet {
        eprintln!(
            "Comparing {pid} ({}) with itself in {:.0} s. Ctrl-C ends the wait",
            visible(&name),
            args.older.as_secs_f64()
        );
    }
    while read.elapsed() < args.older && !signals::stop_requested() {
        if has_ended(pid) {
            bail!("process {pid} has ended before its memory could be compared");
        }
        std::thread::sleep(PAUSE.min(args.older.saturating_sub(read.elapsed())));
    }
    let apart = read.elapsed();
    let after = Look::take(args, pid)?;
    let sums = before.contents.compare(&after.contents, &after.blocks);
    let sum = |of: fn(&Compared) -> u64| sums.iter().map(of).sum();
    let mut notes = before.notes;
    notes.extend(after.notes);
    let mut seen = HashSet::new();
    notes.retain(|note| seen.insert(note.clone()));
    let report = StaleReport {
        schema: StaleReport::SCHEMA.into(),
        is_final: true,
        target: Target {
            pid,
            name,
            exe: after.exe,
        },
        older_s: apart.as_secs_f64(),
        budget: 0.0,
        cost: 0.0,
        watched_s: begin.elapsed().as_secs_f64(),
        evidence: StaleEvidence {
            contents: true,
            ..StaleEvidence::default()
        },
        totals: StaleTotals {
            live_bytes: sum(|one| one.live_bytes),
            live_blocks: sum(|one| one.live_blocks),
            stale_bytes: 0,
            stale_bytes_low: 0,
            stale_bytes_high: sum(|one| one.unchanged_bytes),
        },
        more_sites: sums.len().saturating_sub(args.top) as u64,
        sites: sums
            .iter()
            .take(args.top)
            .map(|one| row(one, &after.blocks))
            .collect(),
        notes,
        history: None,
        depth: 0,
    };
    let style = output::style(None, ReportStream::Out, args.color.color);
    job::write(&report, args.json.json, style);
    Ok(ExitCode::SUCCESS)
}

/// Returns a site with the unchanged bytes as the upper bound on its stale bytes. The lower bound
/// is 0.
fn row(compared: &Compared, blocks: &EarlierBlocks) -> StaleSite {
    let is_in_use = 2 * compared.unchanged_bytes < compared.live_bytes;
    StaleSite {
        kind: blocks.name(compared.site).unwrap_or_default(),
        before_attach: true,
        truncated: false,
        stack: Vec::new(),
        live_bytes: compared.live_bytes,
        live_blocks: compared.live_blocks,
        stale_bytes: 0,
        stale_bytes_low: 0,
        stale_bytes_high: compared.unchanged_bytes,
        state: if is_in_use { "in_use" } else { "unknown" }.into(),
        last_access_s: None,
        unwritten_bytes: 0,
        unaccessed_bytes: 0,
        looks: 0,
        touched: 0,
        stale_block: None,
        reachability: None,
        caught: None,
    }
}

/// Snapshot of the memory at one moment: its blocks and their contents.
struct Look {
    blocks: EarlierBlocks,
    contents: Contents,
    notes: Vec<String>,
    exe: String,
}

impl Look {
    fn take(args: &Args, pid: i32) -> anyhow::Result<Look> {
        let hold = args.hold.max_hold.or(Limits::default().hold);
        let limits = args.read_only.of(Limits {
            hold,
            ..Limits::default()
        });
        let request = Request {
            limits,
            ..Request::default()
        };
        let captured = Progress::during("reading the memory", || capture(pid, request))?;
        let snapshot = &captured.snapshot;
        let meta = &snapshot.meta;
        // Notes about hidden pointers matter only for a search that follows pointers.
        let hides = |note: &&String| meta.unsearched.iter().any(|what| note.contains(what));
        let mut notes: Vec<String> = meta
            .notes
            .iter()
            .filter(|note| !hides(note))
            .cloned()
            .collect();
        notes.insert(notes.len().min(1), BOUND.into());
        let blocks = EarlierBlocks::of(&captured).or_else(|error| {
            let pages = EarlierBlocks::pages_of(pid);
            if !pages.are_pages() {
                return Err(error);
            }
            notes.push(format!(
                "blocks are not known: {error}, so whole pages count instead, whatever they hold"
            ));
            Ok(pages)
        })?;
        if meta.method == Method::Running {
            notes.push(
                "blocks that were allocated or released while it was read may be missing".into(),
            );
        }
        let exe = meta.modules.first();
        Ok(Look {
            contents: Contents::of(snapshot, &blocks),
            blocks,
            exe: exe.map_or_else(String::new, |module| module.path.clone()),
            notes,
        })
    }
}
