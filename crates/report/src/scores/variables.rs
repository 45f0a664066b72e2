//! Variables of formulas, for one site.

use super::SiteScores;
use memhook_recording::AccessSums;

/// A known number of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // `VARIABLES` explains them
pub enum Variable {
    Size,
    Blocks,
    Smallest,
    Largest,
    Peak,
    PeakBlocks,
    Live,
    LiveBlocks,
    Lifetime,
    Groups,
    LifeS,
    RunS,
    Usage,
    UsefulLifetime,
    Accessed,
    Reads,
    Writes,
    Untouched,
    NeverRead,
    NeverWritten,
    Shared,
    FalseShares,
    WaitS,
    IdleS,
    AllocS,
}

/// Data that a run must have recorded for a variable to have values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Allocations and releases.
    Blocks,
    /// Reads and writes, including estimates from watched blocks.
    Accesses,
    /// All reads and writes.
    AllAccesses,
    /// Calls of the allocator that were timed.
    AllocatorTime,
}

use Evidence::{Accesses, AllAccesses, AllocatorTime, Blocks};
use Variable as V;

/// All variables, by their names in formulas.
pub(super) const VARIABLES: [(&str, Variable, Evidence); 25] = [
    ("size", V::Size, Blocks),
    ("blocks", V::Blocks, Blocks),
    ("smallest", V::Smallest, Blocks),
    ("largest", V::Largest, Blocks),
    ("peak", V::Peak, Blocks),
    ("peak_blocks", V::PeakBlocks, Blocks),
    ("live", V::Live, Blocks),
    ("live_blocks", V::LiveBlocks, Blocks),
    ("lifetime", V::Lifetime, Blocks),
    ("groups", V::Groups, Blocks),
    ("life_s", V::LifeS, Blocks),
    ("run_s", V::RunS, Blocks),
    ("usage", V::Usage, Accesses),
    ("useful_lifetime", V::UsefulLifetime, Accesses),
    ("accessed", V::Accessed, AllAccesses),
    ("reads", V::Reads, AllAccesses),
    ("writes", V::Writes, AllAccesses),
    ("untouched", V::Untouched, AllAccesses),
    ("never_read", V::NeverRead, AllAccesses),
    ("never_written", V::NeverWritten, AllAccesses),
    ("shared", V::Shared, AllAccesses),
    ("false_shares", V::FalseShares, AllAccesses),
    ("wait_s", V::WaitS, AllAccesses),
    ("idle_s", V::IdleS, AllAccesses),
    ("alloc_s", V::AllocS, AllocatorTime),
];

impl Variable {
    /// Finds the variable with this name.
    pub(super) fn named(name: &str) -> Option<Variable> {
        let found = VARIABLES.iter().find(|(known, ..)| *known == name);
        found.map(|(_, variable, _)| *variable)
    }

    /// Returns the variable's name.
    pub(super) fn name(self) -> &'static str {
        let found = VARIABLES.iter().find(|(_, known, _)| *known == self);
        found.map_or("", |(name, ..)| name)
    }

    /// Returns the evidence that the variable needs.
    pub(super) fn evidence(self) -> Evidence {
        let found = VARIABLES.iter().find(|(_, known, _)| *known == self);
        found.map_or(Blocks, |(_, _, evidence)| *evidence)
    }
}

/// Numbers for one or several sites. Most of them are sums. Scores are means, weighted by blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers {
    run_s: f64,
    size: f64,
    blocks: f64,
    smallest: Option<u64>,
    largest: u64,
    peak: f64,
    peak_blocks: f64,
    live: f64,
    live_blocks: f64,
    groups: f64,
    lifetimes_ns: f64,
    /// Nanoseconds spent in the allocator, for the sites with timed calls.
    allocator_ns: Option<f64>,
    lifetime: Mean,
    usage: Mean,
    useful_lifetime: Mean,
    /// Sums of accesses over the sites for which all accesses are known.
    accesses: Option<AccessSums>,
}

/// A mean of scores, some of which may be unknown.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    fn add(&mut self, score: Option<f64>, weight: f64) {
        if let Some(score) = score {
            self.sum += score * weight;
            self.weight += weight;
        }
    }

    fn value(self) -> Option<f64> {
        quotient(self.sum, self.weight)
    }
}

