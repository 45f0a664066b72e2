//! Callbacks of a profiler.

use crate::block::{Access, Block, Free};

/// Decision about how a watch continues after an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Next {
    /// The watch ends.
    #[default]
    Done,
    /// The watch continues, and the next access by this thread is reported too.
    Again,
    /// The watch continues for the other threads.
    OtherThreads,
}

/// A heap profiler. Every method has a default implementation, so implement only the methods that you need.
///
/// Callbacks for one address come in the order of the events. All callbacks run under one lock, on threads of the
/// library. Threads of the process whose buffers are full wait for that lock. So a callback should take well under a
/// microsecond, must never wait for anything, and must not call a method of [`Attached`](crate::Attached).
///
/// If a callback panics, no further callback is made, and the library detaches from the process.
pub trait Profiler: Send + 'static {
    /// Data kept with each live block.
    type Data: Default + Send + 'static;

    /// Called when a block was allocated. Returns the data to keep with it.
    fn on_alloc(&mut self, block: &Block) -> Self::Data {
        let _ = block;
        Self::Data::default()
    }

    /// Called when a block was released.
    fn on_free(&mut self, block: &Block, data: Self::Data, free: &Free) {
        let _ = (block, data, free);
    }

    /// Called when `realloc` has replaced a block, perhaps by one at the same address. Returns the data to keep with
    /// the new one.
    ///
    /// If another thread gets the old address before the library knows that the call has ended, the call is reported as
    /// a release and an allocation.
    fn on_realloc(&mut self, old: &Block, new: &Block, data: Self::Data) -> Self::Data {
        let _ = (old, new);
        data
    }

    /// Called when blocks like this one were allocated and immediately released, `count` times. The default
    /// implementation calls [`on_alloc`](Profiler::on_alloc) and [`on_free`](Profiler::on_free) `count` times.
    fn on_pairs(&mut self, block: &Block, free: &Free, count: u64) {
        for _ in 0..count {
            let data = self.on_alloc(block);
            self.on_free(block, data, free);
        }
    }

    /// Called when watched memory was accessed ([`Attached::watch`](crate::Attached::watch)). `block` is the live block
    /// there, with its data.
    fn on_access(&mut self, access: &Access, block: Option<(&Block, &mut Self::Data)>) -> Next {
        let _ = (access, block);
        Next::Done
    }

    /// Called when [`Attached::search_unreachable`](crate::Attached::search_unreachable) has found that no pointer
    /// leads to this live block.
    fn on_unreachable(&mut self, block: &Block, data: &mut Self::Data) {
        let _ = (block, data);
    }
}
