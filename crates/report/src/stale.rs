//! What nobody touches, by allocation site; serialized as is, this is the JSON schema `memhook-rs/stale/1`.

use crate::places::source_root;
use crate::site_head::{SiteHead, SiteRow, heads_of};
use crate::stacks::{StackEnd, stack};
use crate::units::{bytes, count, counted};
use crate::{Document, StackFrame, Style, Target};
use memhook_foreign::visible;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt::{Result, Write};

/// A report of `stale`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StaleReport {
    /// Always `memhook-rs/stale/1`.
    pub schema: Cow<'static, str>,
    /// The last report of this watch.
    #[serde(rename = "final")]
    pub is_final: bool,
    /// The process.
    pub target: Target,
    /// Seconds without a touch after which a block is stale.
    pub older_s: f64,
    /// The share of the target's time that watching may take.
    pub budget: f64,
    /// The share that it has taken: events, times what each was measured to cost.
    pub cost: f64,
    /// How long the process has been watched, in seconds.
    pub watched_s: f64,
    /// What was watched, and how much came of it.
    pub evidence: StaleEvidence,
    /// Sums of all sites.
    pub totals: StaleTotals,
    /// By site: the most stale bytes for the longest time first. Of a site whose state is unknown, only those that are
    /// certain count.
    pub sites: Vec<StaleSite>,
    /// Sites that are not listed.
    pub more_sites: u64,
    /// Evidence that is missing, and why.
    pub notes: Vec<String>,
    /// For how long the live bytes were not touched, over time; in the last report, if writes are seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<StaleHistory>,
    /// Frames that are collected of each call stack.
    #[serde(skip)]
    pub depth: u32,
}

impl StaleReport {
    /// The schema that this is.
    pub const SCHEMA: &str = "memhook-rs/stale/1";
}

/// How live bytes aged over time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StaleHistory {
    /// The upper ends of all bands of `untouched_bytes` but the last one, in seconds.
    pub ages_s: Vec<f64>,
    /// How long a page is left alone after a write before it is watched again, in seconds: one for each number of
    /// `pages`.
    pub thresholds_s: Vec<f64>,
    /// In the order of time.
    pub points: Vec<StalePoint>,
}

/// One moment of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StalePoint {
    /// Seconds since the attach.
    pub at_s: f64,
    /// Live bytes by how long they have certainly not been written, and no read of them was seen: one number for each
    /// band.
    pub untouched_bytes: Vec<u64>,
    /// Pages by threshold.
    pub pages: Vec<u64>,
}

/// The kinds of evidence, each for itself.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct StaleEvidence {
    /// Writes are seen, of all blocks by their pages.
    pub pages: bool,
    /// Pages that are watched now.
    pub guarded_pages: u64,
    /// All pages that could be watched.
    pub all_pages: u64,
    /// First writes to watched pages: each cost the target a page fault.
    pub faults: u64,
    /// Cost of one, in nanoseconds.
    pub fault_ns: f64,
    /// It is seen which pages nobody has accessed, not even to read: how often that was begun anew.
    #[serde(default)]
    pub clears: u64,
    /// The longest time that the kernel took to begin anew, in milliseconds: threads that map or unmap memory, or touch some
    /// for the first time, waited as long.
    #[serde(default)]
    pub longest_clear_ms: f64,
    /// Reads and writes are seen, of some words at a time.
    pub words: bool,
    /// Accesses to watched words: each cost the target a trap.
    pub traps: u64,
    /// Cost of one, in nanoseconds.
    pub trap_ns: f64,
    /// Looks at a word that have ended, lately.
    pub looks: u64,
}

/// Sums.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct StaleTotals {
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Bytes of blocks that nobody has touched: the best estimate.
    pub stale_bytes: u64,
    /// The sum of the low ends.
    pub stale_bytes_low: u64,
    /// The sum of the high ends.
    pub stale_bytes_high: u64,
}

