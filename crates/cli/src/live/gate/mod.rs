//! `gate` for live processes: a program that it starts, or a process that is already running.

pub mod attached;
pub mod launched;
mod scored;

use memhook_attach::{Session, State, Trace, caches_answer, unseen_allocators};
use memhook_checkup::SessionStacks;
use memhook_gate::{
    DescribedBlocks, Evidence, NameSource, Reached, Search, bound, reached_in_heaps,
};
use memhook_heap::Snapshot;
use memhook_report::claims::Seen;
use memhook_symbols::{RunNames, SearchPath, SymbolCache};

/// Returns the search path for the names of a traced process. `known` has names that other
/// processes needed. Names of earlier runs are not read from a directory that does not answer.
fn search_path(session: &Session, known: &RunNames) -> SearchPath {
    SearchPath {
        run_names: Some(known.clone()),
        cache: caches_answer().then(SymbolCache::of_user).flatten(),
        ..SearchPath::from(session.root().search_order())
    }
}

/// Returns the evidence that `gather` finds in a traced process, with names for its stacks.
fn evidence(
    trace: &Trace,
    known: &RunNames,
    gather: impl FnOnce(NameSource<'_>) -> Evidence,
) -> Evidence {
    let session = trace.session();
    let stacks = SessionStacks(session);
    let files = session.module_files();
    let search = search_path(session, known);
    let mut evidence = gather(NameSource::of_trace(&stacks, files, search));
    evidence.gaps.splice(0..0, unseen_allocators(session));
    let consumer = trace.consumer();
    evidence.elapsed = consumer.elapsed();
    let gaps = consumer.gaps(consumer.elapsed());
    let losses = session.region().losses();
    evidence.note_missed(&losses, &gaps);
    evidence.seen = Some(Seen {
        from_start: session.is_from_start(),
        has_gaps: !gaps.is_empty(),
        has_unwatched_libraries: losses.unwatched_libraries > 0,
        ..Seen::default()
    });
    evidence
}

/// Returns the findings in each described heap. The ledgers must have all events up to the
/// snapshot.
fn reached_of_heaps(
    trace: &Trace,
    state: &State,
    memory: Result<&Snapshot, String>,
    search: Search,
) -> Vec<Reached> {
    let session = trace.session();
    let described = session.heaps().iter().zip(&state.heaps);
    let heaps: Vec<DescribedBlocks> = described
        .map(|(traced, heap)| DescribedBlocks {
            name: traced.name.clone(),
            live: heap.live_blocks(session.region()).collect(),
            released: heap.released(session.region()).collect(),
            releases: traced.releases,
        })
        .collect();
    if heaps.is_empty() {
        return Vec::new();
    }
    let mut found = match memory {
        Ok(snapshot) => reached_in_heaps(snapshot, state.ledger.live_blocks(), &heaps, search),
        // The findings in malloc's heap contain the reason.
        Err(_) => heaps.iter().map(|_| Reached::default()).collect(),
    };
    for (found, heap) in found.iter_mut().zip(&state.heaps) {
        found.gaps.extend(bound(&heap.ledger));
    }
    found
}

/// Adds the described heaps to the evidence. `gather` returns the findings of the heap with this
/// number.
fn add_heaps(
    trace: &Trace,
    known: &RunNames,
    evidence: &mut Evidence,
    mut gather: impl FnMut(usize, NameSource<'_>) -> Evidence,
) {
    let session = trace.session();
    let stacks = SessionStacks(session);
    for (number, heap) in session.heaps().iter().enumerate() {
        let search = search_path(session, known);
        let source = NameSource::of_trace(&stacks, session.module_files(), search);
        evidence.add_heap(&heap.name, gather(number, source));
    }
}
