//! Mappings of a process at one moment, from /proc, with the observed calls that created them.

use crate::drain::consumer::Consumer;
use crate::session::Session;
use memhook_heap::ranges::{intersection, joined, run_bytes, without};
use memhook_ledger::{LiveWalk, Observer};
use memhook_process::{Mapping, blocked_at, is_ours, mappings, threads};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Maximum size of a guard. The guard of a thread's stack is a separate mapping directly below the stack. glibc's
/// default is a page, and a program may request more (pthread_attr_setguardsize(3)).
const LARGEST_GUARD: u64 = 1 << 20;
/// Number of passes after which all earlier events have arrived: a pass in progress, and two more.
const PASSES: u64 = 3;
/// Longest wait for these passes. Meanwhile, a dlopen of the target may be waiting.
const PATIENCE: Duration = Duration::from_millis(100);

/// Kind of a part of the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MappedKind {
    /// A thread's stack, with its guard.
    Stack,
    /// A file, or a part of one.
    File,
    /// Memory of an allocator: the program break, and mappings in which blocks live.
    Heap,
    /// Anonymous memory that was mapped before the attach.
    BeforeAttach,
    /// Mappings that the kernel makes in every process.
    Kernel,
    /// Memory of memhook-rs.
    Ourselves,
    /// Mapped since the attach, by calls that were not seen.
    Unseen,
}

impl MappedKind {
    /// Returns the kind's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            MappedKind::Stack => "stack",
            MappedKind::File => "file",
            MappedKind::Heap => "heap",
            MappedKind::BeforeAttach => "before the attach",
            MappedKind::Kernel => "kernel",
            MappedKind::Ourselves => "ourselves",
            MappedKind::Unseen => "unseen",
        }
    }
}

/// Part of the address space that no observed call has mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedPart {
    /// Kind of the part.
    pub kind: MappedKind,
    /// Thread or path.
    pub name: String,
    /// Bytes of address space.
    pub bytes: u64,
}

/// The address space of a process at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappedMemory {
    /// Bytes of all mappings.
    pub bytes: u64,
    /// Bytes that observed calls have mapped.
    pub traced_bytes: u64,
    /// Bytes that observed calls mapped, and that disappeared without an observed call.
    pub gone_bytes: u64,
    /// Remaining parts, the largest first.
    pub parts: Vec<MappedPart>,
}

impl MappedMemory {
    /// Reads the current address space of a traced process. Returns `None` if mappings are not traced, or if /proc no
    /// longer shows it.
    pub fn look<O: Observer + Send>(
        session: &Session,
        consumer: &Consumer<O>,
    ) -> Option<MappedMemory> {
        let ranges = || -> Option<Vec<Range<u64>>> {
            let state = consumer.lock();
            let traced = state.mappings.as_ref()?.ranges();
            Some(traced.map(|(range, _)| range).collect())
        };
        // All earlier events have arrived after this.
        await_passes(consumer);
        let before = ranges()?;
        let stacks = stacks(session.pid());
        let maps = mappings(session.pid())
            .ok()
            .filter(|maps| !maps.is_empty())?;
        // Mappings that appear or disappear between the two readings count as neither gone nor unseen, and all earlier
        // events have arrived by the second reading.
        await_passes(consumer);
        let after = ranges()?;
        let traced = joined(before.iter().chain(&after).cloned().collect());
        let there: Vec<Range<u64>> = maps.iter().map(|m| m.start..m.end).collect();
        let both = intersection(&joined(before), &joined(after));
        let known = session.mapped_before().iter().filter(|m| m.file_id.2 == 0);
        let known = joined(known.map(|m| m.start..m.end).collect());
        let mut found = MappedMemory {
            bytes: run_bytes(&there),
            gone_bytes: run_bytes(&less(&both, &there)),
            ..MappedMemory::default()
        };
        let mut parts: BTreeMap<(MappedKind, String), u64> = BTreeMap::new();
        let mut unknown = Vec::new();
        let mut add = |kind, name: &str, amount: u64| {
            if amount > 0 {
                *parts.entry((kind, name.to_owned())).or_default() += amount;
            }
        };
        for (index, mapping) in maps.iter().enumerate() {
            let rest = less(std::slice::from_ref(&(mapping.start..mapping.end)), &traced);
            found.traced_bytes += mapping.end - mapping.start - run_bytes(&rest);
            match part_of(mapping, maps.get(index + 1), &stacks) {
                Some((kind, name)) => add(kind, &name, run_bytes(&rest)),
                None => {
                    let earlier = intersection(&rest, &known);
                    add(
                        MappedKind::BeforeAttach,
                        anonymous(mapping),
                        run_bytes(&earlier),
                    );
                    unknown.extend(less(&rest, &known));
                }
            }
        }
        let of_heap = with_blocks(&unknown, consumer);
        for (range, is_heap) in unknown.iter().zip(of_heap) {
            let (kind, name) = if is_heap {
                (MappedKind::Heap, "mapped by the allocator")
            } else {
                (MappedKind::Unseen, "mapped by calls that were not seen")
            };
            add(kind, name, range.end - range.start);
        }
        let parts = parts.into_iter();
        found.parts = parts
            .map(|((kind, name), bytes)| MappedPart { kind, name, bytes })
            .collect();
        found.parts.sort_by_key(|part| Reverse(part.bytes));
        Some(found)
    }

