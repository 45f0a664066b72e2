//! Free lists.

use super::layout::Layout;
use super::segments::Page;
use crate::live_memory::Memory;
use crate::snapshot::Snapshot;
use rustc_hash::FxHashSet;

/// Size of the padding at the end of a block in a secure build (`mi_padding_t`: a canary, and the number of bytes that
/// were not requested).
const PADDING_BYTES: u64 = 8;
/// Offsets in `mi_heap_t`, relative to `thread_delayed_free`, of the thread's id and of the keys of that list.
const HEAP_THREAD: u64 = 8;
const HEAP_KEYS: u64 = 32;

/// Two words that encode links (internal.h, `mi_ptr_encode`), and the value that represents no block.
#[derive(Clone, Copy)]
struct Keys {
    keys: Option<[u64; 2]>,
    null: u64,
}

impl Keys {
    /// Reads the keys at an address, if the build encodes links.
    fn at(memory: &impl Memory, layout: &Layout, address: u64, null: u64) -> Option<Keys> {
        let keys = match layout.keys {
            None => None,
            Some(_) => Some([memory.word(address)?, memory.word(address + 8)?]),
        };
        Some(Keys { keys, null })
    }

    /// Decodes a link to a block; 0 means none.
    fn decode(self, link: u64) -> u64 {
        let Some([first, second]) = self.keys else {
            return link;
        };
        let shift = (first % 64) as u32;
        let plain = link.wrapping_sub(first).rotate_right(shift) ^ second;
        if plain == self.null { 0 } else { plain }
    }

    /// Returns the blocks of a list of at most `most` blocks.
    fn list(self, memory: &impl Memory, head: u64, most: u64) -> Option<Vec<u64>> {
        let mut found = Vec::new();
        let mut block = head;
        while block != 0 {
            if found.len() as u64 >= most {
                return None;
            }
            found.push(block);
            block = self.decode(memory.word(block)?);
        }
        Some(found)
    }
}

/// Contents of a page.
pub struct Listed {
    /// Blocks that are in no free list: address, and bytes that the program may use.
    pub live: Vec<(u64, u64)>,
    /// Number of blocks in the lists of the page's own thread.
    pub free: u64,
    /// Number of blocks released by other threads, in the list of this page or of its heap.
    pub released: u64,
}

impl Page {
    /// Returns the blocks in use. The error describes the fault of a list.
    pub fn listed(
        &self,
        snapshot: &Snapshot,
        layout: &Layout,
        delayed: &FxHashSet<u64>,
    ) -> Result<Listed, &'static str> {
        if self.capacity == 0 {
            return Ok(Listed {
                live: Vec::new(),
                free: 0,
                released: 0,
            });
        }
        let bytes = snapshot
            .bytes(self.start, self.capacity * self.block_bytes)
            .ok_or("a page is not completely mapped")?;
        let keys = self.address + layout.keys.unwrap_or(0);
        let keys = Keys::at(snapshot, layout, keys, self.address).ok_or("a page has no keys")?;
        let word = |offset: u64| {
            let at = usize::try_from(offset).ok()?;
            let word = bytes.get(at..at.checked_add(8)?)?;
            Some(u64::from_le_bytes(word.try_into().ok()?))
        };
        let mut is_free = vec![false; self.capacity as usize];
        let mut counts = [0u64; 3];
        for (list, count) in self.lists.iter().zip(&mut counts) {
            let mut block = *list;
            while block != 0 {
                let offset = block.wrapping_sub(self.start);
                let index = (offset / self.block_bytes) as usize;
                if index >= is_free.len() || !offset.is_multiple_of(self.block_bytes) {
                    return Err("a list of free blocks leads out of its page");
                }
                // A thread replaces one list with another in two writes. A block in a cycle is counted once.
                if std::mem::replace(&mut is_free[index], true) {
                    break;
                }
                *count += 1;
                block = keys.decode(word(offset).unwrap_or(0));
            }
        }
        let mut released = counts[2];
        let mut live = Vec::new();
        let blocks = (self.start..).step_by(self.block_bytes as usize);
        for (address, is_free) in blocks.zip(is_free) {
            if is_free {
                continue;
            }
            if delayed.contains(&address) {
                released += 1;
                continue;
            }
            let offset = address - self.start;
            let bytes = if layout.has_padding {
                let usable = self.block_bytes.saturating_sub(PADDING_BYTES);
                let unused = word(offset + usable).unwrap_or(0) >> 32;
                usable.checked_sub(unused).unwrap_or(usable)
            } else {
                self.block_bytes
            };
            live.push((address, bytes));
        }
        Ok(Listed {
            live,
            free: counts[0] + counts[1],
            released,
        })
    }
}

