//! A flame graph as one SVG file, with zoom and search in any browser, offline.

use super::{Format, FormatOptions};
use crate::call_tree::{CallTree, Node, Root};
use crate::gaps;
use crate::labels::Labels;
use crate::stacks::shortened;
use crate::static_page::escaped;
use crate::units::with_error;
use crate::{Profile, Unit, percent};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Result, Write};

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
const FRAME_HEIGHT: f64 = 17.0;
const HEADER: f64 = 62.0;
/// Assumed width of a character, in units of the font's size. Fonts differ, so each label has its
/// own viewport, which clips it.
const CHARACTER: f64 = 7.3;
/// Width of a character of the heading.
const HEADING_CHARACTER: f64 = 9.8;
/// Narrowest frame that is drawn, in pixels.
const NARROWEST: f64 = 0.1;

const STYLE: &str = include_str!("flamegraph.css");
const SCRIPT: &str = concat!(
    include_str!("flamegraph.js"),
    include_str!("../view/names.js")
);

/// A rectangle of the picture.
struct Frame {
    node: usize,
    depth: usize,
    /// Sum of the values of all siblings to the left.
    start: u64,
}

/// A flame graph.
pub struct Flamegraph;

impl Format<Profile> for Flamegraph {
    fn name(&self) -> &'static str {
        "flamegraph"
    }

    fn write(&self, profile: &Profile, options: &FormatOptions, out: &mut dyn Write) -> Result<()> {
        let labels = Labels::new(profile);
        let tree = CallTree::new(
            profile,
            &labels,
            Root::Outermost,
            |site| options.measure.of(&site.measures),
            options.unit,
        );
        let total = tree.nodes[0].value;
        let scale = (WIDTH - 2.0 * MARGIN) / total.max(1) as f64;
        let frames = layout(&tree, scale);
        let depth = frames.iter().map(|f| f.depth).max().unwrap_or(0);
        let height = HEADER + (depth + 1) as f64 * FRAME_HEIGHT + 34.0;
        let what = match options.unit {
            Unit::Calls => "callers of probed functions".to_owned(),
            unit => format!("{} {}", options.measure.name(), unit.name()),
        };
        let title = format!(
            "{} ({}): {what}, {}{}{}",
            profile.target.name,
            profile.target.pid,
            amount(&tree.nodes[0], options.unit),
            match profile.sampling {
                Some(_) => ", estimated from samples",
                None => "",
            },
            gaps::in_words(&profile.gaps).map_or(String::new(), |gaps| format!(". {gaps}"))
        );
        writeln!(
            out,
            r#"<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" id="graph" width="100%" preserveAspectRatio="xMidYMin" viewBox="0 0 {WIDTH} {height}" data-total="{total}" data-left="{MARGIN}" data-width="{}" data-unit="{}">
<title>{}</title>
<style>{STYLE}</style>
<rect class="paper" width="100%" height="100%"/>
<text class="heading" x="{}" y="26">{}</text>
<text class="button" id="unzoom" x="{MARGIN}" y="46">reset zoom</text>
<text class="button" id="search" x="{}" y="46" text-anchor="end">search</text>
<text class="detail" id="detail" x="{MARGIN}" y="{}"></text>
<text class="detail" id="matched" x="{}" y="{}" text-anchor="end"></text>
<g id="frames">"#,
            WIDTH - 2.0 * MARGIN,
            options.unit.name(),
            escaped(&title),
            WIDTH / 2.0,
            escaped(&fitting(
                &title,
                (WIDTH - 2.0 * MARGIN) * CHARACTER / HEADING_CHARACTER
            )),
            WIDTH - MARGIN,
            height - 12.0,
            WIDTH - MARGIN,
            height - 12.0,
        )?;
        for frame in &frames {
            let node = &tree.nodes[frame.node];
            let name = match frame.node {
                0 => "all",
                _ => labels.text(node.label),
            };
            let (x, width) = (
                MARGIN + frame.start as f64 * scale,
                node.value as f64 * scale,
            );
            let y = HEADER + (depth - frame.depth) as f64 * FRAME_HEIGHT;
            let tip = format!(
                "{name} ({}, {:.2} %)",
                amount(node, options.unit),
                percent(node.value, total)
            );
            writeln!(
                out,
                r#"<g class="frame" data-start="{}" data-value="{}" data-depth="{}"><title>{}</title><rect x="{x:.2}" y="{y}" width="{width:.2}" height="{}" fill="{}"/><svg x="{x:.2}" y="{y}" width="{:.2}" height="{FRAME_HEIGHT}"><text x="3" y="12">{}</text></svg></g>"#,
                frame.start,
                node.value,
                frame.depth,
                escaped(&tip),
                FRAME_HEIGHT - 1.0,
                color(name, frame.node == 0),
                (width - 2.0).max(0.0),
                escaped(&label(name, width)),
            )?;
        }
        writeln!(out, "</g>\n<script><![CDATA[\n{SCRIPT}]]></script>\n</svg>")
    }
}

/// Returns all frames that are wide enough, outermost first.
fn layout(tree: &CallTree, scale: f64) -> Vec<Frame> {
    let mut frames = vec![Frame {
        node: 0,
        depth: 0,
        start: 0,
    }];
    let mut next = 0;
    while let Some(&Frame { node, depth, start }) = frames.get(next) {
        let mut left = start;
        for &child in &tree.nodes[node].children {
            let value = tree.nodes[child].value;
            if value as f64 * scale >= NARROWEST {
                frames.push(Frame {
                    node: child,
                    depth: depth + 1,
                    start: left,
                });
            }
            left += value;
        }
        next += 1;
    }
    frames
}

fn amount(node: &Node, unit: Unit) -> String {
    match unit {
        Unit::Bytes => with_error(node.value, node.error()),
        Unit::Blocks => crate::counted(node.value, "block"),
        Unit::Calls => crate::counted(node.value, "call"),
    }
}

/// Fits a function's name into a rectangle. The least informative parts are dropped first.
fn label(name: &str, width: f64) -> String {
    let room = ((width - 6.0) / CHARACTER) as usize;
    match room {
        0..3 => String::new(),
        _ => shortened(name.to_owned(), room),
    }
}

fn fitting(name: &str, width: f64) -> String {
    let room = ((width - 6.0) / CHARACTER) as usize;
    match (name.chars().count() <= room, room) {
        (true, _) => name.to_owned(),
        (false, 0..3) => String::new(),
        (false, _) => name.chars().take(room - 2).chain("..".chars()).collect(),
    }
}

/// Returns the color of a name. A name has the same color in all graphs.
fn color(name: &str, is_root: bool) -> String {
    if is_root {
        return "hsl(210 12% 82%)".into();
    }
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let hash = hasher.finish();
    let (hue, light) = (18 + hash % 38, 62 + hash / 64 % 14);
    format!("hsl({hue} 82% {light}%)")
}
