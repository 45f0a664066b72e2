//! What each call stack of a target has live and has allocated, exact or estimated.

use memhook_attach::Consumer;
use memhook_ledger::{BlockOf, Estimate, Estimator, LiveWalk, Observer, ReleaseBy, SiteWalk};
use memhook_report::{Amount, LiveSite};
use rustc_hash::FxHashMap;

/// Adds up what the samples of each site stand for when they are allocated: of a site, the ledger knows how many samples it
/// has, but not their sizes, on which it depends what they stand for.
#[derive(Debug, Default)]
pub struct SampledSites {
    estimator: Estimator,
    /// By the ledger's index of the site: its call stack, and what was allocated.
    sites: Vec<(u32, Estimate)>,
}

impl SampledSites {
    /// Nothing allocated; `sample_bytes`: mean bytes between samples, if samples are taken.
    pub fn new(sample_bytes: Option<u64>) -> SampledSites {
        SampledSites {
            estimator: Estimator { sample_bytes },
            sites: Vec::new(),
        }
    }

    fn count(&mut self, block: &BlockOf, stack: u32, count: u64) {
        if self.estimator.sample_bytes.is_none() {
            return;
        }
        let site = block.site as usize;
        if site >= self.sites.len() {
            self.sites.resize(site + 1, (0, Estimate::default()));
        }
        let one = self.estimator.block(block.size);
        let (of, sum) = &mut self.sites[site];
        *of = stack;
        *sum += Estimate {
            blocks: one.blocks * count as f64,
            bytes: one.bytes * count as f64,
            variance: one.variance * count as f64,
        };
    }
}

impl Observer for SampledSites {
    #[inline]
    fn allocated(&mut self, block: &BlockOf, stack: u32) {
        self.count(block, stack, 1);
    }

    #[inline]
    fn more_pairs(&mut self, block: &BlockOf, stack: u32, _: ReleaseBy, count: u64) {
        self.count(block, stack, count);
    }
}

/// All call stacks that were ever seen. Takes the state in slices, so that the rings are emptied in between.
pub fn sites(consumer: &Consumer<SampledSites>) -> Vec<LiveSite> {
    let mut is_sampled = false;
    let mut exact = SiteWalk::new(None);
    let mut live = LiveWalk::default();
    let mut by_stack: FxHashMap<u32, (Estimate, Estimate)> = FxHashMap::default();
    let mut has_begun = false;
    consumer.in_slices(|state| {
        let ledger = &state.ledger;
        let observer = ledger.observer();
        is_sampled = observer.estimator.sample_bytes.is_some();
        if !is_sampled {
            return ledger.walk_sites(&mut exact);
        }
        if !std::mem::replace(&mut has_begun, true) {
            for (stack, sum) in &observer.sites {
                by_stack.entry(*stack).or_default().1 += *sum;
            }
        }
        ledger.walk_blocks(&mut live, |block| {
            let weight = state.counts.weight(&block) * ledger.weight(block.size);
            by_stack.entry(block.stack).or_default().0 += Estimate::weighted(weight, block.size);
        })
    });
    if is_sampled {
        let sites = by_stack
            .into_iter()
            .map(|(stack, (live, allocated))| LiveSite {
                stack,
                live: Amount::from(live),
                allocated: Amount::from(allocated),
            });
        return sites.collect();
    }
    let amount = |blocks, bytes| Amount {
        blocks,
        bytes,
        variance: 0.0,
    };
    let sites = exact.into_sites().into_iter().map(|site| LiveSite {
        stack: site.stack,
        live: amount(site.blocks, site.bytes),
        allocated: amount(site.allocated_blocks, site.allocated_bytes),
    });
    sites.collect()
}
