//! The series of processes and services.

use super::{Labels, MOST_OF_A_LABEL, family};
use crate::board::Numbers;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use std::collections::BTreeMap;
use std::fmt::Error;

/// A metric of the targets.
struct OfTargets {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    value: fn(&Numbers) -> f64,
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Numbers) -> f64) -> OfTargets {
    OfTargets {
        name,
        help,
        kind: MetricType::Gauge,
        value,
    }
}

const fn counter(name: &'static str, help: &'static str, value: fn(&Numbers) -> f64) -> OfTargets {
    OfTargets {
        name,
        help,
        kind: MetricType::Counter,
        value,
    }
}

/// Metrics of targets. Names of counters get the suffix `_total` automatically.
const OF_TARGETS: [OfTargets; 19] = [
    gauge(
        "target_processes",
        "Processes that the series covers",
        |_| 1.0,
    ),
    gauge(
        "target_live_bytes",
        "Bytes of live blocks that were allocated since the attach",
        |n| n.live.0 as f64,
    ),
    gauge(
        "target_live_blocks",
        "Live blocks that were allocated since the attach",
        |n| n.live.1 as f64,
    ),
    gauge(
        "target_growth_bytes_per_minute",
        "Change of the live bytes in the last minute",
        |n| n.growth_per_minute,
    ),
    counter(
        "target_allocated_bytes",
        "Bytes allocated since the attach",
        |n| n.allocated.0 as f64,
    ),
    counter(
        "target_allocations",
        "Blocks allocated since the attach",
        |n| n.allocated.1 as f64,
    ),
    counter(
        "target_released_bytes",
        "Bytes of blocks released that were allocated since the attach",
        |n| n.allocated.0.saturating_sub(n.live.0) as f64,
    ),
    counter(
        "target_releases",
        "Blocks released that were allocated since the attach",
        |n| n.allocated.1.saturating_sub(n.live.1) as f64,
    ),
    gauge(
        "target_sample_bytes",
        "Mean bytes between the samples that are taken now, or 0 if every allocation is recorded",
        |n| n.sample_bytes as f64,
    ),
    counter("target_lost_events", "Events that were lost", |n| {
        n.lost as f64
    }),
    counter(
        "target_unwatched_libraries",
        "Libraries that were opened before they could be patched, so that calls by them may be missing",
        |n| n.unwatched_libraries as f64,
    ),
    counter(
        "target_gaps",
        "Times in which the process went on untraced",
        |n| n.gaps.0 as f64,
    ),
    counter(
        "target_gap_seconds",
        "Seconds in which the process went on untraced",
        |n| n.gaps.1,
    ),
    gauge("target_attach_seconds", "How long the attach took", |n| {
        n.attach.0
    }),
    gauge(
        "target_held_seconds",
        "How long one thread was held during the attach",
        |n| n.attach.1,
    ),
    gauge(
        "target_resident_bytes",
        "Bytes of the process in memory",
        |n| n.resident as f64,
    ),
    gauge(
        "target_memory_limit_bytes",
        "The tightest limit of its memory cgroups, or 0",
        |n| n.limit.0 as f64,
    ),
    gauge(
        "target_memory_free_bytes",
        "What is free below that limit",
        |n| n.limit.1 as f64,
    ),
    counter("target_profiles", "Profiles that were made", |n| {
        n.profiles as f64
    }),
];

/// Writes the series of the targets, each with its labels.
pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    shown: &[(Labels, &Numbers)],
) -> Result<(), Error> {
    for metric in &OF_TARGETS {
        // Processes with equal labels are one series.
        let mut sums: BTreeMap<&Labels, f64> = BTreeMap::new();
        for (labels, numbers) in shown {
            *sums.entry(labels).or_default() += (metric.value)(numbers);
        }
        let values = sums
            .into_iter()
            .map(|(labels, value)| (labels.clone(), value));
        family(encoder, metric.name, metric.help, metric.kind, values)?;
    }
    errors(encoder, shown)?;
    parts(encoder, shown)?;
    pins(encoder, shown)?;
    scans(encoder, shown)
}

