//! Scores of the heap from 0 (worst) to 1 (best), and the findings derived from them.

mod access_inferences;
mod change;
mod custom;
mod formula;
mod inferences;
mod text;
mod variables;

pub use change::ScoreChange;
pub(crate) use change::stacks_scores;
pub use custom::{CustomChange, CustomScore, CustomSiteChange, CustomValues, NoEvidence};
pub(crate) use custom::{custom_changes, custom_site_changes};
pub use formula::{Formula, FormulaError, RESERVED_NAMES};
pub(crate) use inferences::inferences;
pub use inferences::{Gain, Inference, InferenceKind};
pub(crate) use text::{change_text, inferences_text, run_text, site_change_text, site_text};

use crate::Amount;
use memhook_ledger::TimeTaken;
use memhook_recording::{AccessSums, ScoredRun, ScoredSite, geometric_mean, variance};
use serde::{Deserialize, Serialize};

/// Scores of a site or of a run; `None` for unknown scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Lifetime of blocks, compared with blocks allocated around the same time.
    pub lifetime: Option<f64>,
    /// Share of the blocks' bytes that is read or written; unknown without access data.
    pub usage: Option<f64>,
    /// Share of the blocks' lifetime between the first and the last access; unknown without access
    /// data.
    pub useful_lifetime: Option<f64>,
    /// Standard error of usage, if usage is an estimate. It is kept even if the estimate is too
    /// uncertain to be shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage_error: Option<f64>,
    /// Standard error of the useful lifetime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub useful_lifetime_error: Option<f64>,
}

impl Scores {
    /// Computes the scores of a site.
    pub fn of(site: &ScoredSite) -> Scores {
        let accesses = site.accesses.as_ref();
        if let (None, Some(sampled)) = (accesses, &site.sampled) {
            return Scores {
                lifetime: Some(site.lifetime),
                usage: sampled.usage.known(),
                useful_lifetime: sampled.useful_lifetime.known(),
                usage_error: Some(sampled.usage.error),
                useful_lifetime_error: Some(sampled.useful_lifetime.error),
            };
        }
        Scores {
            lifetime: Some(site.lifetime),
            usage: accesses.and_then(AccessSums::usage),
            useful_lifetime: accesses.and_then(AccessSums::useful_lifetime),
            ..Scores::default()
        }
    }

    /// Creates the scores of a program that does not report its reads and writes.
    pub fn of_lifetime(lifetime: Option<f64>) -> Scores {
        Scores {
            lifetime,
            ..Scores::default()
        }
    }

    /// Returns the geometric mean of the known scores.
    pub fn together(&self) -> Option<f64> {
        let all = [self.lifetime, self.usage, self.useful_lifetime];
        memhook_recording::geometric_mean(all.into_iter().flatten())
    }
}

/// Source of reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessSource {
    /// The program reported all of its accesses.
    Complete,
    /// Watchpoints showed the accesses to some blocks.
    Sampled,
}

/// Scores of a run: geometric means over its sites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunScores {
    /// The means.
    #[serde(flatten)]
    pub scores: Scores,
    /// Variances of the sites' scores.
    pub variance: Scores,
    /// Number of sites that allocated something.
    pub sites: u64,
    /// Source of the reads and writes; `None` if they are unknown.
    #[serde(default)]
    pub access_source: Option<AccessSource>,
    /// Number of sites with known reads and writes.
    #[serde(default)]
    pub accessed_sites: u64,
    /// Number of blocks whose reads and writes could not be counted, because there was not enough
    /// memory or the blocks are too large.
    #[serde(default)]
    pub accesses_missed: u64,
    /// Number of blocks that were watched, if accesses are sampled.
    #[serde(default)]
    pub looks: u64,
    /// Largest time between two allocations of one group, in seconds.
    pub group_s: f64,
}

