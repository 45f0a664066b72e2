//! Blocks that outlive requests, counted by site at equally distant moments: what growth is seen in.

use crate::growth::{Growth, LEAST_MOMENTS, growing};
use crate::{Evidence, Sum};
use memhook_ledger::{Ledger, SiteWalk};
use std::{collections::HashMap, time::Duration};

/// Moments at which survivors are counted.
pub const MOMENTS: u32 = 60;
/// How many of the pauses between them make a block old.
const AGE_IN_PAUSES: u32 = 4;

/// Old blocks of each backtrace at each moment.
#[derive(Default)]
pub struct Survivors {
    moments: usize,
    by_stack: HashMap<u32, Vec<Sum>>,
}

impl Survivors {
    /// The walk over the blocks that count at a moment; `now` since the attach, `pause` between two of them.
    pub fn walk(now: Duration, pause: Duration) -> SiteWalk {
        let before = now.saturating_sub(pause * AGE_IN_PAUSES);
        SiteWalk::new(Some(before.as_nanos() as u64))
    }

    /// Another moment of a ledger that nobody waits for.
    pub fn count(&mut self, ledger: &Ledger, now: Duration, pause: Duration) {
        let mut walk = Survivors::walk(now, pause);
        while ledger.walk_sites(&mut walk) {}
        self.count_walked(walk);
    }

    /// Another moment, with the walk that was made over the live blocks.
    pub fn count_walked(&mut self, walk: SiteWalk) {
        for site in walk.into_live() {
            let series = self.by_stack.entry(site.stack).or_default();
            series.resize(self.moments, Sum::default());
            series.push(Sum {
                blocks: site.blocks,
                bytes: site.bytes,
            });
        }
        self.moments += 1;
        for series in self.by_stack.values_mut() {
            series.resize(self.moments, Sum::default());
        }
    }

    /// Backtraces that grow, and by how much since the first moment.
    pub fn grown(&self, confidence: f64) -> Vec<(u32, Growth, Sum)> {
        let all: Vec<(&u32, &Vec<Sum>)> = self.by_stack.iter().collect();
        let series: Vec<Vec<f64>> = all
            .iter()
            .map(|(_, sums)| sums.iter().map(|sum| sum.blocks as f64).collect())
            .collect();
        let growth = growing(&series, confidence);
        let grown = all
            .iter()
            .zip(growth)
            .filter_map(|((stack, sums), growth)| {
                let (first, last) = (sums.first()?, sums.last()?);
                let more = Sum {
                    blocks: last.blocks.saturating_sub(first.blocks),
                    bytes: last.bytes.saturating_sub(first.bytes),
                };
                Some((**stack, growth?, more))
            });
        grown.collect()
    }

    /// What is to be said about them beside the sites.
    pub fn complete(&self, evidence: &mut Evidence) {
        let moments = self.moments;
        evidence
            .notes
            .push(format!("survivors counted at {moments} moments"));
        if moments < LEAST_MOMENTS {
            evidence.gaps.push(format!(
                "survivors were counted at {moments} moments only, {LEAST_MOMENTS} are needed"
            ));
        }
    }
}