/// One site.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StaleSite {
    /// The allocating function; of blocks from before the attach, their type and size.
    pub kind: String,
    /// Whether they are from before the attach.
    pub before_attach: bool,
    /// The stack goes on, but could not be followed.
    pub truncated: bool,
    /// Innermost first; empty for blocks from before the attach.
    pub stack: Vec<StackFrame>,
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Bytes of blocks that nobody has touched: the best estimate.
    pub stale_bytes: u64,
    /// Low end of its 95 % interval.
    pub stale_bytes_low: u64,
    /// High end.
    pub stale_bytes_high: u64,
    /// Which half of its bytes the interval lies in: `stale`, `in_use`, or `unknown` if in both.
    #[serde(default)]
    pub state: Cow<'static, str>,
    /// Seconds since the last access to a block of the site that was seen; `None` if none was.
    pub last_access_s: Option<f64>,
    /// Bytes of blocks that were certainly not written.
    pub unwritten_bytes: u64,
    /// Bytes of blocks that were certainly neither read nor written; they are among those that were not written.
    #[serde(default)]
    pub unaccessed_bytes: u64,
    /// Looks at a word of one of the blocks that have ended, lately.
    pub looks: u64,
    /// How many of these words were touched.
    pub touched: u64,
    /// A block that is probably stale: `scan --why` says who holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale_block: Option<String>,
    /// What nothing reaches, and what is reachable, if that was asked for.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub reachability: Option<StaleReachability>,
    /// The last access that a watched word has caught.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caught: Option<CaughtAccess>,
}

impl StaleSite {
    /// Notes how many of its live bytes nothing reaches.
    pub fn join_reachability(&mut self, unreachable_bytes: u64) {
        let reach = StaleReachability::of(self.live_bytes, self.stale_bytes, unreachable_bytes);
        self.reachability = Some(reach);
    }
}

/// The live bytes of a site, split by whether anything reaches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaleReachability {
    /// Bytes that nothing points to.
    pub unreachable_bytes: u64,
    /// Reachable, and not touched for the time: the best estimate.
    pub reachable_stale_bytes: u64,
    /// The others.
    pub in_use_bytes: u64,
}

impl StaleReachability {
    /// Shares of a site with this many bytes. What nothing reaches counts as stale, as nobody can touch it.
    pub fn of(live_bytes: u64, stale_bytes: u64, unreachable_bytes: u64) -> StaleReachability {
        let unreachable_bytes = unreachable_bytes.min(live_bytes);
        StaleReachability {
            unreachable_bytes,
            reachable_stale_bytes: stale_bytes.saturating_sub(unreachable_bytes),
            in_use_bytes: live_bytes - stale_bytes.max(unreachable_bytes).min(live_bytes),
        }
    }
}

/// An access to a watched word.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CaughtAccess {
    /// Seconds ago.
    pub ago_s: f64,
    /// The block.
    pub block: String,
    /// Offset of the word in it.
    pub offset: u64,
    /// The thread; `None` if the kernel has not recorded it.
    pub tid: Option<i32>,
    /// Made by a system call.
    pub by_kernel: bool,
    /// Innermost first; empty if it is not known.
    pub stack: Vec<StackFrame>,
}

impl Document for StaleReport {
    fn text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = text(&mut out, self, style);
        out
    }
}

/// `45 s`, `2.5 s`, `10 min`.
fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 120.0 && s % 60.0 < 0.5 => format!("{:.0} min", s / 60.0),
        s if s < 10.0 && s.fract() > 0.04 => format!("{s:.1} s"),
        s => format!("{s:.0} s"),
    }
}

fn share(share: f64) -> String {
    match share * 100.0 {
        percent if percent >= 10.0 => format!("{percent:.0} %"),
        percent if percent >= 0.095 => format!("{percent:.1} %"),
        percent => format!("{percent:.3} %"),
    }
}

/// `2.1 GB (1.9 GB to 2.2 GB)`, or only the number if it is certain.
fn interval(estimate: u64, low: u64, high: u64, style: Style) -> String {
    let number = style.number(&bytes(estimate));
    if low == high {
        return number;
    }
    format!("{number} ({} to {})", bytes(low), bytes(high))
}

