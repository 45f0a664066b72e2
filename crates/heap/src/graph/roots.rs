//! Memory outside the heap in which a program may keep pointers.

use crate::dissect::Heap;
use crate::ended_threads::{bounds, ended_stacks};
use crate::ranges::{Runs, joined, without};
use crate::snapshot::{Area, AreaKind, Snapshot, ThreadState};
use std::ops::Range;

/// Number of bytes below the stack pointer that leaf functions may use (psABI 3.2.2). An exiting
/// thread does not return to any function.
const RED_ZONE_BYTES: u64 = 128;

/// Kind of a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootKind {
    /// A register of a thread.
    Register(i32),
    /// Pointers that the kernel stores: user data of epoll entries and timers, and contents of
    /// pipes.
    Kernel,
    /// The stack of a thread, its TLS included.
    Stack(i32),
    /// Data of a module.
    Module(String),
    /// Any other memory.
    Memory(String),
}

impl std::fmt::Display for RootKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RootKind::Register(tid) => write!(f, "a register of thread {tid}"),
            RootKind::Kernel => {
                f.write_str("the kernel (user data of epoll or of a timer, or a pipe)")
            }
            RootKind::Stack(tid) => write!(f, "the stack of thread {tid}"),
            RootKind::Module(path) => write!(f, "data of {path}"),
            RootKind::Memory(name) => f.write_str(name),
        }
    }
}

/// A range of root memory.
#[derive(Clone, Debug)]
pub struct RootRange {
    /// First address.
    pub start: u64,
    /// Past the last address.
    pub end: u64,
    /// Kind of the root.
    pub kind: RootKind,
}

/// Returns all root memory: everything that was copied, except the allocator's memory, the parts of
/// stacks below the stack pointers, and the stacks of ended threads. Parts of the heap that could
/// not be walked, or changed while they were read, count as roots.
pub fn root_ranges(snapshot: &Snapshot, heap: &Heap) -> Vec<RootRange> {
    let mut holes: Runs = heap.ranges.clone();
    holes.extend(dead_stacks(snapshot));
    let holes = joined(holes);
    let mut roots = Vec::new();
    for area in &snapshot.meta.areas {
        let kind = kind(snapshot, area);
        for Range { start, end } in without(area.start, area.end, &holes) {
            roots.push(RootRange {
                start,
                end,
                kind: kind.clone(),
            });
        }
    }
    let doubtful = [
        (
            &heap.unparsed,
            "a part of the heap that could not be walked",
        ),
        (
            &snapshot.meta.changed,
            "memory that changed while it was read",
        ),
    ];
    for (ranges, kind) in doubtful {
        roots.extend(ranges.iter().map(|&Range { start, end }| RootRange {
            start,
            end,
            kind: RootKind::Memory(kind.into()),
        }));
    }
    roots
}

fn kind(snapshot: &Snapshot, area: &Area) -> RootKind {
    let inside = |address: u64| address >= area.start && address < area.end;
    let thread =
        |t: &&ThreadState| inside(t.rsp) && (area.kind == AreaKind::Stack || inside(t.fs_base));
    if let Some(thread) = snapshot.meta.threads.iter().find(thread) {
        return RootKind::Stack(thread.tid);
    }
    let modules = &snapshot.meta.modules;
    // .bss follows its module without a path.
    if let Some(module) = modules.iter().find(|m| {
        m.data
            .iter()
            .any(|d| d.start < area.end && d.end > area.start)
    }) {
        return RootKind::Module(module.path.clone());
    }
    let name = if area.name.is_empty() {
        "anonymous"
    } else {
        &area.name
    };
    RootKind::Memory(format!("{name} memory at {:#x}", area.start))
}

/// Returns the parts of stacks below the stack pointers, and the stacks of ended threads.
pub(crate) fn dead_stacks(snapshot: &Snapshot) -> Runs {
    let threads = snapshot.meta.threads.iter();
    let mut found: Runs = threads.filter_map(|t| dead_stack(snapshot, t)).collect();
    found.extend(ended_stacks(snapshot));
    joined(found)
}

/// Returns the part of a thread's stack that the thread has not yet used or no longer uses.
///
/// That part is known only if the stack's bounds are certain: those of the initial thread's stack,
/// or bounds from `struct pthread`. For a thread that runs on another kind of stack (coroutine,
/// sigaltstack), nothing is excluded, even if that stack is inside the thread's own stack. The
/// frames show on which kind of stack the thread runs. Another thread may use a piece of the
/// initial thread's stack (pthread_attr_setstack(3)). Frames to which the initial thread will still
/// return may then be below that piece.
fn dead_stack(snapshot: &Snapshot, thread: &ThreadState) -> Option<Range<u64>> {
    let red_zone = if thread.is_exiting { 0 } else { RED_ZONE_BYTES };
    let alive = thread.lowest_frame?.checked_sub(red_zone)? & !7;
    let area = snapshot.area(thread.rsp)?;
    if area.kind == AreaKind::Stack && thread.tid == snapshot.meta.pid {
        return Some(area.start..alive.max(area.start));
    }
    let Range { start, end } = bounds(snapshot, thread.fs_base)?;
    let encloses = start <= alive && thread.rsp < thread.fs_base && end > thread.fs_base;
    encloses.then_some(start.max(area.start)..alive.max(area.start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_on_a_piece_of_the_initial_threads_stack_hides_none_of_it() {
        let start = 0x7ffd_0000_0000u64;
        let mut snapshot = crate::testing::snapshot(vec![(start, vec![0; 0x10000])]);
        snapshot.meta.areas[0].kind = AreaKind::Stack;
        let thread = |tid, rsp| ThreadState {
            tid,
            rsp,
            lowest_frame: Some(rsp),
            ..ThreadState::default()
        };
        let initial = thread(snapshot.meta.pid, start + 0x4000);
        let other = thread(snapshot.meta.pid + 1, start + 0x9000);
        assert_eq!(dead_stack(&snapshot, &other), None);
        assert_eq!(
            dead_stack(&snapshot, &initial),
            Some(start..start + 0x4000 - RED_ZONE_BYTES)
        );
    }
}
