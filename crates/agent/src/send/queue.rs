//! Requests that wait on disk until a store accepts them. Their number is limited by the
//! configuration and the free disk space. The oldest requests are dropped first.

use super::backlog::Queued;
use crate::config::Destination;
use memhook_foreign::OwnDirectory;
use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Read};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Suffix of the files' names.
const END: &str = ".push";

/// Directory of the queues, below the state directory.
pub const QUEUES: &str = "queue";
/// Reciprocal of the share of a disk that queues leave free, for the journal and for other users.
const FREE_SHARE: u64 = 16;
/// Bounds on those free bytes.
const LEAST_FREE: u64 = 64 << 10;
const MOST_FREE: u64 = 16 << 20;

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Time of queueing in milliseconds since 1970, made unique. It is the name of the file.
    stamp: u64,
    bytes: u64,
}

/// The queue.
pub struct Queue {
    directory: OwnDirectory,
    max_bytes: u64,
    max_age: Duration,
    waiting: VecDeque<Waiting>,
    bytes: u64,
}

/// Result of queueing a request: errors, and dropped requests.
#[derive(Debug, Default)]
pub struct Put {
    /// Number of requests that were dropped for lack of room.
    pub given_up: u64,
    /// Reason why the new request could not be written.
    pub error: Option<Error>,
}

fn name(stamp: u64) -> String {
    format!("{stamp:020}{END}")
}

fn now_ms() -> u64 {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH);
    unix.map_or(0, |time| time.as_millis() as u64)
}

/// Opens the directory of a queue in a state directory, if it exists. Does not open a link or
/// another user's directory in its place.
fn existing(state: &OwnDirectory, of: Destination) -> Option<OwnDirectory> {
    state.name(QUEUES).join(of.name()).is_dir().then_some(())?;
    directory(state, of).ok()
}

/// Opens or creates the directory of a queue below a state directory.
pub fn directory(state: &OwnDirectory, of: Destination) -> std::io::Result<OwnDirectory> {
    state.below(QUEUES)?.below(of.name())
}

/// Finds the queue that a previous run of the agent left for a store. Returns its directory and the
/// number of requests in it.
pub fn left_for(state: &OwnDirectory, of: Destination) -> Option<(PathBuf, usize)> {
    let queue = existing(state, of)?;
    let names = queue.entries().ok()?.map(|entry| entry.file_name());
    let count = names
        .filter(|name| name.to_string_lossy().ends_with(END))
        .count();
    (count > 0).then(|| (queue.path().to_owned(), count))
}

/// Drops the oldest request in any queue of a state directory. No queue may be open. Returns false
/// if there was no request.
pub fn give_up_oldest(state: &OwnDirectory) -> bool {
    let queues = Destination::ALL.into_iter();
    let queues = queues.filter_map(|of| existing(state, of));
    let oldest = |queue: OwnDirectory| {
        let names = queue
            .entries()
            .ok()?
            .filter_map(|entry| entry.file_name().into_string().ok());
        // A partial file belongs to a writer that was killed.
        let name = names
            .filter(|name| name.ends_with(END) || OwnDirectory::is_part(name))
            .min()?;
        Some((name, queue))
    };
    let found = queues.filter_map(oldest);
    found
        .min_by(|one, other| one.0.cmp(&other.0))
        .is_some_and(|(name, queue)| queue.remove(&name).is_ok())
}

impl Queue {
    /// Opens the queue, with the requests that a previous run of the agent left. Also returns how
    /// many of them were dropped because they exceed the limit.
    pub fn open(
        directory: OwnDirectory,
        max_bytes: u64,
        max_age: Duration,
    ) -> std::io::Result<(Queue, u64)> {
        let mut waiting = Vec::new();
        for entry in directory.entries()? {
            let name = entry.file_name().to_string_lossy().into_owned();
            let stamp = name.strip_suffix(END).and_then(|stamp| stamp.parse().ok());
            match (stamp, entry.metadata()) {
                (Some(stamp), Ok(metadata)) if metadata.is_file() => waiting.push(Waiting {
                    stamp,
                    bytes: metadata.len(),
                }),
                // This is a partial file, whose writer was killed.
                _ => drop(std::fs::remove_file(entry.path())),
            }
        }
        waiting.sort_by_key(|one| one.stamp);
        let mut queue = Queue {
            directory,
            max_bytes,
            max_age,
            bytes: waiting.iter().map(|one| one.bytes).sum(),
            waiting: waiting.into(),
        };
        let given_up = queue.make_room(0);
        Ok((queue, given_up))
    }