/// Writes the standard errors of estimated sums.
fn errors(encoder: &mut DescriptorEncoder<'_>, shown: &[(Labels, &Numbers)]) -> Result<(), Error> {
    // The variances of processes with equal labels add up, because the samples of different
    // processes are independent.
    let mut variances: BTreeMap<&Labels, [f64; 2]> = BTreeMap::new();
    for (labels, numbers) in shown {
        if let Some((live, allocated)) = numbers.errors {
            let sums = variances.entry(labels).or_default();
            for (sum, error) in sums.iter_mut().zip([live, allocated]) {
                *sum += (error as f64).powi(2);
            }
        }
    }
    let families = [
        (
            "target_live_error_bytes",
            "Standard error of the live bytes, where samples were taken",
        ),
        (
            "target_allocated_error_bytes",
            "Standard error of the allocated bytes, where samples were taken",
        ),
    ];
    for (index, (name, help)) in families.into_iter().enumerate() {
        if variances.is_empty() {
            return Ok(());
        }
        let values = variances
            .iter()
            .map(|(labels, sums)| ((*labels).clone(), sums[index].sqrt()));
        family(encoder, name, help, MetricType::Gauge, values)?;
    }
    Ok(())
}

/// Writes the parts of the resident memory, for targets whose rule requests them.
fn parts(encoder: &mut DescriptorEncoder<'_>, shown: &[(Labels, &Numbers)]) -> Result<(), Error> {
    let mut parts: BTreeMap<Labels, f64> = BTreeMap::new();
    for (labels, numbers) in shown {
        for (part, bytes) in &numbers.resident_parts {
            let mut labels = labels.clone();
            labels.push(("part", (*part).into()));
            *parts.entry(labels).or_default() += *bytes as f64;
        }
    }
    if parts.is_empty() {
        return Ok(());
    }
    family(
        encoder,
        "target_resident_part_bytes",
        "Resident memory of the process in bytes, by part",
        MetricType::Gauge,
        parts,
    )
}

/// Writes the pins, for targets whose rule requests them.
fn pins(encoder: &mut DescriptorEncoder<'_>, shown: &[(Labels, &Numbers)]) -> Result<(), Error> {
    let mut sums: BTreeMap<Labels, [f64; 2]> = BTreeMap::new();
    for (labels, numbers) in shown {
        for pin in &numbers.pins {
            let mut labels = labels.clone();
            labels.push(("blocks", pin.name.chars().take(MOST_OF_A_LABEL).collect()));
            let sum = sums.entry(labels).or_default();
            sum[0] += pin.pinned_bytes as f64;
            sum[1] += pin.own_bytes as f64;
        }
    }
    if sums.is_empty() {
        return Ok(());
    }
    let families = [
        (
            "target_pinned_bytes",
            "Bytes in memory that would come back if these blocks were freed and the heap trimmed",
        ),
        (
            "target_pinning_bytes",
            "Bytes of the blocks that pin that memory",
        ),
    ];
    for (index, (name, help)) in families.into_iter().enumerate() {
        let values = sums
            .iter()
            .map(|(labels, sums)| (labels.clone(), sums[index]));
        family(encoder, name, help, MetricType::Gauge, values)?;
    }
    Ok(())
}

/// Writes the results of searches, for the targets that are searched.
fn scans(encoder: &mut DescriptorEncoder<'_>, shown: &[(Labels, &Numbers)]) -> Result<(), Error> {
    // For each set of labels, the sums are bytes, blocks, searches and seconds.
    let mut sums: BTreeMap<&Labels, [f64; 4]> = BTreeMap::new();
    for (labels, numbers) in shown {
        if let Some((bytes, blocks)) = numbers.unreachable {
            let sum = sums.entry(labels).or_default();
            let these = [
                bytes as f64,
                blocks as f64,
                numbers.scans as f64,
                numbers.scan_held,
            ];
            for (sum, one) in sum.iter_mut().zip(these) {
                *sum += one;
            }
        }
    }
    if sums.is_empty() {
        return Ok(());
    }
    let families = [
        (
            "target_unreachable_bytes",
            "Bytes of blocks that nothing in the process reaches",
            MetricType::Gauge,
        ),
        (
            "target_unreachable_blocks",
            "Blocks that nothing in the process reaches",
            MetricType::Gauge,
        ),
        (
            "target_scans",
            "Searches for such blocks",
            MetricType::Counter,
        ),
        (
            "target_scan_held_seconds",
            "How long all threads were held for these searches",
            MetricType::Counter,
        ),
    ];
    for (index, (name, help, kind)) in families.into_iter().enumerate() {
        let values = sums
            .iter()
            .map(|(labels, sums)| ((*labels).clone(), sums[index]));
        family(encoder, name, help, kind, values)?;
    }
    Ok(())
}
