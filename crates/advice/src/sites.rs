//! Findings about allocation sites: unbounded growth, untouched memory, and leaks.

use crate::balance;
use crate::leaks::leaks;
use crate::site::Site;
use crate::{Facts, Finding, Kind};
use memhook_report::course::{Course, PARTS, course, thirds};
use memhook_report::{Profile, StaleSite, bytes, counted};
use serde::Serialize;
use std::collections::BTreeMap;

/// Functions that enlarge a block.
const REALLOCS: [&str; 2] = ["realloc", "reallocarray"];
/// Number of standard errors beyond which a difference is not due to chance.
const DEVIATIONS: f64 = 3.0;
/// Maximum number of findings of each kind. The commands in the findings show more.
pub const MOST: usize = 3;
/// Maximum number of sites listed with their class.
const MOST_CLASSED: usize = 20;
/// A site's use of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The site's blocks are unreachable.
    Leaked,
    /// The site keeps a growing number of bytes.
    Unbounded,
    /// The site releases as much as it allocates, in the same sizes.
    Bounded,
    /// The site holds more than before, but its growth keeps slowing down.
    Warming,
    /// The site keeps untouched blocks.
    Retained,
    /// The site kept much more before the end than at the end.
    Burst,
    /// The site was not observed long enough for a class.
    Unsure,
}

impl Class {
    /// Returns the word for the class.
    pub fn name(self) -> &'static str {
        match self {
            Class::Leaked => "leaked",
            Class::Unbounded => "unbounded",
            Class::Bounded => "bounded",
            Class::Warming => "warming",
            Class::Retained => "retained",
            Class::Burst => "burst",
            Class::Unsure => "unsure",
        }
    }
}

/// A site with its class.
#[derive(Clone, Debug, Serialize)]
pub struct ClassedSite {
    /// Class of the site.
    pub class: Class,
    /// Function, place and callers of the site.
    pub site: String,
    /// Live bytes that the site has allocated since the attach.
    pub live_bytes: u64,
    /// Lower and upper bounds on the growth, since the start, of blocks of the site's sizes.
    pub grown_bytes: (u64, u64),
    /// Certainty: exact, tested or estimated.
    pub certainty: &'static str,
    /// Observation that led to the class, as a sentence.
    pub seen: String,
    /// Live bytes that the site has allocated since the attach, measured at equal intervals from
    /// the start to the end.
    pub live_over_time: Vec<u64>,
}

/// The blocks of a call stack. Call stacks with the same name that enlarge a buffer are treated as
/// one, because the buffer belongs to whichever of them enlarged it last.
struct OfStack {
    stack: u32,
    /// Further call stacks.
    others: Vec<u32>,
    is_buffer: bool,
    live: f64,
    blocks: u64,
    /// Unreachable part of the live bytes.
    unreachable: f64,
    error: f64,
    /// Growth of the stack's reachable bytes since the start.
    more: f64,
    /// Lower and upper bound on the growth in `more`.
    grown: (f64, f64),
    is_shared: bool,
    /// True if the walks did not find most of the blocks, because they are in another heap.
    is_elsewhere: bool,
    course: Course,
    /// Live bytes at the start and at the end of each part of the run.
    over_time: [f64; PARTS + 1],
}

/// A site that may grow.
pub struct UnsureSite {
    pub name: String,
    pub grown_bytes: u64,
}

/// Findings about sites, and their classes.
#[derive(Default)]
pub struct OfSites {
    pub findings: Vec<Finding>,
    pub classed: Vec<ClassedSite>,
    /// Growth of sites whose blocks the walks did not find.
    pub elsewhere: f64,
    /// The site that may grow, if any.
    pub unsure: Option<UnsureSite>,
}

