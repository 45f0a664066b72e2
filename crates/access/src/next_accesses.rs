//! The next accesses, by any thread, to words that a caller selects.
//!
//! Unlike [`Watcher`](crate::Watcher), this has no overhead budget. Each reported access costs the
//! thread a trap, and a thread with a watchpoint pays a cost whenever it is scheduled. There is no
//! cost while no word is watched.

use crate::error::Error;
use crate::measure::watchpoints;
use crate::watched_threads::{WatchedThreads, WatchedWord};
use memhook_inject::{Access, Width};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time between two searches for new threads.
const FOLLOW: Duration = Duration::from_millis(20);
/// Maximum number of watched threads. Each takes file descriptors and locked memory.
const MOST_THREADS: usize = 1000;

/// Words of one process whose next accesses are reported.
pub struct NextAccesses {
    threads: WatchedThreads,
    slots: usize,
    sees_kernel: bool,
    /// Watched words by address, with the time since which each is watched.
    words: BTreeMap<u64, (u64, WatchedWord)>,
    followed: Option<Instant>,
}

impl NextAccesses {
    /// Prepares to watch a process, with no watched words yet.
    ///
    /// # Errors
    /// Fails with [`Error::NoEvidence`] if there are no hardware watchpoints, or no permission to
    /// use them.
    pub fn start(pid: i32) -> Result<NextAccesses, Error> {
        let none = |error: std::io::Error| Error::NoEvidence {
            pid,
            why: format!("no hardware watchpoints ({error})"),
        };
        let sees_kernel = watchpoints().map_err(none)?;
        let threads = WatchedThreads::of(pid, sees_kernel, MOST_THREADS);
        let slots = threads.slots().map_err(none)?;
        Ok(NextAccesses {
            threads,
            slots,
            sees_kernel,
            words: BTreeMap::new(),
            followed: None,
        })
    }

    /// Returns how many more words can be watched.
    pub fn free_slots(&self) -> usize {
        self.slots.saturating_sub(self.words.len())
    }

    /// Returns true if accesses by the kernel on behalf of the process are seen.
    pub fn sees_kernel(&self) -> bool {
        self.sees_kernel
    }

    /// Returns true if any word is watched.
    pub fn is_watching(&self) -> bool {
        !self.words.is_empty()
    }

    /// Watches the word at `address`, a multiple of eight, in all threads. Returns true if any
    /// thread is watched. A word has only one watch at a time.
    pub fn watch(&mut self, address: u64, only_writes: bool) -> bool {
        if self.free_slots() == 0 || self.words.contains_key(&address) {
            return false;
        }
        self.follow();
        let width = if only_writes {
            Width::WordWrites
        } else {
            Width::Word
        };
        let since_ns = memhook_stream::monotonic_ns();
        let Some(word) = self.threads.watch(address, width) else {
            return false;
        };
        self.words.insert(address, (since_ns, word));
        true
    }

    /// Removes the watchpoints of a word.
    pub fn forget(&mut self, address: u64) {
        self.words.remove(&address);
        if self.words.is_empty() {
            self.threads.rest();
            self.followed = None;
        }
    }

    /// Makes the watch on an accessed word fire again at this thread's next access. Until this
    /// call, or until the word is forgotten, only accesses by other threads are reported.
    pub fn watch_again(&mut self, access: &Access) {
        if let Some((_, word)) = self.words.get(&access.address) {
            self.threads.arm_again(word, access.tid);
        }
    }

    /// Returns the accesses since the last call, sorted by time. Reports at most one access per
    /// word and thread. Call this every few milliseconds. Each call also starts to watch new
    /// threads.
    pub fn take(&mut self) -> Vec<Access> {
        if self.words.is_empty() {
            return Vec::new();
        }
        if self.followed.is_none_or(|at| at.elapsed() >= FOLLOW) {
            self.follow();
        }
        let mut found = self.threads.take();
        for (&address, (_, word)) in &mut self.words {
            let unrecorded = self.threads.take_unrecorded(word).into_iter();
            found.extend(unrecorded.map(|tid| Access {
                tid,
                address,
                time_ns: memhook_stream::monotonic_ns(),
                ..Access::default()
            }));
        }
        // A ring may still contain accesses to a word that has since been forgotten and may by now
        // be watched again.
        found.retain(|access| {
            let word = self.words.get(&access.address);
            word.is_some_and(|(since_ns, _)| access.time_ns >= *since_ns)
        });
        found.sort_by_key(|access| access.time_ns);
        found
    }

    fn follow(&mut self) {
        let words = self.words.values_mut();
        self.threads.follow(words.map(|(_, word)| word));
        self.followed = Some(Instant::now());
    }
}
