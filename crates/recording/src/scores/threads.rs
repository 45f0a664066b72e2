//! The last event of each thread. Only a thread's next event reveals whether `realloc` has replaced
//! a released chunk with a larger one.

use super::groups::GroupId;
use super::runs::Chain;

/// A chunk that was released.
pub(super) struct Release {
    pub site: u32,
    pub group: GroupId,
    pub size: u64,
    pub lifetime_ns: u64,
    /// True if `realloc` released the chunk. A chunk that `free` released is not part of a chain,
    /// regardless of the next event.
    pub by_realloc: bool,
    /// The chain of `realloc` calls that led to the chunk.
    pub chain: Option<Box<Chain>>,
}

/// A release with all facts known.
pub(super) struct Settled {
    pub release: Release,
    pub is_outgrown: bool,
}

/// The events of a thread.
#[derive(Default)]
struct Events {
    /// The last event, if it released a chunk.
    unsettled: Option<Release>,
}

/// Events of all threads.
#[derive(Default)]
pub(super) struct Threads(Vec<Events>);

impl Threads {
    /// Processes a thread's next event, which completes the release before it. `reallocated` is the
    /// size of the block if the event is a `realloc` return.
    pub fn next_event(&mut self, thread: u16, reallocated: Option<u64>) -> Option<Settled> {
        let thread = usize::from(thread);
        if thread >= self.0.len() {
            self.0.resize_with(thread + 1, Events::default);
        }
        let release = self.0[thread].unsettled.take()?;
        Some(Settled {
            is_outgrown: release.by_realloc && reallocated.is_some_and(|size| size > release.size),
            release,
        })
    }

    /// Records that the last event of a thread released a chunk.
    pub fn released(&mut self, thread: u16, release: Release) {
        self.0[usize::from(thread)].unsettled = Some(release);
    }

    /// Ends all threads.
    pub fn finish(&mut self) -> Vec<Settled> {
        let last = self.0.iter_mut().filter_map(|of| of.unsettled.take());
        let settled = last.map(|release| Settled {
            release,
            is_outgrown: false,
        });
        settled.collect()
    }
}
