//! Sites merged into a tree of calls.

use crate::labels::Labels;
use crate::{Amount, Profile, ProfileSite, Unit};
use std::cmp::Reverse;
use std::collections::HashMap;

/// A function in its context.
pub(crate) struct Node {
    /// Number of the function's name; meaningless for the root.
    pub label: u32,
    /// Sum over the subtree, including the node itself.
    pub value: u64,
    /// Estimated variance of the value; 0 unless allocations were sampled.
    pub variance: f64,
    /// Additional variance for memory that no sample has hit.
    unhit: f64,
    /// Indices of the children, the largest child first.
    pub children: Vec<usize>,
}

/// A tree of calls; node 0 is the root, which holds the total.
pub(crate) struct CallTree {
    pub nodes: Vec<Node>,
}

/// End of the stacks at which a tree begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// The outermost frames. Children are callees.
    Outermost,
    /// The innermost frames. Children are callers.
    Innermost,
}

impl Node {
    /// Returns the standard error of the value, if it is an estimate.
    pub fn error(&self) -> Option<u64> {
        memhook_ledger::standard_error(self.variance.max(0.0) + self.unhit)
    }
}

impl CallTree {
    /// Builds the tree of all sites whose value is not 0.
    pub fn new(
        profile: &Profile,
        labels: &Labels,
        root: Root,
        of: impl Fn(&ProfileSite) -> Amount,
        unit: Unit,
    ) -> CallTree {
        let node = |label| Node {
            label,
            value: 0,
            variance: 0.0,
            unhit: 0.0,
            children: Vec::new(),
        };
        let mut nodes = vec![node(0)];
        let mut known: HashMap<(usize, u32), usize> = HashMap::new();
        for site in &profile.sites {
            let amount = of(site);
            let value = unit.of(amount);
            let (variance, unhit) = match unit {
                Unit::Bytes => (amount.variance, amount.unhit),
                Unit::Blocks | Unit::Calls => (0.0, 0.0),
            };
            if value == 0 {
                continue;
            }
            let mut stack = labels.stack(profile, site.stack);
            if root == Root::Outermost {
                stack.reverse();
            }
            let mut at = 0;
            nodes[0].value += value;
            nodes[0].variance += variance;
            nodes[0].unhit = unhit.max(nodes[0].unhit);
            for label in stack {
                let next = *known.entry((at, label)).or_insert_with(|| {
                    nodes.push(node(label));
                    nodes.len() - 1
                });
                if nodes[next].value == 0 {
                    nodes[at].children.push(next);
                }
                nodes[next].value += value;
                nodes[next].variance += variance;
                nodes[next].unhit = unhit.max(nodes[next].unhit);
                at = next;
            }
        }
        let values: Vec<u64> = nodes.iter().map(|node| node.value).collect();
        for node in &mut nodes {
            let key = |&child: &usize| (Reverse(values[child]), child);
            node.children.sort_by_key(key);
        }
        CallTree { nodes }
    }
}
