//! Passes rounds to criterion.

use crate::conditions::{Condition, Conditions};
use crate::{
    Alternated, Figure, Machine, Phase, Round, Spread, differences, duration, guard, is_test,
    output_folder, placement, ratios, times_goal,
};
use criterion::{
    BenchmarkId, Criterion, SamplingMode,
    measurement::{Measurement, ValueFormatter, WallTime},
};
use std::time::{Duration, Instant};

/// Criterion measurement in fractional nanoseconds taken by another program. [`WallTime`] does not support this.
pub struct Nanoseconds;

impl Measurement for Nanoseconds {
    type Intermediate = Instant;
    type Value = f64;

    fn start(&self) -> Instant {
        Instant::now()
    }
    fn end(&self, start: Instant) -> f64 {
        start.elapsed().as_nanos() as f64
    }
    fn add(&self, a: &f64, b: &f64) -> f64 {
        a + b
    }
    fn zero(&self) -> f64 {
        0.0
    }
    fn to_f64(&self, value: &f64) -> f64 {
        *value
    }
    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// Returns the filter on the command line: the argument that is neither an option nor an option's value. It matches
/// part of an id.
fn filter() -> Option<String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let plain = |text: &str| !text.starts_with('-');
    let flags = [
        "--bench",
        "--test",
        "--exact",
        "--verbose",
        "--noplot",
        "-n",
    ];
    let is_value = |at: usize| {
        at.checked_sub(1)
            .and_then(|before| arguments.get(before))
            .is_some_and(|before| !plain(before) && !flags.contains(&before.as_str()))
    };
    let mut all = arguments.iter().enumerate();
    all.find(|(at, argument)| plain(argument) && !is_value(*at))
        .map(|(_, argument)| argument.clone())
}

/// Returns a criterion for figures that targets have measured.
pub fn criterion() -> Criterion<Nanoseconds> {
    Criterion::default()
        .with_measurement(Nanoseconds)
        .output_directory(&output_folder())
        .configure_from_args()
        // The rounds are measured before criterion requests them with one call for the warm-up and one per sample.
        .warm_up_time(Duration::from_nanos(1))
        .measurement_time(Duration::from_millis(1))
        // Ten rounds need no more resamples, and there are hundreds of figures.
        .nresamples(5000)
}

/// Passes rounds to criterion, and keeps their conditions.
pub struct Figures {
    bench: &'static str,
    criterion: Criterion<Nanoseconds>,
    conditions: Conditions,
    lines: Vec<String>,
    /// Cost added by tools without losses, by workload and tool.
    added: Vec<(String, String, Spread)>,
}

impl Figures {
    /// Creates the figures for the benchmark program with this name.
    pub fn new(bench: &'static str) -> Figures {
        guard();
        // The binary is built now, on all processors and outside of a round.
        memhook_tests::binary();
        // With a filter, all other figures keep the values of the last run.
        let last = match filter() {
            Some(_) => Conditions::read(&output_folder(), bench),
            None => Conditions::default(),
        };
        Figures {
            bench,
            criterion: criterion(),
            conditions: Conditions {
                machine: Machine::here(),
                phase: Phase::now(&placement()),
                ..last
            },
            lines: Vec::new(),
            added: Vec::new(),
        }
    }

    /// Returns the number of rounds of each figure: criterion's minimum.
    pub fn cycles() -> usize {
        Self::cycles_of(10)
    }

    /// Returns this number of rounds, or 1 in a test.
    pub fn cycles_of(count: usize) -> usize {
        if is_test() { 1 } else { count }
    }

    /// Returns criterion for figures that this process measures instead of a target.
    pub fn criterion(&mut self) -> &mut Criterion<Nanoseconds> {
        &mut self.criterion
    }

    /// Stores a fact that is not a time.
    pub fn fact(&mut self, name: &str, value: &str) {
        self.lines.push(format!("{name}: {value}"));
        self.conditions.set_fact(name, value);
    }

    /// Passes the rounds of `works` with `tools` to criterion. The rounds are measured only if the filter on the
    /// command line selects any of them.
    pub fn add(&mut self, works: &[&str], tools: &[&str], collect: impl FnOnce() -> Alternated) {
        let group = |work: &str| format!("{}/{work}", self.bench);
        let is_wanted = |work: &str, tool: &str| {
            let filter = filter().unwrap_or_default();
            ["untraced", "traced"]
                .iter()
                .any(|value| format!("{}/{tool}/{value}", group(work)).contains(&filter))
        };
        let mut pairs = works.iter().flat_map(|w| tools.iter().map(move |t| (w, t)));
        if !pairs.any(|(work, tool)| is_wanted(work, tool)) {
            return;
        }
        let all = collect();
        for (at, work) in works.iter().enumerate() {
            let mut group = self.criterion.benchmark_group(group(work));
            group.sample_size(all.untraced.len().max(10));
            group.sampling_mode(SamplingMode::Flat);
            for traced in all.traced.iter().filter(|t| !t.rounds.is_empty()) {
                for (value, rounds) in [("untraced", &all.untraced), ("traced", &traced.rounds)] {
                    // Some workloads have figures only with a tool.
                    if rounds.iter().any(|round| round.figures.len() <= at) {
                        continue;
                    }
                    let mut calls = 0;
                    group.bench_function(BenchmarkId::new(&traced.tool, value), |bencher| {
                        // The first call is the warm-up; the samples then get the rounds in order.
                        let round = &rounds[(calls + rounds.len() - 1) % rounds.len()];
                        calls += 1;
                        bencher.iter_custom(|iterations| round.figures[at].ns * iterations as f64);
                    });
                }
            }
            group.finish();
        }
        self.note(works, &all);
        // These figures are kept if a later benchmark is interrupted.
        if !is_test() {
            self.conditions.write(self.bench);
        }
    }

