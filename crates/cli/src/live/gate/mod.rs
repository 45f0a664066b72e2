//! `gate` on what runs: a program that it starts, or a process that is there already.

pub mod attached;
pub mod launched;
mod scored;

use super::frames::{SessionStacks, module_files};
use memhook_attach::{Trace, unseen_allocators};
use memhook_gate::{Evidence, NameSource};

/// What `gather` finds in a traced process, whose stacks it gives names.
fn evidence(trace: &Trace, gather: impl FnOnce(NameSource<'_>) -> Evidence) -> Evidence {
    let session = trace.session();
    let stacks = SessionStacks(session);
    let files = module_files(session);
    let search = session.root().search_order();
    let mut evidence = gather(NameSource::of_trace(&stacks, files, search));
    evidence.gaps.splice(0..0, unseen_allocators(session));
    let consumer = trace.consumer();
    evidence.elapsed = consumer.elapsed();
    let gaps = consumer.gaps(consumer.elapsed());
    evidence.note_missed(&session.region().losses(), &gaps);
    evidence
}
