//! Distinguishing notes for rows of the page that would otherwise look alike.

use super::calls::Calls;
use crate::Profile;
use crate::apart::{KnownSite, asides as asides_of};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Maximum number of callers in a row.
const CALLERS: usize = 3;

/// Returns the node of each site that looks like another, and a note that distinguishes the site.
pub(super) fn asides(profile: &Profile, calls: &Calls) -> Vec<(u32, String)> {
    let mut of_node = BTreeMap::new();
    for site in &profile.sites {
        of_node
            .entry(calls.node_of(site.stack))
            .or_insert((site.stack, &site.kind));
    }
    of_node.remove(&0);
    let mut alike: FxHashMap<Vec<u32>, Vec<u32>> = FxHashMap::default();
    for &node in of_node.keys() {
        alike
            .entry(calls.look(node, CALLERS))
            .or_default()
            .push(node);
    }
    let mut found = Vec::new();
    for nodes in alike.into_values().filter(|nodes| nodes.len() > 1) {
        let stacks = nodes.iter().map(|node| profile.stack(of_node[node].0));
        let stacks: Vec<_> = stacks.collect();
        let sites = nodes.iter().zip(&stacks).map(|(node, frames)| KnownSite {
            stack: of_node[node].0,
            kind: of_node[node].1,
            frames,
        });
        let looks = vec![String::new(); nodes.len()];
        let texts = asides_of(&sites.collect::<Vec<_>>(), &looks);
        found.extend(nodes.into_iter().zip(texts));
    }
    found.sort_unstable();
    found
}
