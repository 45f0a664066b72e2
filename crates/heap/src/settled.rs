//! Snapshots of a heap that running threads keep changing. Damage counts only if a second snapshot confirms it. Leaks
//! need the same confirmation if a thread may have been inside the allocator unnoticed.

use crate::Error;
use crate::allocators::dissector::NotDissected;
use crate::capture::{Captured, Request, capture};
use crate::dissect::dissect_all;
use crate::graph::finder::MarkOptions;
use crate::graph::mark::mark;
use crate::snapshot::{EarlierLook, Snapshot, ThreadState, unmoved_note};

/// Maximum number of snapshots of one process whose heap parses, and of those whose heap does not. Twice as many may
/// have memory that changed while it was copied. The number is small because each snapshot holds the threads.
const LOOKS: usize = 3;

/// Takes snapshots of `pid` until one is reliable: its heap parses as a whole. If the code of an allocator is unknown
/// and blocks look leaked, a previous snapshot must also show the same blocks, and each thread must have run in
/// between. The last snapshot keeps the results of the earlier ones. With them,
/// [`Heap::cause_of`](crate::Heap::cause_of) can tell damage from an unfinished change, and
/// [`leaks`](crate::graph::leaks::leaks) can tell a leaked block from a block that a thread was allocating or freeing.
///
/// # Errors
/// Fails if a snapshot cannot be taken. There may not be enough memory for two snapshots, so each is dropped before the
/// next is taken.
pub fn capture_settled(pid: i32, request: Request) -> Result<Captured, Error> {
    let mut captured = capture(pid, request)?;
    let first = threads_of(&captured.snapshot);
    let (mut proved, mut unproved, mut torn) = (0, 0, 0);
    loop {
        let look = Look::at(&captured.snapshot, request.search);
        let meta = &mut captured.snapshot.meta;
        if look.is_reliable {
            meta.unmoved = 0;
            if let Some(earlier) = meta.earlier.as_mut().filter(|_| !look.needs_another) {
                earlier.unreached = None;
            }
            break;
        }
        let (count, most) = match (meta.changed.is_empty(), look.is_proved) {
            (true, true) => (&mut proved, LOOKS),
            (true, false) => (&mut unproved, LOOKS),
            (false, _) => (&mut torn, 2 * LOOKS),
        };
        *count += 1;
        if *count >= most {
            break;
        }
        tracing::debug!(
            pid,
            findings = look.earlier.findings.len(),
            "looked at again"
        );
        drop(captured);
        captured = capture(pid, request)?;
        if look.is_unwatched {
            captured.snapshot.meta.unmoved = unmoved(&first, &captured.snapshot);
        }
        captured.snapshot.meta.earlier = Some(look.earlier);
    }
    let meta = &mut captured.snapshot.meta;
    if meta.unmoved > 0 {
        meta.notes.push(unmoved_note(meta.unmoved));
    }
    Ok(captured)
}

/// Evaluation of a snapshot.
struct Look {
    /// No further snapshot is necessary.
    is_reliable: bool,
    /// The heap parses, although parts of it may not.
    is_proved: bool,
    /// A thread may have been inside an allocator unnoticed.
    is_unwatched: bool,
    /// A block is leaked only if another snapshot shows it, too.
    needs_another: bool,
    /// Facts for the next snapshot.
    earlier: EarlierLook,
}

impl Look {
    fn at(snapshot: &Snapshot, options: MarkOptions) -> Look {
        let heap = dissect_all(snapshot);
        let mut undissected = heap.undissected.iter();
        let is_proved = !undissected.any(|u| matches!(u.reason, NotDissected::Unproved(_)));
        // A third snapshot would only repeat the confirmation by the second.
        let is_unsettled = !heap.findings.is_empty() && !heap.is_damaged();
        let meta = &snapshot.meta;
        let is_torn = !meta.changed.is_empty();
        let earlier = meta.earlier.as_ref();
        // Blocks in memory that changed count as reachable. This takes no leak from a snapshot of one moment.
        let earlier = earlier.filter(|earlier| is_torn || !earlier.is_torn);
        let before = earlier.and_then(|earlier| earlier.unreached.as_deref());
        let is_unwatched = heap.has_unwatched(snapshot);
        // The pointer may have moved within memory that changed during the snapshot, so that neither place held it when
        // it was copied.
        let needs_another = is_unwatched || is_torn;
        let mut is_doubtful = false;
        let unreached = if !is_proved {
            // Nothing is known about the blocks of a heap that does not parse.
            before.map(<[_]>::to_vec)
        } else if needs_another {
            let marked = mark(snapshot, &heap, options);
            let numbers = (0..heap.blocks.len()).filter(|&block| !marked.reached.contains(block));
            let blocks = numbers.map(|block| heap.blocks.get(block));
            let mut all = Vec::from_iter(blocks.map(|block| (block.address, block.bytes)));
            // In one of two snapshots, a thread may have been allocating or freeing a block, or may have had a leaked
            // block's address in a register. If the two disagree, the third snapshot decides.
            is_doubtful = match before {
                None => !all.is_empty(),
                Some(before) => meta.unmoved > 0 || before != all,
            };
            all.extend(before.into_iter().flatten());
            all.sort_unstable();
            all.dedup();
            Some(all)
        } else {
            None
        };
        Look {
            is_reliable: is_proved && !is_unsettled && !is_doubtful,
            is_proved,
            is_unwatched,
            needs_another,
            earlier: EarlierLook {
                findings: heap.findings,
                unreached,
                is_torn: earlier.map_or(is_torn, |earlier| earlier.is_torn),
            },
        }
    }
}

