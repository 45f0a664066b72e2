//! Live blocks with the data of the profiler, and the calls to the profiler.

use crate::block::{Access, Block, Free};
use crate::profiler::{Next, Profiler};
use memhook_ledger::{BlockOf, Blocks, Moves, ReleaseBy, SampledAllocations};
use rustc_hash::FxHashMap;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Observer that passes a trace to a profiler.
pub(crate) type Told<P> = Moves<Heap<P>>;

/// The live blocks of the process that were allocated since the attach, and the profiler.
pub struct Heap<P: Profiler> {
    profiler: P,
    live: FxHashMap<u64, (Block, P::Data)>,
    /// Block whose address was given to another block before the release of the first block was reported.
    displaced: Option<(Block, P::Data)>,
    samples: SampledAllocations,
    /// Panic message of a callback. No callback is called afterwards.
    panic: Option<String>,
}

impl<P: Profiler> Heap<P> {
    pub(crate) fn new(profiler: P, samples: SampledAllocations) -> Heap<P> {
        Heap {
            profiler,
            live: FxHashMap::default(),
            displaced: None,
            samples,
            panic: None,
        }
    }

    /// Returns the profiler.
    pub fn profiler(&mut self) -> &mut P {
        &mut self.profiler
    }

    /// Returns the live blocks with their data, in any order.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = (&Block, &P::Data)> {
        self.live.values().map(|(block, data)| (block, data))
    }

    /// Returns the live blocks with mutable data, in any order.
    pub fn blocks_mut(&mut self) -> impl ExactSizeIterator<Item = (&Block, &mut P::Data)> {
        self.live.values_mut().map(|(block, data)| (&*block, data))
    }

    /// Returns the live block that begins at an address.
    pub fn block(&self, address: u64) -> Option<(&Block, &P::Data)> {
        self.live.get(&address).map(|(block, data)| (block, data))
    }

    /// Returns the number of blocks that this block represents: 1, unless the options ask for a sample.
    pub fn weight(&self, block: &Block) -> f64 {
        let level = u8::from(self.samples.always);
        self.samples.weight_of(level, block.size)
    }

    /// Returns the address of the live block that contains an address. Searches all blocks, so use this only for rare
    /// events.
    pub(crate) fn block_with(&self, address: u64) -> Option<u64> {
        let is_in = |(block, _): &&(Block, P::Data)| block.range().contains(&address);
        self.live
            .values()
            .find(is_in)
            .map(|(block, _)| block.address)
    }

    pub(crate) fn into_profiler(self) -> P {
        self.profiler
    }

    pub(crate) fn panic(&self) -> Option<&str> {
        self.panic.as_deref()
    }

    /// Calls the profiler, unless an earlier call panicked. In that case the arguments are dropped, which also runs
    /// code of the user. A panic in that code must not end the thread that takes the events, because the process would
    /// wait for that thread.
    fn call<T>(&mut self, call: impl FnOnce(&mut P) -> T) -> Option<T> {
        let (profiler, is_over) = (&mut self.profiler, self.panic.is_some());
        let guarded = AssertUnwindSafe(|| {
            if is_over {
                drop(call);
                return None;
            }
            Some(call(profiler))
        });
        match catch_unwind(guarded) {
            Ok(result) => result,
            Err(payload) => {
                self.panic.get_or_insert_with(|| panic_text(&*payload));
                // Dropping the payload of the panic may panic as well.
                std::mem::forget(payload);
                None
            }
        }
    }

    fn insert(&mut self, block: Block, data: Option<P::Data>) {
        if let Some(data) = data {
            let forgotten = self.displaced.take();
            self.displaced = self.live.insert(block.address, (block, data));
            if forgotten.is_some() {
                self.call(|_| drop(forgotten));
            }
        }
    }

    fn take(&mut self, found: &Block) -> Option<(Block, P::Data)> {
        // The ledger reports an allocation first, and only then which of the two blocks at its address is gone.
        match self.displaced.take() {
            Some(old) if old.0 == *found => Some(old),
            Some(old) if old.0.address == found.address => self.live.insert(found.address, old),
            _ => {
                let (now, _) = self.live.get(&found.address)?;
                (now == found).then(|| self.live.remove(&found.address))?
            }
        }
    }

    /// Reports an access. Returns how the watch continues.
    pub(crate) fn accessed(&mut self, access: &Access, start: Option<u64>) -> Next {
        let mut entry = start.and_then(|start| self.live.remove_entry(&start));
        let next = self.call(|profiler| {
            let block = entry.as_mut().map(|(_, (block, data))| (&*block, data));
            profiler.on_access(access, block)
        });
        if let Some((address, entry)) = entry {
            self.live.insert(address, entry);
        }
        next.unwrap_or_default()
    }

    /// Reports that no pointer leads to the block at an address, if it was allocated before `moment_ns`. Returns true
    /// if it has reported the block.
    pub(crate) fn unreachable(&mut self, address: u64, moment_ns: u64) -> bool {
        let Some((address, mut entry)) = self.live.remove_entry(&address) else {
            return false;
        };
        let (block, data) = &mut entry;
        let is_it = block.time.as_millis() < u128::from(moment_ns / 1_000_000);
        if is_it {
            self.call(|profiler| profiler.on_unreachable(block, data));
        }
        self.live.insert(address, entry);
        is_it
    }
}

