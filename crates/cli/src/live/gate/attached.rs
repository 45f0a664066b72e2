//! Judges a running process: immediately, after tracing it for some time, or by its growth.

use super::scored::ScoreRecording;
use super::{add_heaps, evidence, reached_of_heaps};
use crate::gate::{Args, Measure};
use crate::live::last_look::last_look;
use crate::live::{ending, signals};
use crate::options::HoldLimit;
use anyhow::bail;
use crossbeam_channel::{Receiver, Select, tick};
use memhook_attach::{DEPTH_TO_ROOTS, Job, Trace, Turn, refuse};
use memhook_checkup::LastLook;
use memhook_gate::{
    Evidence, MOMENTS, NameSource, Reached, Search, Subject, Survivors, bound, growth_evidence,
};
use memhook_heap::capture_settled;
use memhook_ledger::Totals;
use memhook_process::process_name;
use memhook_symbols::RunNames;
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
    args.tracing.refuse_sampled_accesses("gate")?;
    let config = args
        .tracing
        .with_depth(DEPTH_TO_ROOTS)
        .resolve_gated(&args.limits);
    refuse(pid, &config)?;
    let measure = Measure::of(args, false)?;
    let program = format!(
        "process {pid} ({})",
        memhook_foreign::visible(&process_name(pid))
    );
    let scores = args.limits.scores();
    if scores.is_some() && options.duration.is_none() {
        bail!("--fail-on lifetime-score takes time: add --duration 5m");
    }
    let allocators = &args.tracing.allocators;
    let Some(duration) = options.duration else {
        if allocators.is_used() {
            bail!(
                "the blocks of allocators of your own are known from a trace alone: add --duration 30s"
            );
        }
        let captured = capture_settled(pid, options.hold.to_search())?;
        let found = Evidence::untraced(program, &captured.snapshot, args.show_possible);
        return Ok(ExitCode::from(measure.conclude(vec![found])?));
    };
    signals::catch_stops();
    let scored = scores.map(|options| ScoreRecording::create(pid, &config, options));
    let (scored, recording) = scored.transpose()?.unzip();
    let mut trace = crate::live::record::start(pid, config, recording, ())?;
    let begin = if options.growth {
        options.warmup
    } else {
        Duration::ZERO
    };
    let mut watch = Watch {
        pid,
        hold: options.hold,
        next: begin,
        pause: duration / MOMENTS,
        moments: tick(duration / MOMENTS),
        survivors: options.growth.then(|| {
            let heaps = trace.session().heaps().iter();
            let of_heaps = heaps.map(|_| Survivors::default());
            (Survivors::default(), of_heaps.collect())
        }),
        look: None,
        gaps: Vec::new(),
    };
    ending::of_trace(&trace.run(Some(begin + duration), &mut watch), pid);
    let state = trace.consumer().lock();
    let totals = state.ledger.totals();
    let known = RunNames::default();
    let totals_of_heaps: Vec<_> = state.heaps.iter().map(|h| h.ledger.totals()).collect();
    let mut found = match &watch.survivors {
        // Growth of an estimate may be due to chance.
        Some(_) if bound(&state.ledger).is_some() => Evidence {
            subject: Subject::Growth,
            gaps: Vec::from_iter(bound(&state.ledger)),
            ..Evidence::default()
        },
        Some((survivors, of_heaps)) => {
            let grown = |survivors: &Survivors, names: NameSource<'_>, totals: &Totals| {
                let verdicts = survivors.verdicts(options.confidence);
                let mut found = growth_evidence(names, totals, &verdicts.grown);
                found.gaps.extend(verdicts.unclear);
                found
            };
            let mut found = evidence(&trace, &known, |names| grown(survivors, names, &totals));
            add_heaps(&trace, &known, &mut found, |number, names| {
                let mut found = grown(&of_heaps[number], names, &totals_of_heaps[number]);
                found.gaps.extend(bound(&state.heaps[number].ledger));
                found
            });
            found
        }
        None => {
            let none = || {
                let error = "its memory could not be searched".to_owned();
                (Err(error), Search::default())
            };
            let look = watch.look.as_ref();
            let (memory, search) = look.map_or_else(none, |look| look.memory(args.show_possible));
            let mut of_heaps = reached_of_heaps(&trace, &state, memory, search).into_iter();
            let blocks = match watch.look.take() {
                Some(look) => look.blocks(&state.ledger, args.show_possible),
                None => Reached {
                    gaps: Vec::from_iter(bound(&state.ledger)),
                    ..Reached::default()
                },
            };
            let needs_all = measure.needs_all_sites();
            let mut found = evidence(&trace, &known, |names| {
                memhook_gate::evidence(needs_all, names, &totals, blocks)
            });
            add_heaps(&trace, &known, &mut found, |number, names| {
                let blocks = of_heaps.next().unwrap_or_default();
                memhook_gate::evidence(needs_all, names, &totals_of_heaps[number], blocks)
            });
            found
        }
    };
    drop(state);
    found.program = program;
    found.gaps.append(&mut watch.gaps);
    if let Some(scored) = scored {
        scored.finish(&mut trace, &mut found);
    }
    if let Some((survivors, _)) = &watch.survivors {
        survivors.complete(&mut found);
    }
    Ok(ExitCode::from(measure.conclude(vec![found])?))
}

/// One traced process, watched for a time.
struct Watch {
    pid: i32,
    hold: HoldLimit,
    /// Time of the next count of survivors.
    next: Duration,
    pause: Duration,
    /// Timer for the counts. Counts may be more frequent than turns of the job.
    moments: Receiver<Instant>,
    /// Surviving blocks of malloc's heap and of the described heaps.
    survivors: Option<(Survivors, Vec<Survivors>)>,
    look: Option<LastLook>,
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
        } else if let Some((survivors, of_heaps)) = &mut self.survivors {
            let now = trace.consumer().elapsed();
            if now >= self.next {
                self.next += self.pause;
                let mut walk = Survivors::walk(now, self.pause);
                let consumer = trace.consumer();
                consumer.in_slices(|state| state.ledger.walk_sites(&mut walk));
                let freed = consumer.lock().ledger.totals().unknown_releases;
                survivors.count_walked(walk, freed);
                for (number, survivors) in of_heaps.iter_mut().enumerate() {
                    let mut walk = Survivors::walk(now, self.pause);
                    consumer.in_slices(|state| state.heaps[number].ledger.walk_sites(&mut walk));
                    let freed = consumer.lock().heaps[number]
                        .ledger
                        .totals()
                        .unknown_releases;
                    survivors.count_walked(walk, freed);
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn before_detach(&mut self, trace: &Trace) {
        if self.survivors.is_none() {
            self.look = Some(last_look(self.pid, trace.consumer(), self.hold));
        }
    }

    fn notice(&mut self, text: &str) {
        eprintln!("memhook-rs: {text}");
    }
}
