//! Trees of calls for reading: as text, and as JSON with the schema `memhook-rs/tree/1`.

use crate::call_tree::{CallTree, Root};
use crate::gaps;
use crate::labels::Labels;
use crate::units::{bytes, count, percent, with_error};
use crate::{Document, Measure, Profile, Style, Unit, UnseenTime};
use serde::Serialize;
use std::fmt::Write;

/// Nodes below this share of the whole are summed up, unless all is wanted.
const LEAST_PERCENT: f64 = 1.0;

/// A tree of calls.
#[derive(Clone, Debug, Serialize)]
pub struct Tree {
    /// Always `memhook-rs/tree/1`.
    pub schema: &'static str,
    /// `top_down` or `bottom_up`.
    pub direction: &'static str,
    /// What is counted: live, peak, ...
    pub measure: &'static str,
    /// `bytes` or `blocks`.
    pub unit: &'static str,
    /// The times in which nothing was seen.
    pub gaps: Vec<UnseenTime>,
    /// The sum.
    pub value: u64,
    /// Standard error of a sum of bytes when sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<u64>,
    /// Outermost functions, or those that allocate; largest first.
    pub children: Vec<TreeNode>,
    #[serde(skip)]
    is_sampled: bool,
}

/// A function in its context.
#[derive(Clone, Debug, Serialize)]
pub struct TreeNode {
    /// Function.
    pub name: String,
    /// With everything below.
    pub value: u64,
    /// Standard error of bytes when sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<u64>,
    /// Largest first.
    pub children: Vec<TreeNode>,
}

/// The tree of a profile.
pub fn tree(profile: &Profile, root: Root, measure: Measure, unit: Unit) -> Tree {
    let labels = Labels::new(profile);
    let amount = |site: &crate::ProfileSite| measure.of(&site.measures);
    let calls = CallTree::new(profile, &labels, root, amount, unit);
    Tree {
        schema: "memhook-rs/tree/1",
        direction: match root {
            Root::Outermost => "top_down",
            Root::Innermost => "bottom_up",
        },
        measure: measure.name(),
        unit: unit.name(),
        gaps: profile.gaps.clone(),
        value: calls.nodes[0].value,
        error: calls.nodes[0].error(),
        is_sampled: profile.sampling.is_some(),
        children: children(&calls, &labels, 0),
    }
}

/// Recursion is bounded by the depth of the stacks.
fn children(calls: &CallTree, labels: &Labels, at: usize) -> Vec<TreeNode> {
    let nodes = calls.nodes[at].children.iter();
    nodes
        .map(|&child| TreeNode {
            name: labels.text(calls.nodes[child].label).to_owned(),
            value: calls.nodes[child].value,
            error: calls.nodes[child].error(),
            children: children(calls, labels, child),
        })
        .collect()
}

impl Tree {
    fn amount(&self, value: u64) -> String {
        match self.unit {
            "bytes" => bytes(value),
            _ => count(value),
        }
    }

    /// Empty but for trees with errors.
    fn error_column(&self, error: Option<u64>) -> String {
        let error = error.map(|error| format!("± {}", bytes(error)));
        match self.error {
            Some(_) => format!(" {:>13}", error.unwrap_or_default()),
            None => String::new(),
        }
    }

    fn lines(&self, out: &mut String, nodes: &[TreeNode], depth: usize, least: f64, style: Style) {
        let share = |node: &TreeNode| percent(node.value, self.value);
        let shown = nodes.iter().take_while(|node| share(node) >= least).count();
        for node in &nodes[..shown] {
            let number = style.number(&format!("{:>11}", self.amount(node.value)));
            let indent = "  ".repeat(depth);
            let name = style.name(&node.name);
            let error = self.error_column(node.error);
            let _ = writeln!(out, "{number}{error} {:>6.1}%  {indent}{name}", share(node));
            self.lines(out, &node.children, depth + 1, least, style);
        }
        let rest = &nodes[shown..];
        let value: u64 = rest.iter().map(|node| node.value).sum();
        if value > 0 {
            let indent = "  ".repeat(depth);
            let text = format!("... {} more below {least} % each", count(rest.len() as u64));
            let number = format!(
                "{:>11}{} {:>6.1}%",
                self.amount(value),
                self.error_column(None),
                percent(value, self.value)
            );
            let _ = writeln!(out, "{}", style.faint(&format!("{number}  {indent}{text}")));
        }
    }
}

impl Document for Tree {
    fn text(&self, style: Style) -> String {
        let mut out = String::new();
        let least_percent = if style.verbose { 0.0 } else { LEAST_PERCENT };
        let what = match self.direction {
            "top_down" => "who calls what",
            _ => "by whom it was called",
        };
        let sum = match self.unit {
            "bytes" => with_error(self.value, self.error),
            _ => count(self.value),
        };
        let head = format!("{} {sum}, {what}:", self.measure);
        // Writing into a String cannot fail.
        if let Some(gaps) = gaps::warning(&self.gaps, None) {
            let _ = writeln!(out, "{}", style.warning(&gaps));
        }
        if self.is_sampled {
            let _ = writeln!(out, "Estimates from sampled allocations");
        }
        let _ = writeln!(out, "{}", style.strong(&head));
        self.lines(&mut out, &self.children, 0, least_percent, style);
        out
    }
}
