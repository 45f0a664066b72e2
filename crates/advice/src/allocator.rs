//! Findings about memory that the allocator and the kernel hold in addition to live blocks.

use crate::site::Site;
use crate::{Facts, Finding, Kind, balance};
use memhook_report::{ResidentPoint, RssReport, bytes, count, counted, release_call};

/// Number of arenas that MALLOC_ARENA_MAX=2 would leave.
const ARENAS_KEPT: usize = 2;
/// Minimum number of arenas for which the arenas may be the cause of free memory.
const MANY_ARENAS: usize = 8;
/// Name in an account for stacks whose threads have ended.
const ENDED: &str = "stacks kept of threads that have ended";
/// Bytes of a page.
const PAGE_BYTES: u64 = 4096;
/// The allocator that a trim asks if no other one does.
const MALLOC: &str = "malloc";
/// The command that asks an allocator for its free pages.
pub const TRIM: &str = "memhook-rs trim";

/// Finds memory that holds no live blocks and could be returned to the system.
pub fn findings(facts: &Facts<'_>, account: &RssReport) -> Vec<Finding> {
    let all = [
        retention(facts, account),
        arenas(facts, account),
        thread_caches(facts, account),
        huge_pages(facts, account),
        stacks(facts, account),
        of_other_allocator(facts, account),
    ];
    let mut found: Vec<Finding> = all.into_iter().flatten().collect();
    found.extend(fragmentation(facts, account));
    found
}

/// Cost of the kernel's work for a trim.
const TRIM_COST: &str =
    "one thread is held while the allocator works, and pages that are used again fault in";

/// Returns the free memory that was in use at some time during the observation and will most likely
/// be used again. For samples, this is an upper bound.
fn needed_again(facts: &Facts<'_>) -> u64 {
    let points = facts.profile.timeline.iter().map(|point| point.live);
    let Some(peak) = points.max_by_key(|live| live.bytes) else {
        return 0;
    };
    let of_looks = balance::live(facts).map_or(0, |grown| (-grown).max(0.0) as u64);
    let of_trace = peak.bytes.saturating_sub(live_at_look(facts));
    match of_trace {
        more if more < facts.least() => of_looks,
        more => of_looks.max(more + 2 * peak.error_bytes().unwrap_or(0)),
    }
}

/// Of the memory that is free at the last look, returns the part that was free the whole time. An
/// allocator that returns memory by itself had less free memory before.
fn always_free(facts: &Facts<'_>, free: u64) -> u64 {
    let profile = facts.profile;
    let points = &profile.resident;
    let looks = profile.looks.as_ref();
    let last_ms = looks.map_or(profile.to_ns / 1_000_000, |looks| looks.last_ms);
    let at_look = points
        .iter()
        .min_by_key(|point| point.time_ms.abs_diff(last_ms));
    let live_now = live_at_look(facts) as i64;
    let at = |point: &ResidentPoint| {
        let after = profile
            .timeline
            .partition_point(|live| live.time_ns < point.time_ms * 1_000_000);
        let live = profile.timeline.get(after)?.live.bytes as i64;
        let more = point.anonymous_bytes as i64 - at_look?.anonymous_bytes as i64;
        Some((free as i64 + more - (live - live_now)).max(0) as u64)
    };
    let least = points.iter().filter_map(at).min().unwrap_or(free);
    least.min(free.saturating_sub(needed_again(facts)))
}

/// Returns the live bytes of the trace at the last look. The trace ends after the last look, and a
/// burst may begin between the two.
fn live_at_look(facts: &Facts<'_>) -> u64 {
    let profile = facts.profile;
    let looks = profile.looks.as_ref();
    let moment_ns = looks.map_or(profile.to_ns, |looks| looks.last_ms * 1_000_000);
    let points = &profile.timeline;
    let after = points.partition_point(|point| point.time_ns < moment_ns);
    // The look was somewhere between these points.
    let around = after.saturating_sub(1)..(after + 1).min(points.len());
    let live = points[around].iter().map(|point| point.live.bytes);
    live.min().unwrap_or(0)
}

/// Finds free pages of malloc, or of another allocator whose heap was walked.
fn retention(facts: &Facts<'_>, account: &RssReport) -> Option<Finding> {
    if account.allocator.is_some() {
        return None;
    }
    let others = &account.other_allocators;
    let trimmed = others.iter().find(|one| one.is_trimmed);
    let trimmed = trimmed.map_or(MALLOC, |one| &one.name);
    let own = others.iter().filter(|one| !one.is_trimmed);
    let own = own.max_by_key(|one| one.bytes);
    let (name, most, is_trimmed) = match own.filter(|one| one.bytes > account.trim_bytes) {
        Some(one) => (&*one.name, one.bytes, false),
        None => (trimmed, account.trim_bytes, true),
    };
    let gain = always_free(facts, most);
    (gain >= facts.least()).then(|| Finding {
        kind: Kind::Retention,
        found: format!(
            "{name} keeps {} of free memory on pages that hold no block",
            bytes(gain)
        ),
        place: None,
        gain_bytes: gain,
        gain_bytes_an_hour: None,
        certainty: "exact",
        remedy: match is_trimmed {
            true => trim_and(name, &facts.target()),
            false => match release_call(name) {
                Some(call) => format!("In the program, {call}"),
                None => format!("{name} has no call that gives it back"),
            },
        },
        cost: match is_trimmed {
            true => TRIM_COST,
            false => {
                "a change of the program or of its settings, and pages that are used again fault in"
            }
        },
        evidence: match is_trimmed {
            true => format!("{TRIM} --dry-run {}", facts.target()),
            false => format!("memhook-rs rss {}", facts.target()),
        },
    })
}

