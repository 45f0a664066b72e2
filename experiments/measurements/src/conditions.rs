//! Conditions of a benchmark that criterion does not store, such as losses, processor use, growth and failures.

use crate::{Machine, Phase, Spread, output_folder, ratios};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Conditions of one workload with one tool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    /// Total number of events that the tool could not record. The result is invalid unless this is 0.
    pub lost: u64,
    /// Total number of events that the tool recorded.
    pub events: u64,
    /// Median share of a processor that the tool used outside the target.
    pub tool_cpu: f64,
    /// Largest growth of the target's resident memory in a round, in bytes.
    pub growth_bytes: i64,
    /// True if every cycle has a figure.
    pub is_complete: bool,
    /// Number of rounds that failed and were repeated.
    pub repeated: u32,
    /// Reason why figures are missing, or why the last of these rounds was repeated.
    pub failure: Option<String>,
    /// Processor time of the target per operation in nanoseconds, in user and kernel mode, by cycle: without the tool
    /// and with it. Empty if it is not measured.
    #[serde(default)]
    pub target_cpu_ns: Vec<(f64, f64)>,
}

impl Condition {
    /// Returns the work per second of the target's processor time with the tool, relative to the work without the tool.
    pub fn cpu_throughput(&self) -> Option<Spread> {
        let (untraced, traced): (Vec<f64>, Vec<f64>) = self.target_cpu_ns.iter().copied().unzip();
        ratios(&traced, &untraced)
    }
}

/// Conditions of one benchmark program's figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Machine.
    pub machine: Machine,
    /// Phase of the machine. `None` on a single processor.
    #[serde(default)]
    pub phase: Option<Phase>,
    /// Text of facts other than times, by name.
    #[serde(default)]
    pub facts: Vec<(String, String)>,
    /// Conditions by workload, then by tool, in the order of the last run.
    pub works: Vec<(String, Vec<(String, Condition)>)>,
}

impl Conditions {
    /// Returns the path of a benchmark program's conditions.
    pub fn path(folder: &Path, bench: &str) -> PathBuf {
        folder.join("conditions").join(format!("{bench}.json"))
    }

    /// Reads the conditions of the last run. Returns empty conditions if there are none.
    pub fn read(folder: &Path, bench: &str) -> Conditions {
        let text = std::fs::read(Self::path(folder, bench)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Sets a fact.
    pub fn set_fact(&mut self, name: &str, value: &str) {
        match self.facts.iter_mut().find(|(old, _)| old == name) {
            Some((_, old)) => value.clone_into(old),
            None => self.facts.push((name.to_owned(), value.to_owned())),
        }
    }

    /// Sets the conditions of one workload with one tool.
    pub(crate) fn set(&mut self, work: &str, tool: &str, condition: Condition) {
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

    /// Replaces the conditions of the last run.
    pub fn write(&self, bench: &str) {
        let path = Self::path(&output_folder(), bench);
        let folder = path.parent().expect("a folder");
        let text = serde_json::to_string_pretty(self).expect("plain values");
        let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text));
        if let Err(error) = written {
            eprintln!("{}: {error}", path.display());
        }
    }
}
