//! A profile for the page's script: columns of numbers, and deduplicated strings.

use super::asides::asides;
use super::calls::{Calls, Strings};
use super::editor::Editor;
use super::packed::{Column, Packed};
use super::scores::{PageInference, inferences, pack_scores};
use super::space::pack_addresses;
use crate::types::UNKNOWN_TYPE;
use crate::{
    Amount, ArenaResident, Compared, CustomScore, Flow, Profile, ProfileSite, ResidentPoint,
    RunScores, SitePoint, SourceLines, StaleHistory, UnseenTime,
};
use memhook_foreign::visible;
use serde::Serialize;
use std::io::{Result, Write};

/// Maximum number of changes to sites. If there are more, the page follows sites only at every nth
/// point. Each change takes up about four bytes of the page.
const MAX_CHANGES: usize = 500_000;

/// Maximum number of pairs of an allocating and a releasing stack. The pairs with the most bytes
/// are kept, and each takes about ten bytes of the page.
const MAX_FLOWS: usize = 100_000;

/// The part of a page's data other than columns of numbers.
#[derive(Serialize)]
struct Head<'a> {
    name: &'a str,
    pid: i32,
    exe: &'a str,
    began_unix_ms: u64,
    from_ns: u64,
    to_ns: u64,
    is_part: bool,
    peak_ns: u64,
    depth: u32,
    is_sampled: bool,
    /// [`Amount::unhit`] of every sum.
    unhit_variance: f64,
    /// Allocations that were recorded individually, in addition to samples.
    exact_allocations: Option<u64>,
    gaps: &'a [UnseenTime],
    resident: &'a [ResidentPoint],
    /// Resident bytes of arenas at the end; empty if the recording lacks them.
    arenas: &'a [ArenaResident],
    /// Block ages over time; `None` if the recording lacks them.
    aging: Option<&'a StaleHistory>,
    lost_events: u64,
    unwatched_libraries: u64,
    has_flows: bool,
    /// True if the end of the run was searched for unreachable blocks.
    is_searched: bool,
    /// True if allocator calls were timed.
    is_timed: bool,
    /// Parts that the search for unreachable blocks did not cover.
    search_gaps: &'a [String],
    strings: &'a [String],
    /// Distance in points between two values of a site. The values are at multiples of this
    /// distance, counted back from the last point.
    step: usize,
    sources: &'a [SourceLines],
    /// Address pattern of an editor that opens source lines.
    editor: Option<&'a str>,
    /// Scores of the heap; `None` if the recording lacks them.
    scores: Option<RunScores>,
    /// Scores by formulas.
    custom: &'a [CustomScore],
    compared: Option<&'a Compared>,
    inferences: Vec<PageInference<'a>>,
    columns: &'a [Column],
}

