//! Stacks of threads that have ended, full of stale pointers. glibc keeps their mappings for the next
//! thread (nptl, stack cache), musl until the thread is joined.
//!
//! Stacks that the program has provided (pthread_attr_setstack(3)) are not included. After a thread
//! on such a stack has ended, the program may use the memory for anything, although the descriptor
//! is still at its end.

use crate::arch::native;
use crate::ranges::Runs;
use crate::snapshot::{Area, AreaKind, Snapshot};
use std::ops::Range;

/// Number of bytes read from a descriptor. They include the stack's bounds. In glibc 2.36, the
/// whole structure has 0x900 bytes.
const DESCRIPTOR_BYTES: u64 = 4096;
/// Largest distance of a descriptor from the end of its stack.
const REACH_BYTES: u64 = 8192;
/// Lowest address at which a stack can begin: the kernel maps nothing below it
/// (`vm.mmap_min_addr`).
const LOWEST_MAPPED: u64 = 0x1_0000;

/// Returns the ranges of the stacks of ended threads, including TLS.
pub fn ended_stacks(snapshot: &Snapshot) -> Runs {
    let mut found = Runs::new();
    let areas = snapshot.meta.areas.iter();
    for area in areas.filter(|area| area.kind == AreaKind::Anonymous) {
        let Some(region) = snapshot.region(area.start) else {
            continue;
        };
        for run in &region.runs {
            let (from, to) = (run.start.max(area.start), run.end.min(area.end));
            if from >= to {
                continue;
            }
            let place = (from - region.start) as usize..(to - region.start) as usize;
            let bytes = region.bytes.get(place).unwrap_or_default();
            let descriptors = native::descriptors(snapshot, area, from, bytes);
            found.extend(descriptors.filter_map(|at| ended_stack(snapshot, area, at)));
        }
    }
    found
}

/// Returns the stack of the thread with this thread pointer, if it has ended.
fn ended_stack(snapshot: &Snapshot, area: &Area, at: u64) -> Option<Range<u64>> {
    let Range { start, end } = bounds(snapshot, at)?;
    let start = start.max(area.start);
    let mut threads = snapshot.meta.threads.iter();
    let is_alive = threads.any(|t| t.fs_base == at || (start..end).contains(&t.rsp));
    // The descriptor itself keeps pointing to the thread's vector of TLS blocks, which the next
    // thread reuses, and to the thread's result.
    // A static program does not show which C library it contains, but the two lists differ.
    let descriptor = match place_in_list(snapshot, at) {
        Some(list) => native::end_of_stack(at, list),
        None => alone(snapshot, at)?,
    };
    (!is_alive && end <= area.end).then_some(start..descriptor)
}

/// Returns the address of a descriptor of musl's, if its thread has ended. Such a thread becomes its
/// own neighbour (`__pthread_exit`). The descriptor begins with its own address, and the links to the
/// neighbours follow, on x86-64 after `dtv` (pthread_impl.h).
fn alone(snapshot: &Snapshot, thread_pointer: u64) -> Option<u64> {
    let mut places = native::descriptor(thread_pointer, DESCRIPTOR_BYTES).step_by(8);
    places.find_map(|previous| {
        let own = snapshot.word(previous)?;
        let is_alone = matches!(previous.checked_sub(own), Some(8 | 16))
            && snapshot.word(own) == Some(own)
            && snapshot.word(previous + 8) == Some(own);
        is_alone.then_some(own)
    })
}

/// Returns the address of the list node by which a descriptor is linked into one of glibc's lists of stacks (`list` in
/// `struct pthread`: the neighbours' links lead back to it). If the program provided a thread's stack, glibc removes
/// the descriptor from the list when the thread ends.
fn place_in_list(snapshot: &Snapshot, thread_pointer: u64) -> Option<u64> {
    let mut places = native::descriptor(thread_pointer, DESCRIPTOR_BYTES).step_by(8);
    places.find(|&node| {
        let neighbours = snapshot.word(node).zip(snapshot.word(node + 8));
        neighbours.is_some_and(|(next, before)| {
            next != node
                && snapshot.word(next.wrapping_add(8)) == Some(node)
                && snapshot.word(before) == Some(node)
        })
    })
}

