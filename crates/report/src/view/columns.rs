//! A profile as the page's script wants it: columns of numbers, each string once.

use crate::labels::name;
use crate::{Amount, Flow, Profile, ProfileSite, SitePoint, UnseenTime};
use serde::Serialize;
use std::collections::HashMap;

/// With more changes than this the sites are followed at every second point only, or fewer: some 10 bytes of the
/// page each.
const MAX_CHANGES: usize = 500_000;

/// The largest pairs of allocating and releasing stacks; some 20 bytes of the page each.
const MAX_FLOWS: usize = 100_000;

#[derive(Serialize)]
pub(super) struct Columns<'a> {
    name: &'a str,
    pid: i32,
    exe: &'a str,
    began_unix_ms: u64,
    from_ns: u64,
    to_ns: u64,
    peak_ns: u64,
    depth: u32,
    is_sampled: bool,
    gaps: &'a [UnseenTime],
    lost_events: u64,
    strings: Vec<String>,
    frames: Frames,
    stacks: &'a [Vec<u32>],
    sites: Sites<'a>,
    /// Allocating and releasing stack, blocks, bytes, variance of the bytes.
    flows: Vec<[u64; 5]>,
    timeline: Timeline,
    changes: Changes,
    /// The points at which sites are followed: the last, and those at distances of this from it.
    step: usize,
    sources: &'a [crate::SourceLines],
}

/// Numbers are indices of strings; 0 is the empty one.
#[derive(Default, Serialize)]
struct Frames {
    function: Vec<u32>,
    module: Vec<u32>,
    file: Vec<u32>,
    line: Vec<u32>,
    inlined: Vec<u8>,
}

#[derive(Default, Serialize)]
struct Amounts {
    blocks: Vec<u64>,
    bytes: Vec<u64>,
    /// Variance of the bytes, without the zeros at the end: empty unless allocations were sampled.
    variance: Vec<u64>,
}

impl Amounts {
    fn push(&mut self, amount: Amount) {
        // Subtraction leaves rounding errors, which may be negative.
        let variance = amount.variance.max(0.0).round() as u64;
        if variance > 0 {
            self.variance.resize(self.blocks.len(), 0);
            self.variance.push(variance);
        }
        self.blocks.push(amount.blocks);
        self.bytes.push(amount.bytes);
    }

    fn of(amounts: impl Iterator<Item = Amount>) -> Amounts {
        let mut all = Amounts::default();
        amounts.for_each(|amount| all.push(amount));
        all
    }
}

#[derive(Serialize)]
struct Sites<'a> {
    stack: Vec<u32>,
    kind: Vec<u32>,
    thread: Vec<u32>,
    truncated: Vec<u8>,
    before: Amounts,
    live: Amounts,
    peak: Amounts,
    allocated: Amounts,
    released: Amounts,
    temporary: Amounts,
    sizes: Vec<&'a [(u8, u64)]>,
    lifetimes: Vec<&'a [(u8, u64)]>,
}

#[derive(Default, Serialize)]
struct Timeline {
    time_ns: Vec<u64>,
    live: Amounts,
    allocated: Amounts,
    temporary: Amounts,
}

/// What sites came to at points of the timeline, ordered by the point.
#[derive(Default, Serialize)]
struct Changes {
    /// Difference to the change before.
    point: Vec<u32>,
    site: Vec<u32>,
    live: Amounts,
    allocated: Amounts,
}

/// Each string once.
struct Strings {
    all: Vec<String>,
    known: HashMap<String, u32>,
}

impl Strings {
    fn index(&mut self, text: &str) -> u32 {
        if let Some(&index) = self.known.get(text) {
            return index;
        }
        self.all.push(text.to_owned());
        let index = self.all.len() as u32 - 1;
        self.known.insert(text.to_owned(), index);
        index
    }
}

