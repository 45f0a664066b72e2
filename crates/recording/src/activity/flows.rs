//! Releases by pair of allocating and releasing stack, in bounded memory.

use crate::activity::ReleaseFlow;
use memhook_ledger::Estimate;
use rustc_hash::FxHashMap;

/// Maximum number of stack pairs (about 70 MB). If thousands of stacks release blocks of thousands
/// of others, there are millions of pairs.
const MAX_PAIRS: usize = 1 << 20;

/// Releases by allocating and by releasing stack.
pub(crate) struct Flows {
    max_pairs: usize,
    pairs: FxHashMap<(u32, u32), Estimate>,
    /// Sums of the pairs that do not fit, by allocating stack.
    others: FxHashMap<u32, Estimate>,
    /// All releases, by releasing stack.
    releases: FxHashMap<u32, Estimate>,
}

impl Default for Flows {
    fn default() -> Self {
        Self {
            max_pairs: MAX_PAIRS,
            pairs: FxHashMap::default(),
            others: FxHashMap::default(),
            releases: FxHashMap::default(),
        }
    }
}

impl Flows {
    pub fn clear(&mut self) {
        self.pairs.clear();
        self.others.clear();
        self.releases.clear();
    }

    #[inline]
    pub fn add(&mut self, allocated_by: u32, released_by: u32, amount: Estimate) {
        let pair = (allocated_by, released_by);
        *self.pairs.entry(pair).or_default() += amount;
        *self.releases.entry(released_by).or_default() += amount;
        if self.pairs.len() > self.max_pairs {
            self.give_up_the_smaller_half();
        }
    }

    /// Undoes a release.
    pub fn take_back(&mut self, allocated_by: u32, released_by: u32, amount: Estimate) {
        let known = self.pairs.get_mut(&(allocated_by, released_by));
        let sum = known.unwrap_or_else(|| self.others.entry(allocated_by).or_default());
        *sum -= amount;
        *self.releases.entry(released_by).or_default() -= amount;
    }

    #[cold]
    fn give_up_the_smaller_half(&mut self) {
        let mut bytes: Vec<f64> = self.pairs.values().map(|amount| amount.bytes).collect();
        let half = bytes.len() / 2;
        let (_, &mut middle, _) = bytes.select_nth_unstable_by(half, f64::total_cmp);
        let others = &mut self.others;
        self.pairs.retain(|&(allocated_by, _), amount| {
            let stays = amount.bytes > middle;
            if !stays {
                *others.entry(allocated_by).or_default() += *amount;
            }
            stays
        });
    }

    /// Returns the sorted pairs, and the releases sorted by releasing stack.
    pub fn finish(self) -> (Vec<ReleaseFlow>, Vec<(u32, Estimate)>) {
        let others = self.others.into_iter();
        let others = others.map(|(by, amount)| ((by, ReleaseFlow::OTHERS), amount));
        let mut flows: Vec<ReleaseFlow> = self
            .pairs
            .into_iter()
            .chain(others)
            .filter(|(_, amount)| amount.blocks > 0.0)
            .map(|((allocated_by, released_by), amount)| ReleaseFlow {
                allocated_by,
                released_by,
                amount,
            })
            .collect();
        flows.sort_unstable_by_key(|flow| (flow.allocated_by, flow.released_by));
        let releases = self.releases.into_iter();
        let mut releases: Vec<_> = releases.filter(|(_, amount)| amount.blocks > 0.0).collect();
        releases.sort_unstable_by_key(|(stack, _)| *stack);
        (flows, releases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(bytes: u32) -> Estimate {
        Estimate {
            blocks: 1.0,
            bytes: f64::from(bytes),
            ..Estimate::default()
        }
    }

    #[test]
    fn many_pairs_are_added_up_and_the_large_ones_stay() {
        let mut flows = Flows {
            max_pairs: 100,
            ..Flows::default()
        };
        let mut all = 0.0;
        let mut by_release = vec![0.0; 50];
        for round in 0..20 {
            for pair in 0..1000u32 {
                let (by, releaser) = (pair / 50, pair % 50);
                // One pair in 100 has most of the bytes.
                let bytes = if pair % 100 == 7 {
                    10_000
                } else {
                    1 + pair % 3
                };
                flows.add(by, releaser, amount(bytes));
                all += f64::from(bytes);
                by_release[releaser as usize] += f64::from(bytes);
                assert!(flows.pairs.len() <= 100, "round {round}");
            }
        }
        flows.add(3, 4, amount(5));
        flows.take_back(3, 4, amount(5));
        let (pairs, releases) = flows.finish();
        let sum: f64 = pairs.iter().map(|flow| flow.amount.bytes).sum();
        assert_eq!(sum, all);
        let expected = (0u32..).zip(by_release);
        assert!(expected.eq(releases.iter().map(|&(stack, sum)| (stack, sum.bytes))));
        let is_large = |flow: &&ReleaseFlow| {
            flow.released_by == 7
                && flow.allocated_by.is_multiple_of(2)
                && flow.amount.bytes == 200_000.0
        };
        assert_eq!(pairs.iter().filter(is_large).count(), 10);
        assert!(
            pairs
                .iter()
                .any(|flow| flow.released_by == ReleaseFlow::OTHERS)
        );
    }
}