/// State that shows whether a thread has run: its id, and its registers unless it is in a system call.
type Threads = Vec<(i32, Option<Vec<u64>>)>;

fn threads_of(snapshot: &Snapshot) -> Threads {
    let threads = snapshot.meta.threads.iter();
    let registers = |thread: &ThreadState| {
        let pointers = [thread.rip, thread.rsp];
        [&pointers[..], &thread.words].concat()
    };
    threads
        .map(|thread| (thread.tid, (!thread.is_in_call).then(|| registers(thread))))
        .collect()
}

/// Returns the number of threads that have not run since the first snapshot although they were not in a system call. On
/// a busy machine, both snapshots may have caught them at the same instruction of an allocator.
fn unmoved(first: &Threads, snapshot: &Snapshot) -> u32 {
    let now = threads_of(snapshot);
    let is_unmoved =
        |thread: &&(i32, Option<Vec<u64>>)| thread.1.is_some() && first.contains(thread);
    now.iter().filter(is_unmoved).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scan;
    use crate::testing::captured;
    use memhook_tests::{Target, build_on_musl};
    use std::process::Command;

    /// Returns a running static program on musl, whose allocator's code cannot be located.
    fn target() -> Option<Target> {
        let program = build_on_musl("allocator_steps", &["-static", "-s", "-pthread"])?;
        let mut target = Target::run(&mut Command::new(program));
        target.go();
        while target.expect("").trim() != "done" {}
        Some(target)
    }

    fn leaked(snapshot: &Snapshot) -> usize {
        let scan = Scan::of(snapshot, MarkOptions::to_report());
        scan.expect("it has a heap").leaks.len()
    }

    #[test]
    fn a_block_is_leaked_if_two_snapshots_show_it() {
        let Some(mut target) = target() else { return };
        let pid = target.pid() as i32;
        let request = Request::to_search();
        let first = captured(pid, request).snapshot;
        let before = leaked(&first);
        assert!(before > 0);
        let look = Look::at(&first, request.search);
        assert!(!look.is_reliable, "its blocks look leaked");
        target.send("l");
        target.expect("done");
        let mut second = captured(pid, request).snapshot;
        assert_eq!(leaked(&second), before + 1);
        second.meta.earlier = Some(look.earlier);
        assert_eq!(leaked(&second), before);
        let look = Look::at(&second, request.search);
        assert!(!look.is_reliable, "the two disagree");
        second.meta.earlier = Some(look.earlier);
        assert_eq!(leaked(&second), before + 1);
        assert!(Look::at(&second, request.search).is_reliable);
        assert!(target.finish().success());
    }

    #[test]
    fn a_thread_that_does_not_move_is_reported() {
        let Some(mut target) = target() else { return };
        let pid = target.pid() as i32;
        let request = Request::to_search();
        let settled = || loop {
            // On a busy machine, its threads may not stop in time.
            if let Ok(captured) = capture_settled(pid, request) {
                return captured.snapshot.meta;
            }
        };
        let meta = settled();
        assert_eq!((meta.unmoved, meta.notes.len()), (0, 0), "{:?}", meta.notes);
        target.send("j");
        let place = || captured(pid, request).snapshot.meta.threads[0].rip;
        while place() != place() {}
        let meta = settled();
        assert_eq!(meta.unmoved, 1);
        assert!(meta.notes.contains(&unmoved_note(1)), "{:?}", meta.notes);
    }
}
