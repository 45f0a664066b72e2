//! Notifications about each block, for those who need more than the sums.

use memhook_abi::Accesses;

/// A block, as the ledger knows it at its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockOf {
    /// Index of the allocation site: dense, in the order of appearance.
    pub site: u32,
    /// Index of the allocating thread, above 0; 0 stands for threads beyond 65,535.
    pub thread: u16,
    /// Address (avma).
    pub address: u64,
    /// Requested size in bytes.
    pub size: u64,
    /// Time of the allocation, nanoseconds since the attach, to the millisecond.
    pub time_ns: u64,
}

/// Where an allocation was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedSite {
    /// Index of the allocation site, as [`BlockOf::site`].
    pub index: u32,
    /// Its call stack; 0 for those that are counted together.
    pub stack: u32,
    /// Level of sampling of its allocations, as in [`SampledAllocations`](crate::SampledAllocations).
    pub level: u8,
}

/// A release that is known to be that of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseBy {
    /// Stack id of the release; 0 if release stacks are not recorded.
    pub stack: u32,
    /// Index of the releasing thread.
    pub thread: u16,
    /// True if `realloc` has released it, to return another block in its place.
    pub by_realloc: bool,
    /// Number that the event of the release carried in place of a size: the reader's number of the block's reads and
    /// writes; 0 if nothing is known.
    pub accesses: u32,
}

/// Gets a call for each block that comes and goes, in the order in which the ledger learns of it.
///
/// `()` observes nothing and costs nothing.
pub trait Observer {
    /// True if it observes nothing, so that nobody can see in which order the ledger learns of blocks.
    const IS_NONE: bool = false;
    /// Sets the time of the following events to `time_ns`, nanoseconds since the attach.
    #[inline(always)]
    fn at(&mut self, _time_ns: u64) {}
    /// So many allocations of this size were counted at a site. Comes also for blocks of which the ledger, at its bound,
    /// keeps only a part and tells nothing more.
    #[inline(always)]
    fn counted(&mut self, _site: CountedSite, _size: u64, _count: u64) {}
    /// A block was allocated. This call comes first, even if the release is known already.
    #[inline(always)]
    fn allocated(&mut self, _block: &BlockOf, _stack: u32) {}
    /// A block was released; `by` is `None` if that release was not seen, or is not known yet
    /// ([`Observer::corrected`]).
    #[inline(always)]
    fn released(&mut self, _block: &BlockOf, _by: Option<ReleaseBy>) {}
    /// Blocks like this one were allocated and released again one after the other, so many times.
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
    /// The release of a block is taken back: its `realloc` failed.
    #[inline(always)]
    fn reinstated(&mut self, _block: &BlockOf, _by: ReleaseBy) {}
    /// An address was released at which no known block lived: that of a block from before the attach, or of one
    /// whose allocation is seen later.
    #[inline(always)]
    fn unknown_released(&mut self, _address: u64, _by: ReleaseBy) {}
    /// At this moment more bytes live than before in this pass.
    #[inline(always)]
    fn maximum(&mut self) {}
    /// Reports the reads and writes of a block; its release, which comes later, carries this number
    /// ([`ReleaseBy::accesses`]).
    #[inline(always)]
    fn accesses(&mut self, _number: u32, _accesses: &Accesses) {}
    /// Reports the reads and writes of a block that is live at the end.
    #[inline(always)]
    fn live_accesses(&mut self, _accesses: &Accesses) {}
    /// A pass is over. `most_bytes`: the most live bytes of the pass, counted as for
    /// [`Totals::peak_live_bytes`](crate::Totals); `within`: they were there at the last
    /// [`Observer::maximum`], not now.
    #[inline(always)]
    fn end_pass(&mut self, _now_ns: u64, _most_bytes: u64, _within: bool) {}
}

impl Observer for () {
    const IS_NONE: bool = true;
    #[inline(always)]
    fn more_pairs(&mut self, _block: &BlockOf, _stack: u32, _by: ReleaseBy, _count: u64) {}
}