impl Columns<'_> {
    pub fn new(profile: &Profile) -> Columns<'_> {
        let mut strings = Strings {
            all: vec![String::new()],
            known: HashMap::from([(String::new(), 0)]),
        };
        let mut frames = Frames::default();
        for frame in &profile.frames {
            let frame = &frame.frame;
            frames.function.push(strings.index(&name(frame)));
            frames
                .module
                .push(strings.index(frame.module.as_deref().unwrap_or("")));
            frames
                .file
                .push(strings.index(frame.file.as_deref().unwrap_or("")));
            frames.line.push(frame.line.unwrap_or(0));
            frames.inlined.push(frame.inlined.into());
        }
        let sites = Sites::new(&profile.sites, &mut strings);
        let (changes, step) = over_time(profile);
        let is_one_stack = |flow: &&Flow| flow.kind != Flow::OTHERS;
        let mut flows: Vec<&Flow> = profile.flows.iter().filter(is_one_stack).collect();
        if flows.len() > MAX_FLOWS {
            flows.sort_by_key(|flow| std::cmp::Reverse(flow.amount.bytes));
            flows.truncate(MAX_FLOWS);
        }
        let flow = |f: &Flow| {
            [
                f.allocated_by.into(),
                f.released_by.into(),
                f.amount.blocks,
                f.amount.bytes,
                f.amount.variance.max(0.0).round() as u64,
            ]
        };
        Columns {
            name: &profile.target.name,
            pid: profile.target.pid,
            exe: &profile.target.exe,
            began_unix_ms: profile.began_unix_ms,
            from_ns: profile.from_ns,
            to_ns: profile.to_ns,
            peak_ns: profile.peak_ns,
            depth: profile.depth,
            is_sampled: profile.sampling.is_some(),
            gaps: &profile.gaps,
            lost_events: profile.totals.lost_events,
            strings: strings.all,
            frames,
            stacks: &profile.stacks,
            sites,
            flows: flows.into_iter().map(flow).collect(),
            timeline: Timeline::new(&profile.timeline),
            changes,
            step,
            sources: &profile.sources,
        }
    }
}

impl<'a> Sites<'a> {
    fn new(sites: &'a [ProfileSite], strings: &mut Strings) -> Sites<'a> {
        // Recordings of sums do not tell threads apart.
        let thread = |site: &ProfileSite| match (site.tid, site.thread.is_empty()) {
            (0, _) => "unknown threads".to_owned(),
            (_, true) => site.tid.to_string(),
            (_, false) => format!("{} ({})", site.thread, site.tid),
        };
        let amounts = |of: fn(&ProfileSite) -> Amount| Amounts::of(sites.iter().map(of));
        Sites {
            stack: sites.iter().map(|s| s.stack).collect(),
            kind: sites.iter().map(|s| strings.index(&s.kind)).collect(),
            thread: sites.iter().map(|s| strings.index(&thread(s))).collect(),
            truncated: sites.iter().map(|s| s.truncated.into()).collect(),
            before: amounts(|s| s.before),
            live: amounts(|s| s.measures.live),
            peak: amounts(|s| s.measures.peak),
            allocated: amounts(|s| s.measures.allocated),
            released: amounts(|s| s.measures.released),
            temporary: amounts(|s| s.measures.temporary),
            sizes: sites.iter().map(|s| &s.sizes[..]).collect(),
            lifetimes: sites.iter().map(|s| &s.lifetimes[..]).collect(),
        }
    }
}

impl Timeline {
    fn new(points: &[crate::Point]) -> Timeline {
        Timeline {
            time_ns: points.iter().map(|point| point.time_ns).collect(),
            live: Amounts::of(points.iter().map(|point| point.live)),
            allocated: Amounts::of(points.iter().map(|point| point.allocated)),
            temporary: Amounts::of(points.iter().map(|point| point.temporary)),
        }
    }
}

/// The changes at every nth point, as many as a page can hold, and n.
fn over_time(profile: &Profile) -> (Changes, usize) {
    let mut step = 1;
    loop {
        let picked = at_every(profile, step);
        if picked.len() <= MAX_CHANGES || step > profile.timeline.len() {
            return (Changes::new(&picked), step);
        }
        step *= 2;
    }
}

/// The last change of each site up to each of the points, with the point; ordered by point and site.
fn at_every(profile: &Profile, step: usize) -> Vec<(u32, &SitePoint)> {
    let last = profile.timeline.len().saturating_sub(1);
    let mut picked: Vec<(u32, &SitePoint)> = Vec::new();
    // By site: where its last change is in `picked`.
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

impl Changes {
    fn new(picked: &[(u32, &SitePoint)]) -> Changes {
        let points = picked.iter().map(|(at, _)| *at);
        let before = std::iter::once(0).chain(points.clone());
        Changes {
            point: points.zip(before).map(|(at, before)| at - before).collect(),
            site: picked.iter().map(|(_, change)| change.site).collect(),
            live: Amounts::of(picked.iter().map(|(_, change)| change.live)),
            allocated: Amounts::of(picked.iter().map(|(_, change)| change.allocated)),
        }
    }
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
        let changes = Changes::new(&at_every(&profile, 2));
        assert_eq!(changes.point, [0, 0, 2, 0, 2]);
        assert_eq!(changes.live.blocks, [2, 1, 5, 4, 7]);
    }
}
