//! What criterion has no place for: losses, processors used, growth, failures, facts.

use crate::{Machine, Phase, Spread, output_folder, ratios};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

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
    /// Whether there is a figure for each cycle.
    pub is_complete: bool,
    /// Rounds that failed and were taken again.
    pub repeated: u32,
    /// Why there are no figures, or fewer; or why the last of those rounds was taken again.
    pub failure: Option<String>,
    /// Nanoseconds that the target ran for an operation, in user and kernel mode, by cycle: without the
    /// tool and with it. Empty where it is not measured.
    #[serde(default)]
    pub target_cpu_ns: Vec<(f64, f64)>,
}

impl Condition {
    /// Work for a second of the target's processor time, with the tool divided by without.
    pub fn cpu_throughput(&self) -> Option<Spread> {
        let (untraced, traced): (Vec<f64>, Vec<f64>) = self.target_cpu_ns.iter().copied().unzip();
        ratios(&traced, &untraced)
    }
}

/// The circumstances of one benchmark program's figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// What it ran on.
    pub machine: Machine,
    /// In which phase that was; `None` on one processor.
    #[serde(default)]
    pub phase: Option<Phase>,
    /// What is no time: by name, in words.
    #[serde(default)]
    pub facts: Vec<(String, String)>,
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

    /// Sets a fact.
    pub fn set_fact(&mut self, name: &str, value: &str) {
        match self.facts.iter_mut().find(|(old, _)| old == name) {
            Some((_, old)) => value.clone_into(old),
            None => self.facts.push((name.to_owned(), value.to_owned())),
        }
    }

    /// Sets those of one work with one tool.
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

    /// Replaces those of the last run.
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
