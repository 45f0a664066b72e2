//! The events of each thread, and what is known of a release only with the next of them: whether `realloc` has exchanged
//! the chunk for a larger one.

use super::groups::GroupId;
use super::runs::Chain;

/// A chunk that was released.
pub(super) struct Release {
    pub site: u32,
    pub group: GroupId,
    pub size: u64,
    pub lifetime_ns: u64,
    /// `realloc` has released it. What `free` has released is no part of a chain, whatever comes next.
    pub by_realloc: bool,
    /// The chain of `realloc` that has led to it.
    pub chain: Option<Box<Chain>>,
}

/// A release of which all is known.
pub(super) struct Settled {
    pub release: Release,
    pub is_outgrown: bool,
}

/// The events of a thread.
#[derive(Default)]
struct Events {
    /// The last of them, if it released a chunk.
    unsettled: Option<Release>,
}

/// Events of all threads.
#[derive(Default)]
pub(super) struct Threads(Vec<Events>);

impl Threads {
    /// Takes what the next event of a thread shows about the release before it. `reallocated`: the event is that
    /// `realloc` has returned a block of this size.
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

    /// The last event of a thread released a chunk.
    pub fn released(&mut self, thread: u16, release: Release) {
        self.0[usize::from(thread)].unsettled = Some(release);
    }

    /// No thread has any more events.
    pub fn finish(&mut self) -> Vec<Settled> {
        let last = self.0.iter_mut().filter_map(|of| of.unsettled.take());
        let settled = last.map(|release| Settled {
            release,
            is_outgrown: false,
        });
        settled.collect()
    }
}