/// Returns how to make the allocator that a trim asks return free pages, now and in the future.
fn trim_and(allocator: &str, target: &str) -> String {
    let now = format!("{TRIM} {target} gives it back now");
    match release_call(allocator) {
        _ if allocator == MALLOC => format!("{now}; in the program, malloc_trim(0) after a peak"),
        Some(call) => format!("{now}; from then on, {call}"),
        None => now,
    }
}

/// Finds arenas whose free memory a trim does not return, or whose free memory will be used again
/// after a trim.
fn arenas(facts: &Facts<'_>, account: &RssReport) -> Option<Finding> {
    let arenas = &account.arenas;
    if arenas.len() < MANY_ARENAS {
        return None;
    }
    // Reducing the number of arenas does not change how much memory threads keep in their caches.
    let free = arenas
        .iter()
        .map(|arena| arena.top_bytes + arena.bins_bytes);
    let mut free: Vec<u64> = free.collect();
    free.sort_unstable();
    let of_others: u64 = free.iter().rev().skip(ARENAS_KEPT).sum();
    (of_others >= facts.least()).then(|| Finding {
        kind: Kind::Arenas,
        found: format!(
            "{} hold {} of free memory, not counting the two with the most",
            counted((arenas.len() - ARENAS_KEPT) as u64, "arena"),
            bytes(of_others),
        ),
        place: None,
        gain_bytes: of_others,
        gain_bytes_an_hour: None,
        certainty: "exact",
        remedy: "Start the program with MALLOC_ARENA_MAX=2".into(),
        cost: "a restart, and threads that wait for each other in malloc",
        evidence: format!("memhook-rs rss {}", facts.target()),
    })
}

fn thread_caches(facts: &Facts<'_>, account: &RssReport) -> Option<Finding> {
    let cached: u64 = account.arenas.iter().map(|arena| arena.tcache_bytes).sum();
    (cached >= facts.least()).then(|| Finding {
        kind: Kind::ThreadCaches,
        found: format!("Thread caches hold {} of free blocks", bytes(cached)),
        place: None,
        gain_bytes: cached,
        gain_bytes_an_hour: None,
        certainty: "exact",
        remedy: "Start the program with GLIBC_TUNABLES=glibc.malloc.tcache_count=0, or a smaller count than now".into(),
        cost: "a restart, and malloc and free take longer",
        evidence: format!("memhook-rs rss {}", facts.target()),
    })
}

/// Finds pages that exist only because the kernel merged them with their neighbours into a huge
/// page.
fn huge_pages(facts: &Facts<'_>, account: &RssReport) -> Option<Finding> {
    let gain = account.huge_zero_bytes?;
    (gain >= facts.least()).then(|| Finding {
        kind: Kind::HugePages,
        found: format!(
            "Of {} in huge pages, {} are pages of zeros, which were never written",
            bytes(account.huge_page_bytes),
            bytes(gain)
        ),
        place: None,
        gain_bytes: gain,
        gain_bytes_an_hour: None,
        certainty: "exact",
        remedy: "Have the program call prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) before it allocates, or leave out the madvise(MADV_HUGEPAGE) or the setting of its allocator that asks for huge pages".into(),
        cost: "a restart, and more TLB misses where memory is used densely",
        evidence: format!("memhook-rs rss {}", facts.target()),
    })
}

/// Finds stacks of running threads, and cached stacks of ended threads.
fn stacks(facts: &Facts<'_>, account: &RssReport) -> Option<Finding> {
    let resident = balance::part(account, "stacks");
    if resident < facts.least() {
        return None;
    }
    let holdings = account.holdings.iter().filter(|one| one.part == "stacks");
    let (ended, running): (Vec<_>, Vec<_>) = holdings.partition(|one| one.name == ENDED);
    let of_ended: u64 = ended.iter().map(|one| one.bytes).sum();
    let grown = balance::grown(facts, "stacks");
    let grown = grown.filter(|grown| *grown >= facts.least() as f64);
    let (found, remedy) = match 2 * of_ended > resident {
        true if grown.is_some() => (
            format!("Stacks of ended threads take {}, and grow", bytes(of_ended)),
            "Join each thread (pthread_join), or detach it: until then, its stack stays".to_owned(),
        ),
        true => (
            format!("Stacks of ended threads take {}", bytes(of_ended)),
            "Join or detach threads that end; after that, glibc still keeps up to 40 MiB of stacks for later threads".to_owned(),
        ),
        false if running.len() > 1 => (
            format!("Stacks of threads take {}", bytes(resident)),
            "Use fewer threads, or let idle threads end: a stack keeps the pages of its deepest call".to_owned(),
        ),
        false => (
            format!("The stack of a thread takes {}", bytes(resident)),
            "Have deep calls use less of the stack: it keeps the pages of its deepest call".to_owned(),
        ),
    };
    Some(Finding {
        kind: Kind::Stacks,
        found,
        place: None,
        gain_bytes: resident,
        gain_bytes_an_hour: grown.map(|grown| facts.an_hour(grown).max(0) as u64),
        certainty: "exact",
        remedy,
        cost: "a change of the program",
        evidence: format!("memhook-rs rss {}", facts.target()),
    })
}

