//! Turns the findings in a process or a recording into evidence with names.

use crate::growth::Growth;
use crate::names::{NameSource, Names};
use crate::{Evidence, Leak, PossibleLeak, Subject, Sum};
use memhook_ledger::Totals;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// Leaked blocks of one backtrace, and the blocks that only they reach. The backtrace is `None` for
/// blocks whose allocation was not traced.
#[derive(Clone, Debug, Default)]
pub struct Lost {
    /// Blocks of this backtrace that no other leaked block points to.
    pub direct: Sum,
    /// Blocks that only direct leaks reach, by backtrace.
    pub indirect: HashMap<Option<u32>, Sum>,
}

impl Lost {
    /// Returns the sum of the blocks that only direct leaks reach.
    pub fn held(&self) -> Sum {
        let mut held = Sum::default();
        self.indirect.values().for_each(|&sum| held.add(sum));
        held
    }
}

/// Blocks of a process at one moment.
#[derive(Clone, Debug, Default)]
pub struct Reached {
    /// Leaks by the backtrace of their direct blocks.
    pub lost: HashMap<Option<u32>, Lost>,
    /// Addresses of the leaked blocks whose allocation is known.
    pub unreachable: Vec<u64>,
    /// Reachable blocks.
    pub reachable: Sum,
    /// Blocks that are reachable only through interior pointers, by backtrace, if requested.
    pub possible: HashMap<Option<u32>, Sum>,
    /// Live blocks by backtrace, leaked or not.
    pub live: HashMap<u32, Sum>,
    /// Parts of the process that were not seen.
    pub gaps: Vec<String>,
    /// Further notes for the reader.
    pub notes: Vec<String>,
}

impl Reached {
    /// Drops leaks with an unknown allocation site. The ledger was too small for all blocks, so the
    /// user may already have accepted these leaks.
    pub fn forget_unknown(&mut self) {
        self.lost.remove(&None);
        for lost in self.lost.values_mut() {
            lost.indirect.remove(&None);
        }
        self.possible.remove(&None);
    }

    /// Returns the sum of all blocks that nothing reaches.
    pub fn leaked(&self) -> Sum {
        let mut leaked = Sum::default();
        for lost in self.lost.values() {
            leaked.add(lost.direct);
            leaked.add(lost.held());
        }
        leaked
    }
}

/// Names the sites of the findings. With `needs_all_sites`, it also names the sites of live blocks.
pub fn evidence(
    needs_all_sites: bool,
    source: NameSource<'_>,
    totals: &Totals,
    reached: Reached,
) -> Evidence {
    let of_leaks = reached.lost.iter().flat_map(|(stack, lost)| {
        lost.indirect
            .keys()
            .chain(std::iter::once(stack))
            .copied()
            .flatten()
    });
    let of_live: Vec<u32> = if needs_all_sites {
        reached.live.keys().copied().collect()
    } else {
        Vec::new()
    };
    let of_possible = reached.possible.keys().copied().flatten();
    let needed = of_leaks.chain(of_possible).chain(of_live.iter().copied());
    let mut names = source.look_up(needed);
    // Leaks are grouped by site, because there may be a hundred thousand.
    let mut by_site: BTreeMap<usize, (Sum, BTreeMap<usize, Sum>)> = BTreeMap::new();
    for (&stack, lost) in &reached.lost {
        let (direct, indirect) = by_site.entry(names.site(stack)).or_default();
        direct.add(lost.direct);
        for (&stack, &sum) in &lost.indirect {
            indirect.entry(names.site(stack)).or_default().add(sum);
        }
    }
    let leak = |(site, (direct, indirect)): (usize, (Sum, BTreeMap<usize, Sum>))| Leak {
        site,
        direct,
        indirect: indirect.into_iter().collect(),
        ..Leak::default()
    };
    let leaks: Vec<Leak> = by_site.into_iter().map(leak).collect();
    let mut possible: BTreeMap<usize, Sum> = BTreeMap::new();
    for (&stack, &sum) in &reached.possible {
        possible.entry(names.site(stack)).or_default().add(sum);
    }
    let mut possible: Vec<PossibleLeak> = possible
        .into_iter()
        .map(|(site, blocks)| PossibleLeak { site, blocks })
        .collect();
    let live: Vec<_> = of_live
        .into_iter()
        .map(|stack| (names.site(Some(stack)), reached.live[&stack]))
        .collect();
    let mut sites = names.into_sites();
    for (site, sum) in live {
        sites[site].live.add(sum);
    }
    // Sites of equal size are sorted so that the next run lists them in the same order.
    possible.sort_by_cached_key(|p| (Reverse(p.blocks.bytes), sites[p.site].identity()));
    let mut evidence = Evidence {
        sites,
        leaks,
        reachable: reached.reachable,
        possible,
        allocations: totals.allocations,
        gaps: reached.gaps,
        notes: reached.notes,
        ..Evidence::default()
    };
    // Allocations of the loader before the first hooked call appear in no event, but are live at
    // the end.
    evidence.peak_bytes = totals.peak_live_bytes.max(evidence.live().bytes);
    evidence
}

/// Growing sites: backtrace, growth, and the blocks gained since the beginning.
pub type Grown = [(u32, Growth, Sum)];

/// Names the sites that grow.
pub fn growth_evidence(source: NameSource<'_>, totals: &Totals, grown: &Grown) -> Evidence {
    let mut names = source.look_up(grown.iter().map(|g| g.0));
    let mut leaks = Vec::new();
    let mut rest = Sum {
        blocks: totals.live_blocks,
        bytes: totals.live_bytes,
    };
    for &(stack, growth, direct) in grown {
        rest.blocks = rest.blocks.saturating_sub(direct.blocks);
        rest.bytes = rest.bytes.saturating_sub(direct.bytes);
        leaks.push(Leak {
            site: names.site(Some(stack)),
            direct,
            growth: Some(growth),
            ..Leak::default()
        });
    }
    Evidence {
        subject: Subject::Growth,
        sites: names.into_sites(),
        leaks,
        reachable: rest,
        peak_bytes: totals.peak_live_bytes,
        allocations: totals.allocations,
        ..Evidence::default()
    }
}

/// Returns the evidence about all live blocks by site, whether they are reachable or not.
pub(crate) fn live_evidence(
    mut names: Names<'_>,
    totals: &Totals,
    live: &[(u32, Sum)],
    as_findings: bool,
) -> Evidence {
    let mut rest = Sum {
        blocks: totals.live_blocks,
        bytes: totals.live_bytes,
    };
    let numbered: Vec<(usize, Sum)> = live
        .iter()
        .map(|&(stack, sum)| (names.site(Some(stack)), sum))
        .collect();
    let mut sites = names.into_sites();
    for (site, sum) in numbered {
        sites[site].live.add(sum);
    }
    let mut findings = Vec::new();
    if as_findings {
        for (site, of_site) in sites.iter().enumerate() {
            rest.blocks = rest.blocks.saturating_sub(of_site.live.blocks);
            rest.bytes = rest.bytes.saturating_sub(of_site.live.bytes);
            findings.push(Leak {
                site,
                direct: of_site.live,
                ..Leak::default()
            });
        }
    }
    Evidence {
        subject: Subject::Live,
        sites,
        leaks: findings,
        reachable: rest,
        peak_bytes: totals.peak_live_bytes,
        allocations: totals.allocations,
        ..Evidence::default()
    }
}
