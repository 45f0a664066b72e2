//! A process that runs already, judged now, after a time of tracing, or by its growth.

use super::judged::{Measure, bound, evidence, growth_evidence};
use super::options::Args;
use super::survivors::{MOMENTS, Survivors};
use crate::consumer::Consumer;
use crate::reached::{Reached, reached};
use crate::{limits, plan, session::Session, signals, upkeep::Upkeep};
use anyhow::bail;
use memhook_gate::{Evidence, Subject, Sum};
use memhook_heap::capture;
use std::{process::ExitCode, sync::Arc, time::Duration};

/// How often this thread looks around when nobody wakes it.
const TURN: Duration = Duration::from_millis(10);

/// Runs the command.
pub fn run(args: &Args, pid: i32) -> anyhow::Result<ExitCode> {
    let options = &args.running;
    if options.growth && options.duration.is_none() {
        bail!("--growth takes time: add --duration 5m");
    }
    let config = args.tracing.config()?;
    let functions = plan::selected_functions(&args.tracing.functions)?;
    let mut checks = memhook_process::preflight(pid);
    let region_bytes = memhook_abi::region_bytes(config.ring_bytes as usize) as u64;
    checks.extend(limits::checks(pid, region_bytes));
    if let Some(why) = memhook_process::first_failure(&checks) {
        bail!("{why}");
    }
    let measure = Measure::of(args)?;
    let program = format!(
        "process {pid} ({})",
        memhook_foreign::visible(&crate::attach::name_of(pid))
    );
    let Some(duration) = options.duration else {
        return now(args, measure, pid, program);
    };
    signals::catch_stops();
    let mut session = Session::start(pid, config, functions)?;
    let region = Arc::clone(session.shared_region());
    let consumer = Consumer::new(&region, &args.tracing);
    let begin = if options.growth {
        options.warmup
    } else {
        Duration::ZERO
    };
    let mut watch = Watch {
        pid,
        begin,
        pause: duration / MOMENTS,
        end: begin + duration,
        survivors: options.growth.then(Survivors::default),
        captured: None,
        moment_ns: 0,
        gaps: Vec::new(),
    };
    consumer.while_draining(|| watch.follow(&mut session, &consumer));
    let state = consumer.lock();
    let totals = state.ledger.totals();
    let mut evidence = match &watch.survivors {
        Some(survivors) => {
            // Growth of an estimate may be chance.
            if state.ledger.bounded().is_some() {
                Evidence {
                    subject: Subject::Growth,
                    ..Evidence::default()
                }
            } else {
                let grown = survivors.grown(options.confidence);
                growth_evidence(&session, &totals, &grown)
            }
        }
        None => {
            let mut found = match &watch.captured {
                Some(captured) => reached(
                    &captured.snapshot,
                    state.ledger.live_blocks(),
                    Some(watch.moment_ns),
                    false,
                ),
                None => Reached::default(),
            };
            if state.ledger.bounded().is_some() {
                found.forget_unknown();
            }
            evidence(measure.needs_all_sites(), &session, &totals, found)
        }
    };
    evidence.gaps.extend(bound(&state.ledger, &totals));
    drop(state);
    evidence.program = program;
    evidence.gaps.append(&mut watch.gaps);
    if let Some(survivors) = &watch.survivors {
        survivors.complete(&mut evidence);
    }
    finish(args, measure, evidence)
}

fn finish(args: &Args, measure: Measure, evidence: Evidence) -> anyhow::Result<ExitCode> {
    let outcome = measure.conclude(args, vec![evidence], false)?;
    Ok(ExitCode::from(outcome.exit_code(args.error_exitcode)))
}

/// Without tracing: what is unreachable at this moment, of glibc's heap.
fn now(args: &Args, measure: Measure, pid: i32, program: String) -> anyhow::Result<ExitCode> {
    let captured = capture(pid, None)?;
    let found = reached(&captured.snapshot, std::iter::empty(), None, false);
    // Nobody traced it, so a heap that cannot be read is a gap even without a known block.
    let mut evidence = Evidence {
        program,
        reachable: found.reachable,
        gaps: found.gaps,
        notes: vec!["not traced: --duration gives leaks their allocation stacks".into()],
        ..Evidence::default()
    };
    if let Err(error) = memhook_heap::dissect(&captured.snapshot) {
        evidence.gaps.push(error.to_string());
    }
    let mut total = Sum::default();
    for lost in found.lost.values() {
        total.add(lost.direct);
        lost.indirect.values().for_each(|&sum| total.add(sum));
    }
    if total.blocks > 0 {
        evidence.sites.push(memhook_gate::Site {
            kind: "an unknown caller".into(),
            ..Default::default()
        });
        evidence.leaks.push(memhook_gate::Leak {
            direct: total,
            ..Default::default()
        });
    }
    finish(args, measure, evidence)
}

/// One traced process, watched for a time.
struct Watch {
    pid: i32,
    begin: Duration,
    pause: Duration,
    end: Duration,
    survivors: Option<Survivors>,
    captured: Option<memhook_heap::Captured>,
    /// Before it was.
    moment_ns: u64,
    gaps: Vec<String>,
}

impl Watch {
    fn follow(&mut self, session: &mut Session, consumer: &Consumer<'_>) {
        let mut upkeep = Upkeep::new(self.pid);
        let mut next = self.begin;
        loop {
            let now = consumer.elapsed();
            if upkeep.turn(session, consumer).gone {
                self.gaps
                    .push("the process ended, or executed another program".into());
                return;
            }
            if let Some(survivors) = self.survivors.as_mut().filter(|_| now >= next) {
                next += self.pause;
                survivors.count(&consumer.lock().ledger, now, self.pause);
            }
            if now >= self.end || signals::stop_requested() || session.region().abandoned() {
                break;
            }
            std::thread::park_timeout(TURN.min(self.pause));
        }
        if self.survivors.is_none() {
            // Before the detach: what is allocated later is in neither.
            self.moment_ns = consumer.moment_ns();
            match capture(self.pid, None) {
                Ok(captured) => self.captured = Some(captured),
                Err(error) => self
                    .gaps
                    .push(format!("its memory could not be copied: {error}")),
            }
        }
        upkeep.detach(session);
    }
}