/// Finds free memory from the statistics of another allocator.
fn of_other_allocator(facts: &Facts<'_>, account: &RssReport) -> Option<Finding> {
    let said = account.allocator.as_ref()?;
    let free = balance::part(account, "free inside the allocator");
    let free = always_free(facts, free);
    (free >= facts.least()).then(|| Finding {
        kind: Kind::Retention,
        found: format!("{} keeps {} of free pages", said.name, bytes(free)),
        place: None,
        gain_bytes: free,
        gain_bytes_an_hour: None,
        certainty: "estimated",
        remedy: trim_and(&said.name, &facts.target()),
        cost: TRIM_COST,
        evidence: format!("memhook-rs rss {}", facts.target()),
    })
}

/// Finds sites with a few blocks that pin a large amount of free memory, which a trim cannot
/// return.
fn fragmentation(facts: &Facts<'_>, account: &RssReport) -> Vec<Finding> {
    let pins = account.pins.iter().filter_map(|pin| {
        let held = pin.pinned_bytes.saturating_sub(pin.trimmable_bytes);
        // The blocks' own bytes are not free.
        let free = held.saturating_sub(pin.own_bytes);
        let is_one = free >= facts.least() && free >= pin.own_bytes;
        is_one.then(|| Finding {
            kind: Kind::Fragmentation,
            found: format!(
                "{} of free memory ({} pages) cannot be returned because of {} ({} in all): {}",
                bytes(free),
                count(free / PAGE_BYTES),
                counted(pin.own_blocks, "live block"),
                bytes(pin.own_bytes),
                pin.name,
            ),
            place: Some(pin.name.clone()),
            gain_bytes: held,
            gain_bytes_an_hour: None,
            certainty: "exact",
            remedy:
                "Allocate these blocks apart from short-lived ones: from a pool of their own, or earlier"
                    .into(),
            cost: "a change of the program",
            evidence: format!("memhook-rs rss --pins {}", facts.target()),
        })
    });
    pins.take(3).collect()
}

/// Returns the call stack that mapped most of the new memory, and how much.
fn mapper(facts: &Facts<'_>, grown: f64) -> Option<(Site, u64)> {
    let looks = facts.profile.looks.as_ref()?;
    let most = looks.mapped.first()?;
    let site = Site::of_stack(&most.stack);
    let is_most = 2.0 * most.resident_bytes as f64 > grown;
    (is_most && site.is_known()).then_some((site, most.resident_bytes))
}

/// Finds growing memory outside the heap.
pub fn mappings(facts: &Facts<'_>) -> Option<Finding> {
    let account = facts.account?;
    let all_mapped = balance::part(account, "mappings");
    let (beside, certainty) = match balance::grown(facts, "mappings") {
        Some(grown) => (grown, "exact"),
        None => {
            // The possible growth of the heap is subtracted.
            let beside = balance::resident(facts)? - crate::grown_live(facts.profile).max(0.0);
            // The last sample is later than the account.
            let is_in_account = all_mapped as f64 >= beside / 2.0;
            (if is_in_account { beside } else { 0.0 }, "estimated")
        }
    };
    if beside < facts.least() as f64 {
        return None;
    }
    let site = mapper(facts, beside);
    let by = site.as_ref().map_or(String::new(), |(site, mapped)| {
        // It may have mapped more since the last look.
        let of_it = bytes((*mapped).min(all_mapped));
        format!(", of which {} mapped {of_it} since the attach", site.text())
    });
    Some(Finding {
        kind: Kind::Mappings,
        found: format!(
            "Mappings outside the heap have grown by {}, to {}{by}",
            bytes(beside as u64),
            bytes(all_mapped)
        ),
        place: site.as_ref().map(|(site, _)| site.with_callers()),
        gain_bytes: beside as u64,
        gain_bytes_an_hour: Some(facts.an_hour(beside).max(0) as u64),
        certainty,
        remedy: match (site, facts.profile.looks.as_ref()) {
            (Some((site, _)), _) => {
                format!("Unmap what {} maps when it is no longer needed", site.name)
            }
            // The C library maps the stacks of threads. Those that glibc maps are known.
            (None, Some(looks)) if looks.mapped.is_empty() => "Find the code that maps it: no traced call did. It calls the kernel directly, or it is in the C library, as for stacks of threads that nobody joins".into(),
            (None, _) => "Find the code that maps it, and unmap it there".into(),
        },
        cost: "a change of the program",
        evidence: format!("memhook-rs attach {} --mappings -d 60s", facts.target()),
    })
}
