//! Untouched blocks, as text.

use super::{StaleHistory, StaleReport, StaleSite};
use crate::Style;
use crate::places::source_root;
use crate::site_head::{SiteHead, SiteRow, heads_of};
use crate::stacks::{StackEnd, stack};
use crate::units::{bytes, count, counted};
use memhook_foreign::visible;
use std::fmt::{Result, Write};

/// Returns a text such as `45 s`, `2.5 s`, `10 min`.
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

/// Writes `2.1 GB (1.9 GB to 2.2 GB)`, or only the number if it is certain.
fn interval(estimate: u64, low: u64, high: u64, style: Style) -> String {
    let number = style.number(&bytes(estimate));
    if low == high {
        return number;
    }
    format!("{number} ({} to {})", bytes(low), bytes(high))
}

/// Writes the whole report.
pub(super) fn text(out: &mut String, report: &StaleReport, style: Style) -> Result {
    for note in &report.notes {
        writeln!(out, "{}", style.warning(&visible(&format!("Note: {note}"))))?;
    }
    let t = &report.totals;
    let older = seconds(report.older_s);
    let e = &report.evidence;
    writeln!(
        out,
        "{} {} of {} live in {} {} in the last {older}",
        style.strong(&format!(
            "Process {} ({}):",
            report.target.pid,
            visible(&report.target.name)
        )),
        match e.contents {
            true => at_most(t.stale_bytes_high, style),
            false => interval(t.stale_bytes, t.stale_bytes_low, t.stale_bytes_high, style),
        },
        bytes(t.live_bytes),
        counted(t.live_blocks, "block"),
        verb(report),
    )?;
    if e.contents {
        let compared = format!("Contents compared at two moments {older} apart");
        writeln!(out, "{}", style.faint(&compared))?;
        for (i, site) in report.sites.iter().enumerate() {
            compared_text(out, i, site, style)?;
        }
        return more_sites(out, report, style);
    }
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
    more_sites(out, report, style)
}

fn more_sites(out: &mut String, report: &StaleReport, style: Style) -> Result {
    if report.more_sites > 0 {
        let more = format!("\n{} (--top)", counted(report.more_sites, "more site"));
        writeln!(out, "{}", style.faint(&more))?;
    }
    Ok(())
}

fn at_most(bytes_high: u64, style: Style) -> String {
    format!("at most {}", style.number(&bytes(bytes_high)))
}

/// Writes a site for which only contents were compared.
fn compared_text(out: &mut String, index: usize, site: &StaleSite, style: Style) -> Result {
    let state = match site.state.as_ref() {
        "in_use" => "; in use",
        _ => "",
    };
    writeln!(
        out,
        "\n{} {} of {} live in {} unchanged: {}{state}",
        style.strong(&format!("S{}", index + 1)),
        at_most(site.stale_bytes_high, style),
        bytes(site.live_bytes),
        counted(site.live_blocks, "block"),
        visible(&site.kind),
    )
}

/// Writes the state at the end: `Untouched for at least 32 s: 1.2 GiB; 16 s: 20 MiB; ...`.
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

/// Returns the wording for blocks without accesses, which depends on the accesses that can be seen.
/// Without watchpoints, only writes are seen.
fn verb(report: &StaleReport) -> &'static str {
    if report.evidence.contents {
        "unchanged"
    } else if report.evidence.words {
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
    use crate::stale::{CaughtAccess, StaleEvidence, StaleReachability, StaleTotals};
    use crate::{Document, Target};

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

    /// Unchanged memory may have been read, so it is never called stale.
    #[test]
    fn what_was_compared_is_a_bound() {
        let mut report = report(false);
        report.evidence = StaleEvidence {
            contents: true,
            ..StaleEvidence::default()
        };
        report.sites[0].stale_bytes_high = 2000 << 20;
        let text = report.text(Style::default());
        for part in [
            "Process 7 (server): at most 2.1 GiB of 2.3 GiB live in 2 blocks unchanged in the last 10 min",
            "Contents compared at two moments 10 min apart",
            "S1 at most 2.0 GiB of 2.3 GiB live in 2 blocks unchanged: malloc",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        for part in ["budget", "no access seen", "not touched"] {
            assert!(!text.contains(part), "{part}\n{text}");
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