/// Evaluates sites: leaks, unbounded growth of other sites, and untouched memory.
pub fn judge(facts: &Facts<'_>) -> OfSites {
    let mut all = OfSites::default();
    let mut known = Vec::new();
    for (finding, site) in leaks(facts) {
        all.findings.push(finding);
        known.push(site);
    }
    let (mut grown, mut unsure) = (Vec::new(), Vec::new());
    for one in of_stacks(facts) {
        let Some(class) = class(facts, &one) else {
            continue;
        };
        let site = Site::of_stack(&facts.profile.stack(one.stack));
        let is_known = known.iter().any(|known| known.name == site.name);
        if all.classed.len() < MOST_CLASSED {
            all.classed.push(ClassedSite {
                class,
                site: site.with_callers(),
                live_bytes: one.live as u64,
                grown_bytes: (one.grown.0 as u64, one.grown.1 as u64),
                certainty: certainty(&one),
                seen: seen(class, &one),
                live_over_time: one.over_time.map(|bytes| bytes.max(0.0) as u64).to_vec(),
            });
        }
        match class {
            Class::Unbounded if !is_known => grown.push((site, one)),
            Class::Unsure if !is_known => unsure.push((site, one)),
            _ => {}
        }
    }
    grown.sort_by(|a, b| f64::total_cmp(&b.1.grown.1, &a.1.grown.1));
    for (_, one) in grown.iter().chain(&unsure) {
        all.elsewhere += if one.is_elsewhere { one.grown.1 } else { 0.0 };
    }
    for (site, one) in grown.into_iter().take(MOST) {
        all.findings.push(of_growth(facts, &one, &site));
        known.push(site);
    }
    unsure.sort_by(|a, b| f64::total_cmp(&b.1.grown.1, &a.1.grown.1));
    all.unsure = unsure.first().map(|(site, one)| UnsureSite {
        name: site.with_callers(),
        grown_bytes: one.grown.1 as u64,
    });
    all.findings.extend(untouched(facts, &known));
    all
}

/// Returns each call stack with live memory, the largest first.
fn of_stacks(facts: &Facts<'_>) -> Vec<OfStack> {
    let profile = facts.profile;
    let mut found: BTreeMap<u32, OfStack> = BTreeMap::new();
    let (mut buffers, mut same_as) = (BTreeMap::new(), BTreeMap::new());
    for site in &profile.sites {
        let is_buffer = REALLOCS.contains(&site.kind.as_str());
        let stack = *same_as
            .entry(site.stack)
            .or_insert_with(|| match is_buffer {
                true => {
                    let name = Site::of_stack(&profile.stack(site.stack)).text();
                    *buffers.entry(name).or_insert(site.stack)
                }
                false => site.stack,
            });
        let of = found.entry(stack).or_insert(OfStack {
            stack,
            others: Vec::new(),
            is_buffer,
            live: 0.0,
            blocks: 0,
            unreachable: 0.0,
            error: 0.0,
            more: 0.0,
            grown: (0.0, 0.0),
            is_shared: false,
            is_elsewhere: false,
            course: Course::Steady,
            over_time: [0.0; PARTS + 1],
        });
        if site.stack != stack && !of.others.contains(&site.stack) {
            of.others.push(site.stack);
        }
        let (live, before) = (site.measures.live, site.before);
        of.live += live.bytes as f64;
        of.blocks += live.blocks;
        of.unreachable += site.measures.unreachable.bytes as f64;
        of.error += live.variance + live.unhit + before.variance;
    }
    let points = over_time(profile);
    let least = facts.least() as f64;
    let mut found: Vec<OfStack> = found.into_values().collect();
    for one in &mut found {
        one.error = one.error.max(0.0).sqrt();
        let stacks = [one.stack].into_iter().chain(one.others.iter().copied());
        let live = stacks
            .filter_map(|stack| points.get(&stack).copied())
            .reduce(|mut sum, live| {
                sum.iter_mut()
                    .zip(live)
                    .for_each(|(sum, live)| *sum += live);
                sum
            });
        let live = live.map(|live| {
            if one.is_buffer {
                of_buffer(facts, live)
            } else {
                live
            }
        });
        if let Some(live) = live.filter(|_| one.is_buffer) {
            one.live = live[PARTS];
        }
        let Some(live) = live.filter(|live| live.iter().any(|bytes| *bytes >= least)) else {
            continue;
        };
        one.course = course(&live, least);
        one.over_time = live;
        one.more = (one.live - live[0] - one.unreachable).max(0.0);
        one.is_elsewhere = is_elsewhere(profile, one);
        one.grown = net(facts, one, one.more);
        one.is_shared = one.grown.1 > 2.0 * one.grown.0;
    }
    found.sort_by(|a, b| b.live.total_cmp(&a.live));
    found
}

/// Returns true if two walks did not find most of the blocks of a call stack.
fn is_elsewhere(profile: &Profile, one: &OfStack) -> bool {
    let Some(looks) = profile.looks.as_ref().filter(|_| !one.is_buffer) else {
        return false;
    };
    let at = looks
        .stacks
        .binary_search_by_key(&one.stack, |found| found.stack);
    let found = at.ok().and_then(|at| looks.stacks.get(at));
    2.0 * found.map_or(0.0, |found| found.live_bytes as f64) < one.live
}

