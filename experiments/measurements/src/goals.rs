//! What a malloc/free pair shall cost less than with other tools.

use crate::{Spread, times};

/// Tools, and how many times as much as memhook-rs they are to add to a pair of 64 B, 10 frames deep.
pub const GOALS: [(&str, f64); 2] = [
    ("uprobe, BPF, stack 10, malloc", 60.0),
    ("heaptrack, attached", 15.0),
];

/// How many times as much a tool adds, in words, with the goal if there is one for it.
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
