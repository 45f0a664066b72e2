//! Joins the two events of a `realloc` that moved or resized a block, for observers that keep data with each block.
//!
//! The ledger reports a release and an allocation. The release is marked as part of a `realloc`. The next allocation of
//! the same thread is the new block if it is also part of a `realloc`: a thread makes one call at a time, and its
//! events come in order. A `realloc` to a size of 0 only releases a block, which becomes known with the thread's next
//! event.

use crate::{BlockOf, CountedSite, Observer, ReleaseBy};
use memhook_abi::Accesses;
use std::collections::HashMap;

/// Receives each allocation, release and reallocation of a block, in the order in which the ledger learns of them.
pub trait Blocks {
    /// Sets the time of the following events, in nanoseconds since the attach.
    fn at(&mut self, _time_ns: u64) {}
    /// A site's count of allocations of this size was increased by `count`, including blocks that no other method
    /// reports.
    fn counted(&mut self, _site: CountedSite, _size: u64, _count: u64) {}
    /// A block was allocated. This method is called before the release is reported, even if the release is already
    /// known.
    fn allocated(&mut self, block: &BlockOf, stack: u32);
    /// A block was released. `by` is `None` if the release was not seen or is not known yet.
    fn released(&mut self, block: &BlockOf, stack: u32, by: Option<ReleaseBy>);
    /// `realloc` replaced a block, perhaps by a block at the same address. Each block comes with the stack of its
    /// allocation.
    fn reallocated(&mut self, old: (&BlockOf, u32), by: ReleaseBy, new: (&BlockOf, u32));
    /// `count` blocks like this one were allocated and released one after the other.
    fn pairs(&mut self, block: &BlockOf, stack: u32, by: ReleaseBy, count: u64);
    /// A release was at an address without a known block.
    fn unknown_released(&mut self, _address: u64, _by: ReleaseBy) {}
    /// A pass has ended. The time is relative to the attach.
    fn end_pass(&mut self, _now_ns: u64) {}
}

/// An observer that joins both events of a `realloc`, and passes all others on to [`Blocks`].
pub struct Moves<B> {
    blocks: B,
    /// Returns true for stacks of `realloc`.
    is_realloc: Box<dyn FnMut(u32) -> bool + Send>,
    /// Blocks that a `realloc` has released, by thread, until that thread's next allocation.
    open: HashMap<u16, (BlockOf, ReleaseBy)>,
    /// The stack of each site.
    stacks: Vec<u32>,
}

impl<B: Blocks> Moves<B> {
    /// Creates an observer that passes events on to `blocks`. `is_realloc` returns true for stacks of allocations by
    /// `realloc`.
    pub fn new(blocks: B, is_realloc: impl FnMut(u32) -> bool + Send + 'static) -> Moves<B> {
        Moves {
            blocks,
            is_realloc: Box::new(is_realloc),
            open: HashMap::new(),
            stacks: Vec::new(),
        }
    }

    /// Consumes the observer, and returns the receiver.
    pub fn into_blocks(self) -> B {
        self.blocks
    }

    /// Returns the receiver.
    pub fn blocks(&self) -> &B {
        &self.blocks
    }

    /// Returns the receiver for changes.
    pub fn blocks_mut(&mut self) -> &mut B {
        &mut self.blocks
    }

    /// Ends the run: reports as released the blocks that were waiting for an allocation.
    pub fn finish(&mut self) {
        let mut open: Vec<_> = self.open.drain().collect();
        open.sort_unstable_by_key(|(thread, _)| *thread);
        for (_, (old, by)) in open {
            self.tell_released(&old, Some(by));
        }
    }

    /// Turns a pending reallocation of this thread into a plain release.
    fn close(&mut self, thread: u16) {
        if let Some((old, by)) = self.open.remove(&thread) {
            self.tell_released(&old, Some(by));
        }
    }

    /// Handles a new block at an address that another thread's unfinished `realloc` has released. The old block is gone
    /// in any case, and the new block of that `realloc` is reported separately.
    fn close_at(&mut self, block: &BlockOf) {
        if self.open.is_empty() {
            return;
        }
        let open = self.open.iter();
        let found = open
            .filter(|(_, (old, _))| old.address == block.address)
            .map(|(thread, _)| *thread);
        for thread in found.collect::<Vec<u16>>() {
            self.close(thread);
        }
    }

    fn stack_of(&self, block: &BlockOf) -> u32 {
        let stack = self.stacks.get(block.site as usize);
        stack.copied().unwrap_or(0)
    }

    fn tell_released(&mut self, block: &BlockOf, by: Option<ReleaseBy>) {
        let stack = self.stack_of(block);
        self.blocks.released(block, stack, by);
    }
}

impl<B: Blocks> Observer for Moves<B> {
    fn at(&mut self, time_ns: u64) {
        self.blocks.at(time_ns);
    }

    fn counted(&mut self, site: CountedSite, size: u64, count: u64) {
        self.blocks.counted(site, size, count);
    }

