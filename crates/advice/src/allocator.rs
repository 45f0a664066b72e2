//! Findings about what the allocator and the kernel hold beside live blocks.

use crate::{Facts, Finding, Kind, Line};
use memhook_report::{RssReport, bytes, count, counted};

/// Arenas beyond these two are what MALLOC_ARENA_MAX=2 would not have.
const ARENAS_KEPT: usize = 2;
/// With fewer arenas, their number is not the reason.
const MANY_ARENAS: usize = 8;
/// Bytes of a page.
const PAGE_BYTES: u64 = 4096;

/// The parts of the resident memory that a reader asks for.
const PARTS: [(&str, &str); 7] = [
    ("live heap", "live heap"),
    (
        "free inside the allocator",
        "free in the allocator, on pages of its own",
    ),
    ("fragmentation", "free in the allocator, beside live blocks"),
    (
        "heap of another allocator, and mappings",
        "heap of another allocator, and mappings",
    ),
    ("stacks", "stacks of threads"),
    ("mappings", "mappings beside the heap"),
    ("file pages", "file pages"),
];

fn part(account: &RssReport, name: &str) -> u64 {
    let found = account.parts.iter().find(|part| part.name == name);
    found.map_or(0, |part| part.bytes)
}

/// Where the resident bytes are.
pub fn lines(facts: &Facts<'_>, account: &RssReport) -> Vec<Line> {
    let found = PARTS.iter().filter_map(|&(name, what)| {
        let bytes = part(account, name);
        (bytes > 0).then(|| Line {
            what,
            bytes,
            bytes_an_hour: None,
            certainty: "exact",
            evidence: format!("memhook-rs rss {}", facts.target()),
        })
    });
    found.collect()
}

/// What would bring back memory that no live block uses.
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

/// What the kernel would have to do for it.
const TRIM_COST: &str =
    "one thread is held while the allocator works, and pages that are needed again fault in";

fn retention(facts: &Facts<'_>, account: &RssReport) -> Option<Finding> {
    let gain = account.trim_bytes;
    (gain >= facts.least()).then(|| Finding {
        kind: Kind::Retention,
        found: format!(
            "malloc keeps {} of free memory on pages that hold no block",
            bytes(gain)
        ),
        gain_bytes: gain,
        gain_bytes_an_hour: None,
        certainty: "exact",
        remedy: format!(
            "memhook-rs trim {} gives it back now; in the program, malloc_trim(0) after a peak",
            facts.target()
        ),
        cost: TRIM_COST,
        evidence: format!("memhook-rs trim --dry-run {}", facts.target()),
    })
}

/// Arenas whose free memory a trim does not give back, or that will fill again.
fn arenas(facts: &Facts<'_>, account: &RssReport) -> Option<Finding> {
    let arenas = &account.arenas;
    if arenas.len() < MANY_ARENAS {
        return None;
    }
    // Threads have as much in their caches with fewer arenas.
    let free = arenas
        .iter()
        .map(|arena| arena.top_bytes + arena.bins_bytes);
    let mut free: Vec<u64> = free.collect();
    free.sort_unstable();
    let of_others: u64 = free.iter().rev().skip(ARENAS_KEPT).sum();
    (of_others >= facts.least()).then(|| Finding {
        kind: Kind::Arenas,
        found: format!(
            "{} hold {} of free memory beside the two with most of it",
            counted((arenas.len() - ARENAS_KEPT) as u64, "arena"),
            bytes(of_others),
        ),
        gain_bytes: of_others,
        gain_bytes_an_hour: None,
        certainty: "estimated",
        remedy: "Start the program with MALLOC_ARENA_MAX=2".into(),
        cost: "a restart, and threads that wait for each other in malloc",
        evidence: format!("memhook-rs rss {}", facts.target()),
    })
}

fn thread_caches(facts: &Facts<'_>, account: &RssReport) -> Option<Finding> {
    let cached: u64 = account.arenas.iter().map(|arena| arena.tcache_bytes).sum();
    (cached >= facts.least()).then(|| Finding {
        kind: Kind::ThreadCaches,
        found: format!("Caches of threads hold {} of free blocks", bytes(cached)),
        gain_bytes: cached,
        gain_bytes_an_hour: None,
        certainty: "exact",
        remedy: "Start the program with GLIBC_TUNABLES=glibc.malloc.tcache_count=0, or a smaller count than it has".into(),
        cost: "a restart, and malloc and free take longer",
        evidence: format!("memhook-rs rss {}", facts.target()),
    })
}