/// Writes the data of a page: see [`super::packed`].
pub(super) fn write(
    profile: &Profile,
    editor: Option<&Editor>,
    out: &mut impl Write,
) -> Result<()> {
    let mut strings = Strings::new();
    let mut packed = Packed::default();
    let calls = Calls::new(profile, &mut strings);
    pack_calls(&mut packed, &calls);
    pack_sites(&mut packed, profile, &calls, &mut strings);
    let asides = asides(profile, &calls);
    packed.running("asides.node", asides.iter().map(|(node, _)| *node));
    let texts = asides.iter().map(|(_, aside)| strings.index(aside));
    packed.plain("asides.text", texts);
    packed.running("wrappers.name", calls.wrappers(&strings));
    pack_flows(&mut packed, profile, &calls);
    pack_timeline(&mut packed, &profile.timeline);
    let (changes, step) = over_time(profile);
    pack_changes(&mut packed, &changes, &profile.sites);
    pack_scores(&mut packed, profile, &calls);
    pack_addresses(&mut packed, profile);
    let head = Head {
        name: &profile.target.name,
        pid: profile.target.pid,
        exe: &profile.target.exe,
        began_unix_ms: profile.began_unix_ms,
        from_ns: profile.from_ns,
        to_ns: profile.to_ns,
        is_part: profile.is_part,
        peak_ns: profile.peak_ns,
        depth: profile.depth,
        is_sampled: profile.sampling.is_some(),
        unhit_variance: profile
            .sites
            .iter()
            .map(|site| site.measures.live.unhit.max(site.measures.allocated.unhit))
            .fold(0.0, f64::max),
        exact_allocations: profile.sampling.and_then(|s| s.exact_allocations),
        gaps: &profile.gaps,
        resident: &profile.resident,
        arenas: &profile.arenas,
        aging: profile.aging.as_ref(),
        lost_events: profile.totals.lost_events,
        unwatched_libraries: profile.totals.unwatched_libraries,
        has_flows: profile.has_release_stacks,
        is_searched: profile.knows_unreachable(),
        is_timed: profile.allocator_time.is_some(),
        search_gaps: profile.leaks.as_ref().map_or(&[], |leaks| &leaks.gaps),
        strings: &strings.all,
        step,
        sources: &profile.sources,
        editor: editor.map(Editor::address),
        scores: profile.scores.as_ref().map(|scores| scores.run),
        custom: profile.scores.as_ref().map_or(&[], |scores| &scores.custom),
        compared: profile.compared.as_ref(),
        inferences: inferences(profile, &calls),
        columns: &packed.list,
    };
    let head = serde_json::to_vec(&head)?;
    out.write_all(&(head.len() as u32).to_le_bytes())?;
    out.write_all(&head)?;
    out.write_all(&packed.bytes)
}

fn pack_calls(packed: &mut Packed, calls: &Calls) {
    let places = &calls.places;
    packed.running("frames.function", places.iter().map(|p| p.function));
    packed.plain("frames.module", places.iter().map(|p| p.module));
    packed.running("frames.file", places.iter().map(|p| p.file));
    packed.running("frames.shown_file", places.iter().map(|p| p.shown_file));
    packed.plain("frames.role", places.iter().map(|p| p.role));
    packed.running("frames.line", places.iter().map(|p| p.line));
    packed.plain("frames.inlined", places.iter().map(|p| p.is_inlined));
    packed.running("calls.parent", calls.parent.iter().copied());
    packed.plain("calls.frame", calls.place.iter().copied());
}

/// Function that selects one amount of a site, or of a site at a point of the timeline.
type Of<T> = fn(&T) -> Amount;
/// Function that selects a histogram of a site.
type Buckets = fn(&ProfileSite) -> &[(u8, u64)];

fn pack_sites(packed: &mut Packed, profile: &Profile, calls: &Calls, strings: &mut Strings) {
    let sites = &profile.sites;
    // Recordings of sums do not distinguish threads.
    let thread = |site: &ProfileSite| match (site.tid, site.thread.is_empty()) {
        (0, _) => "unknown threads".to_owned(),
        (tid, true) => format!("thread {tid} (ended)"),
        (_, false) => format!("{} ({})", visible(&site.thread), site.tid),
    };
    packed.running("sites.node", sites.iter().map(|s| calls.node_of(s.stack)));
    packed.plain("sites.kind", sites.iter().map(|s| strings.index(&s.kind)));
    let threads = sites.iter().map(|s| strings.index(&thread(s)));
    packed.plain("sites.thread", threads);
    let types = sites.iter().map(|s| {
        let known = profile.types.get(&s.stack);
        strings.index(&visible(known.map_or(UNKNOWN_TYPE, String::as_str)))
    });
    packed.plain("sites.type", types);
    let truncated = |s: &ProfileSite| match (s.truncated, profile.is_cut(s.stack)) {
        (true, _) => 1,
        (false, true) => 2,
        (false, false) => 0,
    };
    packed.plain("sites.truncated", sites.iter().map(truncated));
    let measures: [(&str, Of<ProfileSite>); 7] = [
        ("before", |s| s.before),
        ("live", |s| s.measures.live),
        ("peak", |s| s.measures.peak),
        ("allocated", |s| s.measures.allocated),
        ("released", |s| s.measures.released),
        ("temporary", |s| s.measures.temporary),
        ("unreachable", |s| s.measures.unreachable),
    ];
    for (name, measure) in measures {
        pack_amounts(packed, &format!("sites.{name}"), sites.iter().map(measure));
    }
    // The column is empty if no call was timed.
    let timed = sites.iter().filter(|_| profile.allocator_time.is_some());
    let taken = timed.map(|s| s.in_allocator.time.round() as u64);
    packed.plain("sites.took.time_ns", taken);
    let histograms: [(&str, Buckets); 2] =
        [("sizes", |s| &s.sizes), ("lifetimes", |s| &s.lifetimes)];
    for (name, histogram) in histograms {
        let entries = || sites.iter().flat_map(histogram);
        let counts = sites.iter().map(|s| histogram(s).len());
        packed.plain(&format!("{name}.count"), counts.map(|n| n as u32));
        packed.plain(
            &format!("{name}.bucket"),
            entries().map(|(bucket, _)| *bucket),
        );
        packed.plain(
            &format!("{name}.blocks"),
            entries().map(|(_, blocks)| *blocks),
        );
    }
}

