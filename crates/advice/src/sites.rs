//! Findings about allocation sites: what leaks, and what grows.

use crate::site::Site;
use crate::{Facts, Finding, Kind};
use memhook_gate::{Evidence, Leak, MOMENTS};
use memhook_report::claims::{Seen, unseen_blocks};
use memhook_report::{LeakSite, Profile, StaleSite, bytes, counted};
use std::collections::BTreeMap;

/// What makes a block larger.
const REALLOCS: [&str; 2] = ["realloc", "reallocarray"];
/// Standard errors that are no chance.
const DEVIATIONS: f64 = 3.0;
/// Findings of each kind; further ones are in the commands that they name.
const MOST: usize = 3;

/// Change of the live bytes of all sites.
pub fn growth(profile: &Profile) -> f64 {
    let sites = profile.sites.iter();
    sites
        .map(|site| site.measures.live.bytes as f64 - site.before.bytes as f64)
        .sum()
}

/// What leaks, then what grows and is not among that.
pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut known = Vec::new();
    if let Some(leaks) = facts
        .profile
        .leaks
        .as_ref()
        .filter(|_| facts.profile.knows_unreachable())
    {
        let large = leaks.sites.iter();
        let large = large.filter(|site| site.bytes + site.held_bytes >= facts.least());
        for leak in large.take(MOST) {
            let site = Site::of_stack(&leak.stack);
            found.push(of_leak(facts, leak, &site));
            known.push(site);
        }
    }
    let Some(evidence) = facts.growth else {
        found.extend(estimated_growth(facts, &mut known));
        found.extend(untouched(facts, &known));
        return found;
    };
    let mut grown: Vec<(u64, &Leak)> = evidence
        .leaks
        .iter()
        .map(|leak| (rate(facts, evidence, leak), leak))
        .collect();
    grown.sort_by_key(|(rate, _)| std::cmp::Reverse(*rate));
    for (rate, leak) in grown {
        let of_leak = &evidence.sites[leak.site];
        let site = Site::of_evidence(of_leak);
        let is_buffer = REALLOCS.contains(&of_leak.kind.as_str());
        let of_known = known.iter().position(|one| one.name == site.name);
        if let Some(at) = of_known {
            found[at].gain_bytes_an_hour = Some(rate);
            continue;
        }
        if found.len() >= 2 * MOST || rate < facts.least() {
            continue;
        }
        found.push(of_growth(facts, leak, (&site, is_buffer), rate));
        known.push(site);
    }
    found.extend(untouched(facts, &known));
    found
}

/// Sites whose blocks something points to and nobody has touched, if that was watched.
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
                "Nobody has touched {} of the {} that {} holds for {older:.0} s; something points to them",
                bytes(stale),
                bytes(of.live_bytes),
                site.text(),
            ),
            gain_bytes: stale,
            gain_bytes_an_hour: None,
            certainty: "estimated",
            remedy: format!("Release earlier what {} keeps, or do not load it before it is needed", site.name),
            cost: "a change of the program",
            evidence: format!("memhook-rs stale {} --older 10m", facts.target()),
        })
        .collect()
}

/// What of a site was not touched, without what nothing reaches.
pub fn reachable_stale(site: &StaleSite) -> u64 {
    let split = site.reachability;
    split.map_or(site.stale_bytes, |split| split.reachable_stale_bytes)
}

/// Sites that have grown by more than chance makes of samples. Whether they go on growing was not tested.
fn estimated_growth(facts: &Facts<'_>, known: &mut Vec<Site>) -> Vec<Finding> {
    let mut of_stack: BTreeMap<u32, (f64, f64, u64)> = BTreeMap::new();
    for site in &facts.profile.sites {
        let (live, before) = (site.measures.live, site.before);
        let sums = of_stack.entry(site.stack).or_default();
        sums.0 += live.bytes as f64 - before.bytes as f64;
        sums.1 += live.variance + live.unhit + before.variance;
        sums.2 += live.bytes;
    }
    let least = facts.least() as f64;
    let mut grown: Vec<(u32, f64, u64)> = of_stack
        .into_iter()
        .filter(|(_, (more, variance, _))| *more >= least && *more > DEVIATIONS * variance.sqrt())
        .map(|(stack, (more, _, live))| (stack, more, live))
        .collect();
    grown.sort_by(|a, b| b.1.total_cmp(&a.1));
    let named = grown.into_iter().map(|(stack, more, live)| {
        let site = Site::of_stack(&facts.profile.stack(stack));
        (site, more, live)
    });
    let new = named.filter(|(site, ..)| known.iter().all(|one| one.name != site.name));
    let new: Vec<_> = new.take(MOST).collect();
    known.extend(new.iter().map(|(site, ..)| site.clone()));
    new.into_iter()
        .map(|(site, more, live)| Finding {
            kind: Kind::Growth,
            found: format!(
                "{} holds {} more than at the beginning, {} in all",
                site.text(),
                bytes(more as u64),
                bytes(live)
            ),
            gain_bytes: more as u64,
            gain_bytes_an_hour: u64::try_from(facts.an_hour(more)).ok(),
            certainty: "estimated",
            remedy: format!(
                "Check whether {} releases everything that it should, or keeps it without a limit",
                site.name
            ),
            cost: "a change of the program",
            evidence: format!("memhook-rs gate -p {} --growth -d 5m", facts.target()),
        })
        .collect()
}

