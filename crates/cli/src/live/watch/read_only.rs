//! `watch --read-only`: traces nothing, and reads the process's memory only when memory is scarce.

use super::Args;
use crate::exit_code;
use crate::live::signals;
use crate::live::watching::watched::Watched;
use crate::remedies::in_words;
use anyhow::bail;
use memhook_foreign::visible;
use memhook_heap::{Limits, Looked, look_at_memory};
use memhook_process::{
    ended_with, first_failure, has_ended, preflight_of_search, resident_counters,
};
use memhook_report::{Death, Kills, RssReport, RssView, WatchMoment, WatchReport};
use memhook_triggers::Alarm;
use std::collections::VecDeque;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time between two readings of the memory in use.
const PAUSE: Duration = Duration::from_millis(5);
/// Interval between two points of the history. The history covers ten minutes.
const HISTORY_PAUSE: Duration = Duration::from_secs(5);
const HISTORY_MOMENTS: usize = 120;
/// The first note of each report.
const READ_ONLY: &str =
    "read only: nothing is traced, so it is not known which call stacks allocated the live blocks";

/// Watches one process.
pub(super) fn run(args: &Args, pid: i32) -> anyhow::Result<ExitCode> {
    if let Some(why) = first_failure(&preflight_of_search(pid)) {
        bail!("{why}");
    }
    let watched = Watched::new(args, 0)?;
    signals::catch_stops();
    let alarm = watched.crowd().alarm_of(pid);
    watched.crowd().begins(pid);
    let own = watched.own_alarms(pid);
    let (mut answered, mut own_answered) = (alarm.given(), 0);
    let kills_before = alarm.kills();
    let mut history = VecDeque::new();
    let begin = Instant::now();
    let mut next_moment = begin;
    eprintln!(
        "Watching {pid}, read only; reports go to {}. Ctrl-C ends it",
        watched.directory().display()
    );
    let is_over = || args.duration.is_some_and(|time| begin.elapsed() >= time);
    while !signals::stop_requested() && !has_ended(pid) && !is_over() {
        if Instant::now() >= next_moment
            && let Some(found) = resident_counters(pid)
        {
            next_moment += HISTORY_PAUSE;
            history.push_back(WatchMoment {
                time_s: begin.elapsed().as_secs_f64(),
                rss_bytes: found.resident(),
                live_bytes: 0,
            });
            if history.len() > HISTORY_MOMENTS {
                history.pop_front();
            }
        }
        let found = alarm.check(&mut answered);
        if let Some(Alarm {
            reason,
            explanation,
            ..
        }) = found.or_else(|| own.check(&mut own_answered))
        {
            eprintln!("memhook-rs: {explanation}");
            let account = match account(args, pid) {
                Ok(account) => Some(account),
                Err(error) => {
                    let why = in_words(&error);
                    eprintln!("memhook-rs: the memory of process {pid} was not examined: {why}");
                    None
                }
            };
            let report = WatchReport::new(pid, reason, explanation, account, None);
            let report = report.with_history(history.iter().copied().collect());
            watched.evidence().keep(&report);
        }
        std::thread::sleep(PAUSE);
    }
    let is_gone = has_ended(pid);
    let kills = Kills {
        count: alarm
            .kills()
            .zip(kills_before)
            .map(|(now, before)| now.saturating_sub(before)),
        processes: watched.killed(pid, alarm.group().as_deref()),
    };
    let death = is_gone.then(|| Death::new(pid, ended_with(pid), &kills));
    let explanation = match &death {
        Some(death) => death.explanation(pid, &kills),
        None => kills.beside_living(pid),
    };
    if death.is_some() {
        eprintln!("memhook-rs: process {pid} {}", visible(&explanation));
    }
    let report = WatchReport::new(pid, "end", explanation, None, None);
    let report = report.with_history(history.into_iter().collect());
    watched.evidence().keep(&report.with_death(death, kills));
    watched.ends(pid, exit_code::DONE);
    Ok(ExitCode::from(watched.finish()))
}

/// Returns the account of resident memory, in which the heap is split into its parts.
fn account(args: &Args, pid: i32) -> Result<RssReport, memhook_heap::Error> {
    let limits = args.read_only.of(Limits::default());
    let Looked { mut account, meta } = look_at_memory(pid, limits, false)?;
    account.notes.insert(0, READ_ONLY.to_owned());
    let view = RssView {
        top: args.view.top,
        pins: false,
    };
    Ok(RssReport::new(pid, &account, meta.as_ref(), view))
}
