//! Use of the heap by allocation site: the lifetime score of Byma and Larus ("Detailed Heap
//! Profiling", ISMM 2018, section 4.1), and further findings from the order of allocations and
//! releases.
//!
//! The blocks of one call stack are its *chunks*. Sorted by the time of their allocation, they form *groups*: a chunk
//! belongs to the group of its predecessor unless more than a threshold lies between the two allocations. The score of
//! a group is the mean lifetime of its chunks divided by the lifetime of the group, which lasts from its first
//! allocation to its last release. The lifetime score of a site is the mean of the scores of its groups. A chunk that
//! is live at the end is assumed to live until the end.
//!
//! Scores that depend on reads and writes of the blocks (usage, useful lifetime) need a program
//! that reports them; see [`AccessSums`].
//!
//! # Time
//!
//! By default, the target's clock advances once a millisecond. Events with equal times are assumed to be spread evenly
//! over that time, in their order. So a chunk that is released before the clock advances has a short lifetime instead
//! of none, and a group within one tick has a score. With `--set clock=tsc` each event has a separate time.

#[cfg(test)]
mod access_tests;
mod accesses;
mod groups;
mod kept_chunks;
mod looks;
#[cfg(test)]
mod looks_tests;
mod means;
mod runs;
mod scorer;
mod site;
#[cfg(test)]
mod tests;
mod threads;
mod ticks;

pub use accesses::AccessSums;
pub use kept_chunks::{Chunk, ChunkAccesses, KeptChunks};
pub(crate) use looks::Looks;
pub use looks::{LOOKS_NOTE, Look, LookWord, SampledAccesses, SampledScore, looks_text};
pub use means::{geometric_mean, variance};
pub use runs::GrowingRuns;
pub(crate) use scorer::Scorer;
pub(crate) use site::StackKinds;

/// Maximum distance in time between two allocations of one group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GroupLimit {
    /// A share of the run time.
    Part(f64),
    /// A time.
    Nanoseconds(u64),
}

/// Options of scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreOptions {
    /// Maximum distance in time between two allocations of one group.
    pub group: GroupLimit,
    /// Maximum number of individually stored chunks, for all sites together; 0 stores none.
    pub max_chunks: usize,
}

impl Default for ScoreOptions {
    /// Uses the threshold of the paper, and stores no chunks.
    fn default() -> Self {
        Self {
            group: GroupLimit::Part(0.001),
            max_chunks: 0,
        }
    }
}

impl ScoreOptions {
    /// Stores as many chunks as a page can show.
    pub fn of_pictures() -> Self {
        Self {
            max_chunks: 1_000_000,
            ..Self::default()
        }
    }
}

/// Results for all sites that allocated in a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScoredRun {
    /// Maximum distance in time between two allocations of one group, in nanoseconds.
    pub group_ns: u64,
    /// Sites with allocations, sorted by their stack id.
    pub sites: Vec<ScoredSite>,
}

impl ScoredRun {
    /// Returns the lifetime score of the run: the geometric mean over its sites. Returns `None` if there were no
    /// allocations.
    pub fn lifetime(&self) -> Option<f64> {
        geometric_mean(self.sites.iter().map(|site| site.lifetime))
    }

    /// Returns the usage score of the run: the geometric mean over the sites for which it is known.
    pub fn usage(&self) -> Option<f64> {
        geometric_mean(self.of_accesses(AccessSums::usage))
    }

    /// Returns the useful lifetime score of the run: the geometric mean over the sites for which it
    /// is known.
    pub fn useful_lifetime(&self) -> Option<f64> {
        geometric_mean(self.of_accesses(AccessSums::useful_lifetime))
    }

    /// Combines a score over the sites for which it is known.
    pub fn of_accesses(
        &self,
        score: fn(&AccessSums) -> Option<f64>,
    ) -> impl Iterator<Item = f64> + '_ {
        let sites = self.sites.iter();
        sites.filter_map(move |site| score(site.accesses.as_ref()?))
    }

    /// Returns the variance of the lifetime scores of the run's sites.
    pub fn lifetime_variance(&self) -> Option<f64> {
        variance(self.sites.iter().map(|site| site.lifetime))
    }
}

/// Results for one site.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScoredSite {
    /// Stack id.
    pub stack: u32,
    /// Lifetime score: above 0, at most 1.
    pub lifetime: f64,
    /// Groups of chunks.
    pub groups: u64,
    /// Number of allocated chunks.
    pub chunks: u64,
    /// Bytes of the chunks.
    pub bytes: u64,
    /// Sum of the chunks' lifetimes in nanoseconds.
    pub lifetimes_ns: u128,
    /// Size of the smallest chunk.
    pub smallest: u64,
    /// Size of the largest chunk.
    pub largest: u64,
    /// Maximum number of chunks that were live at one time.
    pub most_live: u64,
    /// Maximum bytes that were live at one time.
    pub most_live_bytes: u64,
    /// Chunks that were allocated and released in loops.
    pub loops: Loops,
    /// Blocks that were replaced by larger ones.
    pub runs: GrowingRuns,
    /// Reads and writes of the site's chunks; `None` if unknown, because the allocating module does
    /// not report them.
    pub accesses: Option<AccessSums>,
    /// Results of looks at some of the site's chunks, if there were any.
    pub sampled: Option<SampledAccesses>,
    /// Single chunks, if they were requested.
    pub kept: KeptChunks,
}

/// Groups whose chunks are allocated and released one after another. They have at least
/// [`Loops::LEAST_CHUNKS`] chunks, a score of at most [`Loops::HIGHEST_SCORE`], and a mean lifetime
/// of at most [`Loops::LONGEST`] of the run time. Chunks that `realloc` replaces by larger ones are
/// left out, because an object that grows needs each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loops {
    /// Number of these groups.
    pub groups: u64,
    /// Number of chunks in these groups.
    pub chunks: u64,
    /// Sum of these chunks' lifetimes in nanoseconds.
    pub lifetimes_ns: u128,
    /// Sum over the groups of the maximum number of live chunks. If chunks had been reused, this number of chunks would
    /// have been enough.
    pub most_live: u64,
    /// Sum of the lengths of the groups, in nanoseconds.
    pub lasted_ns: u128,
}

impl Loops {
    /// Minimum number of chunks for which a change to a loop is worthwhile.
    pub const LEAST_CHUNKS: u64 = 100;
    /// Maximum score of a loop. At this score, at most a tenth of the chunks are live at any time.
    pub const HIGHEST_SCORE: f64 = 0.1;
    /// Maximum lifetime of a short-lived block, as a share of the run time.
    pub const LONGEST: f64 = 0.01;
}
