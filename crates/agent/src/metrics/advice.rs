//! Metric series of the memory that could be returned, for processes whose rule asks for advice.

use super::{Labels, family};
use crate::board::{Advised, Numbers};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use std::collections::BTreeMap;
use std::fmt::Error;

/// Writes the series of the targets, each with its labels.
pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    shown: &[(Labels, &Numbers)],
) -> Result<(), Error> {
    let shown = shown.iter();
    let shown = shown.filter_map(|(labels, numbers)| Some((labels, numbers.advised.as_ref()?)));
    let shown: Vec<(&Labels, &Advised)> = shown.collect();
    if shown.is_empty() {
        return Ok(());
    }
    let sum = |value: fn(&Advised) -> f64| {
        let mut sums: BTreeMap<&Labels, f64> = BTreeMap::new();
        for (labels, advised) in &shown {
            *sums.entry(labels).or_default() += value(advised);
        }
        let sums = sums.into_iter();
        sums.map(|(labels, sum)| (labels.clone(), sum))
            .collect::<Vec<_>>()
    };
    family(
        encoder,
        "target_advice_attempts",
        "Attempts to examine the process",
        MetricType::Counter,
        sum(|advised| advised.attempts as f64),
    )?;
    family(
        encoder,
        "target_advices",
        "Attempts that led to advice",
        MetricType::Counter,
        sum(|advised| advised.given as f64),
    )?;
    let mut oldest: BTreeMap<&Labels, f64> = BTreeMap::new();
    let mut gains: BTreeMap<Labels, (f64, f64)> = BTreeMap::new();
    let mut refusals: BTreeMap<Labels, f64> = BTreeMap::new();
    let with = |labels: &Labels, name, value: &str| {
        [labels.clone(), vec![(name, value.to_owned())]].concat()
    };
    for (labels, advised) in &shown {
        if let Some(last) = &advised.last {
            let age = oldest.entry(labels).or_default();
            *age = age.max(last.made.age().as_secs_f64());
            for (kind, (now, an_hour)) in &last.gains {
                let gain = gains.entry(with(labels, "finding", kind)).or_default();
                gain.0 += *now as f64;
                gain.1 += *an_hour as f64;
            }
        }
        for (reason, count) in &advised.refusals {
            *refusals.entry(with(labels, "reason", reason)).or_default() += *count as f64;
        }
    }
    let oldest = oldest.into_iter();
    family(
        encoder,
        "target_advice_age_seconds",
        "Time since the last advice; the longest one if there are several processes",
        MetricType::Gauge,
        oldest.map(|(labels, age)| (labels.clone(), age)),
    )?;
    let now = gains.iter();
    family(
        encoder,
        "target_advice_gain_bytes",
        "Bytes that would come back, by what was found",
        MetricType::Gauge,
        now.map(|(labels, gain)| (labels.clone(), gain.0)),
    )?;
    let an_hour = gains.iter();
    family(
        encoder,
        "target_advice_gain_bytes_per_hour",
        "Bytes that would not be added in an hour, by what was found",
        MetricType::Gauge,
        an_hour.map(|(labels, gain)| (labels.clone(), gain.1)),
    )?;
    family(
        encoder,
        "target_advice_refusals",
        "Attempts that led to no advice, by the reason",
        MetricType::Counter,
        refusals,
    )
}
