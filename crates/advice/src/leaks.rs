//! Findings about unreachable blocks.

use crate::site::Site;
use crate::sites::MOST;
use crate::{Facts, Finding, Kind};
use memhook_report::claims::{Seen, unseen_blocks};
use memhook_report::{LeakSite, bytes, counted};

/// Maximum relative difference in size between two groups of blocks that count as one site.
const ALIKE: f64 = 0.1;

/// Finds unreachable blocks, by the site of the blocks that no other unreachable block points to.
pub fn leaks(facts: &Facts<'_>) -> Vec<(Finding, Site)> {
    let searched = facts.profile.leaks.as_ref();
    let Some(leaks) = searched.filter(|_| facts.profile.knows_unreachable()) else {
        return Vec::new();
    };
    let mut named: Vec<(Site, LeakSite)> = Vec::new();
    for leak in &leaks.sites {
        let site = Site::of_stack(&leak.stack);
        match named.iter_mut().find(|(known, _)| *known == site) {
            Some((_, sum)) => {
                sum.bytes += leak.bytes;
                sum.blocks += leak.blocks;
                sum.held_bytes += leak.held_bytes;
            }
            None => named.push((site, leak.clone())),
        }
    }
    // Blocks without a site most likely belong to a site that leaks similar blocks.
    let unseen = named.iter().position(|(site, _)| !site.is_known());
    let unseen = unseen.map(|at| named.remove(at));
    let mut unseen = unseen.filter(|(_, leak)| all_of(leak) >= facts.least());
    named.sort_by_key(|(_, leak)| std::cmp::Reverse(all_of(leak)));
    let mut found: Vec<(Finding, Site)> = Vec::new();
    for (site, leak) in named {
        let also = match &unseen {
            Some((_, other)) if are_alike(&leak, other) => unseen.take().map(|(_, leak)| leak),
            _ => None,
        };
        let all = all_of(&leak) + also.as_ref().map_or(0, all_of);
        if all >= facts.least() {
            found.push((of_leak(facts, &leak, also.as_ref(), &site), site));
        }
    }
    found.truncate(MOST);
    found.extend(unseen.map(|(site, leak)| (of_leak(facts, &leak, None, &site), site)));
    found
}

/// Returns the bytes of a leak, including everything that it holds.
fn all_of(leak: &LeakSite) -> u64 {
    leak.bytes + leak.held_bytes
}

/// Returns true if the blocks of two leaks have similar sizes, and hold similar amounts.
fn are_alike(one: &LeakSite, other: &LeakSite) -> bool {
    let mean = |leak: &LeakSite| all_of(leak) as f64 / leak.blocks.max(1) as f64;
    (mean(one) / mean(other).max(1.0) - 1.0).abs() < ALIKE
}

fn of_leak(facts: &Facts<'_>, leak: &LeakSite, also: Option<&LeakSite>, site: &Site) -> Finding {
    let held = match leak.held_bytes {
        0 => String::new(),
        held => format!(", and only these reach a further {}", bytes(held)),
    };
    let by = match facts.is_traced {
        true => format!("; allocated by {}", site.text()),
        false => String::new(),
    };
    let unseen = unseen_blocks(seen_of(facts)).sentence;
    let others = also.map_or(String::new(), |also| {
        format!(
            ". {} in {} of the same size were lost, too, most likely by the same site: {unseen}",
            bytes(all_of(also)),
            counted(also.blocks, "block"),
        )
    });
    let can_reclaim = !facts.has_damaged_heap();
    let reclaim = format!("memhook-rs scan --reclaim {}", facts.target());
    Finding {
        kind: Kind::Leak,
        found: format!(
            "Nothing points to {} in {} any more{held}{by}{others}",
            bytes(leak.bytes),
            counted(leak.blocks, "block"),
        ),
        place: site.is_known().then(|| site.with_callers()),
        gain_bytes: all_of(leak) + also.map_or(0, all_of),
        gain_bytes_an_hour: site
            .is_known()
            .then(|| facts.an_hour(all_of(leak) as f64).max(0) as u64),
        certainty: facts
            .profile
            .leaks
            .as_ref()
            .map_or("estimated", |leaks| facts.of_search(leaks)),
        remedy: match (site.is_known(), can_reclaim) {
            _ if !facts.is_traced => format!(
                "memhook-rs scan {0} shows their contents; memhook-rs attach {0} --leaks names their allocator if more are lost",
                facts.target(),
            ),
            (true, true) => format!(
                "Release what {} allocates; until that is deployed, {reclaim} frees it",
                site.name,
            ),
            (true, false) => format!("Release what {} allocates", site.name),
            (false, true) => {
                format!(
                    "{reclaim} frees them; the trace does not show what allocated them: {unseen}"
                )
            }
            (false, false) => format!(
                "Trace the process while it allocates them: memhook-rs attach {} --leaks -d 10m",
                facts.target()
            ),
        },
        cost: match site.is_known() {
            _ if !facts.is_traced => "the cost of a trace",
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
        has_unwatched_libraries: facts.profile.totals.unwatched_libraries > 0,
    }
}