/// Pages that are only there because the kernel has made a huge page of them and their neighbours.
fn huge_pages(facts: &Facts<'_>, account: &RssReport) -> Option<Finding> {
    let gain = account.huge_zero_bytes?;
    (gain >= facts.least()).then(|| Finding {
        kind: Kind::HugePages,
        found: format!(
            "Of {} in huge pages, {} are pages of zeros, which were never written",
            bytes(account.huge_page_bytes),
            bytes(gain)
        ),
        gain_bytes: gain,
        gain_bytes_an_hour: None,
        certainty: "exact",
        remedy: "Have the program call prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) before it allocates, or leave out the madvise(MADV_HUGEPAGE) or the setting of its allocator that asks for huge pages".into(),
        cost: "a restart, and more misses of the address cache where memory is used densely",
        evidence: format!("memhook-rs rss {}", facts.target()),
    })
}

fn stacks(facts: &Facts<'_>, account: &RssReport) -> Option<Finding> {
    let resident = part(account, "stacks");
    (resident >= facts.least()).then(|| Finding {
        kind: Kind::Stacks,
        found: format!("Stacks of threads take {}", bytes(resident)),
        gain_bytes: resident,
        gain_bytes_an_hour: None,
        certainty: "exact",
        remedy: "Use fewer threads, or have those that are idle end: a stack keeps the pages of its deepest call".into(),
        cost: "a change of the program",
        evidence: format!("memhook-rs rss {}", facts.target()),
    })
}

/// Another allocator that says itself what it could give back.
fn of_other_allocator(facts: &Facts<'_>, account: &RssReport) -> Option<Finding> {
    let said = account.allocator.as_ref()?;
    let free = part(account, "free inside the allocator");
    (free >= facts.least()).then(|| Finding {
        kind: Kind::Retention,
        found: format!("{} keeps {} of free pages", said.name, bytes(free)),
        gain_bytes: free,
        gain_bytes_an_hour: None,
        certainty: "estimated",
        remedy: match said.name.contains("jemalloc") {
            true => format!(
                "memhook-rs trim {} gives them back now; a smaller dirty_decay_ms, or background_thread:true in MALLOC_CONF, does so from then on",
                facts.target()
            ),
            false => format!("memhook-rs trim {} gives them back now", facts.target()),
        },
        cost: TRIM_COST,
        evidence: format!("memhook-rs rss {}", facts.target()),
    })
}

/// Sites whose few blocks hold much free memory around them, which a trim does not give back.
fn fragmentation(facts: &Facts<'_>, account: &RssReport) -> Vec<Finding> {
    let pins = account.pins.iter().filter_map(|pin| {
        let held = pin.pinned_bytes.saturating_sub(pin.trimmable_bytes);
        // What the blocks have themselves is not free.
        let free = held.saturating_sub(pin.own_bytes);
        let is_one = free >= facts.least() && free >= pin.own_bytes;
        is_one.then(|| Finding {
            kind: Kind::Fragmentation,
            found: format!(
                "{} of free memory ({} pages) lies around {}, {} in all: {}",
                bytes(free),
                count(free / PAGE_BYTES),
                counted(pin.own_blocks, "block"),
                bytes(pin.own_bytes),
                pin.name,
            ),
            gain_bytes: held,
            gain_bytes_an_hour: None,
            certainty: "exact",
            remedy: "Allocate them apart from what lives shortly: from a pool of their own, or before it".into(),
            cost: "a change of the program",
            evidence: format!("memhook-rs rss --pins {}", facts.target()),
        })
    });
    pins.take(3).collect()
}

/// Memory that grows beside the heap, by the kernel's own count over time.
pub fn mappings(facts: &Facts<'_>) -> Option<Finding> {
    let points = &facts.profile.resident;
    let (first, last) = (points.first()?, points.last()?);
    let anonymous = last.anonymous_bytes as f64 - first.anonymous_bytes as f64;
    let account = facts.account?;
    // What the heap may have grown by.
    let heap = crate::sites::growth(facts.profile).max(0.0);
    let beside = anonymous - heap;
    let mapped = part(account, "mappings");
    // The last sample is later than the account.
    let is_one = beside >= facts.least() as f64 && mapped as f64 >= beside / 2.0;
    is_one.then(|| Finding {
        kind: Kind::Mappings,
        found: format!(
            "What is mapped beside the heap has grown by {}, to {}",
            bytes(beside as u64),
            bytes(mapped)
        ),
        gain_bytes: beside as u64,
        gain_bytes_an_hour: Some(facts.an_hour(beside).max(0) as u64),
        certainty: "estimated",
        remedy: "See who maps it, and unmap it there".into(),
        cost: "a change of the program",
        evidence: format!("memhook-rs attach {} --mappings -d 60s", facts.target()),
    })
}