impl RunScores {
    /// Computes the scores of a recording of events.
    pub fn of(run: &ScoredRun) -> RunScores {
        let all: Vec<Scores> = run.sites.iter().map(Scores::of).collect();
        let told = run.sites.iter().any(|site| site.accesses.is_some());
        let looks = run.sites.iter().filter_map(|site| site.sampled.as_ref());
        let looks = looks.map(|sampled| sampled.looks).sum();
        let is_known =
            |scores: &&Scores| scores.usage.is_some() || scores.useful_lifetime.is_some();
        let accessed_sites = all.iter().filter(is_known).count() as u64;
        let usage = || all.iter().filter_map(|scores| scores.usage);
        let useful = || all.iter().filter_map(|scores| scores.useful_lifetime);
        RunScores {
            scores: Scores {
                lifetime: run.lifetime(),
                usage: geometric_mean(usage()),
                useful_lifetime: geometric_mean(useful()),
                usage_error: error_of_mean(all.iter().map(|s| (s.usage, s.usage_error))),
                useful_lifetime_error: error_of_mean(
                    all.iter()
                        .map(|s| (s.useful_lifetime, s.useful_lifetime_error)),
                ),
            },
            variance: Scores {
                lifetime: run.lifetime_variance(),
                usage: variance(usage()),
                useful_lifetime: variance(useful()),
                ..Scores::default()
            },
            sites: run.sites.len() as u64,
            access_source: match (told, looks) {
                (true, _) => Some(AccessSource::Complete),
                (false, 0) => None,
                (false, _) => Some(AccessSource::Sampled),
            },
            looks,
            accessed_sites,
            accesses_missed: 0,
            group_s: run.group_ns as f64 / 1e9,
        }
    }
}

/// Returns the standard error of a geometric mean of numbers, each with its own error; `None` if no
/// number has an error.
fn error_of_mean(scores: impl Iterator<Item = (Option<f64>, Option<f64>)>) -> Option<f64> {
    let known: Vec<(f64, f64)> = scores
        .filter_map(|(score, error)| Some((score?, error?)))
        .collect();
    let mean = geometric_mean(known.iter().map(|one| one.0))?;
    // This is exact to first order. If one score is 0, so is the mean, regardless of the other
    // scores.
    let squares = known
        .iter()
        .filter(|one| one.0 > 0.0)
        .map(|(score, error)| (error / score).powi(2));
    Some(mean * squares.sum::<f64>().sqrt() / known.len() as f64)
}

/// A site of a profile, scored.
#[derive(Clone, Debug, Default)]
pub struct SiteScores {
    /// Index of the site's stack in the profile.
    pub stack: u32,
    /// Scores of the site.
    pub scores: Scores,
    /// Numbers from which the scores are computed. Their stack ids are those of the recording.
    pub numbers: ScoredSite,
    /// Live memory at the end.
    pub live: Amount,
    /// Nanoseconds that the site's allocations spent in the allocator. Covers no calls if none was
    /// timed.
    pub in_allocator: TimeTaken,
}

/// The scores of a profile.
#[derive(Clone, Debug, Default)]
pub struct ProfileScores {
    /// Scores of the run.
    pub run: RunScores,
    /// Scores of the sites, ordered by stack. Each site that allocated has an entry.
    pub sites: Vec<SiteScores>,
    /// Findings from the scores.
    pub inferences: Vec<Inference>,
    /// Length of the run in seconds.
    pub run_s: f64,
    /// True if calls of the allocator were timed.
    pub is_timed: bool,
    /// Values of the formulas for the run, in the order of `formulas`.
    pub custom: Vec<CustomScore>,
    /// The formulas: see [`ProfileScores::add_formulas`].
    pub formulas: Vec<Formula>,
}

impl ProfileScores {
    /// Returns the scores of a stack, by its index in the profile.
    pub fn of_stack(&self, stack: u32) -> Option<Scores> {
        self.site(stack).map(|site| site.scores)
    }

    /// Finds a site by the index of its stack in the profile.
    pub fn site(&self, stack: u32) -> Option<&SiteScores> {
        let site = self.sites.binary_search_by_key(&stack, |site| site.stack);
        site.ok().map(|at| &self.sites[at])
    }

    /// Finds a site by the id of its stack in the recording.
    pub fn site_of_id(&self, id: u32) -> Option<&SiteScores> {
        self.sites.iter().find(|site| site.numbers.stack == id)
    }
}

/// Instruction for users whose program reports no accesses.
pub const HOW_TO_GET_ACCESSES: &str = "usage and useful lifetime need to know which bytes the program reads and writes: estimate them with --access sampled, or build it with the callbacks of 'memhook-rs sdk -o DIR', and record it again";
