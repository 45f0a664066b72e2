//! The life of an attach after the patching: report, follow modules, detach.

use crate::attach::Args;
use crate::exit_code;
use crate::leaks::LastLook;
use crate::model::Reporter;
use crate::{record, signals};
use memhook_attach::{Consumer, Facts, Recording, Session, Upkeep};
use memhook_report::ReportWriter;
use std::{process::ExitCode, sync::Arc, time::Duration};

/// How often this thread looks around when nobody wakes it.
const TURN: Duration = Duration::from_millis(10);

/// Reports until the end is asked for or the target is gone, then detaches.
pub fn run(
    args: &Args,
    pid: i32,
    mut session: Session,
    output: &mut ReportWriter,
    recording: Option<Recording>,
) -> anyhow::Result<ExitCode> {
    let region = Arc::clone(session.shared_region());
    let consumer = Consumer::new(&region, &args.tracing.resolve());
    let mut facts = recording.map(|recording| recording.begin(&session, &consumer));
    let mut reporter = Reporter::new(pid, args.view.clone(), args.tracing.depth);
    let (mut code, last_look) = consumer.while_draining(|| {
        follow(
            args,
            pid,
            &mut session,
            &consumer,
            &mut reporter,
            output,
            &mut facts,
        )
    });
    region.give_rings_back();
    if args.tracing.check_memo || args.verbose {
        let losses = region.losses();
        eprintln!(
            "{} backtraces unwound, {} remembered ones checked, {} of those wrong",
            losses.unwound, losses.memo_checked, losses.memo_wrong
        );
        if losses.memo_wrong > 0 {
            code = 3;
        }
    }
    if region.abandoned() {
        // As after Ctrl-Z: events are missing from then on, so the trace ends there.
        eprintln!("memhook-rs: process {pid} waited for us too long and went on untraced");
        code = code.max(1);
    }
    reporter.begin(&session, &consumer, true);
    let mut report = loop {
        if let Some(report) = reporter.poll(&session, Duration::from_millis(50)) {
            break Some(report);
        }
        // Again Ctrl-C: whoever waits for names no longer wants them.
        if signals::stops() > 1 {
            break reporter.give_up_names(&session);
        }
    };
    if let (Some(report), true) = (&mut report, args.leaks) {
        let look = last_look.unwrap_or_else(LastLook::too_late);
        report.leaks = Some(look.leaks(&session, &consumer, &mut reporter, args.view.top));
    }
    let shown = shows_reports(args, &facts);
    let coverage = report.as_ref().and_then(record::coverage);
    if let Some(recorded) = facts.and_then(|mut f| f.finish(&session, &consumer, coverage))
        && !record::tell(&recorded, args.quiet)
    {
        code = code.max(2);
    }
    if let Some(report) = report.filter(|_| shown) {
        output.write(&report);
    }
    if let Err(error) = output.finish() {
        eprintln!("memhook-rs: not every report could be written: {error}");
        code = code.max(2);
    }
    Ok(ExitCode::from(code))
}

/// With --quiet and a recording, no reports are printed.
fn shows_reports(args: &Args, facts: &Option<Facts>) -> bool {
    facts.is_none() || !args.quiet
}

/// Everything between attach and detach but the draining; returns the exit code, and the memory at the
/// end if leaks are asked for.
fn follow(
    args: &Args,
    pid: i32,
    session: &mut Session,
    consumer: &Consumer,
    reporter: &mut Reporter,
    output: &mut ReportWriter,
    facts: &mut Option<Facts>,
) -> (u8, Option<LastLook>) {
    let mut upkeep = Upkeep::new(pid);
    let mut next_report = args.interval;
    loop {
        let now = consumer.elapsed();
        let turn = upkeep.turn(session, consumer);
        let ended = facts
            .as_mut()
            .and_then(|facts| facts.follow(session, consumer, turn.modules_changed));
        for notice in turn.notice.iter().chain(&ended) {
            eprintln!("memhook-rs: {notice}");
        }
        if turn.gone {
            return (0, None);
        }
        let over = args.duration.is_some_and(|d| now >= d) || session.region().abandoned();
        // A recording goes on when nobody reads the reports.
        let unheard = output.is_closed() && facts.is_none();
        if over || signals::stop_requested() || unheard {
            let look = args.leaks.then(|| LastLook::take(pid, consumer));
            return (exit_code::detached(upkeep.detach(session), pid), look);
        }
        if now >= next_report && shows_reports(args, facts) {
            next_report = now.saturating_add(args.interval);
            reporter.begin(session, consumer, false);
        }
        // Names may take their time; a dlopen of the target does not wait for them.
        if let Some(report) = reporter.poll(session, Duration::ZERO) {
            output.write(&report);
        }
        std::thread::park_timeout(TURN);
    }
}
