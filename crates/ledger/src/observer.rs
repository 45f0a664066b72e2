//! Notifications about each block, for consumers that need more than the sums.

use memhook_abi::Accesses;

/// A block, as known to the ledger at its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockOf {
    /// Index of the allocation site: dense, in the order of appearance.
    pub site: u32,
    /// Index of the allocating thread, above 0; 0 represents all threads beyond 65,535.
    pub thread: u16,
    /// Address (avma).
    pub address: u64,
    /// Requested size in bytes.
    pub size: u64,
    /// Time of the allocation in nanoseconds since the attach, to the millisecond.
    pub time_ns: u64,
}

/// Site at which an allocation was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedSite {
    /// Index of the allocation site, like [`BlockOf::site`].
    pub index: u32,
    /// Call stack of the site; 0 for the stacks that are counted together.
    pub stack: u32,
    /// Sampling level of the site's allocations, defined as for [`SampledAllocations`](crate::SampledAllocations).
    pub level: u8,
}

/// A release that is known to belong to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseBy {
    /// Stack id of the release; 0 if release stacks are not recorded.
    pub stack: u32,
    /// Index of the releasing thread.
    pub thread: u16,
    /// True if `realloc` released the block, and then returned another one.
    pub by_realloc: bool,
    /// Number that the release's event contains in place of a size. It identifies the reader's record of the block's
    /// reads and writes; 0 if unknown.
    pub accesses: u32,
}

/// Called for each block that is allocated or released, in the order in which the ledger learns of these events.
///
/// `()` is an observer that does nothing and costs nothing.
pub trait Observer {
    /// True for an observer that does nothing, so that the order in which the ledger learns of blocks does not matter.
    const IS_NONE: bool = false;
    /// Sets the time of the following events to `time_ns`, nanoseconds since the attach.
    #[inline(always)]
    fn at(&mut self, _time_ns: u64) {}
    /// A site's count of allocations of this size was increased by `count`. Also called for blocks that are not
    /// reported otherwise because the ledger has reached its bound.
    #[inline(always)]
    fn counted(&mut self, _site: CountedSite, _size: u64, _count: u64) {}
    /// A block was allocated. This method is called before `released`, even if the release is already known.
    #[inline(always)]
    fn allocated(&mut self, _block: &BlockOf, _stack: u32) {}
    /// A block was released. `by` is `None` if the release was not seen or is not known yet ([`Observer::corrected`]).
    #[inline(always)]
    fn released(&mut self, _block: &BlockOf, _by: Option<ReleaseBy>) {}
    /// `count` more blocks like this one were allocated and released, one after another.
    #[inline(always)]
    fn more_pairs(&mut self, block: &BlockOf, stack: u32, by: ReleaseBy, count: u64) {
        for _ in 0..count {
            self.allocated(block, stack);
            self.released(block, Some(by));
        }
    }
    /// Corrects an earlier [`Observer::released`]: the block was released by `to`, not by `from`, because the events
    /// of its address arrived out of order. Called only if release stacks are tracked.
    #[inline(always)]
    fn corrected(&mut self, _block: &BlockOf, _from: Option<ReleaseBy>, _to: Option<ReleaseBy>) {}
    /// The release of a block is revoked, because its `realloc` failed.
    #[inline(always)]
    fn reinstated(&mut self, _block: &BlockOf, _by: ReleaseBy) {}
    /// A release had an address without a known block: the block is from before the attach, or its allocation arrives
    /// later.
    #[inline(always)]
    fn unknown_released(&mut self, _address: u64, _by: ReleaseBy) {}
    /// The number of live bytes has reached a new maximum in this pass.
    #[inline(always)]
    fn maximum(&mut self) {}
    /// Reports the reads and writes of a block. Its release, which comes later, has this number
    /// ([`ReleaseBy::accesses`]).
    #[inline(always)]
    fn accesses(&mut self, _number: u32, _accesses: &Accesses) {}
    /// Reports the reads and writes of a block that is live at the end.
    #[inline(always)]
    fn live_accesses(&mut self, _accesses: &Accesses) {}
    /// Ends a pass. `most_bytes`: highest number of live bytes in the pass, counted as for
    /// [`Totals::peak_live_bytes`](crate::Totals). `within`: true if that number was reached at the last
    /// [`Observer::maximum`], false if it is reached now.
    #[inline(always)]
    fn end_pass(&mut self, _now_ns: u64, _most_bytes: u64, _within: bool) {}
}

impl Observer for () {
    const IS_NONE: bool = true;
    #[inline(always)]
    fn more_pairs(&mut self, _block: &BlockOf, _stack: u32, _by: ReleaseBy, _count: u64) {}
}