/// Bytes an hour that a growing site adds.
fn rate(facts: &Facts<'_>, evidence: &Evidence, leak: &Leak) -> u64 {
    let interval = evidence.elapsed.as_secs_f64() / f64::from(MOMENTS);
    let bytes = leak.growth.map_or(0.0, |growth| growth.bytes_per_interval);
    if bytes <= 0.0 || interval <= 0.0 {
        return facts.an_hour(leak.total().bytes as f64).max(0) as u64;
    }
    (bytes * 3600.0 / interval).round() as u64
}

fn of_leak(facts: &Facts<'_>, leak: &LeakSite, site: &Site) -> Finding {
    let held = match leak.held_bytes {
        0 => String::new(),
        held => format!(", and only these reach a further {}", bytes(held)),
    };
    let by = match facts.is_traced {
        true => format!("; allocated by {}", site.text()),
        false => String::new(),
    };
    Finding {
        kind: Kind::Leak,
        found: format!(
            "Nothing points to {} in {} any more{held}{by}",
            bytes(leak.bytes),
            counted(leak.blocks, "block"),
        ),
        gain_bytes: leak.bytes + leak.held_bytes,
        gain_bytes_an_hour: None,
        // Of samples, other blocks may have been lost at the same site.
        certainty: match (facts.profile.sampling, &facts.profile.leaks) {
            (None, Some(leaks)) => facts.of_search(leaks),
            _ => "estimated",
        },
        remedy: match site.is_known() {
            _ if !facts.is_traced => format!(
                "memhook-rs scan {0} says what they are; memhook-rs attach {0} --leaks names who allocates more of them",
                facts.target(),
            ),
            true => format!(
                "Release what {} allocates; until that is deployed, memhook-rs scan --reclaim {} frees it",
                site.name,
                facts.target(),
            ),
            false => format!(
                "memhook-rs scan --reclaim {} frees them; the trace names no site of theirs: {}",
                facts.target(),
                unseen_blocks(seen_of(facts)).sentence,
            ),
        },
        cost: match site.is_known() {
            _ if !facts.is_traced => "none, and a trace",
            true => "a change of the program",
            false => "one thread is held while it frees them",
        },
        evidence: format!("memhook-rs scan {}", facts.target()),
    }
}

fn seen_of(facts: &Facts<'_>) -> Seen {
    Seen {
        from_start: facts.profile.from_start,
        is_sampled: facts.profile.sampling.is_some(),
        is_bounded: false,
        has_gaps: !facts.profile.gaps.is_empty(),
    }
}

fn of_growth(
    facts: &Facts<'_>,
    leak: &Leak,
    (site, is_buffer): (&Site, bool),
    rate: u64,
) -> Finding {
    let total = leak.total();
    let is_searched = facts.profile.knows_unreachable();
    Finding {
        kind: Kind::Growth,
        found: format!(
            "{} {}: {} in {} since the attach{}",
            site.text(),
            match is_buffer {
                true => "makes blocks larger and larger by realloc",
                false => "keeps more and more",
            },
            bytes(total.bytes),
            counted(total.blocks, "block"),
            match is_searched {
                true => ", all of it reachable",
                false => "",
            },
        ),
        gain_bytes: total.bytes,
        gain_bytes_an_hour: Some(rate),
        certainty: "tested",
        remedy: match (is_buffer, is_searched) {
            (true, _) => format!(
                "Bound how large {} lets them become; if it needs that size, reserve it at once: each step copies all before it",
                site.name
            ),
            (false, true) => format!("Bound what {} keeps, or release what is old", site.name),
            (false, false) => format!(
                "Check whether {} releases everything that it should",
                site.name
            ),
        },
        cost: "a change of the program",
        evidence: format!("memhook-rs gate -p {} --growth -d 5m", facts.target()),
    }
}
