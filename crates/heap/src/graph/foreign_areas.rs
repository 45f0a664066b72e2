//! Memory of allocators whose heap we cannot walk, recognized by the blocks in it.
//!
//! If every block was traced, all other contents of such memory belong to the allocator: free
//! blocks, caches and descriptors. This memory is full of addresses of blocks that are free or once
//! were. jemalloc's thread caches keep each address that they have handed out, and its extents
//! store their own start addresses. tcmalloc's transfer caches are in its module's data. If these
//! addresses were roots, they would hide most leaks.
//!
//! The kernel merges adjacent mappings, so memory that the program maps for itself may be in the
//! same area. That memory is then not a root. LeakSanitizer does not search it either.

use crate::arch::native;
use crate::dissect::Heap;
use crate::ended_threads::bounds;
use crate::ranges::{Runs, joined, without};
use crate::snapshot::{Area, AreaKind, MUSL, Snapshot, ThreadState};
use std::ops::Range;

/// Allocators that map memory for themselves, and keep none of the program's data in that memory or
/// in their module.
const KNOWN_ALLOCATORS: [&str; 3] = ["jemalloc", "tcmalloc", "mimalloc"];

const PAGE_BYTES: u64 = 4096;
/// Upper bound on the number of modules with TLS. No program reaches it.
const MOST_TLS_MODULES: u64 = 4096;
/// Upper bound on the size of static TLS on musl. No program reaches it.
const MOST_STATIC_TLS_BYTES: u64 = 1 << 20;

/// Layout of the vector of TLS blocks.
#[derive(Clone, Copy)]
struct VectorLayout {
    /// Offset of the vector's address from the thread pointer.
    at: u64,
    /// Distance of the vector's length before the vector.
    length_before: u64,
    /// Distance between the entries of two consecutive modules. The first module's entry is at this
    /// distance from the start of the vector.
    stride: u64,
}

/// Layout of glibc's `dtv_t`: a counter, then two words for each module. The word before the vector
/// contains its length.
const GLIBCS: VectorLayout = VectorLayout {
    at: native::DTV,
    length_before: 16,
    stride: 16,
};
/// Layout of musl's vector: the length, then a word for each module.
const MUSLS: VectorLayout = VectorLayout {
    at: native::DTV_ON_MUSL,
    length_before: 0,
    stride: 8,
};

impl Heap {
    /// Attributes the areas that contain `blocks` (addresses) to their allocator, except stacks and
    /// TLS of threads and, on musl, data of modules. The data of the allocator's module is
    /// included, unless that is musl's C library. Returns true if this worked for all areas; it
    /// fails if the bounds of a stack or the allocator are unknown.
    ///
    /// Call it after [`Heap::add_foreign`], with blocks outside of glibc's heap.
    pub fn take_areas(&mut self, snapshot: &Snapshot, blocks: &[u64]) -> bool {
        let modules = snapshot.meta.modules.iter();
        let allocators = modules.filter_map(|m| Some((m, m.allocator.as_deref()?)));
        let mut allocators = allocators.peekable();
        if allocators.peek().is_none() {
            return false;
        }
        let mut runs_on_musl = false;
        for (module, name) in allocators {
            if name == MUSL {
                runs_on_musl = true;
                continue;
            }
            if !KNOWN_ALLOCATORS.contains(&name) {
                return false;
            }
            self.ranges.extend(module.data.iter().cloned());
        }
        let mut blocks = blocks.to_vec();
        blocks.sort_unstable();
        let mut all_taken = true;
        for area in &snapshot.meta.areas {
            let first = blocks.partition_point(|&b| b < area.start);
            if blocks.get(first).is_none_or(|&b| b >= area.end) {
                continue;
            }
            let is_private = matches!(area.kind, AreaKind::Anonymous | AreaKind::Brk);
            if runs_on_musl && (!is_private || holds_data(snapshot, area)) {
                // musl gives its allocator the unused ends of the pages of a module's data. The
                // rest of these pages belongs to the program or to the C library, which keeps the
                // descriptor of the initial thread there.
                continue;
            }
            let layout = if runs_on_musl { MUSLS } else { GLIBCS };
            let threads = threads_part(snapshot, area, layout);
            match threads.filter(|_| is_private) {
                Some(kept) => {
                    let taken = without(area.start, area.end, &joined(kept));
                    self.ranges.extend(taken);
                }
                None => all_taken = false,
            }
        }
        all_taken
    }
}

/// Returns true if an anonymous area holds data of a module. `.bss` is not backed by the module's
/// file.
fn holds_data(snapshot: &Snapshot, area: &Area) -> bool {
    let mut data = snapshot.meta.modules.iter().flat_map(|m| &m.data);
    data.any(|data| data.start < area.end && area.start < data.end)
}

/// Returns the parts of an area that belong to threads; `None` if they are unknown.
fn threads_part(snapshot: &Snapshot, area: &Area, layout: VectorLayout) -> Option<Runs> {
    let inside = |address: u64| (area.start..area.end).contains(&address);
    let mut found = Runs::new();
    for thread in &snapshot.meta.threads {
        if inside(thread.rsp) || inside(thread.fs_base) {
            let bounds = bounds(snapshot, thread.fs_base)
                .or_else(|| static_tls_on_musl(snapshot, thread, layout))?;
            if inside(thread.rsp) && !bounds.contains(&thread.rsp) {
                return None;
            }
            found.push(bounds);
        }
        // For modules that are opened later, the loader allocates TLS with malloc. It does not make
        // this call through a slot.
        let of_modules = tls_blocks(snapshot, thread, layout);
        found.extend(of_modules.filter(|run| inside(run.start)));
    }
    Some(found)
}

