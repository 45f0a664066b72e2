//! The queue between the thread that takes events and the thread that writes them.

use super::record::{EventsEnd, Lost};
use memhook_ledger::BlockOf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// Maximum number of records that wait for the reader: about 20 MB.
pub(super) const ROOM: usize = 1 << 18;

/// One event, before names are added.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item {
    Alloc {
        block: BlockOf,
        stack: u32,
    },
    Free {
        block: BlockOf,
        /// Thread and stack of the release, if it was seen.
        by: Option<(u16, u32)>,
        time_ns: u64,
    },
    Realloc {
        old: BlockOf,
        new: BlockOf,
        stack: u32,
    },
    Pairs {
        block: BlockOf,
        stack: u32,
        count: u64,
    },
    Lost(Lost),
    Gap {
        from_ns: u64,
        until_ns: u64,
    },
}

#[derive(Default)]
struct Waiting {
    items: Vec<Item>,
    end: Option<EventsEnd>,
}

/// Events on their way to a reader.
#[derive(Default)]
pub struct EventQueue {
    waiting: Mutex<Waiting>,
    has_come: Condvar,
    is_closed: AtomicBool,
    /// Number of steps that the writer has made.
    progress: AtomicU64,
}

impl EventQueue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Moves as much of a batch into the queue as fits. Never waits: if the writer has locked the
    /// queue, the batch is left for the next call. Returns the number of records moved.
    pub(super) fn offer(&self, batch: &mut Vec<Item>) -> usize {
        if self.is_closed() {
            let all = batch.len();
            batch.clear();
            return all;
        }
        let mut waiting = match self.waiting.try_lock() {
            Ok(waiting) => waiting,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return 0,
        };
        let room = ROOM.saturating_sub(waiting.items.len()).min(batch.len());
        waiting.items.extend(batch.drain(..room));
        drop(waiting);
        self.has_come.notify_one();
        room
    }

    /// Adds a gap, in which the process ran untraced.
    pub fn gap(&self, from_ns: u64, until_ns: u64) {
        self.note(Item::Gap { from_ns, until_ns });
    }

    /// Adds events that were lost before the drain thread could take them.
    pub fn lost_in_recording(&self, records: u64) {
        let mut lost = Lost::none(super::record::Why::Recording);
        lost.records = records;
        self.note(Item::Lost(lost));
    }

    fn note(&self, item: Item) {
        if !self.is_closed() {
            self.lock().items.push(item);
            self.has_come.notify_one();
        }
    }

    /// Ends the stream. Only the sums and `last`, for which there was no room, follow after this
    /// call.
    pub(super) fn finish(&self, last: &[Item], end: EventsEnd) {
        let mut waiting = self.lock();
        waiting.items.extend_from_slice(last);
        waiting.end = Some(end);
        drop(waiting);
        self.has_come.notify_one();
    }

    /// Takes the next records. If no more records follow, it also takes the sums.
    pub(super) fn take(&self) -> (Vec<Item>, Option<EventsEnd>) {
        let mut waiting = self.lock();
        while waiting.items.is_empty() && waiting.end.is_none() {
            waiting = self
                .has_come
                .wait(waiting)
                .unwrap_or_else(|e| e.into_inner());
        }
        (std::mem::take(&mut waiting.items), waiting.end.clone())
    }

    /// Marks the stream as closed by the reader.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Relaxed);
        self.lock().items = Vec::new();
    }

    /// Returns true if the reader has closed the stream.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    pub(super) fn advance(&self) {
        self.progress.fetch_add(1, Relaxed);
    }

    /// Waits until `is_done` returns true, as long as the writer makes progress within `patience`.
    /// Returns the last result of `is_done`.
    pub fn wait_while_it_moves(&self, patience: Duration, is_done: impl Fn() -> bool) -> bool {
        let (mut moved, mut progress) = (Instant::now(), self.progress.load(Relaxed));
        while !is_done() {
            let now = self.progress.load(Relaxed);
            if now != progress {
                (moved, progress) = (Instant::now(), now);
            } else if moved.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}
