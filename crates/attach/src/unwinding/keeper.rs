//! Thread that reads and writes unwind tables on disk.
//!
//! The user's home directory may be slow or unresponsive: on a network file system whose server is gone, calls fail
//! only after minutes. An attach, the end of a trace, and our own exit must not wait for the disk longer than
//! [`PATIENCE`]. So one thread of this process does all such work, and other threads stop waiting if it does not
//! answer.

use super::cache::{Key, TableCache, decode};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use memhook_unwind::UnwindTable;
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Longest wait for the disk, for all requests together, and again at the end.
const PATIENCE: Duration = Duration::from_secs(1);

/// Thread of this process.
static KEEPER: OnceLock<Option<TableKeeper>> = OnceLock::new();

enum Request {
    /// Requests the bytes that are stored under a key.
    Find(Key, Sender<Option<Vec<u8>>>),
    Keep(Vec<(Key, Arc<UnwindTable>)>),
    /// Answered when all earlier requests are done.
    Finish(Sender<()>),
}

/// Reads and writes stored tables.
pub struct TableKeeper {
    requests: Sender<Request>,
    /// True if tables wait to be written.
    has_work: AtomicBool,
    /// Microseconds spent waiting for answers. When they reach [`PATIENCE`], no more requests are made.
    waited_us: AtomicU64,
}

/// Returns the keeper of this process; `None` if its thread cannot be started.
pub fn table_keeper() -> Option<&'static TableKeeper> {
    KEEPER
        .get_or_init(|| TableKeeper::start(TableCache::of_user))
        .as_ref()
}

/// Returns true if the user's cache directory has answered all requests in time, and there was one.
pub fn caches_answer() -> bool {
    let keeper = KEEPER.get().and_then(Option::as_ref);
    keeper.is_some_and(|keeper| {
        let waited_us = keeper.waited_us.load(Relaxed);
        waited_us > 0 && Duration::from_micros(waited_us) < PATIENCE
    })
}

/// Waits until unwind tables for the next run are on disk, for at most a second. Call this at the end of a process that
/// has traced. The next run compiles tables that were not written.
pub fn finish_keeping_tables() {
    if let Some(Some(keeper)) = KEEPER.get() {
        keeper.finish();
    }
}

impl TableKeeper {
    /// The thread calls `cache`, because that reads the disk.
    fn start(cache: impl FnOnce() -> Option<TableCache> + Send + 'static) -> Option<TableKeeper> {
        let (requests, asked) = unbounded();
        let work = move || serve(&asked, cache());
        let thread = std::thread::Builder::new().name("tables".into());
        // The thread is never joined: it may never end.
        thread.spawn(work).ok()?;
        Some(TableKeeper {
            requests,
            has_work: AtomicBool::new(false),
            waited_us: AtomicU64::new(0),
        })
    }

    /// Returns the table that an earlier run has stored under this key.
    pub fn find(&self, key: &Key) -> Option<UnwindTable> {
        let waited = Duration::from_micros(self.waited_us.load(Relaxed));
        let left = PATIENCE
            .checked_sub(waited)
            .filter(|left| !left.is_zero())?;
        let begin = Instant::now();
        let bytes = self.ask(left, |reply| Request::Find(*key, reply));
        let waited_us = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.waited_us.fetch_add(waited_us, Relaxed);
        decode(&bytes??, key)
    }

    /// Stores tables for later runs; does not wait.
    pub fn keep(&self, tables: Vec<(Key, Arc<UnwindTable>)>) {
        self.has_work.store(true, Relaxed);
        let _ = self.requests.send(Request::Keep(tables));
    }

    fn finish(&self) {
        if self.has_work.swap(false, Relaxed) {
            self.ask(PATIENCE, Request::Finish);
        }
    }

    /// Returns the answer if it arrives in time.
    fn ask<T>(&self, wait: Duration, request: impl FnOnce(Sender<T>) -> Request) -> Option<T> {
        let (reply, answer) = bounded(1);
        self.requests.send(request(reply)).ok()?;
        answer.recv_timeout(wait).ok()
    }
}

fn serve(asked: &Receiver<Request>, cache: Option<TableCache>) {
    // A late answer has no receiver.
    for request in asked {
        match request {
            Request::Find(key, reply) => {
                let found = cache.as_ref().and_then(|cache| cache.read(&key));
                let _ = reply.send(found);
            }
            Request::Keep(tables) => {
                if let Some(cache) = &cache {
                    cache.keep(&tables);
                }
            }
            Request::Finish(reply) => {
                let _ = reply.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If a disk does not answer, only the first request waits for it.
    #[test]
    fn a_disk_that_never_answers_is_given_up() {
        let (end, never) = bounded::<()>(0);
        let keeper = TableKeeper::start(move || {
            let _ = never.recv();
            None
        })
        .unwrap();
        let bytes = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6").unwrap();
        let key = Key::of(&bytes).unwrap();
        assert!(keeper.find(&key).is_none());
        assert_eq!(keeper.requests.len(), 1, "it was asked");
        for _ in 0..100 {
            assert!(keeper.find(&key).is_none());
        }
        assert_eq!(keeper.requests.len(), 1, "nothing more was asked");
        keeper.keep(vec![(key, Arc::default())]);
        keeper.finish();
        keeper.finish();
        assert_eq!(keeper.requests.len(), 3, "the end is waited for once");
        drop(end);
    }
}