/// Returns the stack that the descriptor refers to (`stackblock`, `stackblock_size`). The offset of
/// these fields differs between versions, so any two adjacent words that closely enclose the
/// descriptor are accepted.
///
/// The initial thread's descriptor refers to no stack, and the memory after it belongs to the
/// loader. A zero followed by the address of a module that begins directly after the descriptor
/// must not be mistaken for a stack that covers all of the address space below.
pub fn bounds(snapshot: &Snapshot, thread_pointer: u64) -> Option<Range<u64>> {
    let mut places = native::descriptor(thread_pointer, DESCRIPTOR_BYTES).step_by(8);
    places.find_map(|at| {
        let block = snapshot.word(at)?;
        let bytes = snapshot.word(at + 8)?;
        let end = block.checked_add(bytes)?;
        let encloses = block % 4096 == 0
            && (LOWEST_MAPPED..thread_pointer).contains(&block)
            && end % 4096 == 0
            && (thread_pointer..=thread_pointer + REACH_BYTES).contains(&end);
        encloses.then_some(block..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{ModuleInfo, ThreadState};
    use crate::testing;

    fn stack_snapshot() -> (Snapshot, u64) {
        let (start, bytes) = (0x7000_1000u64, 0x8000usize);
        let mut memory = vec![0u8; bytes];
        let end = start + bytes as u64;
        let descriptor = end - 0x900;
        let mut put = |at: u64, word: u64| {
            let at = (at - start) as usize;
            memory[at..at + 8].copy_from_slice(&word.to_le_bytes());
        };
        put(descriptor, descriptor);
        put(descriptor + 16, descriptor);
        // The node is in a list with one other node.
        let head = start + 0x100;
        put(descriptor + 0x2c0, head);
        put(descriptor + 0x2c8, head);
        put(head, descriptor + 0x2c0);
        put(head + 8, descriptor + 0x2c0);
        put(descriptor + 0x690, start - 0x1000);
        put(descriptor + 0x698, end - (start - 0x1000));
        let mut snapshot = testing::snapshot(vec![(start, memory)]);
        snapshot.meta.modules.push(ModuleInfo {
            glibc_minor: Some(36),
            ..ModuleInfo::default()
        });
        (snapshot, descriptor)
    }

    /// The loader keeps its list of modules directly after the initial thread's descriptor.
    #[test]
    fn a_zero_and_the_address_behind_are_no_bounds() {
        let (mut snapshot, descriptor) = stack_snapshot();
        let region = &snapshot.regions[0];
        let (start, end) = (region.start, region.start + region.bytes.len() as u64);
        let stated = bounds(&snapshot, descriptor).unwrap();
        assert_eq!(stated, start - 0x1000..end);
        let at = (descriptor + 0x690 - start) as usize;
        for (block, bytes) in [(0, end), (0x1000, end - 0x1000)] {
            let mut put = |at: usize, word: u64| {
                snapshot.regions[0].bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            };
            put(at, block);
            put(at + 8, bytes);
            assert_eq!(bounds(&snapshot, descriptor), None, "{block:#x}");
        }
    }

    #[test]
    fn only_without_its_thread() {
        let (mut snapshot, descriptor) = stack_snapshot();
        snapshot.meta.areas[0].kind = AreaKind::Anonymous;
        let start = snapshot.meta.areas[0].start;
        assert_eq!(ended_stacks(&snapshot), [start..descriptor]);
        // A static program has no module of its C library.
        let modules = std::mem::take(&mut snapshot.meta.modules);
        assert_eq!(ended_stacks(&snapshot), [start..descriptor]);
        snapshot.meta.modules = modules;
        snapshot.meta.threads.push(ThreadState {
            fs_base: descriptor,
            ..ThreadState::default()
        });
        assert_eq!(ended_stacks(&snapshot), []);
    }

    #[test]
    fn not_the_programs_own_memory() {
        let (mut snapshot, descriptor) = stack_snapshot();
        snapshot.meta.areas[0].kind = AreaKind::Anonymous;
        // A node that was removed from a list keeps its own links.
        snapshot.regions[0].bytes[0x100..0x110].fill(0);
        assert!(place_in_list(&stack_snapshot().0, descriptor).is_some());
        assert_eq!(ended_stacks(&snapshot), []);
    }

    /// musl's `struct pthread` (pthread_impl.h) begins with `self`, `dtv`, `prev` and `next`.
    #[test]
    fn a_thread_of_musl_is_its_own_neighbour_after_its_end() {
        let (mut snapshot, descriptor) = stack_snapshot();
        snapshot.meta.areas[0].kind = AreaKind::Anonymous;
        snapshot.meta.modules.clear();
        let start = snapshot.meta.areas[0].start;
        let mut put = |offset: u64, word: u64| {
            let at = (descriptor + offset - start) as usize;
            snapshot.regions[0].bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        };
        // No list of glibc.
        put(0x2c0, 0);
        put(24, descriptor);
        assert_eq!(ended_stacks(&snapshot), [start..descriptor]);
    }

    #[test]
    fn not_every_mapping_with_a_pointer_to_itself() {
        let (mut snapshot, descriptor) = stack_snapshot();
        snapshot.meta.areas[0].kind = AreaKind::Anonymous;
        let start = snapshot.meta.areas[0].start;
        let at = (descriptor + 0x698 - start) as usize;
        snapshot.regions[0].bytes[at] ^= 0x10;
        assert_eq!(ended_stacks(&snapshot), []);
    }
}