fn text(out: &mut String, report: &StaleReport, style: Style) -> Result {
    for note in &report.notes {
        writeln!(out, "{}", style.warning(&visible(&format!("Note: {note}"))))?;
    }
    let t = &report.totals;
    let older = seconds(report.older_s);
    writeln!(
        out,
        "{} {} of {} live in {} {} in the last {older}",
        style.strong(&format!(
            "Process {} ({}):",
            report.target.pid,
            visible(&report.target.name)
        )),
        interval(t.stale_bytes, t.stale_bytes_low, t.stale_bytes_high, style),
        bytes(t.live_bytes),
        counted(t.live_blocks, "block"),
        verb(report),
    )?;
    let e = &report.evidence;
    let mut seen = Vec::new();
    if e.pages {
        let pages = match (e.guarded_pages, e.all_pages) {
            (guarded, all) if guarded < all => {
                format!("{} of {} pages", count(guarded), count(all))
            }
            (_, all) => counted(all, "page"),
        };
        seen.push(format!("writes to {pages} ({} faults)", count(e.faults)));
    }
    if e.clears > 0 {
        seen.push(format!(
            "pages that nobody accesses ({})",
            counted(e.clears, "round")
        ));
    }
    if e.words {
        let looks = counted(e.looks, "look");
        seen.push(format!(
            "accesses in {looks} at single words ({} traps)",
            count(e.traps)
        ));
    }
    writeln!(
        out,
        "{}",
        style.faint(&format!(
            "Watched for {} at {} of its time (budget {}): {}",
            seconds(report.watched_s),
            share(report.cost),
            share(report.budget),
            seen.join(", ")
        ))
    )?;
    if let Some(history) = &report.history {
        ages_text(out, history, style)?;
    }
    let root = source_root(report.sites.iter().flat_map(|site| &site.stack));
    let style = Style {
        root: &root,
        ..style
    };
    let known = report.sites.iter().map(|site| (&site.kind, &site.stack));
    let heads = heads_of(known, style);
    for (i, (site, head)) in report.sites.iter().zip(&heads).enumerate() {
        site_text(out, report, i, (site, head), style)?;
    }
    if report.more_sites > 0 {
        let more = format!("\n{} (--top)", counted(report.more_sites, "more site"));
        writeln!(out, "{}", style.faint(&more))?;
    }
    Ok(())
}

/// The last moment: `Untouched for at least 32 s: 1.2 GiB; 16 s: 20 MiB; ...`.
fn ages_text(out: &mut String, history: &StaleHistory, style: Style) -> Result {
    let Some(last) = history.points.last() else {
        return Ok(());
    };
    let begins = std::iter::once(0.0).chain(history.ages_s.iter().copied());
    let mut bands: Vec<(f64, u64)> = begins.zip(last.untouched_bytes.iter().copied()).collect();
    bands.retain(|(_, amount)| *amount > 0);
    bands.reverse();
    let bands: Vec<String> = bands
        .iter()
        .map(|(begin, amount)| format!("{} {}", seconds(*begin), bytes(*amount)))
        .collect();
    let line = format!("Untouched for at least: {}", bands.join(", "));
    writeln!(out, "{}", style.faint(&line))
}

/// Without watchpoints, only writes are seen.
fn verb(report: &StaleReport) -> &'static str {
    if report.evidence.words {
        "not touched"
    } else {
        "not written"
    }
}

