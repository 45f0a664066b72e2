//! A process that runs already, judged now, after a time of tracing, or by its growth.

use super::judged::{Measure, bound, evidence, growth_evidence};
use super::options::Args;
use crate::exit_code;
use crate::signals;
use anyhow::bail;
use crossbeam_channel::{Receiver, Select, tick};
use memhook_attach::{Job, Trace, Turn, process_name, refuse};
use memhook_gate::{AllocationSite, Evidence, MOMENTS, Reached, Subject, Survivors, reached};
use memhook_heap::capture;
use std::{
    ops::ControlFlow,
    process::ExitCode,
    time::{Duration, Instant},
};

/// Runs the command.
pub fn run(args: &Args, pid: i32) -> anyhow::Result<ExitCode> {
    let options = &args.running;
    if options.growth && options.duration.is_none() {
        bail!("--growth takes time: add --duration 5m");
    }
    let config = args.tracing.resolve();
    refuse(pid, &config)?;
    let measure = Measure::of(args)?;
    let program = format!(
        "process {pid} ({})",
        memhook_foreign::visible(&process_name(pid))
    );
    let Some(duration) = options.duration else {
        return now(args, measure, pid, program);
    };
    signals::catch_stops();
    let mut trace = Trace::start(pid, config)?;
    let begin = if options.growth {
        options.warmup
    } else {
        Duration::ZERO
    };
    let mut watch = Watch {
        pid,
        next: begin,
        pause: duration / MOMENTS,
        moments: tick(duration / MOMENTS),
        end: begin + duration,
        survivors: options.growth.then(Survivors::default),
        captured: None,
        moment_ns: 0,
        gaps: Vec::new(),
    };
    exit_code::of_trace(trace.run(Some(watch.end), &mut watch), pid);
    let session = trace.session();
    let state = trace.consumer().lock();
    let totals = state.ledger.totals();
    let mut evidence = match &watch.survivors {
        // Growth of an estimate may be chance.
        Some(_) if state.ledger.bounded().is_some() => Evidence {
            subject: Subject::Growth,
            ..Evidence::default()
        },
        Some(survivors) => {
            let grown = survivors.grown(options.confidence);
            growth_evidence(session, &totals, &grown)
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
            evidence(measure.needs_all_sites(), session, &totals, found)
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
    let total = found.leaked();
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
    if total.blocks > 0 {
        evidence.sites.push(AllocationSite {
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
    /// When survivors are counted next.
    next: Duration,
    pause: Duration,
    /// Wakes us for them: the pauses may be shorter than those between turns.
    moments: Receiver<Instant>,
    end: Duration,
    survivors: Option<Survivors>,
    captured: Option<memhook_heap::Captured>,
    /// Before it was.
    moment_ns: u64,
    gaps: Vec<String>,
}

impl Job for Watch {
    fn listen<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.moments);
    }

    fn turn(&mut self, trace: &Trace, turn: &Turn) -> ControlFlow<()> {
        let _ = self.moments.try_recv();
        if turn.gone {
            self.gaps
                .push("the process ended, or executed another program".into());
        } else if let Some(survivors) = &mut self.survivors {
            let now = trace.consumer().elapsed();
            if now >= self.next {
                self.next += self.pause;
                let mut walk = Survivors::walk(now, self.pause);
                let consumer = trace.consumer();
                consumer.in_slices(|state| state.ledger.walk_sites(&mut walk));
                survivors.count_walked(walk);
            }
        }
        ControlFlow::Continue(())
    }

    fn before_detach(&mut self, trace: &Trace) {
        if self.survivors.is_some() {
            return;
        }
        // Before the detach: what is allocated later is in neither.
        self.moment_ns = trace.consumer().moment_ns();
        match capture(self.pid, None) {
            Ok(captured) => self.captured = Some(captured),
            Err(error) => self
                .gaps
                .push(format!("its memory could not be copied: {error}")),
        }
    }

    fn notice(&mut self, text: &str) {
        eprintln!("memhook-rs: {text}");
    }
}
