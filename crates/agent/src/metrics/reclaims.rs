//! The series of freed memory, for processes whose rule asks for reclaiming.

use super::{Labels, family};
use crate::board::{Numbers, Reclaimed};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use std::collections::BTreeMap;
use std::fmt::Error;

/// A metric: its name, its description, its kind, and a function that returns its value for a
/// process.
type OfReclaimed = (
    &'static str,
    &'static str,
    MetricType,
    fn(&Reclaimed) -> f64,
);

/// Metrics that are summed. Names of counters get the suffix `_total` automatically.
const SUMS: [OfReclaimed; 7] = [
    (
        "target_reclaimable_bytes",
        "Bytes of unreachable blocks that the last attempt has freed, or would have",
        MetricType::Gauge,
        |r| r.reclaimable.0 as f64,
    ),
    (
        "target_reclaimable_blocks",
        "Unreachable blocks that the last attempt has freed, or would have",
        MetricType::Gauge,
        |r| r.reclaimable.1 as f64,
    ),
    (
        "target_reclaims",
        "Attempts to free unreachable blocks, or to find out which could be freed",
        MetricType::Counter,
        |r| r.rounds as f64,
    ),
    (
        "target_reclaimed_bytes",
        "Bytes of unreachable blocks that were freed",
        MetricType::Counter,
        |r| r.freed.0 as f64,
    ),
    (
        "target_reclaimed_blocks",
        "Unreachable blocks that were freed",
        MetricType::Counter,
        |r| r.freed.1 as f64,
    ),
    (
        "target_reclaim_holds",
        "How often one thread was held to free blocks",
        MetricType::Counter,
        |r| r.holds as f64,
    ),
    (
        "target_reclaim_held_seconds",
        "How long one thread was held for that, in all",
        MetricType::Counter,
        |r| r.held.as_secs_f64(),
    ),
];

/// Writes the series of the targets, each with its labels.
pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    shown: &[(Labels, &Numbers)],
) -> Result<(), Error> {
    let shown = shown.iter().filter_map(|(labels, numbers)| {
        let reclaimed = numbers.reclaimed.as_ref()?;
        let how = ("reclaim", reclaimed.how.to_owned());
        Some(([labels.clone(), vec![how]].concat(), reclaimed))
    });
    let shown: Vec<(Labels, &Reclaimed)> = shown.collect();
    if shown.is_empty() {
        return Ok(());
    }
    for (name, help, kind, value) in SUMS {
        let mut sums: BTreeMap<&Labels, f64> = BTreeMap::new();
        for (labels, reclaimed) in &shown {
            *sums.entry(labels).or_default() += value(reclaimed);
        }
        let sums = sums.into_iter().map(|(labels, sum)| (labels.clone(), sum));
        family(encoder, name, help, kind, sums)?;
    }
    let mut longest: BTreeMap<&Labels, f64> = BTreeMap::new();
    let mut refusals: BTreeMap<Labels, f64> = BTreeMap::new();
    for (labels, reclaimed) in &shown {
        let most = longest.entry(labels).or_default();
        *most = most.max(reclaimed.longest_hold.as_secs_f64());
        for (reason, count) in &reclaimed.refusals {
            let reason = ("reason", (*reason).to_owned());
            *refusals
                .entry([labels.clone(), vec![reason]].concat())
                .or_default() += *count as f64;
        }
    }
    let longest = longest
        .into_iter()
        .map(|(labels, most)| (labels.clone(), most));
    family(
        encoder,
        "target_reclaim_longest_hold_seconds",
        "How long one thread was held at most to free blocks",
        MetricType::Gauge,
        longest,
    )?;
    family(
        encoder,
        "target_reclaim_refusals",
        "Attempts that freed none or only some of the blocks, by reason",
        MetricType::Counter,
        refusals,
    )
}
