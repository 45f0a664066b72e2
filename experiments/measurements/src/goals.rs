//! Goals for the cost of a malloc/free pair compared with other tools.

use crate::{Spread, times};

/// Tools, each with the required minimum of its added cost divided by memhook-rs's, for a pair of 64 B, 10 frames deep.
pub const GOALS: [(&str, f64); 2] = [
    ("uprobe, BPF, stack 10, malloc", 60.0),
    ("heaptrack, attached", 15.0),
];

/// Describes the ratio of a tool's added cost to ours, with the goal if the tool has one.
pub fn times_goal(tool: &str, theirs: Spread, ours: Spread) -> String {
    let t = times(theirs, ours);
    let goal = GOALS.iter().find(|(name, _)| *name == tool);
    let goal = goal.map_or_else(String::new, |(_, goal)| {
        if t.median >= *goal {
            format!("; goal {goal:.0}: reached")
        } else {
            format!("; goal {goal:.0}: not reached")
        }
    });
    format!("{:.1} ({:.1} to {:.1}){goal}", t.median, t.low, t.high)
}
