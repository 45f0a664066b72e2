//! From rounds to criterion.

use crate::{Alternated, Machine, Spread, differences, ratios};
use criterion::{
    BenchmarkId, Criterion, SamplingMode,
    measurement::{Measurement, ValueFormatter, WallTime},
};
use serde::{Deserialize, Serialize};
use std::{
    cell::OnceCell,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Nanoseconds that somebody else has measured, with fractions: [`WallTime`] has none.
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

/// `target/criterion`, wherever Cargo puts its output: also where our own files go.
pub fn output_folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::env::var_os("CRITERION_HOME").map_or_else(
        || target.unwrap_or(workspace.join("target")).join("criterion"),
        PathBuf::from,
    )
}

/// Whether everything is to run just once (`cargo test --benches`), to see that it works.
pub fn is_test() -> bool {
    let has = |wanted| std::env::args().any(|argument| argument == wanted);
    !has("--bench") || has("--test")
}

/// Criterion for figures that targets have measured.
pub fn criterion() -> Criterion<Nanoseconds> {
    Criterion::default()
        .with_measurement(Nanoseconds)
        .output_directory(&output_folder())
        .configure_from_args()
        // The rounds are there before criterion asks: one call for the warm-up, one a sample.
        .warm_up_time(Duration::from_nanos(1))
        .measurement_time(Duration::from_millis(1))
}

/// What criterion has no place for, of one work with one tool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    /// Events that the tool could not record, all rounds together. Not 0: no result.
    pub lost: u64,
    /// Events that it recorded, all rounds together.
    pub events: u64,
    /// Median share of a processor that the tool needed outside of the target.
    pub tool_cpu: f64,
    /// Largest growth of the target's resident memory in a round, in bytes.
    pub growth_bytes: i64,
    /// Why there are no figures, or fewer.
    pub failure: Option<String>,
}

/// The circumstances of one benchmark program's figures.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Conditions {
    /// What it ran on.
    pub machine: Machine,
    /// By work, then by tool, in the order of the last run.
    pub works: Vec<(String, Vec<(String, Condition)>)>,
}

impl Conditions {
    /// Where those of a benchmark program are.
    pub fn path(folder: &Path, bench: &str) -> PathBuf {
        folder.join("conditions").join(format!("{bench}.json"))
    }

    /// Those of the last run; empty if there are none.
    pub fn read(folder: &Path, bench: &str) -> Conditions {
        let text = std::fs::read(Self::path(folder, bench)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    fn set(&mut self, work: &str, tool: &str, condition: Condition) {
        let at = self.works.iter().position(|(name, _)| name == work);
        let at = at.unwrap_or_else(|| {
            self.works.push((work.to_owned(), Vec::new()));
            self.works.len() - 1
        });
        let tools = &mut self.works[at].1;
        match tools.iter_mut().find(|(name, _)| name == tool) {
            Some((_, old)) => *old = condition,
            None => tools.push((tool.to_owned(), condition)),
        }
    }

    fn write(&self, bench: &str) {
        let path = Self::path(&output_folder(), bench);
        let folder = path.parent().expect("a folder");
        let text = serde_json::to_string_pretty(self).expect("plain values");
        let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text));
        if let Err(error) = written {
            eprintln!("{}: {error}", path.display());
        }
    }
}

/// Hands rounds to criterion and remembers their circumstances.
pub struct Figures {
    bench: &'static str,
    criterion: Criterion<Nanoseconds>,
    conditions: Conditions,
    lines: Vec<String>,
}

impl Figures {
    /// Of the benchmark program of this name.
    pub fn new(bench: &'static str) -> Figures {
        Figures {
            bench,
            criterion: criterion(),
            conditions: Conditions {
                machine: Machine::here(),
                ..Conditions::read(&output_folder(), bench)
            },
            lines: Vec::new(),
        }
    }

    /// Rounds that criterion gets of each figure: the least that it takes.
    pub fn cycles() -> usize {
        if is_test() { 1 } else { 10 }
    }

    /// Lets criterion ask for the rounds of `works` with `tools`; `collect` runs when the first of
    /// them is wanted, so a filter on the command line saves its time.
    pub fn add(&mut self, works: &[&str], tools: &[&str], collect: impl FnOnce() -> Alternated) {
        let collected = OnceCell::new();
        let collect = std::cell::Cell::new(Some(collect));
        let rounds =
            || collected.get_or_init(|| collect.take().map(|collect| collect()).expect("once"));
        for (at, work) in works.iter().enumerate() {
            let mut group = self
                .criterion
                .benchmark_group(format!("{}/{work}", self.bench));
            group.sample_size(Self::cycles().max(10));
            group.sampling_mode(SamplingMode::Flat);
            for (index, tool) in tools.iter().enumerate() {
                for (value, is_traced) in [("untraced", false), ("traced", true)] {
                    let failed = |all: &Alternated| all.traced[index].rounds.is_empty();
                    if collected.get().is_some_and(failed) {
                        continue;
                    }
                    let mut calls = 0;
                    group.bench_function(BenchmarkId::new(*tool, value), |bencher| {
                        let all = rounds();
                        let traced = &all.traced[index];
                        let why = traced.failure.as_deref().unwrap_or("no rounds");
                        assert!(!traced.rounds.is_empty(), "{tool}: {why}");
                        let series = if is_traced {
                            &traced.rounds
                        } else {
                            &all.untraced
                        };
                        // The first call is the warm-up; the samples then get the rounds in order.
                        let round = &series[(calls + series.len() - 1) % series.len()];
                        calls += 1;
                        bencher.iter_custom(|iterations| round.figures[at] * iterations as f64);
                    });
                }
            }
            group.finish();
        }
        if let Some(all) = collected.get() {
            self.note(works, all);
        }
    }

    fn note(&mut self, works: &[&str], all: &Alternated) {
        for (at, work) in works.iter().enumerate() {
            let untraced: Vec<f64> = all.untraced.iter().map(|r| r.figures[at]).collect();
            for traced in &all.traced {
                let figures: Vec<f64> = traced.rounds.iter().map(|r| r.figures[at]).collect();
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
                    failure: traced.failure.clone(),
                };
                let line = line(work, &traced.tool, &untraced, &figures, &condition);
                self.lines.push(line);
                self.conditions.set(work, &traced.tool, condition);
            }
        }
    }

    /// Writes the circumstances and prints what was found.
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
    let (Some(added), Some(ratio)) = (differences(untraced, traced), ratios(untraced, traced))
    else {
        let why = condition.failure.as_deref().unwrap_or("no rounds");
        return format!("{name:<58} {why}");
    };
    let lost = match condition.lost {
        0 => String::new(),
        lost => format!("  NO RESULT: {lost} events lost"),
    };
    format!(
        "{name:<58} {:+.1} ns ({:+.1} to {:+.1}), x {:.3}{lost}",
        added.median, added.low, added.high, ratio.median
    )
}