    fn allocated(&mut self, block: &BlockOf, stack: u32) {
        let site = block.site as usize;
        if site >= self.stacks.len() {
            self.stacks.resize(site + 1, 0);
        }
        self.stacks[site] = stack;
        if !self.open.is_empty()
            && let Some((old, by)) = self.open.remove(&block.thread)
        {
            if (self.is_realloc)(stack) {
                self.close_at(block);
                let old_stack = self.stack_of(&old);
                let (old, new) = ((&old, old_stack), (block, stack));
                return self.blocks.reallocated(old, by, new);
            }
            self.tell_released(&old, Some(by));
        }
        self.close_at(block);
        self.blocks.allocated(block, stack);
    }

    fn released(&mut self, block: &BlockOf, by: Option<ReleaseBy>) {
        match by {
            // Threads beyond the last index share index 0.
            Some(by) if by.by_realloc && by.thread != 0 => {
                self.close(by.thread);
                self.open.insert(by.thread, (*block, by));
            }
            _ => self.tell_released(block, by),
        }
    }

    fn more_pairs(&mut self, block: &BlockOf, stack: u32, by: ReleaseBy, count: u64) {
        if count > 0 {
            self.blocks.pairs(block, stack, by, count);
        }
    }

    fn reinstated(&mut self, block: &BlockOf, by: ReleaseBy) {
        let open = self.open.remove(&by.thread);
        match open {
            Some((old, _)) if old == *block => {}
            other => {
                if let Some((old, by)) = other {
                    self.tell_released(&old, Some(by));
                }
                let stack = self.stack_of(block);
                self.blocks.allocated(block, stack);
            }
        }
    }

    fn unknown_released(&mut self, address: u64, by: ReleaseBy) {
        self.blocks.unknown_released(address, by);
    }

    fn accesses(&mut self, _number: u32, _accesses: &Accesses) {}

    fn end_pass(&mut self, now_ns: u64, _most_bytes: u64, _within: bool) {
        self.blocks.end_pass(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REALLOC: u32 = 9;

    #[derive(Default)]
    struct Lines(Vec<String>);

    impl Blocks for Lines {
        fn allocated(&mut self, block: &BlockOf, _stack: u32) {
            self.0.push(format!("+{}", block.address));
        }
        fn released(&mut self, block: &BlockOf, _stack: u32, _by: Option<ReleaseBy>) {
            self.0.push(format!("-{}", block.address));
        }
        fn reallocated(&mut self, old: (&BlockOf, u32), _by: ReleaseBy, new: (&BlockOf, u32)) {
            self.0.push(format!("{}>{}", old.0.address, new.0.address));
        }
        fn pairs(&mut self, _block: &BlockOf, _stack: u32, _by: ReleaseBy, count: u64) {
            self.0.push(format!("x{count}"));
        }
    }

    fn block(address: u64, thread: u16) -> BlockOf {
        BlockOf {
            site: 0,
            thread,
            address,
            size: 8,
            time_ns: 0,
        }
    }

    fn by(thread: u16, by_realloc: bool) -> Option<ReleaseBy> {
        Some(ReleaseBy {
            stack: 0,
            thread,
            by_realloc,
            accesses: 0,
        })
    }

    fn told(tell: impl FnOnce(&mut Moves<Lines>)) -> Vec<String> {
        let mut all = Moves::new(Lines::default(), |stack| stack == REALLOC);
        tell(&mut all);
        all.finish();
        all.blocks.0
    }

    #[test]
    fn what_realloc_has_made_is_joined() {
        let lines = told(|all| {
            all.allocated(&block(16, 1), 1);
            all.released(&block(16, 1), by(1, true));
            // Another thread's allocation is not the new block.
            all.allocated(&block(64, 2), REALLOC);
            all.allocated(&block(32, 1), REALLOC);
            all.released(&block(32, 1), by(1, false));
        });
        assert_eq!(lines, ["+16", "+64", "16>32", "-32"]);
    }

    #[test]
    fn a_release_by_realloc_alone_is_a_release() {
        let lines = told(|all| {
            all.released(&block(16, 1), by(1, true));
            all.allocated(&block(32, 1), 1);
            all.released(&block(48, 1), by(2, true));
            all.released(&block(64, 1), by(2, true));
        });
        assert_eq!(lines, ["-16", "+32", "-48", "-64"]);
    }

    #[test]
    fn an_address_that_another_thread_has_is_released_first() {
        for stack in [1, REALLOC] {
            let lines = told(|all| {
                all.allocated(&block(16, 1), 1);
                all.released(&block(16, 1), by(1, true));
                all.allocated(&block(16, 2), stack);
                all.allocated(&block(32, 1), REALLOC);
            });
            assert_eq!(lines, ["+16", "-16", "+16", "+32"]);
        }
        let lines = told(|all| {
            all.released(&block(16, 1), by(1, true));
            all.released(&block(48, 2), by(2, true));
            all.allocated(&block(16, 2), REALLOC);
        });
        assert_eq!(lines, ["-16", "48>16"]);
    }

    #[test]
    fn a_failed_realloc_changes_nothing() {
        let lines = told(|all| {
            all.released(&block(16, 1), by(1, true));
            all.reinstated(&block(16, 1), by(1, true).expect("some"));
            all.reinstated(&block(32, 1), by(1, true).expect("some"));
        });
        assert_eq!(lines, ["+32"]);
    }

    #[test]
    fn pairs_stay_together() {
        let by = by(1, false).expect("some");
        let lines = told(|all| all.more_pairs(&block(16, 1), 1, by, 4));
        assert_eq!(lines, ["x4"]);
    }
}
