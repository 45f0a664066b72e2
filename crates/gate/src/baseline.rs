//! Accepted leaks of an earlier run.

use crate::Error;
use crate::error::text_of;
use crate::evidence::{Evidence, Leak, Sum};
use crate::verdict::{Standing, Verdict};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path};

const SCHEMA: &str = "memhook-rs/baseline/1";

/// Sites and their leaks, identified by functions and modules, so that a baseline also applies to
/// another build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    sites: BTreeMap<Vec<String>, Sum>,
}

#[derive(Serialize, Deserialize)]
struct File {
    schema: String,
    leaks: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    blocks: u64,
    bytes: u64,
    site: Vec<String>,
}

impl Baseline {
    /// Creates a baseline of the leaks found.
    pub fn of<'a>(evidence: &Evidence, leaks: impl Iterator<Item = &'a Leak>) -> Baseline {
        let mut sites: BTreeMap<_, Sum> = BTreeMap::new();
        for leak in leaks {
            let identity = evidence.sites[leak.site].identity();
            sites.entry(identity).or_default().add(leak.total());
        }
        Baseline { sites }
    }

    /// Adds up the leaks of several processes, without suppressed leaks.
    pub fn of_all(verdicts: &[Verdict]) -> Baseline {
        let of_one = |verdict: &Verdict| {
            let findings = verdict.findings.iter();
            let unsuppressed = findings.filter(|f| f.standing != Standing::Suppressed);
            Baseline::of(&verdict.evidence, unsuppressed.map(|f| &f.leak))
        };
        let all = verdicts.iter().map(of_one);
        all.fold(Baseline::default(), Baseline::or_more)
    }

    /// Merges the baselines of two processes. Each site gets the larger of its two leaks, in blocks
    /// and in bytes.
    pub fn or_more(mut self, other: Baseline) -> Baseline {
        for (site, sum) in other.sites {
            let most = self.sites.entry(site).or_default();
            most.blocks = most.blocks.max(sum.blocks);
            most.bytes = most.bytes.max(sum.bytes);
        }
        self
    }

    /// Reads the baseline in a file.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or is not a baseline.
    pub fn open(path: &Path) -> Result<Baseline, Error> {
        Baseline::read(&path.display().to_string(), &text_of(path)?)
    }

    /// Parses the text of a file. `name` is the file's name, for error messages.
    pub fn read(name: &str, text: &str) -> Result<Baseline, Error> {
        let bad = |problem: String| Error::Baseline {
            file: name.to_owned(),
            problem,
        };
        let file: File = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
        if file.schema != SCHEMA {
            return Err(bad(format!(
                "schema {:?}, expected {SCHEMA:?}",
                file.schema
            )));
        }
        let mut sites: BTreeMap<_, Sum> = BTreeMap::new();
        for Entry {
            site,
            blocks,
            bytes,
        } in file.leaks
        {
            let sum = sites.entry(site).or_default();
            sum.blocks = sum.blocks.saturating_add(blocks);
            sum.bytes = sum.bytes.saturating_add(bytes);
        }
        Ok(Baseline { sites })
    }

    /// Returns the file's text, with one line for each site, so that differences are visible.
    ///
    /// # Errors
    /// Fails if a site cannot be serialized.
    pub fn write(&self) -> serde_json::Result<String> {
        let mut out = format!("{{\"schema\":\"{SCHEMA}\",\"leaks\":[");
        for (i, (site, sum)) in self.sites.iter().enumerate() {
            let entry = Entry {
                blocks: sum.blocks,
                bytes: sum.bytes,
                site: site.clone(),
            };
            out += if i == 0 { "\n" } else { ",\n" };
            out += &serde_json::to_string(&entry)?;
        }
        Ok(out + "\n]}\n")
    }

    /// Returns a site's leaks in the baseline.
    pub fn sum(&self, identity: &[String]) -> Option<Sum> {
        self.sites.get(identity).copied()
    }

    /// Returns true if a site leaks no more than in the baseline, within a tolerance.
    pub fn covers(&self, identity: &[String], now: Sum, tolerance_percent: f64) -> bool {
        let Some(then) = self.sum(identity) else {
            return false;
        };
        let most = |then: u64| then as f64 * (1.0 + tolerance_percent.max(0.0) / 100.0);
        now.blocks as f64 <= most(then.blocks) && now.bytes as f64 <= most(then.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wrong_files_are_refused() {
        let error = |text| Baseline::read("b.json", text).unwrap_err().to_string();
        assert!(error("no json").starts_with("b.json is not a baseline"));
        assert!(error("{\"schema\":\"x\",\"leaks\":[]}").contains("schema"));
    }

    proptest! {
        #[test]
        fn comes_back(sites in prop::collection::btree_map(
            prop::collection::vec(".{0,9}", 0..4), (0u64..1 << 50, 0u64..1 << 50), 0..5))
        {
            let sums = sites.into_iter().map(|(k, (blocks, bytes))| (k, Sum { blocks, bytes }));
            let baseline = Baseline { sites: sums.collect() };
            prop_assert_eq!(Baseline::read("x", &baseline.write().unwrap()).unwrap(), baseline.clone());
            for (site, &sum) in &baseline.sites {
                prop_assert!(baseline.covers(site, sum, 0.0));
                let more = Sum { bytes: sum.bytes + 1, ..sum };
                prop_assert!(!baseline.covers(site, more, 0.0));
                let tenth = Sum { bytes: sum.bytes + sum.bytes / 11, ..sum };
                prop_assert!(baseline.covers(site, tenth, 10.0));
            }
        }

        #[test]
        fn never_panics(text in ".{0,80}") {
            let _ = Baseline::read("x", &text);
        }
    }
}