    /// Drops the oldest requests until there is space for `bytes` bytes. Returns the number of
    /// dropped requests.
    fn make_room(&mut self, bytes: u64) -> u64 {
        let mut given_up = 0;
        while (self.bytes + bytes > self.max_bytes || !self.disk_has(bytes))
            && self.give_up_oldest()
        {
            given_up += 1;
        }
        given_up
    }

    /// Returns true if `bytes` bytes fit on the disk without using the part that must stay free.
    /// Also returns true if the file system does not report its free space.
    fn disk_has(&self, bytes: u64) -> bool {
        let Ok(disk) = rustix::fs::statvfs(self.directory.name(".")) else {
            return true;
        };
        let all = disk.f_blocks.saturating_mul(disk.f_frsize);
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let stays = (all / FREE_SHARE).clamp(LEAST_FREE, MOST_FREE);
        all == 0 || free >= bytes.saturating_add(stays)
    }

    /// Returns the bytes of all waiting requests.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the contents of the queue.
    pub fn queued(&self) -> Option<Queued> {
        let (oldest, newest) = (self.waiting.front()?.stamp, self.waiting.back()?.stamp);
        Some(Queued {
            count: self.waiting.len(),
            oldest: Duration::from_millis(now_ms().saturating_sub(oldest)),
            stamps: (oldest, newest),
        })
    }

    /// Appends a request.
    pub fn put(&mut self, request: &[u8]) -> Put {
        let bytes = request.len() as u64;
        let mut put = Put::default();
        if bytes > self.max_bytes {
            put.error = Some(Error::other("it is larger than the whole queue"));
            return put;
        }
        // The disk is full, and new requests matter more than old ones.
        put.given_up = self.make_room(bytes);
        if !self.disk_has(bytes) {
            put.error = Some(Error::from(ErrorKind::StorageFull));
            return put;
        }
        let last = self.waiting.back().map_or(0, |one| one.stamp);
        let stamp = now_ms().max(last + 1);
        put.error = self.write(stamp, request).err();
        if put.error.is_none() {
            self.waiting.push_back(Waiting { stamp, bytes });
            self.bytes += bytes;
        }
        put
    }

    fn write(&self, stamp: u64, request: &[u8]) -> std::io::Result<()> {
        self.directory.write_whole(&name(stamp), request)
    }

    fn give_up_oldest(&mut self) -> bool {
        let oldest = self.waiting.front().copied();
        oldest.is_some_and(|oldest| self.remove(oldest))
    }

    /// Removes a request. Returns true if it existed.
    pub fn remove(&mut self, one: Waiting) -> bool {
        let Some(at) = self.waiting.iter().position(|other| *other == one) else {
            return false;
        };
        self.waiting.remove(at);
        self.bytes -= one.bytes;
        let _ = self.directory.remove(&name(one.stamp));
        true
    }

    /// Drops requests that are too old for the store to accept. Returns their number.
    pub fn expire(&mut self) -> u64 {
        let limit = now_ms().saturating_sub(self.max_age.as_millis() as u64);
        let mut expired = 0;
        while self
            .waiting
            .front()
            .is_some_and(|oldest| oldest.stamp < limit)
            && self.give_up_oldest()
        {
            expired += 1;
        }
        expired
    }

