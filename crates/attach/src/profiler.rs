//! Profilers of others: each is told of every block that comes and goes, and keeps data of its own with it.

use crate::config::TraceConfig;
use crate::error::Error;
use crate::trace::Trace;
use memhook_ledger::{BlockOf, Observer, ReleaseBy};
use std::collections::HashMap;

/// A block of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its address in the process.
    pub address: u64,
    /// The requested size in bytes.
    pub size: u64,
    /// The id of the allocation's call stack; see [`Session::stack`](crate::Session::stack).
    pub stack: u32,
    /// The index of the allocating thread; see [`Trace::thread`].
    pub thread: u16,
    /// When it was allocated, in nanoseconds since the attach, to the millisecond.
    pub time_ns: u64,
}

/// Is told of every block, in one order: that in which the blocks of one address followed each other.
///
/// The calls come on the thread that empties the rings, under the lock of
/// [`Consumer::lock`](crate::Consumer::lock). Threads of the process whose rings are full wait for it, so
/// they should take nanoseconds, and never wait for anything.
pub trait Profiler: Send {
    /// What is kept with each live block.
    type Data: Send;

    /// A block was allocated. Also called for a block whose `realloc` failed, after its release.
    fn allocated(&mut self, block: &Block) -> Self::Data;

    /// A block was released; `by` is `None` if the release itself was not seen.
    fn released(&mut self, _block: &Block, _data: Self::Data, _by: Option<ReleaseBy>) {}

    /// Blocks like this one were allocated and released again at once, so many times.
    fn pairs(&mut self, block: &Block, count: u64) {
        for _ in 0..count {
            let data = self.allocated(block);
            self.released(block, data, None);
        }
    }
}

/// A profiler with its live blocks.
pub struct Profiling<P: Profiler> {
    profiler: P,
    live: HashMap<u64, (Block, P::Data)>,
    /// The call stack of each site.
    stacks: Vec<u32>,
    /// A block whose address another one has got, when its release has not been told yet.
    displaced: Option<(Block, P::Data)>,
}

impl<P: Profiler> Profiling<P> {
    fn new(profiler: P) -> Profiling<P> {
        Profiling {
            profiler,
            live: HashMap::new(),
            stacks: Vec::new(),
            displaced: None,
        }
    }

    fn block(&self, found: &BlockOf) -> Block {
        Block {
            address: found.address,
            size: found.size,
            stack: self.stacks.get(found.site as usize).copied().unwrap_or(0),
            thread: found.thread,
            time_ns: found.time_ns,
        }
    }

    fn insert(&mut self, block: Block) {
        let data = self.profiler.allocated(&block);
        self.displaced = self.live.insert(block.address, (block, data));
    }

    /// The profiler.
    pub fn profiler(&mut self) -> &mut P {
        &mut self.profiler
    }

    /// The live blocks with their data, in no order.
    pub fn live(&self) -> impl Iterator<Item = (&Block, &P::Data)> {
        self.live.values().map(|(block, data)| (block, data))
    }
}

impl<P: Profiler> Observer for Profiling<P> {
    fn allocated(&mut self, found: &BlockOf, stack: u32) {
        let site = found.site as usize;
        if site >= self.stacks.len() {
            self.stacks.resize(site + 1, 0);
        }
        self.stacks[site] = stack;
        let block = self.block(found);
        self.insert(block);
    }

    fn released(&mut self, found: &BlockOf, by: Option<ReleaseBy>) {
        // The ledger tells of an allocation first, and then which of the two blocks at its address is gone.
        let gone = match self.displaced.take() {
            Some(old) if old.0 == self.block(found) => Some(old),
            Some(old) => self.live.insert(found.address, old),
            None => self.live.remove(&found.address),
        };
        if let Some((block, data)) = gone {
            self.profiler.released(&block, data, by);
        }
    }

    fn more_pairs(&mut self, found: &BlockOf, _stack: u32, _by: ReleaseBy, count: u64) {
        let block = self.block(found);
        self.profiler.pairs(&block, count);
    }

    fn reinstated(&mut self, found: &BlockOf, _by: ReleaseBy) {
        let block = self.block(found);
        self.insert(block);
    }
}

impl<P: Profiler> Trace<Profiling<P>> {
    /// Attaches to a running process for a profiler.
    pub fn profile(
        pid: i32,
        config: TraceConfig,
        profiler: P,
    ) -> Result<Trace<Profiling<P>>, Error> {
        Trace::observed(pid, config, Profiling::new(profiler))
    }

    /// Looks at the profiler and its live blocks; no events are taken meanwhile.
    pub fn with_profiler<T>(&self, look: impl FnOnce(&mut Profiling<P>) -> T) -> T {
        look(self.consumer().lock().ledger.observer_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers the blocks, and remembers which were released.
    #[derive(Default)]
    struct Numbers {
        next: u32,
        released: Vec<u32>,
    }

    impl Profiler for Numbers {
        type Data = u32;

        fn allocated(&mut self, _block: &Block) -> u32 {
            self.next += 1;
            self.next
        }

        fn released(&mut self, _block: &Block, data: u32, _by: Option<ReleaseBy>) {
            self.released.push(data);
        }
    }

    fn block(address: u64, time_ns: u64) -> BlockOf {
        BlockOf {
            site: time_ns as u32,
            thread: 1,
            address,
            size: 8,
            time_ns,
        }
    }

    #[test]
    fn data_stays_with_its_block() {
        let mut all = Profiling::new(Numbers::default());
        all.allocated(&block(16, 0), 3);
        all.allocated(&block(32, 0), 3);
        // The address is used again, and the release of the first block is known only afterwards.
        all.allocated(&block(16, 5), 4);
        all.released(&block(16, 0), None);
        assert_eq!(all.profiler().released, [1]);
        // A block that is found to be gone already when its allocation is told; the other one stays.
        all.allocated(&block(16, 2), 5);
        all.released(&block(16, 2), None);
        assert_eq!(all.profiler().released, [1, 4]);
        all.released(&block(16, 5), None);
        all.released(&block(32, 0), None);
        assert_eq!(all.profiler().released, [1, 4, 3, 2]);
        assert_eq!(all.live().count(), 0);
    }

    #[test]
    fn pairs_count_as_often_as_they_happened() {
        let mut all = Profiling::new(Numbers::default());
        let by = ReleaseBy {
            stack: 0,
            thread: 1,
            by_realloc: false,
            accesses: 0,
        };
        all.more_pairs(&block(16, 0), 3, by, 5);
        assert_eq!(all.profiler().next, 5);
        assert_eq!(all.profiler().released.len(), 5);
    }
}