fn quotient(dividend: f64, divisor: f64) -> Option<f64> {
    (divisor > 0.0).then(|| dividend / divisor)
}

impl Numbers {
    /// Creates numbers without sites, for a run of this length.
    pub fn new(run_s: f64) -> Numbers {
        Numbers {
            run_s,
            ..Numbers::default()
        }
    }

    /// Adds a site.
    pub fn add(&mut self, site: &SiteScores) {
        let numbers = &site.numbers;
        let blocks = numbers.chunks as f64;
        self.size += numbers.bytes as f64;
        self.blocks += blocks;
        self.smallest = [self.smallest, Some(numbers.smallest)]
            .into_iter()
            .flatten()
            .min();
        self.largest = self.largest.max(numbers.largest);
        self.peak += numbers.most_live_bytes as f64;
        self.peak_blocks += numbers.most_live as f64;
        self.live += site.live.bytes as f64;
        self.live_blocks += site.live.blocks as f64;
        self.groups += numbers.groups as f64;
        self.lifetimes_ns += numbers.lifetimes_ns as f64;
        if site.in_allocator.calls > 0 {
            *self.allocator_ns.get_or_insert_default() += site.in_allocator.time;
        }
        self.lifetime.add(site.scores.lifetime, blocks);
        self.usage.add(site.scores.usage, numbers.bytes as f64);
        let useful = site.scores.useful_lifetime;
        self.useful_lifetime.add(useful, blocks);
        if let Some(more) = &numbers.accesses {
            let sums = self.accesses.get_or_insert_default();
            sums.chunks += more.chunks;
            sums.accessed_bytes = sums.accessed_bytes.saturating_add(more.accessed_bytes);
            sums.untouched += more.untouched;
            sums.never_read += more.never_read;
            sums.never_written += more.never_written;
            sums.reads = sums.reads.saturating_add(more.reads);
            sums.writes = sums.writes.saturating_add(more.writes);
            sums.by_several += more.by_several;
            sums.false_shares = sums.false_shares.saturating_add(more.false_shares);
            sums.before_ns += more.before_ns;
            sums.after_ns += more.after_ns;
        }
    }

    /// Returns the value of a variable; `None` if it is unknown.
    pub fn get(&self, variable: Variable) -> Option<f64> {
        const NS: f64 = 1e9;
        let known = match variable {
            V::Size => self.size,
            V::Blocks => self.blocks,
            V::Smallest => self.smallest? as f64,
            V::Largest => self.largest as f64,
            V::Peak => self.peak,
            V::PeakBlocks => self.peak_blocks,
            V::Live => self.live,
            V::LiveBlocks => self.live_blocks,
            V::Lifetime => self.lifetime.value()?,
            V::Groups => self.groups,
            V::LifeS => quotient(self.lifetimes_ns / NS, self.blocks)?,
            V::RunS => self.run_s,
            V::AllocS => self.allocator_ns? / NS,
            V::Usage => self.usage.value()?,
            V::UsefulLifetime => self.useful_lifetime.value()?,
            of_accesses => return self.of_accesses(of_accesses),
        };
        Some(known)
    }

    fn of_accesses(&self, variable: Variable) -> Option<f64> {
        let sums = self.accesses.as_ref()?;
        // Untouched blocks have no time before the first or after the last access.
        let touched = sums.chunks.saturating_sub(sums.untouched) as f64;
        match variable {
            V::Accessed => Some(sums.accessed_bytes as f64),
            V::Reads => Some(sums.reads as f64),
            V::Writes => Some(sums.writes as f64),
            V::Untouched => Some(sums.untouched as f64),
            V::NeverRead => Some(sums.never_read as f64),
            V::NeverWritten => Some(sums.never_written as f64),
            V::Shared => Some(sums.by_several as f64),
            V::FalseShares => Some(sums.false_shares as f64),
            V::WaitS => quotient(sums.before_ns as f64 / 1e9, touched),
            V::IdleS => quotient(sums.after_ns as f64 / 1e9, touched),
            _ => None,
        }
    }
}