/// Adds three columns. The column of variances is empty if allocations were not sampled.
fn pack_amounts(packed: &mut Packed, name: &str, amounts: impl Iterator<Item = Amount> + Clone) {
    packed.plain(&format!("{name}.blocks"), amounts.clone().map(|a| a.blocks));
    packed.plain(&format!("{name}.bytes"), amounts.clone().map(|a| a.bytes));
    let variances = amounts.map(variance);
    let is_exact = variances.clone().all(|variance| variance == 0);
    let carried = variances.take(if is_exact { 0 } else { usize::MAX });
    packed.plain(&format!("{name}.variance"), carried);
}

/// Rounds a variance. Subtraction leaves rounding errors, so a variance may be negative.
fn variance(amount: Amount) -> i64 {
    amount.variance.max(0.0).round() as i64
}

fn pack_flows(packed: &mut Packed, profile: &Profile, calls: &Calls) {
    let is_one_stack = |flow: &&Flow| flow.kind != Flow::OTHERS;
    let mut flows: Vec<&Flow> = profile.flows.iter().filter(is_one_stack).collect();
    flows.sort_by_key(|flow| std::cmp::Reverse(flow.amount.bytes));
    flows.truncate(MAX_FLOWS);
    let flows = flows.iter();
    let allocated_by = flows.clone().map(|f| calls.node_of(f.allocated_by));
    packed.plain("flows.allocated", allocated_by);
    let released_by = flows.clone().map(|f| calls.node_of(f.released_by));
    packed.plain("flows.released", released_by);
    pack_amounts(packed, "flows.amount", flows.map(|f| f.amount));
}

fn pack_timeline(packed: &mut Packed, points: &[crate::Point]) {
    packed.running("timeline.time_ns", points.iter().map(|p| p.time_ns));
    pack_amounts(packed, "timeline.live", points.iter().map(|p| p.live));
    pack_amounts(
        packed,
        "timeline.allocated",
        points.iter().map(|p| p.allocated),
    );
    pack_amounts(
        packed,
        "timeline.temporary",
        points.iter().map(|p| p.temporary),
    );
}

