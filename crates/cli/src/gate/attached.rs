//! A process that runs already, judged now, after a time of tracing, or by its growth.

use super::judged::Measure;
use super::options::Args;
use super::reached::{Reached, reached};
use crate::consumer::Consumer;
use crate::ring_owners::RingOwners;
use crate::{limits, plan, session::Session, signals};
use anyhow::bail;
use memhook_gate::growth::{Growth, LEAST_MOMENTS, growing};
use memhook_gate::{Ending, Evidence, Sum};
use memhook_heap::{Method, capture};
use std::{
    collections::HashMap,
    process::ExitCode,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

/// How often this thread looks around when nobody wakes it.
const TURN: Duration = Duration::from_millis(10);
/// When lazily bound slots are looked at again (see `trace.rs`).
const VERIFY_AFTER: Duration = Duration::from_millis(100);
/// Moments at which survivors are counted, and how many of the pauses between them make a block old.
const MOMENTS: u32 = 60;
const AGE_IN_PAUSES: u32 = 4;

/// Runs the command.
pub fn run(args: &Args, pid: i32) -> anyhow::Result<ExitCode> {
    if args.tracing.is_selective() {
        bail!("a gate needs every allocation: leave out --sample and the size filters");
    }
    let options = &args.running;
    if !(0.5..1.0).contains(&options.confidence) {
        bail!(
            "--confidence {}: from 0.5 to below 1 is possible; 0.99 is usual",
            options.confidence
        );
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
    let program = format!("process {pid} ({})", crate::attach::name_of(pid));
    let Some(duration) = options.duration else {
        return now(args, measure, pid, program);
    };
    signals::install();
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
        gaps: Vec::new(),
    };
    std::thread::scope(|scope| {
        let (this, consumer) = (std::thread::current(), &consumer);
        scope.spawn(move || consumer.drain(&this));
        let watchdog = scope.spawn(|| consumer.watch());
        watch.follow(&mut session, consumer);
        consumer.finish();
        watchdog.thread().unpark();
    });
    let state = consumer.lock();
    let totals = state.ledger.totals();
    let mut evidence = match &watch.survivors {
        Some(survivors) => {
            let grown = survivors.grown(options.confidence);
            Measure::growth_evidence(program, &session, &totals, &grown)
        }
        None => {
            let found = match &watch.captured {
                Some(captured) => reached(&captured.snapshot, state.ledger.live_blocks()),
                None => Reached::default(),
            };
            measure.evidence(program, Ending::Running, &session, &totals, found)
        }
    };
    drop(state);
    evidence.gaps.append(&mut watch.gaps);
    if let Some(survivors) = &watch.survivors {
        let moments = survivors.moments;
        evidence
            .notes
            .push(format!("survivors counted at {moments} moments"));
        if moments < LEAST_MOMENTS {
            evidence.gaps.push(format!(
                "survivors were counted at {moments} moments only, {LEAST_MOMENTS} are needed"
            ));
        }
    }
    finish(args, measure, evidence)
}

fn finish(args: &Args, measure: Measure, evidence: Evidence) -> anyhow::Result<ExitCode> {
    let verdict = measure.conclude(args, evidence, false)?;
    Ok(ExitCode::from(verdict.exit_code(args.error_exitcode)))
}

/// Without tracing: what is unreachable at this moment, of glibc's heap.
fn now(args: &Args, measure: Measure, pid: i32, program: String) -> anyhow::Result<ExitCode> {
    let captured = capture(pid, Method::Precopy)?;
    let found = reached(&captured.snapshot, std::iter::empty());
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
    gaps: Vec<String>,
}

impl Watch {
    fn follow(&mut self, session: &mut Session, consumer: &Consumer<'_>) {
        let mut owners = RingOwners::new(self.pid);
        let mut next = self.begin;
        let mut verified = false;
        loop {
            let now = consumer.elapsed();
            let mut answered = consumer.answered.load(Relaxed);
            let _ = session.follow_modules(&mut answered);
            consumer.answered.store(answered, Relaxed);
            owners.care(session.region());
            if !session.is_in_target() {
                self.gaps
                    .push("the process ended, or executed another program".into());
                return;
            }
            if !verified && now > VERIFY_AFTER {
                verified = true;
                let _ = session.verify_slots();
            }
            if let Some(survivors) = self.survivors.as_mut().filter(|_| now >= next) {
                next += self.pause;
                let age = self.pause * AGE_IN_PAUSES;
                let before = now.saturating_sub(age).as_nanos() as u64;
                survivors.count(consumer, before);
            }
            if now >= self.end || signals::stop_requested() || session.region().abandoned() {
                break;
            }
            std::thread::park_timeout(TURN.min(self.pause));
        }
        if self.survivors.is_none() {
            // Before the detach: what is allocated later is in neither.
            match capture(self.pid, Method::Precopy) {
                Ok(captured) => self.captured = Some(captured),
                Err(error) => self
                    .gaps
                    .push(format!("its memory could not be copied: {error}")),
            }
        }
        match session.detach() {
            Ok(0) => {}
            Ok(left) => eprintln!(
                "memhook-rs: {left} slots of process {} could not be restored; they pass through",
                self.pid
            ),
            Err(error) => eprintln!("memhook-rs: {error:#}; run: memhook-rs detach {}", self.pid),
        }
    }
}

/// Old blocks of each backtrace at each moment.
#[derive(Default)]
struct Survivors {
    moments: usize,
    by_stack: HashMap<u32, Vec<Sum>>,
}

impl Survivors {
    fn count(&mut self, consumer: &Consumer<'_>, before_ns: u64) {
        let old = consumer.lock().ledger.live_by(Some(before_ns));
        for site in old {
            let series = self.by_stack.entry(site.stack).or_default();
            series.resize(self.moments, Sum::default());
            series.push(Sum {
                blocks: site.blocks,
                bytes: site.bytes,
            });
        }
        self.moments += 1;
        for series in self.by_stack.values_mut() {
            series.resize(self.moments, Sum::default());
        }
    }

    /// Backtraces that grow, and by how much since the first moment.
    fn grown(&self, confidence: f64) -> Vec<(u32, Growth, Sum)> {
        let all: Vec<(&u32, &Vec<Sum>)> = self.by_stack.iter().collect();
        let series: Vec<Vec<f64>> = all
            .iter()
            .map(|(_, sums)| sums.iter().map(|sum| sum.blocks as f64).collect())
            .collect();
        let growth = growing(&series, confidence);
        let grown = all
            .iter()
            .zip(growth)
            .filter_map(|((stack, sums), growth)| {
                let (first, last) = (sums.first()?, sums.last()?);
                let more = Sum {
                    blocks: last.blocks.saturating_sub(first.blocks),
                    bytes: last.bytes.saturating_sub(first.bytes),
                };
                Some((**stack, growth?, more))
            });
        grown.collect()
    }
}
