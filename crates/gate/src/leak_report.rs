//! Unreachable blocks at the end of a trace, as part of its last report.

use crate::process_evidence::known_live;
use crate::{Lost, Reached, Search, reached};
use memhook_heap::Snapshot;
use memhook_ledger::{Estimate, Ledger, Observer, SampledAllocations};
use memhook_report::{
    LeakSite, LeakTotals, Leaks, SnapshotTaken, StackFrame, UnreachableSite, counted,
};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Leaks found in a copy of a process's memory, before their stacks are named.
pub struct FoundLeaks {
    snapshot: SnapshotTaken,
    found: Reached,
    unreachable: Vec<UnreachableSite>,
    finds_possible: bool,
}

impl FoundLeaks {
    /// Searches the copy. The ledger must have all events up to the time of the copy. `search`
    /// contains a time, on the ledger's clock, before the copy was taken. `samples` determines how
    /// many blocks a sampled block represents.
    pub fn search<O: Observer>(
        snapshot: &Snapshot,
        ledger: &Ledger<O>,
        samples: &SampledAllocations,
        search: Search,
    ) -> FoundLeaks {
        // If the allocations were only sampled, the memory of other allocators contains unknown
        // blocks.
        let search = Search {
            is_complete: search.is_complete && !ledger.is_sampled(),
            ..search
        };
        let mut found = reached(snapshot, known_live(snapshot, ledger, search), search);
        if ledger.is_sampled() {
            found.gaps.push(
                "only samples of the allocations were recorded: stacks and sizes of the other blocks are not known"
                    .into(),
            );
        }
        if let Some(bounded) = ledger.bounded() {
            found.gaps.push(format!(
                "the ledger reached --max-memory: stacks and sizes of {} are known, those of the others are not",
                counted(bounded.kept_blocks, "live block")
            ));
        }
        FoundLeaks {
            snapshot: SnapshotTaken {
                method: snapshot.meta.method.name().to_owned(),
                held_ms: snapshot.meta.held_ms,
                prepare_held_ms: snapshot.meta.prepare_held_ms,
                copied_bytes: snapshot.copied_bytes(),
            },
            unreachable: unreachable_sites(&found, ledger, samples),
            found,
            finds_possible: search.finds_possible,
        }
    }

    /// Returns the stacks that need names.
    pub fn stacks(&self) -> impl Iterator<Item = u32> {
        let possible = self.found.possible.keys();
        self.found.lost.keys().chain(possible).copied().flatten()
    }

    /// Returns all unreachable blocks with a known allocation, by stack and thread of the
    /// allocation, whether or not other leaked blocks point to them.
    pub fn unreachable(&self) -> &[UnreachableSite] {
        &self.unreachable
    }

    /// Returns the report, with the `top` largest sites. `named` returns the kind of a stack,
    /// whether the stack is truncated, and its frames.
    pub fn report(
        self,
        top: usize,
        mut named: impl FnMut(u32) -> (String, bool, Vec<StackFrame>),
    ) -> Leaks {
        let totals = totals(&self.found);
        let listed = |mut sites: Vec<LeakSite>| {
            let more = sites.len().saturating_sub(top) as u64;
            sites.truncate(top);
            (sites, more)
        };
        let (sites, more_sites) = listed(rows(self.found.lost, &mut named));
        let of_possible = self.found.possible.into_iter().map(|(stack, direct)| {
            let lost = Lost {
                direct,
                ..Lost::default()
            };
            (stack, lost)
        });
        let (possible, more_possible) = listed(rows(of_possible, &mut named));
        Leaks {
            snapshot: Some(self.snapshot),
            totals,
            sites,
            more_sites,
            possible,
            more_possible: self.finds_possible.then_some(more_possible),
            gaps: self.found.gaps,
        }
    }
}

/// Returns the unreachable blocks of the ledger, each weighted by the number of blocks that it
/// represents.
fn unreachable_sites(
    found: &Reached,
    ledger: &Ledger<impl Observer>,
    samples: &SampledAllocations,
) -> Vec<UnreachableSite> {
    if found.unreachable.is_empty() {
        return Vec::new();
    }
    let mut addresses = found.unreachable.clone();
    addresses.sort_unstable();
    let mut sums: HashMap<(u32, u32), Estimate> = HashMap::new();
    for block in ledger.live_blocks() {
        if addresses.binary_search(&block.address).is_ok() {
            let amount = samples.live(&block, ledger.weight(block.size));
            *sums.entry((block.stack, block.tid)).or_default() += amount;
        }
    }
    let sites = sums.into_iter();
    let mut sites: Vec<_> = sites
        .map(|((stack, tid), amount)| UnreachableSite {
            stack,
            tid,
            amount: amount.into(),
        })
        .collect();
    sites.sort_unstable_by_key(|site| (site.stack, site.tid));
    sites
}

fn totals(found: &Reached) -> LeakTotals {
    let all = found.leaked();
    LeakTotals {
        leaked_bytes: all.bytes,
        leaked_blocks: all.blocks,
        direct_blocks: found.lost.values().map(|lost| lost.direct.blocks).sum(),
        reachable_bytes: found.reachable.bytes,
        reachable_blocks: found.reachable.blocks,
    }
}

/// Returns one row for each stack, the largest first. Stacks with the same text are merged.
fn rows(
    lost: impl IntoIterator<Item = (Option<u32>, Lost)>,
    named: &mut impl FnMut(u32) -> (String, bool, Vec<StackFrame>),
) -> Vec<LeakSite> {
    let mut sites: Vec<LeakSite> = Vec::new();
    for (stack, lost) in lost {
        let held = lost.held();
        let (kind, truncated, stack) = match stack {
            Some(id) => named(id),
            None => ("an unknown caller".to_owned(), false, Vec::new()),
        };
        let row = LeakSite {
            bytes: lost.direct.bytes,
            blocks: lost.direct.blocks,
            held_bytes: held.bytes,
            held_blocks: held.blocks,
            kind,
            truncated,
            stack,
        };
        let alike =
            |known: &&mut LeakSite| known.kind == row.kind && reads_alike(&known.stack, &row.stack);
        match sites.iter_mut().find(alike) {
            Some(known) => {
                known.bytes += row.bytes;
                known.blocks += row.blocks;
                known.held_bytes += row.held_bytes;
                known.held_blocks += row.held_blocks;
            }
            None => sites.push(row),
        }
    }
    let place = |s: &LeakSite| {
        s.stack
            .iter()
            .map(|f| f.address.clone())
            .collect::<Vec<_>>()
    };
    sites.sort_by_cached_key(|s| (Reverse(s.bytes + s.held_bytes), s.kind.clone(), place(s)));
    sites
}

/// Returns true if two stacks show the same lines. Such stacks exist because the compiler
/// duplicates calls when it unrolls loops and inlines functions.
fn reads_alike(a: &[StackFrame], b: &[StackFrame]) -> bool {
    let same = |(a, b): (&StackFrame, &StackFrame)| {
        let text = |f: &StackFrame| {
            (
                f.function.clone(),
                f.module.clone(),
                f.file.clone(),
                f.line,
                f.inlined,
            )
        };
        text(a) == text(b) && (a.function.is_some() || a.offset == b.offset)
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}
