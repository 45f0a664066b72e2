//! The life of an attach after the patching: report, follow modules, detach.

use crate::attach::Args;
use crate::consumer::Consumer;
use crate::model::Reporter;
use crate::output::Output;
use crate::record::{Facts, Recording};
use crate::ring_owners::RingOwners;
use crate::{session::Session, signals};
use std::{
    process::ExitCode,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

/// How often this thread looks around when nobody wakes it.
const TURN: Duration = Duration::from_millis(10);
/// How often the target is looked at: is it still there?
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// When the slots are looked at again: by then a resolver that was under way is through.
const VERIFY_AFTER: Duration = Duration::from_millis(100);

/// A process, told from later ones with the same pid by its start time.
struct Identity {
    pid: i32,
    started: Option<u64>,
}

impl Identity {
    fn of(pid: i32) -> Identity {
        Identity {
            pid,
            started: memhook_process::thread_start_time(pid, pid),
        }
    }

    fn is_alive(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        let zombie = stat.is_ok_and(|s| s[s.rfind(')').unwrap_or(0)..].starts_with(") Z"));
        !zombie
            && self.started.is_some()
            && memhook_process::thread_start_time(self.pid, self.pid) == self.started
    }
}

/// Reports until the end is asked for or the target is gone, then detaches.
pub fn run(
    args: &Args,
    pid: i32,
    mut session: Session,
    output: &mut Output,
    recording: Option<Recording>,
) -> anyhow::Result<ExitCode> {
    let region = Arc::clone(session.shared_region());
    let consumer = Consumer::new(&region, &args.tracing);
    let mut facts = recording.map(|recording| recording.begin(&session, &consumer));
    let mut reporter = Reporter::new(pid, args.view.clone(), args.tracing.depth);
    let mut code = std::thread::scope(|scope| {
        let this = std::thread::current();
        let consumer = &consumer;
        scope.spawn(move || consumer.drain(&this));
        let watchdog = scope.spawn(|| consumer.watch());
        let code = follow(
            args,
            pid,
            &mut session,
            consumer,
            &mut reporter,
            output,
            &mut facts,
        );
        consumer.finish();
        watchdog.thread().unpark();
        code
    });
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
    let report = loop {
        if let Some(report) = reporter.poll(&session, Duration::from_millis(50)) {
            break Some(report);
        }
        // Again Ctrl-C: whoever waits for names no longer wants them.
        if signals::stops() > 1 {
            break reporter.give_up_names(&session);
        }
    };
    let shown = shows_reports(args, &facts);
    if let Some(facts) = &mut facts
        && !facts.finish(&session, &consumer, report.as_ref())
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

/// Who records and wants quiet wants the file alone.
fn shows_reports(args: &Args, facts: &Option<Facts>) -> bool {
    facts.is_none() || !args.quiet
}

/// Everything between attach and detach but the draining; returns the exit code.
fn follow(
    args: &Args,
    pid: i32,
    session: &mut Session,
    consumer: &Consumer,
    reporter: &mut Reporter,
    output: &mut Output,
    facts: &mut Option<Facts>,
) -> u8 {
    let target = Identity::of(pid);
    let mut owners = RingOwners::new(pid);
    let mut next_report = args.interval;
    let mut next_look = Duration::ZERO;
    let mut verified = false;
    loop {
        let now = consumer.elapsed();
        let mut answered = consumer.answered.load(Relaxed);
        let mut gone = session.follow_modules(&mut answered).is_err() && !target.is_alive();
        let modules_changed = consumer.answered.swap(answered, Relaxed) != answered;
        if let Some(facts) = facts {
            facts.follow(session, consumer, modules_changed);
        }
        owners.care(session.region());
        if now >= next_look {
            next_look = now + LOOK_PAUSE;
            // An execve takes the hook away without ending the process.
            gone = gone || !target.is_alive() || !session.is_in_target();
            if !gone && !verified && now > VERIFY_AFTER {
                verified = true;
                let _ = session.verify_slots();
            }
        }
        if gone {
            return 0;
        }
        let over = args.duration.is_some_and(|d| now >= d) || session.region().abandoned();
        // A recording goes on when nobody reads the reports.
        let unheard = output.is_closed() && facts.is_none();
        if over || signals::stop_requested() || unheard {
            return detach(pid, session, &target);
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

/// Returns the exit code.
fn detach(pid: i32, session: &Session, target: &Identity) -> u8 {
    match session.detach() {
        Ok(0) => 0,
        Ok(left) => {
            eprintln!(
                "memhook-rs: {left} slots of process {pid} could not be restored; they pass through"
            );
            3
        }
        Err(_) if !target.is_alive() || !session.is_in_target() => 0,
        Err(error) => {
            eprintln!("memhook-rs: {error:#}; run: memhook-rs detach {pid}");
            3
        }
    }
}