fn site_text(
    out: &mut String,
    report: &StaleReport,
    index: usize,
    (site, head): (&StaleSite, &SiteHead),
    style: Style,
) -> Result {
    let by = if site.before_attach {
        format!("from before the attach: {}", visible(&site.kind))
    } else {
        format!("by {}", visible(&site.kind))
    };
    let state = match site.state.as_ref() {
        "stale" => "stale; ",
        "in_use" => "in use; ",
        "unknown" => "not yet known; ",
        _ => "",
    };
    let last = match site.last_access_s {
        Some(ago) => format!("last access seen {} ago", seconds(ago)),
        None => "no access seen".to_owned(),
    };
    writeln!(out)?;
    let label = format!("S{}", index + 1);
    let (low, high) = (site.stale_bytes_low, site.stale_bytes_high);
    let of = format!(
        "of {} live in {} {}",
        bytes(site.live_bytes),
        counted(site.live_blocks, "block"),
        verb(report)
    );
    if site.stack.is_empty() {
        let label = style.strong(&label);
        let amount = interval(site.stale_bytes, low, high, style);
        writeln!(out, "{label} {amount} {of}, {by}; {state}{last}")?;
    } else {
        let row = SiteRow {
            label,
            amount: interval(site.stale_bytes, low, high, Style::default()),
            share: None,
            facts: vec![of, format!(", {by}"), format!("; {state}{last}")],
        };
        row.write(out, head, style)?;
    }
    if !site.before_attach {
        let end = StackEnd::of(&site.stack, site.truncated, report.depth);
        stack(out, &site.stack, end, style)?;
    }
    if site.unaccessed_bytes > 0 {
        let line = format!(
            "    {} of it on pages that nobody has read or written",
            bytes(site.unaccessed_bytes)
        );
        writeln!(out, "{}", style.faint(&line))?;
    }
    if let Some(reach) = &site.reachability {
        writeln!(
            out,
            "    unreachable {}, reachable and stale for {} {}, in use {}",
            bytes(reach.unreachable_bytes),
            seconds(report.older_s),
            bytes(reach.reachable_stale_bytes),
            bytes(reach.in_use_bytes),
        )?;
    }
    if let Some(block) = &site.stale_block {
        let line = format!(
            "    for example the block at {0}; who holds it: memhook-rs scan {1} --why {0}",
            visible(block),
            report.target.pid
        );
        writeln!(out, "{}", style.faint(&line))?;
    }
    if let Some(caught) = &site.caught {
        let how = if caught.by_kernel {
            " by a system call"
        } else {
            ""
        };
        let thread = caught
            .tid
            .map(|tid| format!(", thread {tid}"))
            .unwrap_or_default();
        let line = format!(
            "    caught {} ago{how}: offset {} of the block at {}{thread}",
            seconds(caught.ago_s),
            caught.offset,
            visible(&caught.block),
        );
        writeln!(out, "{}", style.faint(&line))?;
        if !caught.stack.is_empty() {
            stack(out, &caught.stack, StackEnd::Start, style)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(words: bool) -> StaleReport {
        StaleReport {
            schema: StaleReport::SCHEMA.into(),
            is_final: true,
            target: Target {
                pid: 7,
                name: "server".into(),
                exe: String::new(),
            },
            older_s: 600.0,
            budget: 0.01,
            cost: 0.0042,
            watched_s: 1205.0,
            evidence: StaleEvidence {
                pages: true,
                guarded_pages: 90,
                all_pages: 100,
                faults: 1234,
                words,
                traps: 5,
                clears: 2,
                looks: 1,
                ..StaleEvidence::default()
            },
            totals: StaleTotals {
                live_bytes: 2400 << 20,
                live_blocks: 2,
                stale_bytes: 2000 << 20,
                stale_bytes_low: 1900 << 20,
                stale_bytes_high: 2100 << 20,
            },
            sites: vec![StaleSite {
                kind: "malloc".into(),
                before_attach: false,
                truncated: false,
                stack: Vec::new(),
                live_bytes: 2400 << 20,
                live_blocks: 2,
                stale_bytes: 0,
                stale_bytes_low: 0,
                stale_bytes_high: 0,
                state: "unknown".into(),
                last_access_s: Some(0.25),
                unwritten_bytes: 0,
                unaccessed_bytes: 1500 << 20,
                looks: 0,
                touched: 0,
                stale_block: Some("0x2000".into()),
                reachability: Some(StaleReachability::of(2400 << 20, 2000 << 20, 100 << 20)),
                caught: Some(CaughtAccess {
                    ago_s: 3.0,
                    block: "0x1000".into(),
                    offset: 16,
                    tid: Some(9),
                    by_kernel: true,
                    stack: Vec::new(),
                }),
            }],
            more_sites: 3,
            history: None,
            notes: vec!["something\x1b".into()],
            depth: 10,
        }
    }

    #[test]
    fn in_words() {
        let text = report(true).text(Style::default());
        for part in [
            "Note: something\\x1b",
            "Process 7 (server): 2.0 GiB (1.9 GiB to 2.1 GiB) of 2.3 GiB live in 2 blocks not touched in the last 10 min",
            "Watched for 1205 s at 0.4 % of its time (budget 1.0 %): writes to 90 of 100 pages (1,234 faults), pages that nobody accesses (2 rounds), accesses in 1 look at single words (5 traps)",
            "    1.5 GiB of it on pages that nobody has read or written",
            "S1 0 B of 2.3 GiB live in 2 blocks not touched, by malloc; not yet known; last access seen 0.2 s ago",
            "unreachable 100.0 MiB, reachable and stale for 10 min 1.9 GiB, in use 400.0 MiB",
            "for example the block at 0x2000; who holds it: memhook-rs scan 7 --why 0x2000",
            "caught 3 s ago by a system call: offset 16 of the block at 0x1000, thread 9",
            "3 more sites (--top)",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(
            report(false)
                .text(Style::default())
                .contains("not written in the last")
        );
    }
}