/// Returns the history of a buffer's size. The whole buffer appears when it is first enlarged,
/// although it existed before. While it is being copied, it counts as released. It was not really
/// released if it is larger afterwards, or if the heap has grown as much as the buffer by the last
/// look.
fn of_buffer(facts: &Facts<'_>, mut live: [f64; PARTS + 1]) -> [f64; PARTS + 1] {
    let first = live.iter().position(|bytes| *bytes > 0.0).unwrap_or(0);
    let before = live[first];
    live[..first].fill(before);
    let last = live.iter().rposition(|bytes| *bytes > 0.0).unwrap_or(0);
    let heap = balance::live(facts).unwrap_or(0.0);
    if last < PARTS && live[last] > before && 2.0 * heap > live[last] - before {
        live[PARTS] = live[last];
    }
    for at in first + 1..PARTS {
        let (before, after) = (live[at - 1], &live[at + 1..]);
        let is_larger = after.iter().find(|bytes| **bytes > 0.0) >= Some(&before);
        if live[at] == 0.0 && is_larger {
            live[at] = before;
        }
    }
    live
}

/// Returns the live bytes of each call stack at the start and at the end of each part of the run.
fn over_time(profile: &Profile) -> BTreeMap<u32, [f64; PARTS + 1]> {
    let span = profile.to_ns.saturating_sub(profile.from_ns) as f64;
    let moment = |time_ns: u64| {
        let after = time_ns.saturating_sub(profile.from_ns) as f64;
        (after / span.max(1.0) * PARTS as f64).ceil() as usize
    };
    let mut found: BTreeMap<u32, [f64; PARTS + 1]> = BTreeMap::new();
    let mut of_site: BTreeMap<u32, (usize, f64)> = BTreeMap::new();
    let mut add = |site: u32, moments: std::ops::Range<usize>, bytes: f64| {
        let Some(site) = profile.sites.get(site as usize) else {
            return;
        };
        let live = found.entry(site.stack).or_insert([0.0; PARTS + 1]);
        for sum in &mut live[moments] {
            *sum += bytes;
        }
    };
    for change in &profile.changes {
        let Some(point) = profile.timeline.get(change.point as usize) else {
            continue;
        };
        let at = moment(point.time_ns).min(PARTS);
        let of = of_site.entry(change.site).or_default();
        if of.0 < at {
            add(change.site, of.0..at, of.1);
            of.0 = at;
        }
        of.1 = change.live.bytes as f64;
    }
    for (site, (from, bytes)) in of_site {
        add(site, from..PARTS + 1, bytes);
    }
    found
}

/// Returns the lower and the upper bound on how many of the `more` bytes since the start are real
/// growth.
fn net(facts: &Facts<'_>, of: &OfStack, more: f64) -> (f64, f64) {
    let bound = facts.least() as f64;
    let of_heap = balance::live(facts);
    if let (Some(looks), Some(of_heap)) = (&facts.profile.looks, of_heap) {
        // All sites together have not grown by more than the heap.
        let most = more.min(of_heap.max(0.0) + bound);
        if of.is_buffer {
            // The buffer has a different size each time. Only the growth of other stacks is
            // certainly not due to the buffer.
            let is_other = |stack: u32| stack != of.stack && !of.others.contains(&stack);
            let others = looks.stacks.iter().filter(|one| is_other(one.stack));
            let others: u64 = others.map(|one| one.at_most_bytes).sum();
            return ((of_heap - others as f64).clamp(0.0, most), most);
        }
        if of.is_elsewhere {
            return (0.0, more.min(balance::unread(facts)));
        }
        let at = looks
            .stacks
            .binary_search_by_key(&of.stack, |one| one.stack);
        let Some(one) = at.ok().and_then(|at| looks.stacks.get(at)) else {
            return (0.0, 0.0);
        };
        let most = most.min(one.at_most_bytes as f64);
        return (most.min(one.at_least_bytes as f64), most);
    }
    match balance::resident(facts) {
        // The same number of bytes may have been released from blocks that are older than the
        // trace.
        Some(resident) if resident < bound => (0.0, 0.0),
        Some(resident) => (0.0, more.min(resident)),
        None => (0.0, more),
    }
}

/// Returns the class of a call stack; `None` if its activity is insignificant.
fn class(facts: &Facts<'_>, one: &OfStack) -> Option<Class> {
    let least = facts.least() as f64;
    if one.unreachable >= least && 2.0 * one.unreachable > one.live {
        return Some(Class::Leaked);
    }
    let grown = one.grown.1;
    match one.course {
        Course::Steady => None,
        Course::Burst => Some(Class::Burst),
        _ if grown < least || 4.0 * grown < one.more => Some(Class::Bounded),
        Course::Levelling => Some(Class::Warming),
        // The growth is within the sampling error, so it may be due to chance.
        _ if grown < DEVIATIONS * one.error => Some(Class::Unsure),
        Course::Growing => Some(Class::Unbounded),
        Course::Unclear => Some(Class::Unsure),
    }
}

