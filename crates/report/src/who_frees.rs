//! Call stacks that release blocks allocated by others, as text and as JSON with the schema
//! `memhook-rs/who-frees/1`.

use crate::apart::KnownSite;
use crate::gaps;
use crate::places::source_root;
use crate::site_head::{SiteHead, SiteRow, heads};
use crate::stacks::{StackEnd, stack};
use crate::units::{bytes, counted, percent, with_error};
use crate::{Amount, Document, Flow, Profile, StackFrame, Style, UnseenTime};
use serde::Serialize;
use std::cmp::Reverse;
use std::fmt::Write;

/// Pairs of an allocating and a releasing stack.
#[derive(Clone, Debug, Serialize)]
pub struct WhoFrees {
    /// Always `memhook-rs/who-frees/1`.
    pub schema: &'static str,
    /// Times in which no event was seen.
    pub gaps: Vec<UnseenTime>,
    /// Sum of the bytes released.
    pub bytes: u64,
    /// Sum of the blocks released.
    pub blocks: u64,
    /// Standard error of `bytes` when sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_bytes: Option<u64>,
    /// Live bytes of these sites at the end.
    pub live_bytes: u64,
    /// Number of live blocks.
    pub live_blocks: u64,
    /// Part of the live bytes that is unreachable at the end of the run, with `attach --leaks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreachable_bytes: Option<u64>,
    /// The pairs, largest first.
    pub pairs: Vec<Freed>,
    /// Number of unlisted pairs.
    pub more_pairs: u64,
    /// Maximum number of frames collected from each stack.
    #[serde(skip)]
    depth: u32,
}

/// Blocks that one stack allocated and another stack released.
#[derive(Clone, Debug, Serialize)]
pub struct Freed {
    /// Bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
    /// Standard error of `bytes` when sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_bytes: Option<u64>,
    /// Stack of the allocation, innermost frame first.
    pub allocated_by: Vec<StackFrame>,
    /// Releasing function: free, delete, ...; empty if the release was not seen, `others` for the
    /// sum of many stacks.
    pub kind: &'static str,
    /// Stack of the release, innermost frame first; empty if the release was not seen.
    pub released_by: Vec<StackFrame>,
}

/// Lists the `top` largest pairs.
pub fn who_frees(profile: &Profile, top: usize) -> WhoFrees {
    let mut flows: Vec<_> = profile.flows.iter().collect();
    flows.sort_by_key(|flow| {
        (
            Reverse(flow.amount.bytes),
            flow.allocated_by,
            flow.released_by,
        )
    });
    let shown = flows.iter().take(top).map(|flow| Freed {
        bytes: flow.amount.bytes,
        blocks: flow.amount.blocks,
        error_bytes: flow.amount.error_bytes(),
        allocated_by: profile.stack(flow.allocated_by),
        kind: flow.kind,
        released_by: profile.stack(flow.released_by),
    });
    let all: Amount = flows.iter().map(|flow| flow.amount).sum();
    let sites = profile.sites.iter();
    let live: Amount = sites.clone().map(|site| site.measures.live).sum();
    let unreachable: Amount = sites.map(|site| site.measures.unreachable).sum();
    WhoFrees {
        schema: "memhook-rs/who-frees/1",
        gaps: profile.gaps.clone(),
        bytes: all.bytes,
        blocks: all.blocks,
        error_bytes: all.error_bytes(),
        live_bytes: live.bytes,
        live_blocks: live.blocks,
        unreachable_bytes: profile.knows_unreachable().then_some(unreachable.bytes),
        pairs: shown.collect(),
        more_pairs: flows.len().saturating_sub(top) as u64,
        depth: profile.depth,
    }
}

impl WhoFrees {
    fn pair(
        &self,
        out: &mut String,
        number: usize,
        (from, to): (&SiteHead, &SiteHead),
        style: Style,
    ) -> std::fmt::Result {
        let pair = &self.pairs[number];
        let share = percent(pair.bytes, self.bytes);
        let released = if !pair.released_by.is_empty() {
            format!(", freed by {}", to.text())
        } else if pair.kind == Flow::OTHERS {
            ", freed by many".to_owned()
        } else {
            String::new()
        };
        writeln!(out)?;
        let row = SiteRow {
            label: format!("#{}", number + 1),
            amount: with_error(pair.bytes, pair.error_bytes),
            share: Some(format!("{share:.1} %")),
            facts: vec![counted(pair.blocks, "block") + &released],
        };
        row.write(out, from, style)?;
        let end = |frames: &[StackFrame]| StackEnd::of(frames, false, self.depth);
        writeln!(out, "   allocated by")?;
        stack(out, &pair.allocated_by, end(&pair.allocated_by), style)?;
        if !pair.released_by.is_empty() {
            writeln!(out, "   released with {} by", pair.kind)?;
            stack(out, &pair.released_by, end(&pair.released_by), style)
        } else if pair.kind == Flow::OTHERS {
            writeln!(out, "   released by many others, each of them less")
        } else {
            writeln!(out, "   the release was not seen")
        }
    }
}

impl Document for WhoFrees {
    fn text(&self, style: Style) -> String {
        let stacks = self.pairs.iter();
        let stacks = stacks.flat_map(|pair| pair.allocated_by.iter().chain(&pair.released_by));
        let root = source_root(stacks);
        let style = Style {
            root: &root,
            ..style
        };
        let mut out = String::new();
        let sum = style.number(&with_error(self.bytes, self.error_bytes));
        let head = style.strong("Who frees what:");
        // Writing into a String cannot fail.
        if let Some(gaps) = gaps::warning(&self.gaps, None) {
            let _ = writeln!(out, "{}", style.warning(&gaps));
        }
        let _ = match self.error_bytes {
            Some(_) => writeln!(out, "Estimates from sampled allocations"),
            None => Ok(()),
        };
        let released = match self.blocks {
            0 => "nothing was released".to_owned(),
            blocks => format!("{sum} in {} released", counted(blocks, "block")),
        };
        let unreachable = self.unreachable_bytes.filter(|&bytes| bytes > 0);
        let unreachable = unreachable.map_or(String::new(), |lost| {
            format!(", {} of it unreachable", bytes(lost))
        });
        let live = counted(self.live_blocks, "block");
        let _ = writeln!(
            out,
            "{head} {released}, {} in {live} live at the end{unreachable}",
            bytes(self.live_bytes),
        );
        let known = |frames_of: fn(&Freed) -> &[StackFrame]| {
            let pairs = self.pairs.iter().enumerate();
            let known = pairs.map(|(number, pair)| KnownSite {
                stack: number as u32,
                kind: pair.kind,
                frames: frames_of(pair),
            });
            // A stack may be in many pairs, and has the same name in all of them.
            known
                .flat_map(|site| heads(&[site], style))
                .collect::<Vec<_>>()
        };
        let from = known(|pair| &pair.allocated_by);
        let to = known(|pair| &pair.released_by);
        for number in 0..self.pairs.len() {
            let heads = (&from[number], &to[number]);
            let _ = self.pair(&mut out, number, heads, style);
        }
        if self.more_pairs > 0 {
            let more = counted(self.more_pairs, "more pair");
            let _ = writeln!(out, "\n... and {more} (--top)");
        }
        out
    }
}
