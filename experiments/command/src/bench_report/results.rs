//! Criterion's result files, and the conditions stored next to them.

use memhook_measurements::{Condition, Conditions, Spread, differences, ratios};
use serde::Deserialize;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

/// Benchmark programs of `cargo bench -p memhook-measurements`, and the peers.
pub const BENCHES: [&str; 7] = [
    "churn", "latency", "programs", "peers", "attach", "unwind", "consumer",
];

/// The fields of `benchmark.json` that are used.
#[derive(Deserialize)]
struct Benchmark {
    full_id: String,
    throughput: Option<Throughput>,
}

#[derive(Deserialize)]
struct Throughput {
    #[serde(rename = "Elements")]
    elements: Option<u64>,
}

/// `sample.json`: iterations and nanoseconds of each sample, in the order of measurement.
#[derive(Deserialize)]
struct Sample {
    iters: Vec<f64>,
    times: Vec<f64>,
}

struct Series {
    /// Nanoseconds per operation.
    rounds: Vec<f64>,
    elements: Option<u64>,
}

/// All results that were found.
pub struct Results {
    series: HashMap<String, Series>,
    conditions: HashMap<&'static str, Conditions>,
}

/// One work with one tool.
pub struct Row<'a> {
    /// Name of the work.
    pub work: &'a str,
    /// Tool that traced it.
    pub tool: &'a str,
    /// Losses, processor time, failures.
    pub condition: &'a Condition,
    /// Nanoseconds without the tool, by cycle.
    pub untraced: &'a [f64],
    /// Nanoseconds with the tool, by cycle.
    pub traced: &'a [f64],
}

impl Row<'_> {
    /// Returns the reason if the row is invalid.
    pub fn flaw(&self) -> Option<String> {
        match (self.condition.lost, &self.condition.failure) {
            (lost @ 1.., _) => Some(format!("no result: {lost} events lost")),
            (0, Some(why)) if !self.is_complete() => Some(why.clone()),
            (0, None) if self.traced.is_empty() => Some("not measured".into()),
            _ => None,
        }
    }

    /// Returns true if every failure of the tool was repeated successfully.
    fn is_complete(&self) -> bool {
        self.condition.is_complete && !self.traced.is_empty()
    }

    /// Returns the nanoseconds that the tool added.
    pub fn added(&self) -> Option<Spread> {
        differences(self.untraced, self.traced)
    }

    /// Returns the throughput with the tool divided by the throughput without it.
    pub fn throughput(&self) -> Option<Spread> {
        ratios(self.traced, self.untraced)
    }

    /// Returns the median without the tool.
    pub fn base(&self) -> Option<Spread> {
        Spread::of(self.untraced.to_vec())
    }

    /// Returns the median with the tool.
    pub fn with(&self) -> Option<Spread> {
        Spread::of(self.traced.to_vec())
    }
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        if path.ends_with("new") {
            found.push(path);
        } else if path.is_dir() {
            files(&path, found);
        }
    }
}

fn parse<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_slice(&bytes).map_err(|e| format!("{}: {e}", path.display()))
}

impl Results {
    /// Reads `target/criterion`.
    pub fn read(folder: &Path) -> Result<Results, String> {
        let mut found = Vec::new();
        files(folder, &mut found);
        let mut series = HashMap::new();
        for folder in found {
            let benchmark: Benchmark = parse(&folder.join("benchmark.json"))?;
            let sample: Sample = parse(&folder.join("sample.json"))?;
            let rounds = sample.times.iter().zip(&sample.iters).map(|(t, n)| t / n);
            let elements = benchmark.throughput.and_then(|t| t.elements);
            series.insert(
                benchmark.full_id,
                Series {
                    rounds: rounds.collect(),
                    elements,
                },
            );
        }
        let conditions: HashMap<_, _> = BENCHES
            .into_iter()
            .map(|bench| (bench, Conditions::read(folder, bench)))
            .filter(|(_, conditions)| *conditions != Conditions::default())
            .collect();
        if conditions.is_empty() {
            return Err(format!(
                "nothing in {}: run `cargo measure churn` first",
                folder.display()
            ));
        }
        Ok(Results { series, conditions })
    }

    /// Returns the conditions of one benchmark program.
    pub fn conditions(&self, bench: &str) -> Option<&Conditions> {
        self.conditions.get(bench)
    }

    /// Returns all rows of a benchmark program.
    pub fn rows<'a>(&'a self, bench: &'a str) -> impl Iterator<Item = Row<'a>> {
        let works = self.conditions.get(bench).map(|c| &c.works);
        works.into_iter().flatten().flat_map(move |(work, tools)| {
            tools.iter().map(move |(tool, condition)| Row {
                work,
                tool,
                condition,
                untraced: self.rounds(&format!("{bench}/{work}/{tool}/untraced")),
                traced: self.rounds(&format!("{bench}/{work}/{tool}/traced")),
            })
        })
    }

    /// Returns the row of one workload with one tool.
    pub fn row<'a>(&'a self, bench: &'a str, work: &str, tool: &str) -> Option<Row<'a>> {
        self.rows(bench)
            .find(|row| row.work == work && row.tool == tool)
    }

    fn rounds(&self, id: &str) -> &[f64] {
        self.series.get(id).map_or(&[], |series| &series.rounds)
    }

    /// Returns figures without a tool: id after the prefix, nanoseconds, elements.
    pub fn plain(&self, prefix: &str) -> Vec<(&str, Spread, Option<u64>)> {
        let mut found: Vec<_> = self
            .series
            .iter()
            .filter_map(|(id, series)| {
                let spread = Spread::of(series.rounds.clone())?;
                Some((id.strip_prefix(prefix)?, spread, series.elements))
            })
            .collect();
        found.sort_by_key(|(id, ..)| *id);
        found
    }
}
