//! Live and allocated sums of each call stack of a target, exact or estimated.

use memhook_attach::Consumer;
use memhook_ledger::{CountedSite, Estimate, LiveWalk, Observer, SampledAllocations, SiteWalk};
use memhook_report::{Amount, LiveSite};
use rustc_hash::FxHashMap;

/// Observer that adds up the amounts that samples represent when they are allocated. The ledger
/// counts the samples of a site, but does not know their sizes, on which these amounts depend.
#[derive(Debug, Default)]
pub struct SampledSites {
    samples: SampledAllocations,
    /// Call stack and allocations of each site, indexed like the ledger's sites. All allocations of
    /// a site have the same stack and the same mean distance between samples.
    sites: Vec<(u32, Estimate)>,
}

impl SampledSites {
    /// Creates empty sums. `samples` computes the amount that a sample represents.
    pub fn new(samples: SampledAllocations) -> SampledSites {
        SampledSites {
            samples,
            sites: Vec::new(),
        }
    }
}

impl Observer for SampledSites {
    #[inline]
    fn counted(&mut self, site: CountedSite, size: u64, count: u64) {
        if self.samples.estimator.sample_bytes.is_none() {
            return;
        }
        let index = site.index as usize;
        if index >= self.sites.len() {
            self.sites.resize(index + 1, (0, Estimate::default()));
        }
        let one = self.samples.block(site.level, size);
        let (of, sum) = &mut self.sites[index];
        *of = site.stack;
        *sum += one.times(count);
    }
}

/// Sums over all call stacks.
pub struct Sums {
    /// All call stacks seen so far.
    pub sites: Vec<LiveSite>,
    /// Standard errors of the live bytes and of the bytes allocated since the attach; `None` if
    /// both are exact.
    pub errors: Option<(u64, u64)>,
}

impl Sums {
    /// Returns the live and allocated amounts of all call stacks.
    pub fn totals(&self) -> (Amount, Amount) {
        let live = self.sites.iter().map(|site| site.live).sum();
        let allocated = self.sites.iter().map(|site| site.allocated).sum();
        (live, allocated)
    }

    /// Returns the current sums. Reads the state in slices, so that the rings can be emptied in
    /// between.
    pub fn of(consumer: &Consumer<SampledSites>) -> Sums {
        let mut samples = SampledAllocations::default();
        let mut exact = SiteWalk::new(None);
        let mut live = LiveWalk::default();
        let mut by_stack: FxHashMap<u32, (Estimate, Estimate)> = FxHashMap::default();
        let mut has_begun = false;
        consumer.in_slices(|state| {
            let ledger = &state.ledger;
            if !std::mem::replace(&mut has_begun, true) {
                // Even with `overhead`, everything may have been recorded exactly up to now.
                samples = state.counts;
                for (stack, sum) in &ledger.observer().sites {
                    by_stack.entry(*stack).or_default().1 += *sum;
                }
            }
            if samples.sample_bytes().is_none() {
                return ledger.walk_sites(&mut exact);
            }
            ledger.walk_blocks(&mut live, |block| {
                by_stack.entry(block.stack).or_default().0 +=
                    samples.live(&block, ledger.weight(block.size));
            })
        });
        if samples.sample_bytes().is_some() {
            let sums = by_stack.into_iter();
            let sums = sums.map(|(stack, (live, allocated))| LiveSite {
                stack,
                live: Amount::from(samples.with_unhit(live)),
                allocated: Amount::from(samples.with_unhit(allocated)),
            });
            return Sums::estimated(sums.collect());
        }
        let amount = |blocks, bytes| Amount {
            blocks,
            bytes,
            ..Amount::default()
        };
        let sites = exact.into_sites().into_iter().map(|site| LiveSite {
            stack: site.stack,
            live: amount(site.blocks, site.bytes),
            allocated: amount(site.allocated_blocks, site.allocated_bytes),
        });
        Sums {
            sites: sites.collect(),
            errors: None,
        }
    }

    fn estimated(sites: Vec<LiveSite>) -> Sums {
        let sums = Sums {
            sites,
            errors: None,
        };
        let (live, allocated) = sums.totals();
        let error = |of: Amount| of.error_bytes().unwrap_or(0);
        Sums {
            errors: Some((error(live), error(allocated))),
            ..sums
        }
    }
}