    /// Returns the bytes that were mapped since the attach by unobserved calls.
    pub fn unseen_bytes(&self) -> u64 {
        let unseen = self.parts.iter();
        let unseen = unseen.filter(|part| part.kind == MappedKind::Unseen);
        unseen.map(|part| part.bytes).sum()
    }
}

/// Waits until all events before this moment have arrived. The event of an unmapping is held back until the next pass.
fn await_passes<O: Observer + Send>(consumer: &Consumer<O>) {
    let (first, begin) = (consumer.passes(), Instant::now());
    while consumer.passes() < first + PASSES && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn anonymous(mapping: &Mapping) -> &str {
    if mapping.path.is_empty() {
        "without a name"
    } else {
        &mapping.path
    }
}

/// Returns the kind of a mapping by its name or contents; `None` if neither identifies it. `next`: the mapping after
/// it.
fn part_of(
    mapping: &Mapping,
    next: Option<&Mapping>,
    stacks: &[(u64, String)],
) -> Option<(MappedKind, String)> {
    let path = &mapping.path;
    let stack_in = |m: &Mapping| stacks.iter().find(|(sp, _)| m.contains(*sp));
    let is_guard = || {
        let is_closed = !mapping.read && !mapping.write && !mapping.exec;
        is_closed && mapping.end - mapping.start <= LARGEST_GUARD
    };
    let guarded = || next.filter(|next| next.start == mapping.end && is_guard());
    let kind = if is_ours(mapping) {
        MappedKind::Ourselves
    } else if path == "[heap]" {
        MappedKind::Heap
    } else if path.starts_with("[v") {
        MappedKind::Kernel
    } else if path == "[stack]" && stacks.is_empty() {
        MappedKind::Stack
    } else if mapping.file_id.2 != 0 {
        MappedKind::File
    } else if let Some((_, thread)) = stack_in(mapping).or_else(|| stack_in(guarded()?)) {
        return Some((MappedKind::Stack, thread.clone()));
    } else if path == "[stack]" {
        MappedKind::Stack
    } else {
        return None;
    };
    Some((kind, path.clone()))
}

/// Returns the stack pointers and names of the threads whose position the kernel reports without stopping them.
fn stacks(pid: i32) -> Vec<(u64, String)> {
    let threads = threads(pid).unwrap_or_default().into_iter();
    threads
        .filter_map(|thread| Some((blocked_at(pid, thread.tid)?.1, thread.name)))
        .collect()
}

/// Returns for each range whether it contains a live block.
fn with_blocks<O: Observer + Send>(ranges: &[Range<u64>], consumer: &Consumer<O>) -> Vec<bool> {
    let mut found = vec![false; ranges.len()];
    if ranges.is_empty() {
        return found;
    }
    let mut walk = LiveWalk::default();
    consumer.in_slices(|state| {
        state.ledger.walk_blocks(&mut walk, |block| {
            let behind = ranges.partition_point(|range| range.start <= block.address);
            if behind > 0 && block.address < ranges[behind - 1].end {
                found[behind - 1] = true;
            }
        })
    });
    found
}

/// Returns the parts of the first list that are not in the second. Both lists must be in address order and without
/// overlaps.
fn less(a: &[Range<u64>], b: &[Range<u64>]) -> Vec<Range<u64>> {
    let left = a
        .iter()
        .flat_map(|range| without(range.start, range.end, b));
    left.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let a = joined(vec![10..20, 0..5, 18..30, 40..50]);
        assert_eq!(a, [0..5, 10..30, 40..50]);
        assert_eq!(
            intersection(&a, &[3..12, 29..45]),
            [3..5, 10..12, 29..30, 40..45]
        );
        assert_eq!(less(&a, &[3..12, 29..45]), [0..3, 12..29, 45..50]);
        assert_eq!((run_bytes(&less(&a, &a)), run_bytes(&a)), (0, 35));
    }
}