    fn note(&mut self, works: &[&str], all: &Alternated) {
        for (at, work) in works.iter().enumerate() {
            let of = |rounds: &[Round]| -> Vec<Figure> {
                let figures = rounds.iter().filter_map(|r| r.figures.get(at).copied());
                figures.collect()
            };
            let untraced = of(&all.untraced);
            for traced in &all.traced {
                let figures = of(&traced.rounds);
                let pairs = untraced.iter().zip(&figures);
                let target_cpu_ns = pairs.filter_map(|(u, t)| Some((u.cpu_ns?, t.cpu_ns?)));
                let cpu = traced.rounds.iter().map(|r| r.tool_cpu).collect();
                let condition = Condition {
                    lost: traced.rounds.iter().map(|r| r.outcome.lost).sum(),
                    events: traced.rounds.iter().map(|r| r.outcome.events).sum(),
                    tool_cpu: Spread::of(cpu).map_or(0.0, |s| s.median),
                    growth_bytes: traced
                        .rounds
                        .iter()
                        .map(|r| r.growth_bytes)
                        .max()
                        .unwrap_or(0),
                    is_complete: !traced.rounds.is_empty(),
                    repeated: traced.repeated,
                    failure: traced.failure.clone(),
                    target_cpu_ns: target_cpu_ns.collect(),
                };
                let ns = |figures: &[Figure]| figures.iter().map(|f| f.ns).collect::<Vec<_>>();
                let (untraced, figures) = (ns(&untraced), ns(&figures));
                if let (Some(added), 0) = (differences(&untraced, &figures), condition.lost) {
                    let names = ((*work).to_owned(), traced.tool.clone());
                    self.added.push((names.0, names.1, added));
                }
                let line = line(work, &traced.tool, &untraced, &figures, &condition);
                if !is_test() {
                    println!("{line}");
                }
                self.lines.push(line);
                self.conditions.set(work, &traced.tool, condition);
            }
        }
    }

    /// Stores the ratio of each other tool's added cost to the added cost of `ours`.
    pub fn compare(&mut self, work: &str, ours: &str) {
        let of_work = || self.added.iter().filter(|(name, ..)| name == work);
        let Some((.., own)) = of_work().find(|(_, tool, _)| tool == ours) else {
            return;
        };
        let others = of_work().filter(|(_, tool, _)| tool != ours);
        let lines = others.map(|(_, tool, added)| {
            let times = times_goal(tool, *added, *own);
            format!("{work}: {tool} adds as much as {ours} times {times}")
        });
        let lines: Vec<String> = lines.collect();
        self.lines.extend(lines);
    }

    /// Writes the conditions and prints the results.
    pub fn finish(self) {
        self.criterion.final_summary();
        if self.lines.is_empty() || is_test() {
            return;
        }
        self.conditions.write(self.bench);
        println!(
            "\n{}: added by each tool, median of rounds alternated with untraced ones (quartiles)",
            self.bench
        );
        for line in &self.lines {
            println!("  {line}");
        }
    }
}

fn line(work: &str, tool: &str, untraced: &[f64], traced: &[f64], condition: &Condition) -> String {
    let name = format!("{work}, {tool}:");
    let mut lost = match condition.lost {
        0 => String::new(),
        lost => format!("  NO RESULT: {lost} events lost"),
    };
    if condition.repeated > 0 {
        let why = condition.failure.as_deref().unwrap_or("");
        lost += &format!("  ({} rounds taken again: {why})", condition.repeated);
    }
    match (differences(untraced, traced), ratios(traced, untraced)) {
        (Some(added), Some(ratio)) => {
            let cpu = condition.cpu_throughput();
            let cpu = cpu.map_or_else(String::new, |cpu| {
                let (median, low, high) = (cpu.median, cpu.low, cpu.high);
                format!(", a second on the processor x {median:.3} ({low:.3} to {high:.3})")
            });
            format!(
                "{name:<58} {} ({} to {}), throughput x {:.3} ({:.3} to {:.3}){cpu}{lost}",
                signed(added.median),
                signed(added.low),
                signed(added.high),
                ratio.median,
                ratio.low,
                ratio.high
            )
        }
        _ => match Spread::of(traced.to_vec()) {
            Some(alone) => format!(
                "{name:<58} {} ({} to {}){lost}",
                duration(alone.median),
                duration(alone.low),
                duration(alone.high)
            ),
            None => {
                let why = condition.failure.as_deref().unwrap_or("no rounds");
                format!("{name:<58} {why}")
            }
        },
    }
}

fn signed(ns: f64) -> String {
    let sign = if ns < 0.0 { "" } else { "+" };
    format!("{sign}{}", duration(ns))
}
