//! Evidence about one process, from a copy of its memory and, if it was traced, from its ledger.

use crate::unfinished::is_unfinished;
use crate::{AllocationSite, Ending, Evidence, Leak, PossibleLeak, Reached, Search, reached};
use memhook_heap::{Heap, Snapshot, Undissected, dissect};
use memhook_ledger::{Ledger, LiveBlock, Observer};
use memhook_report::{claims::unwatched_libraries, counted, unseen_in_words};
use memhook_stream::{Gap, Losses};
use std::collections::HashSet;
use std::{os::unix::process::ExitStatusExt, process::ExitStatus};

impl Evidence {
    /// Returns evidence about a process without known facts.
    pub fn lacking(program: String, gap: String) -> Evidence {
        Evidence {
            program,
            gaps: vec![gap],
            ..Evidence::default()
        }
    }

    /// Returns evidence about a process that was not traced: the unreachable blocks in glibc's
    /// heap.
    pub fn untraced(program: String, snapshot: &Snapshot, finds_possible: bool) -> Evidence {
        let search = Search {
            finds_possible,
            ..Search::default()
        };
        let found = reached(snapshot, std::iter::empty(), search);
        let total = found.leaked();
        // The process was not traced, so an unreadable heap is a gap in the evidence even if no block is known.
        let mut evidence = Evidence {
            program,
            reachable: found.reachable,
            gaps: found.gaps,
            notes: vec!["not traced: --duration gives leaks their allocation stacks".into()],
            ..Evidence::default()
        };
        match dissect(snapshot) {
            Ok(heap) => evidence
                .gaps
                .extend(heap.undissected.iter().map(Undissected::to_string)),
            Err(error) => evidence.gaps.push(error.to_string()),
        }
        let possible = found.possible.get(&None).copied();
        if total.blocks > 0 || possible.is_some() {
            evidence.sites.push(AllocationSite {
                kind: "an unknown caller".into(),
                ..Default::default()
            });
        }
        let possible = possible.map(|blocks| PossibleLeak { site: 0, blocks });
        evidence.possible.extend(possible);
        if total.blocks > 0 {
            evidence.leaks.push(Leak {
                direct: total,
                ..Default::default()
            });
        }
        evidence
    }

    /// Returns evidence about a forked process that has not executed another program. Its own allocations are not
    /// traced. If it has no unreachable block, it has leaked nothing.
    pub fn forked(program: String, captured: Result<&Snapshot, &memhook_heap::Error>) -> Evidence {
        let mut found = match &captured {
            Ok(snapshot) => reached(snapshot, std::iter::empty(), Search::default()),
            Err(error) => Reached {
                gaps: vec![format!("its memory could not be copied: {error}")],
                ..Reached::default()
            },
        };
        // A C library without a heap has leaked nothing. A heap that cannot be read may contain a
        // leak.
        if let Ok(Err(error @ memhook_heap::Error::UnknownLayout { .. })) = captured.map(dissect) {
            found.gaps.push(error.to_string());
        }
        let unknown = captured.ok().and_then(|snapshot| {
            let heap = dissect(snapshot).unwrap_or(Heap::empty());
            heap.unknown_allocator(&snapshot.meta.modules)
        });
        if let Some(allocator) = unknown {
            found.gaps.push(format!(
                "it called no execve after its fork and was not traced, so it is not known which of {allocator}'s \
                 blocks it has"
            ));
        }
        let lost = found.leaked();
        if lost.blocks > 0 {
            found.gaps.push(format!(
                "it called no execve after its fork and was not traced: it is not known whether it lost {} ({} \
                 bytes) itself",
                counted(lost.blocks, "unreachable block"),
                lost.bytes
            ));
        }
        Evidence {
            program: format!("{program} (forked)"),
            reachable: found.reachable,
            gaps: found.gaps,
            ..Evidence::default()
        }
    }
}

impl Ending {
    /// Returns the end that a status of wait(2) describes.
    pub fn of_status(status: i32) -> Ending {
        let status = ExitStatus::from_raw(status);
        match (status.signal(), status.code()) {
            (Some(signal), _) => Ending::Signaled(signal),
            (None, code) => Ending::Exited(code.unwrap_or_default()),
        }
    }
}

/// Returns the blocks of a traced process according to its memory at one moment, if the memory could be copied.
/// Otherwise `memory` contains the reason. The ledger is the same as for [`reached`].
pub fn traced_blocks(
    ledger: &Ledger,
    memory: Result<&Snapshot, String>,
    search: Search,
) -> Reached {
    let bound = bound(ledger);
    let mut found = match memory {
        Ok(snapshot) => {
            let search = Search {
                is_complete: search.is_complete && bound.is_none(),
                ..search
            };
            reached(snapshot, known_live(snapshot, ledger, search), search)
        }
        Err(gap) => Reached {
            gaps: vec![gap],
            ..Reached::default()
        },
    };
    if let Some(bound) = bound {
        found.gaps.push(bound);
        found.forget_unknown();
    }
    found
}

/// Returns the live blocks, without blocks that a thread was reallocating when the process ended. The state of those
/// blocks is unknown, and any that exist belong to the unfinished call.
pub(crate) fn known_live(
    snapshot: &Snapshot,
    ledger: &Ledger<impl Observer>,
    search: Search,
) -> impl Iterator<Item = LiveBlock> {
    let on_their_way: HashSet<u64> = if is_unfinished(snapshot, search) {
        ledger.blocks_in_realloc().collect()
    } else {
        HashSet::new()
    };
    let live = ledger.live_blocks();
    live.filter(move |block| !on_their_way.contains(&block.address))
}

/// Returns the reason why the known live blocks are not exact; `None` if they are exact. A verdict needs every live
/// block, with its stack.
pub fn bound(ledger: &Ledger<impl Observer>) -> Option<String> {
    if ledger.is_sampled() {
        return Some(
            "not every allocation was recorded, because of --overhead: leave it out, or allow more"
                .into(),
        );
    }
    let bounded = ledger.bounded()?;
    let words = memhook_report::described(&bounded, ledger.totals().live_blocks).in_words();
    Some(format!("{words}; give it more with --max-memory"))
}

impl Evidence {
    /// Adds the gaps of the trace itself before all other gaps: lost events, libraries that were not
    /// patched in time, and times without events.
    pub fn note_missed(&mut self, losses: &Losses, gaps: &[Gap]) {
        self.is_blind = !gaps.is_empty();
        let unseen = unseen_in_words(gaps).map(|words| words + ", so no sum is certain");
        let lost = losses.events();
        let lost = (lost > 0).then(|| {
            let were = if lost == 1 { "was" } else { "were" };
            format!("{} {were} lost", counted(lost, "event"))
        });
        let unwatched = unwatched_libraries(losses.unwatched_libraries);
        let missed = unseen.into_iter().chain(unwatched).chain(lost);
        self.gaps.splice(0..0, missed);
    }
}

/// Returns true if a block allocated by `caller` belongs to the allocator itself. gperftools allocates its singletons
/// with `new`. A module that contains code other than an allocator allocates on behalf of the program.
pub fn is_allocators(snapshot: &Snapshot, caller: u64) -> bool {
    let mut modules = snapshot.meta.modules.iter();
    modules.any(|m| {
        let is_gperftools = m.allocator.as_deref() == Some("tcmalloc");
        is_gperftools && m.allocator_code.iter().any(|code| code.contains(&caller))
    })
}