/// Returns the blocks that other threads have released, from the lists of heaps (`thread_delayed_free`), and the heaps
/// with a broken list.
pub fn delayed(snapshot: &Snapshot, layout: &Layout, pages: &[Page]) -> (FxHashSet<u64>, Vec<u64>) {
    let mut found = FxHashSet::default();
    let mut broken = Vec::new();
    let mut heaps = FxHashSet::default();
    for page in pages {
        if page.heap == 0 || !heaps.insert(page.heap) {
            continue;
        }
        let is_list = |list: &&u64| {
            let thread = page.heap.wrapping_add(**list + HEAP_THREAD);
            snapshot.word(thread) == Some(page.thread)
        };
        let Some(list) = layout.delayed.iter().find(is_list) else {
            // A thread that has just ended detaches its pages from the heap one by one.
            broken.push(page.heap);
            continue;
        };
        let head = page.heap + list;
        let Some(keys) = Keys::at(snapshot, layout, head + HEAP_KEYS, page.heap) else {
            broken.push(page.heap);
            continue;
        };
        let mut block = snapshot.word(head).unwrap_or(0);
        while block != 0 {
            if !is_block(pages, block) {
                broken.push(page.heap);
                break;
            }
            if !found.insert(block) {
                break;
            }
            block = keys.decode(snapshot.word(block).unwrap_or(0));
        }
    }
    (found, broken)
}

/// Upper bound on the number of blocks in a list of blocks released by other threads.
const MOST_DELAYED: u64 = 1 << 20;

/// Returns the blocks in a page's own lists, or `None` if a list is broken.
pub fn free_of_page(memory: &impl Memory, layout: &Layout, page: &Page) -> Option<FxHashSet<u64>> {
    let keys = page.address + layout.keys.unwrap_or(0);
    let keys = Keys::at(memory, layout, keys, page.address)?;
    let mut found = FxHashSet::default();
    for &head in &page.lists {
        found.extend(keys.list(memory, head, page.capacity)?);
    }
    Some(found)
}

/// Returns the blocks of a heap that other threads have released, or `None` if the list is broken or missing.
pub fn delayed_of_heap(
    memory: &impl Memory,
    layout: &Layout,
    (heap, thread): (u64, u64),
) -> Option<FxHashSet<u64>> {
    let is_list =
        |list: &&u64| memory.word(heap.wrapping_add(**list + HEAP_THREAD)) == Some(thread);
    let head = heap + layout.delayed.iter().find(is_list)?;
    let keys = Keys::at(memory, layout, head + HEAP_KEYS, heap)?;
    let blocks = keys.list(memory, memory.word(head)?, MOST_DELAYED)?;
    Some(blocks.into_iter().collect())
}

/// Returns true if a block of one of the sorted pages begins at the address.
fn is_block(pages: &[Page], address: u64) -> bool {
    let after = pages.partition_point(|page| page.range.start <= address);
    let page = after.checked_sub(1).and_then(|index| pages.get(index));
    page.is_some_and(|page| {
        let offset = address.wrapping_sub(page.start);
        page.capacity > 0
            && offset.is_multiple_of(page.block_bytes)
            && offset / page.block_bytes < page.capacity
    })
}