/// Returns the observation that led to a class.
fn seen(class: Class, one: &OfStack) -> String {
    let most = one.over_time.iter().copied().fold(0.0, f64::max);
    let [least, grown] = [one.grown.0, one.grown.1].map(|grown| bytes(grown as u64));
    match class {
        Class::Leaked => format!(
            "nothing points to {} of {}",
            bytes(one.unreachable as u64),
            bytes(one.live as u64)
        ),
        Class::Bounded => format!(
            "it holds {} more new blocks, but blocks of these sizes grew by only {least} to {grown}",
            bytes(one.more as u64)
        ),
        Class::Burst => format!(
            "it held up to {}, and {} at the end",
            bytes(most as u64),
            bytes(one.live as u64)
        ),
        Class::Unbounded | Class::Warming | Class::Unsure | Class::Retained => {
            let [first, second, third] =
                thirds(&one.over_time).map(|grown| bytes(grown.max(0.0) as u64));
            format!("it grew by {first}, {second} and {third} in the three thirds of the time")
        }
    }
}

fn certainty(one: &OfStack) -> &'static str {
    match one.grown.0 > 0.0 && !one.is_shared {
        true => "tested",
        false => "estimated",
    }
}

/// Finds sites with reachable but untouched blocks, if `attach --stale` watched them.
fn untouched(facts: &Facts<'_>, known: &[Site]) -> Vec<Finding> {
    let Some(watched) = facts.stale else {
        return Vec::new();
    };
    let mut sites: Vec<(u64, &StaleSite)> = watched
        .sites
        .iter()
        .filter(|site| !site.before_attach && 2 * site.stale_bytes > site.live_bytes)
        .map(|site| (reachable_stale(site), site))
        .filter(|(stale, _)| *stale >= facts.least())
        .collect();
    sites.sort_by_key(|(stale, _)| std::cmp::Reverse(*stale));
    let named = sites
        .into_iter()
        .map(|(stale, of)| (Site::of_stack(&of.stack), stale, of));
    let new = named.filter(|(site, ..)| known.iter().all(|one| one.name != site.name));
    let older = watched.older_s;
    new.take(MOST)
        .map(|(site, stale, of)| Finding {
            kind: Kind::Untouched,
            found: format!(
                "For {older:.0} s, nobody has touched {} of the {} that {} holds, although something points to them",
                bytes(stale),
                bytes(of.live_bytes),
                site.text(),
            ),
            place: Some(site.with_callers()),
            gain_bytes: stale,
            gain_bytes_an_hour: None,
            certainty: "estimated",
            remedy: format!("Release earlier what {} keeps, or load it only when it is needed", site.name),
            cost: "a change of the program",
            evidence: format!("memhook-rs stale {} --older 10m", facts.target()),
        })
        .collect()
}

/// Returns the untouched bytes of a site, without unreachable ones.
pub fn reachable_stale(site: &StaleSite) -> u64 {
    let split = site.reachability;
    split.map_or(site.stale_bytes, |split| split.reachable_stale_bytes)
}

fn of_growth(facts: &Facts<'_>, one: &OfStack, site: &Site) -> Finding {
    let is_searched = facts.profile.knows_unreachable();
    let (least, most) = one.grown;
    let shared = match one.is_shared && least > 0.0 {
        true => format!(
            " (at least {}: others allocate the same sizes)",
            bytes(least as u64)
        ),
        false => String::new(),
    };
    Finding {
        kind: Kind::Growth,
        found: format!(
            "{} {}: {} more than at the beginning{shared}, {} in {} since the attach{}",
            site.text(),
            match one.is_buffer {
                true => "makes blocks larger and larger by realloc",
                false => "keeps more and more",
            },
            bytes(most as u64),
            bytes(one.live as u64),
            counted(one.blocks, "block"),
            match is_searched && one.unreachable == 0.0 {
                true => ", all of it reachable",
                false => "",
            },
        ),
        place: Some(site.with_callers()),
        // A bounded buffer would return all of its room.
        gain_bytes: if one.is_buffer { one.live } else { most } as u64,
        gain_bytes_an_hour: Some(facts.an_hour(most).max(0) as u64),
        certainty: certainty(one),
        remedy: match (one.is_buffer, is_searched) {
            (true, _) => format!(
                "Limit the size that {} lets them reach; if that size is needed, reserve it at the start, because each realloc may copy the whole block",
                site.name
            ),
            (false, true) => format!("Limit what {} keeps, or release old blocks", site.name),
            (false, false) => format!(
                "Check whether {} releases everything that it should",
                site.name
            ),
        },
        cost: "a change of the program",
        evidence: format!("memhook-rs gate -p {} --growth -d 5m", facts.target()),
    }
}