/// Returns the message of a panic.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}

impl<P: Profiler> Blocks for Heap<P> {
    fn allocated(&mut self, found: &BlockOf, stack: u32) {
        let block = Block::of(found, stack);
        let data = self.call(|profiler| profiler.on_alloc(&block));
        self.insert(block, data);
    }

    fn released(&mut self, found: &BlockOf, stack: u32, by: Option<ReleaseBy>) {
        if let Some((block, data)) = self.take(&Block::of(found, stack)) {
            self.call(|profiler| profiler.on_free(&block, data, &Free::of(by)));
        }
    }

    fn reallocated(&mut self, old: (&BlockOf, u32), _by: ReleaseBy, new: (&BlockOf, u32)) {
        let block = Block::of(new.0, new.1);
        let data = match self.take(&Block::of(old.0, old.1)) {
            Some((old, data)) => self.call(|profiler| profiler.on_realloc(&old, &block, data)),
            None => self.call(|profiler| profiler.on_alloc(&block)),
        };
        self.insert(block, data);
    }

    fn pairs(&mut self, found: &BlockOf, stack: u32, by: ReleaseBy, count: u64) {
        let block = Block::of(found, stack);
        self.call(|profiler| profiler.on_pairs(&block, &Free::of(Some(by)), count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics when it is dropped.
    #[derive(Default)]
    struct Fragile;

    impl Drop for Fragile {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    #[derive(Default)]
    struct Counts {
        allocations: u64,
        frees: u64,
    }

    impl Profiler for Counts {
        type Data = Fragile;

        fn on_alloc(&mut self, _block: &Block) -> Fragile {
            self.allocations += 1;
            Fragile
        }

        fn on_free(&mut self, _block: &Block, data: Fragile, _free: &Free) {
            self.frees += 1;
            drop(data);
        }
    }

    fn block(address: u64, time_ms: u64) -> BlockOf {
        BlockOf {
            site: 0,
            thread: 1,
            address,
            size: 8,
            time_ns: time_ms * 1_000_000,
        }
    }

    fn heap<P: Profiler>(profiler: P) -> Heap<P> {
        Heap::new(profiler, SampledAllocations::new(None, false))
    }

    #[test]
    fn no_panic_of_the_user_gets_out() {
        let mut heap = heap(Counts::default());
        for address in [16, 32, 48] {
            heap.allocated(&block(address, 0), 7);
        }
        assert_eq!(heap.panic(), None);
        heap.released(&block(16, 0), 7, None);
        assert_eq!(heap.panic(), Some("dropped"));
        // These blocks are no longer reported, but their data must be dropped.
        heap.released(&block(32, 0), 7, None);
        heap.allocated(&block(64, 0), 7);
        let counts = (heap.profiler.allocations, heap.profiler.frees);
        assert_eq!((counts, heap.live.len()), ((3, 1), 1));
        std::mem::forget(heap);
    }

    /// Numbers the blocks, and records which were released.
    #[derive(Default)]
    struct Numbers(u32, Vec<u32>);

    impl Profiler for Numbers {
        type Data = u32;

        fn on_alloc(&mut self, _block: &Block) -> u32 {
            self.0 += 1;
            self.0
        }

        fn on_free(&mut self, _block: &Block, number: u32, _free: &Free) {
            self.1.push(number);
        }
    }

    #[test]
    fn data_stay_with_their_block() {
        let mut heap = heap(Numbers::default());
        heap.allocated(&block(16, 0), 7);
        heap.allocated(&block(32, 0), 7);
        // The address is reused, and the release of the first block becomes known only after that.
        heap.allocated(&block(16, 5), 7);
        heap.released(&block(16, 0), 7, None);
        assert_eq!(heap.profiler.1, [1]);
        // A block that is already gone when its allocation is reported. The other block stays.
        heap.allocated(&block(16, 2), 7);
        heap.released(&block(16, 2), 7, None);
        assert_eq!(heap.profiler.1, [1, 4]);
        heap.released(&block(16, 5), 7, None);
        heap.released(&block(32, 0), 7, None);
        assert_eq!(heap.profiler.1, [1, 4, 3, 2]);
        assert_eq!(heap.blocks().len(), 0);
    }
}