/// Packs amounts as differences from the previous change of the site. The first amount is the
/// difference from the site's start.
fn pack_changes(packed: &mut Packed, picked: &[(u32, &SitePoint)], sites: &[ProfileSite]) {
    packed.running("changes.point", picked.iter().map(|(at, _)| *at));
    packed.running("changes.site", picked.iter().map(|(_, change)| change.site));
    let columns: [fn(Amount) -> i64; 3] = [|a| a.blocks as i64, |a| a.bytes as i64, variance];
    let names = ["blocks", "bytes", "variance"];
    let measures: [(&str, Of<SitePoint>, Of<ProfileSite>); 2] = [
        ("live", |change| change.live, |site| site.before),
        (
            "allocated",
            |change| change.allocated,
            |_| Amount::default(),
        ),
    ];
    for (measure, of_change, at_begin) in measures {
        for (column, name) in columns.into_iter().zip(names) {
            let mut last: Vec<i64> = sites.iter().map(|site| column(at_begin(site))).collect();
            let differences: Vec<i64> = picked
                .iter()
                .map(|(_, change)| {
                    let value = column(of_change(change));
                    value.wrapping_sub(std::mem::replace(&mut last[change.site as usize], value))
                })
                .collect();
            packed.plain(&format!("changes.{measure}.{name}"), differences);
        }
    }
}

/// Returns the changes at every nth point, at most as many as a page may have, and n.
fn over_time(profile: &Profile) -> (Vec<(u32, &SitePoint)>, usize) {
    let mut step = 1;
    loop {
        let picked = at_every(profile, step);
        if picked.len() <= MAX_CHANGES || step > profile.timeline.len() {
            return (picked, step);
        }
        step *= 2;
    }
}

/// Returns the last change of each site up to each of the points, together with the point, sorted
/// by point and site.
fn at_every(profile: &Profile, step: usize) -> Vec<(u32, &SitePoint)> {
    let last = profile.timeline.len().saturating_sub(1);
    let mut picked: Vec<(u32, &SitePoint)> = Vec::new();
    // Index in `picked` of each site's last change.
    let mut place_of = vec![usize::MAX; profile.sites.len()];
    let mut pending = profile.changes.iter().peekable();
    for at in (last % step..=last).step_by(step) {
        let first = picked.len();
        while let Some(change) = pending.next_if(|change| change.point as usize <= at) {
            let place = &mut place_of[change.site as usize];
            match picked.get_mut(*place).filter(|_| *place >= first) {
                Some(known) => known.1 = change,
                None => {
                    *place = picked.len();
                    picked.push((at as u32, change));
                }
            }
        }
        picked[first..].sort_unstable_by_key(|(_, change)| change.site);
    }
    picked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Point;

    #[test]
    fn every_second_point_has_the_last_change_of_each_site() {
        let change = |point, site, blocks| SitePoint {
            point,
            site,
            live: Amount {
                blocks,
                ..Amount::default()
            },
            ..SitePoint::default()
        };
        let profile = Profile {
            timeline: vec![Point::default(); 5],
            sites: vec![ProfileSite::default(); 3],
            changes: vec![
                change(0, 2, 1),
                change(0, 0, 2),
                change(1, 0, 3),
                change(2, 1, 4),
                change(2, 0, 5),
                change(3, 2, 6),
                change(4, 2, 7),
            ],
            ..Profile::default()
        };
        let picked = |step| -> Vec<_> {
            let all = at_every(&profile, step).into_iter();
            all.map(|(at, change)| (at, change.site, change.live.blocks))
                .collect()
        };
        assert_eq!(
            picked(2),
            [(0, 0, 2), (0, 2, 1), (2, 0, 5), (2, 1, 4), (4, 2, 7)]
        );
        assert_eq!(picked(1).len(), profile.changes.len());
        let mut packed = Packed::default();
        pack_changes(&mut packed, &at_every(&profile, 2), &profile.sites);
        // The expected numbers are points 0, 0, 2, 2, 4 and sites 0, 2, 0, 1, 2, then live blocks,
        // site by site as differences.
        let zigzag = |n: i64| (n << 1 ^ n >> 63) as u8;
        let expected = [[0, 0, 2, 0, 2], [0, 2, -2, 1, 1], [2, 1, 3, 4, 6]];
        let expected: Vec<u8> = expected.into_iter().flatten().map(zigzag).collect();
        assert_eq!(packed.bytes[..15], expected);
    }
}
