//! The scores of a profile for the page's script, with the chunks of each site.

use super::calls::Calls;
use super::packed::Packed;
use crate::{Gain, Profile, SiteScores};
use memhook_recording::Chunk;
use serde::Serialize;
use std::collections::BTreeMap;

/// Number of steps in a score's range. Scores are stored as whole numbers of steps.
const SCORE_STEPS: f64 = 1e9;
/// Unit of the times of chunks. Even for a run that lasts a day, the page does not draw anything
/// smaller.
const NS_OF_A_TICK: u64 = 1000;

/// An inference, with the node of its site in the tree of calls.
#[derive(Serialize)]
pub(super) struct PageInference<'a> {
    title: &'a str,
    evidence: &'a str,
    advice: &'a str,
    gain: &'a Gain,
    node: u32,
}

/// Returns the findings for the page.
pub(super) fn inferences<'a>(profile: &'a Profile, calls: &Calls) -> Vec<PageInference<'a>> {
    let all = profile.scores.iter().flat_map(|scores| &scores.inferences);
    all.map(|inference| PageInference {
        title: inference.title,
        evidence: &inference.evidence,
        advice: inference.advice,
        gain: &inference.gain,
        node: calls.node_of(inference.stack_index),
    })
    .collect()
}

/// Packs scores by stack, and the chunks of all stacks, one stack after the other.
pub(super) fn pack_scores(packed: &mut Packed, profile: &Profile, calls: &Calls) {
    let sites: &[SiteScores] = profile.scores.as_ref().map_or(&[], |scores| &scores.sites);
    let nodes = sites.iter().map(|site| calls.node_of(site.stack));
    packed.running("scores.node", nodes);
    // Scores are stored with one added, because 0 means an unknown score.
    let of = |score: Option<f64>| score.map_or(0, |score| 1 + (score * SCORE_STEPS) as i64);
    packed.plain(
        "scores.lifetime",
        sites.iter().map(|s| of(s.scores.lifetime)),
    );
    packed.plain("scores.usage", sites.iter().map(|s| of(s.scores.usage)));
    let useful = sites.iter().map(|s| of(s.scores.useful_lifetime));
    packed.plain("scores.useful_lifetime", useful);
    packed.plain("scores.blocks", sites.iter().map(|s| s.numbers.chunks));
    packed.plain("scores.groups", sites.iter().map(|s| s.numbers.groups));
    packed.plain("scores.most", sites.iter().map(|s| s.numbers.most_live));
    packed.plain("scores.step", sites.iter().map(|s| s.numbers.kept.step));
    let kept = sites.iter().map(|s| s.numbers.kept.chunks.len());
    packed.plain("scores.kept", kept);
    pack_custom(packed, profile, calls);
    let chunks = || sites.iter().flat_map(|site| &site.numbers.kept.chunks);
    let ticks = |ns: u64| ns / NS_OF_A_TICK;
    packed.running("chunks.start", chunks().map(|chunk| ticks(chunk.start_ns)));
    let lifetimes = chunks().map(|chunk| ticks(chunk.end_ns - chunk.start_ns));
    packed.plain("chunks.lifetime", lifetimes);
    packed.running("chunks.size", chunks().map(|chunk| chunk.size));
    packed.plain("chunks.live", chunks().map(|chunk| chunk.is_live));
    packed.plain("chunks.access", chunks().map(access_state));
    let accesses = || {
        chunks().map(|chunk| {
            let accesses = chunk.accesses.as_deref().copied();
            (chunk.start_ns, accesses.unwrap_or_default())
        })
    };
    let since = |from_ns: u64, ns: u64| ticks(ns.saturating_sub(from_ns));
    let waits = accesses().map(|(start_ns, of)| since(start_ns, of.first_ns));
    packed.plain("chunks.wait", waits);
    let used = accesses().map(|(_, of)| since(of.first_ns, of.last_ns));
    packed.plain("chunks.used", used);
    packed.plain("chunks.reads", accesses().map(|(_, of)| of.reads));
    packed.plain("chunks.writes", accesses().map(|(_, of)| of.writes));
}

/// Packs the values of users' formulas, one formula after the other. A value is the two halves of a
/// double, or of NaN for no value. Sites that the page merges have one common value.
fn pack_custom(packed: &mut Packed, profile: &Profile, calls: &Calls) {
    let mut halves: [Vec<i32>; 2] = Default::default();
    if let Some(scores) = profile.scores.as_ref().filter(|s| !s.formulas.is_empty()) {
        let mut of_node: BTreeMap<u32, Vec<&SiteScores>> = BTreeMap::new();
        for site in &scores.sites {
            of_node
                .entry(calls.node_of(site.stack))
                .or_default()
                .push(site);
        }
        let values: BTreeMap<u32, Vec<Option<f64>>> = of_node
            .into_iter()
            .map(|(node, sites)| (node, scores.values(sites)))
            .collect();
        for formula in 0..scores.formulas.len() {
            for site in &scores.sites {
                let known = values.get(&calls.node_of(site.stack));
                let value = known.and_then(|values| values[formula]);
                let bits = value.unwrap_or(f64::NAN).to_bits();
                halves[0].push((bits >> 32) as i32);
                halves[1].push(bits as i32);
            }
        }
    }
    let [high, low] = halves;
    packed.plain("custom.high", high);
    packed.plain("custom.low", low);
}

/// Returns the page's code for a chunk's accesses: 0 unknown, 1 none, 2 all by one thread, 3 by
/// several.
fn access_state(chunk: &Chunk) -> u8 {
    match &chunk.accesses {
        None => 0,
        Some(of) if of.reads == 0 && of.writes == 0 => 1,
        Some(of) => 2 + u8::from(of.by_several),
    }
}
