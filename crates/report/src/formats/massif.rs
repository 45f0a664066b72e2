//! Valgrind's Massif format, which `ms_print` and massif-visualizer read: the heap over time, with
//! trees of callers at the peak and at the end.

use super::{Format, FormatOptions};
use crate::call_tree::{CallTree, Root};
use crate::gaps;
use crate::labels::{Labels, one_line};
use crate::{Measure, Profile, Unit};
use std::io::{Result, Write};

/// Maximum number of snapshots in addition to the peak and the end. Massif itself takes at most
/// 100.
const SNAPSHOTS: usize = 98;
/// Share of a snapshot below which callers are combined, as in Massif.
const THRESHOLD: f64 = 0.01;

/// One of the snapshots.
struct Snapshot {
    time_ms: u64,
    bytes: u64,
    tree: Option<(Measure, &'static str)>,
}

/// The snapshots of a Massif file.
pub struct Massif;

impl Format<Profile> for Massif {
    fn name(&self) -> &'static str {
        "massif"
    }

    fn write(&self, profile: &Profile, _: &FormatOptions, out: &mut dyn Write) -> Result<()> {
        let sampled = match profile.sampling {
            Some(_) => ", estimated from samples",
            None => "",
        };
        let unseen = gaps::in_words(&profile.gaps).map_or(String::new(), |gaps| gaps + "; ");
        writeln!(
            out,
            "desc: {unseen}memhook-rs, process {}{sampled}",
            profile.target.pid
        )?;
        writeln!(out, "cmd: {}", one_line(profile.target.command()))?;
        writeln!(out, "time_unit: ms")?;
        let labels = Labels::with_places(profile);
        for (number, snapshot) in snapshots(profile).iter().enumerate() {
            writeln!(out, "#-----------\nsnapshot={number}\n#-----------")?;
            writeln!(out, "time={}", snapshot.time_ms)?;
            writeln!(out, "mem_heap_B={}", snapshot.bytes)?;
            writeln!(out, "mem_heap_extra_B=0\nmem_stacks_B=0")?;
            match snapshot.tree {
                None => writeln!(out, "heap_tree=empty")?,
                Some((measure, kind)) => {
                    writeln!(out, "heap_tree={kind}")?;
                    let amount = |site: &crate::ProfileSite| measure.of(&site.measures);
                    let tree =
                        CallTree::new(profile, &labels, Root::Innermost, amount, Unit::Bytes);
                    write_tree(&tree, &labels, out)?;
                }
            }
        }
        Ok(())
    }
}

fn snapshots(profile: &Profile) -> Vec<Snapshot> {
    let sum = |measure: Measure| {
        let sites = profile.sites.iter();
        sites.map(|s| measure.of(&s.measures).bytes).sum::<u64>()
    };
    let step = profile.timeline.len().div_ceil(SNAPSHOTS).max(1);
    let inner = |p: &&crate::Point| p.time_ns < profile.to_ns && p.time_ns != profile.peak_ns;
    let points = profile.timeline.iter().step_by(step).filter(inner);
    let plain = points.map(|point| Snapshot {
        time_ms: point.time_ns / 1_000_000,
        bytes: point.live.bytes,
        tree: None,
    });
    let mut all: Vec<Snapshot> = plain.collect();
    let peak = Snapshot {
        time_ms: profile.peak_ns / 1_000_000,
        bytes: sum(Measure::Peak),
        tree: Some((Measure::Peak, "peak")),
    };
    let at = all.partition_point(|s| s.time_ms <= peak.time_ms);
    all.insert(at, peak);
    all.push(Snapshot {
        time_ms: profile.to_ns.div_ceil(1_000_000),
        bytes: sum(Measure::Live),
        tree: Some((Measure::Live, "detailed")),
    });
    all
}

/// Writes one line for each node, before its children: `n<children>: <bytes> <name>`, indented by its depth.
fn write_tree(tree: &CallTree, labels: &Labels, out: &mut dyn Write) -> Result<()> {
    let least = (tree.nodes[0].value as f64 * THRESHOLD) as u64;
    let mut pending = vec![(0, 0)];
    while let Some((index, depth)) = pending.pop() {
        let node = &tree.nodes[index];
        let is_large = |&&child: &&usize| tree.nodes[child].value >= least.max(1);
        let shown: Vec<usize> = node.children.iter().filter(is_large).copied().collect();
        let rest = &node.children[shown.len()..];
        let is_cut = !rest.is_empty();
        let children = shown.len() + usize::from(is_cut);
        let name = match index {
            0 => "(heap allocation functions) malloc/new/new[], --alloc-fns, etc.",
            _ => labels.text(node.label),
        };
        // A line may contain several calls. The address of one of those calls is used.
        let address = match index {
            0 => String::new(),
            _ => format!("{:#X}: ", labels.address(node.label)),
        };
        writeln!(
            out,
            "{:depth$}n{children}: {} {address}{name}",
            "", node.value
        )?;
        if is_cut {
            // ms_print finds children by their number, not by their order.
            let bytes: u64 = rest.iter().map(|&child| tree.nodes[child].value).sum();
            writeln!(
                out,
                "{:indent$}n0: {bytes} in {} places, all below massif's threshold ({:.2}%)",
                "",
                rest.len(),
                THRESHOLD * 100.0,
                indent = depth + 1
            )?;
        }
        pending.extend(shown.into_iter().rev().map(|child| (child, depth + 1)));
    }
    Ok(())
}
