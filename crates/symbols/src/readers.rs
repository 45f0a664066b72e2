//! Shared file readers for many symbolizers, each of which works on another process.
//!
//! The data read from a module takes ten times as much memory as all other data about a process, and the processes on a
//! host share a few programs and libraries. So each file is read only once, by its own thread. The total amount of data
//! is bounded: an idle reader drops its data as soon as another reader needs the space.
//!
//! Two files count as identical if their open descriptors have the same device, inode, size and change times. No
//! process can make its own files look like another's, whatever build-id and path they claim.

use crate::Frame;
use crate::file::Image;
use crate::files::{Files, Read};
use crossbeam_channel::{Receiver, Sender, bounded, select, unbounded};
use std::{
    collections::HashMap,
    os::unix::fs::MetadataExt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Readers of files, shared by all clones of this value.
#[derive(Clone, Debug)]
pub struct SharedReaders {
    room: Arc<Room>,
    known: Arc<Mutex<HashMap<Identity, Weak<Reader>>>>,
}

/// Identity of the module's own file, of the separate debug file, and of its supplementary file.
pub(crate) type Identity = [Option<[u64; 7]>; 3];

/// Returns the identity of open files. A process cannot set the change time of a file (inode(7), `st_ctime`). Returns
/// `None` for bytes that were read from the memory of a process.
pub(crate) fn identity(files: &Files) -> Option<Identity> {
    let mut all = [None; 3];
    for (to, image) in all.iter_mut().zip(files.images()) {
        match image {
            Some(Image::Parts { file, .. }) => {
                let found = file.metadata().ok()?;
                *to = Some([
                    found.dev(),
                    found.ino(),
                    found.len(),
                    found.mtime() as u64,
                    found.mtime_nsec() as u64,
                    found.ctime() as u64,
                    found.ctime_nsec() as u64,
                ]);
            }
            Some(Image::Bytes(_)) => return None,
            None => {}
        }
    }
    all.iter().any(Option::is_some).then_some(all)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedReaders {
    /// Creates readers that together take at most `most_bytes` bytes, according to the sizes in the files. Debug
    /// information beyond that is not read; names then come from symbol tables.
    pub fn within(most_bytes: u64) -> SharedReaders {
        SharedReaders {
            room: Arc::new(Room {
                most: AtomicU64::new(most_bytes),
                used: Mutex::default(),
                freed: Condvar::new(),
                turn: Mutex::default(),
                asks: bounded(1),
            }),
            known: Arc::default(),
        }
    }

    /// Sets another limit for further reading.
    pub fn set_limit(&self, most_bytes: u64) {
        self.room.most.store(most_bytes, Relaxed);
    }

    /// Returns the number of readers, including those that have not read anything.
    pub fn count(&self) -> usize {
        let known = lock(&self.known);
        known.values().filter(|r| r.strong_count() > 0).count()
    }

    /// Returns the reader of these files. It ends when its last owner drops it.
    pub(crate) fn reader(&self, files: Files) -> Arc<Reader> {
        let Some(identity) = identity(&files) else {
            return Arc::new(Reader::start(files, Arc::clone(&self.room)));
        };
        let mut known = lock(&self.known);
        if let Some(reader) = known.get(&identity).and_then(Weak::upgrade) {
            return reader;
        }
        known.retain(|_, reader| reader.strong_count() > 0);
        let reader = Arc::new(Reader::start(files, Arc::clone(&self.room)));
        known.insert(identity, Arc::downgrade(&reader));
        reader
    }
}

/// A request: addresses (svma), and a channel for the answer.
type Request = (Vec<u64>, Sender<Named>);

/// Answer to a request.
pub(crate) struct Named {
    /// Frames by svma.
    pub frames: Vec<(u64, Vec<Frame>)>,
    pub read: Read,
}

/// A thread that reads the files of one module, for as long as it has an owner.
#[derive(Debug)]
pub(crate) struct Reader {
    requests: Sender<Request>,
}

impl Reader {
    fn start(files: Files, room: Arc<Room>) -> Reader {
        let (requests, inbox) = unbounded();
        // If the thread could not be started or has panicked, its inbox is gone, and requests get no answer.
        let _ = std::thread::Builder::new()
            .name("names".into())
            .spawn(move || serve(files, &inbox, &room));
        Reader { requests }
    }

    /// Returns the names of addresses; `None` if damaged files have made the thread panic.
    pub fn names(&self, svmas: Vec<u64>) -> Option<Named> {
        let (to, answer) = bounded(1);
        self.requests.send((svmas, to)).ok()?;
        answer.recv().ok()
    }
}

fn serve(mut files: Files, inbox: &Receiver<Request>, room: &Room) {
    while let Ok(first) = inbox.recv() {
        let (symbols, debug) = files.bytes();
        let most = room.most.load(Relaxed);
        let all = symbols.saturating_add(debug);
        let place = room.take(if all <= most { all } else { symbols });
        files.read(most, |lookup, read| {
            let mut next = Some(first);
            while let Some((svmas, to)) = next {
                let frames = svmas.into_iter().map(|svma| (svma, lookup.frames(svma)));
                // The thread that asked may be gone.
                let frames = frames.collect();
                let read = read.clone().by(lookup);
                let _ = to.send(Named { frames, read });
                next = inbox.try_recv().ok().or_else(|| {
                    select! {
                        recv(inbox) -> request => request.ok(),
                        recv(room.asks.1) -> _ => None,
                    }
                });
            }
        });
        // The files are replaced by unread ones before the space is freed, because the cache of a file keeps its
        // contents until then.
        let Ok(unread) = files.unread() else {
            return;
        };
        files = unread;
        drop(place);
    }
}

/// Memory that all readers may use.
#[derive(Debug)]
struct Room {
    most: AtomicU64,
    used: Mutex<u64>,
    freed: Condvar,
    /// Held by the reader that is waiting for space. All other readers queue for this lock, even if they need little
    /// space.
    turn: Mutex<()>,
    /// Notifications that a reader is waiting for space. One idle reader takes each of them and drops its data.
    asks: (Sender<()>, Receiver<()>),
}

/// A part of the room, until this value is dropped.
struct Place<'r> {
    room: &'r Room,
    bytes: u64,
}

impl Room {
    /// Waits for space. A request for more than the total space gets all of it.
    fn take(&self, bytes: u64) -> Place<'_> {
        let _turn = lock(&self.turn);
        let mut used = lock(&self.used);
        while *used != 0 && used.saturating_add(bytes) > self.most.load(Relaxed) {
            // All readers may be busy now. The message waits for the first reader that becomes idle.
            let _ = self.asks.0.try_send(());
            let waited = self.freed.wait_timeout(used, Duration::from_secs(1));
            used = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        // The room is available, so the message is withdrawn.
        let _ = self.asks.1.try_recv();
        *used = used.saturating_add(bytes);
        Place { room: self, bytes }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *lock(&self.room.used) -= self.bytes;
        self.room.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_is_never_overfull() {
        let readers = SharedReaders::within(100);
        let room = &readers.room;
        std::thread::scope(|scope| {
            for bytes in [60, 50, 100, 300, 41, 60] {
                scope.spawn(move || {
                    for _ in 0..50 {
                        let place = room.take(bytes);
                        let used = *lock(&room.used);
                        assert!(used <= 100 || used == bytes, "{used}");
                        drop(place);
                    }
                });
            }
        });
        assert_eq!(*lock(&room.used), 0);
    }

    #[test]
    fn who_waits_asks_for_room() {
        let readers = SharedReaders::within(100);
        let room = &readers.room;
        let first = room.take(60);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(room.take(60)));
            // This represents an idle reader.
            room.asks.1.recv().expect("it asks");
            assert!(!waiting.is_finished());
            drop(first);
        });
        // Without a request, no reader drops its data.
        let _third = room.take(10);
        assert!(room.asks.1.is_empty());
    }
}
