//! Trees of calls, as text and as JSON with the schema `memhook-rs/tree/1`.

use crate::call_tree::{CallTree, Root};
use crate::gaps;
use crate::labels::Labels;
use crate::stacks::shortened;
use crate::units::{bytes, count, error_text, percent, with_error};
use crate::wrap::columns;
use crate::{Document, Measure, Profile, Style, Unit, UnseenTime};
use serde::Serialize;
use std::fmt::Write;

/// Share of the total below which nodes are combined into one line, unless the user wants
/// everything.
const LEAST_PERCENT: f64 = 1.0;

/// A tree of calls.
#[derive(Clone, Debug, Serialize)]
pub struct Tree {
    /// Always `memhook-rs/tree/1`.
    pub schema: &'static str,
    /// `top_down` or `bottom_up`.
    pub direction: &'static str,
    /// Counted measure: live, peak, ...
    pub measure: &'static str,
    /// `bytes` or `blocks`.
    pub unit: &'static str,
    /// Times in which no event was seen.
    pub gaps: Vec<UnseenTime>,
    /// Sum over the tree.
    pub value: u64,
    /// Standard error of a sum of bytes when sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<u64>,
    /// Outermost functions, or functions that allocate, the largest first.
    pub children: Vec<TreeNode>,
    #[serde(skip)]
    is_sampled: bool,
}

/// A function in its context.
#[derive(Clone, Debug, Serialize)]
pub struct TreeNode {
    /// Name of the function.
    pub name: String,
    /// Value of the function and everything below it.
    pub value: u64,
    /// Standard error of bytes when sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<u64>,
    /// Functions below this one, the largest first.
    pub children: Vec<TreeNode>,
}

/// Builds the tree of a profile.
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

/// Builds the nodes below a node. The depth of the stacks bounds the recursion.
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

    /// Formats the error of a value. Returns an empty text for trees without errors.
    fn error_column(&self, value: u64, error: Option<u64>) -> String {
        let error = error.map(|error| error_text(value, error));
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
            let error = self.error_column(node.value, node.error);
            let (indent, room) = room(depth, columns(&error), style);
            let name = style.name(&shortened(node.name.clone(), room));
            let _ = writeln!(out, "{number}{error} {:>6.1}%  {indent}{name}", share(node));
            self.lines(out, &node.children, depth + 1, least, style);
        }
        let rest = &nodes[shown..];
        let value: u64 = rest.iter().map(|node| node.value).sum();
        if value > 0 {
            let (indent, _) = room(depth, columns(&self.error_column(0, None)), style);
            let text = format!("... {} more below {least} % each", count(rest.len() as u64));
            let number = format!(
                "{:>11}{} {:>6.1}%",
                self.amount(value),
                self.error_column(value, None),
                percent(value, self.value)
            );
            let _ = writeln!(out, "{}", style.faint(&format!("{number}  {indent}{text}")));
        }
    }
}

/// Width of a line in a file or a pipe.
const COLUMNS_ELSEWHERE: usize = 160;

/// Returns the indentation of a line, and the space for the name after it. No line is wider than
/// the terminal, because the rest of a name would appear where names of other levels begin. With
/// `-v`, names are complete.
fn room(depth: usize, error_columns: usize, style: Style) -> (String, usize) {
    /// Columns of a number and a share.
    const COLUMNS: usize = 11 + 1 + 6 + 1 + 2;
    /// Minimum columns for a name at any depth.
    const LEAST_NAME: usize = 24;
    if style.verbose {
        return ("  ".repeat(depth), usize::MAX);
    }
    let width = style.width.unwrap_or(COLUMNS_ELSEWHERE);
    let left = width.saturating_sub(COLUMNS + error_columns);
    let indent = (2 * depth).min(left.saturating_sub(LEAST_NAME));
    (" ".repeat(indent), (left - indent).max(LEAST_NAME))
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
        let what = match self.value {
            0 => "no block to show calls of".to_owned(),
            _ => format!("{what}:"),
        };
        let head = format!("{} {sum}, {what}", self.measure);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> TreeNode {
        let parameters = "std::vector<Order, std::allocator<Order> > const&, ".repeat(3);
        TreeNode {
            name: format!("shop::Cache<Order, Customer>::level_{depth}({parameters}int)"),
            value: 1000,
            error: None,
            children: if depth == 40 {
                Vec::new()
            } else {
                vec![nested(depth + 1)]
            },
        }
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let tree = Tree {
            schema: "memhook-rs/tree/1",
            direction: "top_down",
            measure: "live",
            unit: "bytes",
            gaps: Vec::new(),
            value: 1000,
            error: None,
            children: vec![nested(0)],
            is_sampled: false,
        };
        let of = |width| Style {
            width,
            ..Style::default()
        };
        for width in [60, 80, 120] {
            let text = tree.text(of(Some(width)));
            assert!(
                text.lines().all(|line| line.chars().count() <= width),
                "{text}"
            );
            // The function's own name is kept.
            assert!(
                (0..=40).all(|depth| ["(", "\n"]
                    .iter()
                    .any(|end| text.contains(&format!("level_{depth}{end}")))),
                "{text}"
            );
        }
        // Output to a file or a pipe has a maximum width too, unless nothing may be left out.
        let widest = |style| {
            let text = tree.text(style);
            let widths = text.lines().map(|line| line.chars().count());
            widths.max().unwrap_or(0)
        };
        assert!((120..=COLUMNS_ELSEWHERE).contains(&widest(of(None))));
        let verbose = Style {
            verbose: true,
            ..of(None)
        };
        assert!(widest(verbose) > 200);
    }
}
