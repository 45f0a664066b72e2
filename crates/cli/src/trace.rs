//! The life of an attach after the patching: consume, report, detach.

use crate::attach::Args;
use crate::model::{Counts, Reporter};
use crate::options::{Clock, Stacks};
use crate::output::Output;
use crate::pacing::Pacing;
use crate::ring_owners::RingOwners;
use crate::{session::Session, signals};
use memhook_abi::{Event, Op};
use memhook_ledger::{Ledger, LedgerOptions};
use memhook_stream::{Drain, Sink, TickTime};
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

/// How often the target is looked at: is it still there?
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// When the slots are looked at again: by then a resolver that was under way is through.
const VERIFY_AFTER: Duration = Duration::from_millis(100);

/// Hands events to the ledger, and keeps the sums that sampling needs.
struct ToLedger<'a> {
    ledger: &'a mut Ledger,
    counts: &'a mut Counts,
    now_ns: u64,
}

impl Sink for ToLedger<'_> {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.ledger.begin_ring(ring, tid);
    }
    #[inline]
    fn event(&mut self, event: Event, size_bytes: u64, time_ns: u64) {
        if event.op == Op::Allocation {
            self.counts.count_allocation(size_bytes);
        }
        self.ledger.event(event, size_bytes, time_ns);
    }
    fn end_pass(&mut self) {
        self.ledger.end_pass(self.now_ns);
    }
}

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

/// Time stamp counter and CLOCK_MONOTONIC, read together: what ticks of those clocks mean.
struct ClockPair {
    tsc: u64,
    monotonic_ns: u64,
}

impl ClockPair {
    fn now() -> ClockPair {
        ClockPair {
            tsc: memhook_stream::time_stamp_counter(),
            monotonic_ns: memhook_stream::monotonic_ns(),
        }
    }
}

fn tick_time(clock: Clock, start: &ClockPair, now: Duration) -> TickTime {
    match clock {
        Clock::Coarse => TickTime::Nanoseconds,
        Clock::Attacher => TickTime::Fixed(now.as_nanos() as u64),
        Clock::Monotonic => TickTime::Counter {
            origin: start.monotonic_ns,
            scale: 1.0,
        },
        Clock::Tsc => {
            // The longer the attach, the better the calibration.
            let now = ClockPair::now();
            let ticks = now.tsc.saturating_sub(start.tsc).max(1);
            TickTime::Counter {
                origin: start.tsc,
                scale: (now.monotonic_ns - start.monotonic_ns) as f64 / ticks as f64,
            }
        }
    }
}

/// Consumes until the end is asked for or the target is gone, then detaches and reports.
pub fn run(
    args: &Args,
    pid: i32,
    mut session: Session,
    output: &mut Output,
) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let clocks = ClockPair::now();
    let target = Identity::of(pid);
    let mut ledger = Ledger::new(LedgerOptions {
        track_release_stacks: args.tracing.stacks == Stacks::All,
        ignore_unknown_releases: args.tracing.is_selective(),
    });
    let mut counts = Counts::new(args.tracing.sample_bytes());
    let mut drain = Drain::new();
    let mut owners = RingOwners::new(pid);
    let mut pacing = Pacing::default();
    let mut answered = 0;
    let mut next_report = args.interval;
    let mut next_look = start;
    let mut verified = false;
    let mut gone = false;
    let mut written = true;
    let mut reporter = Reporter::new(pid, args.view.clone());
    loop {
        let now = start.elapsed();
        session.region().set_clock_ns(now.as_nanos() as u64 + 1);
        drain.set_tick_time(tick_time(args.tracing.clock, &clocks, now));
        let stats = drain.pass(
            session.region(),
            &mut ToLedger {
                ledger: &mut ledger,
                counts: &mut counts,
                now_ns: now.as_nanos() as u64,
            },
        );
        if session.follow_modules(&mut answered).is_err() {
            gone = !target.is_alive();
        }
        owners.care(session.region());
        if start + now >= next_look {
            next_look = start + now + LOOK_PAUSE;
            gone = gone || !target.is_alive() || !session.is_in_target();
            if !gone && !verified && now > VERIFY_AFTER {
                verified = true;
                let _ = session.verify_slots();
            }
        }
        let over = args.duration.is_some_and(|d| now >= d);
        if gone || over || signals::stop_requested() {
            break;
        }
        if now >= next_report {
            next_report += args.interval;
            let report = reporter.build(&session, &ledger, &counts, now, false);
            written &= output.write(&report);
        }
        pacing.sleep(stats.events);
    }
    let mut code = 0;
    if !gone {
        code = detach(pid, &session, &target);
    }
    // Calls that were under way at the detach publish within moments, at most one event a thread; one
    // that waits for room in its ring needs a live clock and an emptied ring for that.
    let last = Instant::now();
    let mut quiet_passes = 0;
    while quiet_passes < 3 && last.elapsed() < Duration::from_millis(200) {
        std::thread::sleep(Duration::from_millis(1));
        let now_ns = start.elapsed().as_nanos() as u64;
        session.region().set_clock_ns(now_ns + 1);
        let stats = drain.pass(
            session.region(),
            &mut ToLedger {
                ledger: &mut ledger,
                counts: &mut counts,
                now_ns,
            },
        );
        quiet_passes = if stats.events == 0 {
            quiet_passes + 1
        } else {
            0
        };
    }
    ledger.finish();
    if args.tracing.check_memo || args.verbose {
        let losses = session.region().losses();
        eprintln!(
            "{} backtraces unwound, {} remembered ones checked, {} of those wrong",
            losses.unwound, losses.memo_checked, losses.memo_wrong
        );
        if losses.memo_wrong > 0 {
            code = 3;
        }
    }
    let report = reporter.build(&session, &ledger, &counts, start.elapsed(), true);
    written &= output.write(&report);
    if !written {
        eprintln!("memhook-rs: not every report could be written");
        code = code.max(1);
    }
    Ok(ExitCode::from(code))
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