/// Returns the descriptor of the initial thread and the static TLS below it. musl's loader has
/// space for both in its data. If they do not fit, it allocates memory for them that is not
/// adjacent to a stack.
fn static_tls_on_musl(
    snapshot: &Snapshot,
    thread: &ThreadState,
    layout: VectorLayout,
) -> Option<Range<u64>> {
    let descriptor = thread.fs_base;
    let is_musls = layout.length_before == 0 && snapshot.word(descriptor) == Some(descriptor);
    let lowest = descriptor.saturating_sub(MOST_STATIC_TLS_BYTES);
    let blocks = tls_blocks(snapshot, thread, layout).map(|block| block.start);
    let first = blocks.filter(|start| (lowest..descriptor).contains(start));
    let first = first.min().filter(|_| is_musls)?;
    Some(first..descriptor + PAGE_BYTES)
}

/// Returns the first page of each TLS block of a thread, as listed in its vector.
fn tls_blocks<'a>(
    snapshot: &'a Snapshot,
    thread: &ThreadState,
    layout: VectorLayout,
) -> impl Iterator<Item = Range<u64>> + 'a {
    let vector = snapshot.word(thread.fs_base.wrapping_add(layout.at));
    let vector = vector.unwrap_or_default();
    let length = snapshot.word(vector.wrapping_sub(layout.length_before));
    (1..=length.unwrap_or_default().min(MOST_TLS_MODULES))
        .filter_map(move |module| snapshot.word(vector.wrapping_add(module * layout.stride)))
        .map(|block| block..block.saturating_add(PAGE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::finder::MarkOptions;
    use crate::graph::mark::mark;
    use crate::snapshot::ModuleInfo;
    use crate::testing;

    const START: u64 = 0x7000_0000;

    fn put(memory: &mut [u8], at: u64, word: u64) {
        let at = (at - START) as usize;
        memory[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// Describes an allocator's module with its data at `data`.
    fn allocator(name: &str, data: u64) -> ModuleInfo {
        ModuleInfo {
            allocator: Some(name.to_owned()),
            data: vec![data..data + 0x1000],
            ..ModuleInfo::default()
        }
    }

    /// Returns true for each block that is reached.
    fn reached(snapshot: &Snapshot, blocks: &[u64]) -> (bool, Vec<bool>) {
        let mut heap = Heap::empty();
        let mut known: Vec<_> = blocks.iter().map(|&b| (b, 64)).collect();
        assert_eq!(heap.add_foreign(snapshot, &mut known), blocks.len() as u64);
        let all = heap.take_areas(snapshot, blocks);
        let marked = mark(snapshot, &heap, MarkOptions::default());
        let is_reached = |&block: &u64| {
            let (number, _) = heap.blocks.find(block).unwrap();
            marked.reached.contains(number)
        };
        (all, blocks.iter().map(is_reached).collect())
    }

    #[test]
    fn what_the_allocator_keeps_reaches_nothing() {
        let (other, own) = (0x7100_0000u64, 0x7200_0000u64);
        let [a, b, c] = [START + 0x100, START + 0x200, START + 0x300];
        let mut memory = vec![0u8; 0x1_0000];
        put(&mut memory, START + 0x8000, a);
        put(&mut memory, b, c);
        let of_program = b.to_le_bytes().to_vec();
        let of_allocator = a.to_le_bytes().to_vec();
        let memory = vec![(START, memory), (other, of_program), (own, of_allocator)];
        let mut snapshot = testing::snapshot(memory);
        snapshot.meta.modules.push(allocator("tcmalloc", own));
        assert_eq!(
            reached(&snapshot, &[a, b, c]),
            (true, vec![false, true, true])
        );
        snapshot.meta.modules.push(allocator("another", 0));
        assert!(!reached(&snapshot, &[a, b, c]).0);
    }

    #[test]
    fn a_stack_in_the_same_area_is_searched() {
        let [a, b, c] = [START + 0x100, START + 0x200, START + 0x300];
        let (stack, end) = (START + 0x4000, START + 0x8000);
        let descriptor = end - 0x900;
        let vector = START + 0x900;
        let mut memory = vec![0u8; 0x1_0000];
        put(&mut memory, descriptor + 0x690, stack);
        put(&mut memory, descriptor + 0x698, end - stack);
        put(&mut memory, end - 0x1000, a);
        // The TLS of the first module comes from the allocator.
        put(&mut memory, descriptor + native::DTV, vector);
        put(&mut memory, vector - 16, 1);
        put(&mut memory, vector + 16, START + 0x2000);
        put(&mut memory, START + 0x2040, b);
        put(&mut memory, START + 0x9000, c);
        let mut snapshot = testing::snapshot(vec![(START, memory)]);
        snapshot.meta.modules.push(allocator("jemalloc", 0));
        snapshot.meta.threads.push(ThreadState {
            tid: 1,
            rsp: end - 0x2000,
            fs_base: descriptor,
            ..ThreadState::default()
        });
        assert_eq!(
            reached(&snapshot, &[a, b, c]),
            (true, vec![true, true, false])
        );
        // The thread runs on a stack other than the one that its descriptor names.
        snapshot.meta.threads[0].rsp = START + 0xa000;
        assert_eq!(
            reached(&snapshot, &[a, b, c]),
            (false, vec![true, true, true])
        );
    }
}