    /// Returns the oldest request, with its bytes. Drops requests that cannot be read.
    pub fn oldest(&mut self) -> Option<(Waiting, Vec<u8>)> {
        while let Some(&oldest) = self.waiting.front() {
            let mut bytes = Vec::new();
            let read = (self.directory)
                .read(&name(oldest.stamp))
                .and_then(|file| file.take(oldest.bytes).read_to_end(&mut bytes));
            if read.is_ok() && bytes.len() as u64 == oldest.bytes {
                return Some((oldest, bytes));
            }
            self.remove(oldest);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_bounded_and_survives() {
        let directory = std::env::temp_dir().join(format!("memhook-queue-{}", std::process::id()));
        let hour = Duration::from_secs(3600);
        let own = || OwnDirectory::make(&directory).expect("ours");
        let (mut queue, _) = Queue::open(own(), 100, hour).expect("made");
        for number in 0..12u8 {
            let put = queue.put(&[number; 10]);
            assert!(put.error.is_none());
            assert_eq!(put.given_up, u64::from(number >= 10));
        }
        assert_eq!(queue.bytes(), 100);
        let too_large = queue.put(&[0; 101]);
        assert!(too_large.error.is_some() && too_large.given_up == 0);
        for number in 0..3u8 {
            assert!(queue.put(&[number; 30]).error.is_none());
        }
        let (eleventh, bytes) = queue.oldest().expect("four");
        assert_eq!((bytes, queue.bytes()), (vec![11; 10], 100));
        assert!(queue.remove(eleventh));
        std::fs::write(directory.join("part"), "half").expect("written");
        drop(queue);
        let (mut queue, given_up) = Queue::open(own(), 100, hour).expect("there");
        assert_eq!(given_up, 0);
        assert_eq!(queue.bytes(), 90);
        assert!(!directory.join("part").exists());
        let (first, bytes) = queue.oldest().expect("three");
        assert_eq!(bytes, [0; 30]);
        assert!(queue.remove(first) && !queue.remove(first));
        let (second, _) = queue.oldest().expect("two");
        let metadata = std::fs::metadata(directory.join(name(second.stamp))).expect("there");
        let mode = std::os::unix::fs::MetadataExt::mode(&metadata);
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(directory.join(name(second.stamp)), "damaged").expect("written");
        assert_eq!(queue.oldest().expect("one").1, [2; 30]);
        let (mut queue, _) = Queue::open(own(), 100, Duration::ZERO).expect("there");
        // Stamps of requests that are queued within the same millisecond run ahead of the clock.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!((queue.expire(), queue.bytes()), (1, 0));
        assert_eq!(queue.oldest(), None);
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    /// The configured limit is lower than before, or the disk is full at startup.
    #[test]
    fn the_oldest_of_what_is_too_much_at_the_start_go() {
        let path = std::env::temp_dir().join(format!("memhook-queues-{}", std::process::id()));
        let state = OwnDirectory::make(&path).expect("made");
        let own = || directory(&state, Destination::Otlp).expect("ours");
        assert_eq!(left_for(&state, Destination::Otlp), None);
        let hour = Duration::from_secs(3600);
        let (mut queue, _) = Queue::open(own(), 100, hour).expect("made");
        for number in 0..9u8 {
            assert!(queue.put(&[number; 10]).error.is_none());
        }
        drop(queue);
        let (mut queue, given_up) = Queue::open(own(), 35, hour).expect("there");
        assert_eq!((given_up, queue.bytes()), (6, 30));
        assert_eq!(queue.oldest().expect("three").1, [6; 10]);
        drop(queue);
        let queues = path.join(QUEUES);
        assert_eq!(
            left_for(&state, Destination::Otlp),
            Some((queues.join("otlp"), 3))
        );
        assert!(give_up_oldest(&state));
        let (mut queue, _) = Queue::open(own(), 100, hour).expect("there");
        assert_eq!(queue.oldest().expect("two").1, [7; 10]);
        drop(queue);
        assert!(give_up_oldest(&state) && give_up_oldest(&state) && !give_up_oldest(&state));
        std::fs::remove_dir_all(&path).expect("removed");
    }
}
