//! Journal of attached processes on disk. It is written before each attach. After an agent was
//! killed and restarted, it finds every process that it had left attached.

use memhook_foreign::OwnDirectory;
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Name of the journal.
const JOURNAL: &str = "attached";
/// Maximum size of the journal. It is larger than any agent's targets require.
const MOST_BYTES: u64 = 1 << 20;
/// A file that reserves room for the journal. The journal uses that room if the disk is full.
const RESERVE: &str = "reserve";
/// Sizes for the reserve file, of which the largest that fits is used. The first size is sufficient
/// for two journals of a thousand targets, because the new journal is written next to the old one.
const RESERVES: [usize; 3] = [64 << 10, 32 << 10, 16 << 10];

/// Reason why the directory of the agent's state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The directory cannot be created or written.
    #[error("cannot use the state directory {}: set state in [agent] to a writable directory of this user", path.display())]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// Reason.
        #[source]
        source: std::io::Error,
    },
    /// Another agent uses the directory.
    #[error("another agent runs with the state directory {}: end it first, or give this one another state directory", path.display())]
    Taken {
        /// The directory.
        path: PathBuf,
    },
}

/// The state directory, locked until this value is dropped.
pub struct State {
    directory: OwnDirectory,
    lock: File,
    attached: BTreeMap<i32, u64>,
    /// True if a write has failed, and this was reported.
    has_failed: bool,
}

impl State {
    /// Locks the directory, creating it if it is missing. Returns the processes that a previous run
    /// of the agent left attached, with their ids and start times. Calls `make_room` while the disk
    /// is full. `make_room` returns true if it has removed something.
    pub fn take(
        directory: &Path,
        mut make_room: impl FnMut(&OwnDirectory) -> bool,
    ) -> Result<(State, BTreeMap<i32, u64>), StateError> {
        let unusable = |source| StateError::Unusable {
            path: directory.to_owned(),
            source,
        };
        // The directory contains names of functions and processes of all users, and its contents
        // are trusted, so no other user may access it.
        let own = OwnDirectory::make(directory).map_err(unusable)?;
        let lock = own.lasting_file("lock").map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StateError::Taken {
                    path: directory.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(unusable(source)),
        }
        let left = read(&own);
        let mut state = State {
            directory: own,
            lock,
            attached: left.clone(),
            has_failed: false,
        };
        let mut written = state.write();
        while written.as_ref().is_err_and(is_full) && make_room(&state.directory) {
            written = state.write();
        }
        written.map_err(unusable)?;
        // A smaller reserve is no reason to trace nothing.
        while !state.reserve() && make_room(&state.directory) {}
        Ok((state, left))
    }

    /// Returns the directory.
    pub fn directory(&self) -> &OwnDirectory {
        &self.directory
    }

    /// Records that a process is about to be attached to. After an error, the agent must not
    /// attach, because no later agent would find the process.
    pub fn attaches(&mut self, pid: i32, started: u64) -> std::io::Result<()> {
        if self.attached.insert(pid, started) == Some(started) {
            return Ok(());
        }
        self.write().inspect_err(|_| {
            self.attached.remove(&pid);
        })
    }

    /// Records that nothing of ours is left in a process, or that the process is gone. Returns a
    /// message if the record could not be written. In that case, the process is checked again after
    /// the next start, which does no harm.
    pub fn has_left(&mut self, pid: i32) -> Option<String> {
        self.attached.remove(&pid)?;
        match self.write() {
            Ok(()) => {
                self.has_failed = false;
                None
            }
            Err(error) => (!std::mem::replace(&mut self.has_failed, true))
                .then(|| format!("the list of attached processes cannot be written: {error}")),
        }
    }

    /// Writes the journal, into the reserved room if necessary.
    fn write(&mut self) -> std::io::Result<()> {
        let written = self.write_once();
        if !written.as_ref().is_err_and(is_full) || self.directory.remove(RESERVE).is_err() {
            return written;
        }
        let written = self.write_once();
        self.reserve();
        written
    }

    /// Reserves room for later writes. Returns true if there is enough.
    fn reserve(&self) -> bool {
        let reserved = std::fs::metadata(self.directory.name(RESERVE)).map_or(0, |file| file.len());
        let larger = RESERVES.into_iter().filter(|size| *size as u64 > reserved);
        for size in larger {
            // The file must have no holes, and its contents must not be compressible by the file
            // system.
            let filler: Vec<u8> = (0..size as u32)
                .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
                .collect();
            if self.directory.write_whole(RESERVE, &filler).is_ok() {
                return size == RESERVES[0];
            }
        }
        reserved >= RESERVES[0] as u64
    }

    /// Replaces the file atomically, so that it is always complete.
    fn write_once(&mut self) -> std::io::Result<()> {
        let lines = self
            .attached
            .iter()
            .map(|(pid, started)| format!("{pid} {started}\n"));
        let text: String = lines.collect();
        self.directory.write_whole(JOURNAL, text.as_bytes())
    }
}

impl Drop for State {
    /// Unlocks the directory. A forked child that has not executed its program yet also has the
    /// file open, and would keep the lock (flock(2)).
    fn drop(&mut self) {
        let _ = self.lock.unlock();
    }
}

/// Returns true if a write failed because the disk, or the user's quota, is full.
pub fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

/// Reads the journal. If anything else is in its place, such as a link, it is ignored and later
/// replaced.
fn read(directory: &OwnDirectory) -> BTreeMap<i32, u64> {
    let mut bytes = Vec::new();
    if let Ok(file) = directory.read(JOURNAL) {
        // A readable part is better than nothing.
        let _ = file.take(MOST_BYTES).read_to_end(&mut bytes);
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().filter_map(|line| {
        let (pid, started) = line.split_once(' ')?;
        Some((pid.parse().ok()?, started.parse().ok()?))
    });
    lines.filter(|(pid, _)| *pid > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_attached_is_found_again() {
        let directory =
            std::env::temp_dir().join(format!("memhook-journal-{}", std::process::id()));
        let (mut state, left) = State::take(&directory, |_| false).expect("it can be made");
        assert!(left.is_empty());
        assert!(matches!(
            State::take(&directory, |_| false),
            Err(StateError::Taken { .. })
        ));
        state.attaches(7, 100).expect("written");
        state.attaches(8, 200).expect("written");
        assert_eq!(state.has_left(7), None);
        drop(state);
        let (state, left) = State::take(&directory, |_| false).expect("free again");
        assert_eq!(left, BTreeMap::from([(8, 200)]));
        drop(state);
        std::fs::write(directory.join("attached"), "8 200\nnot a line\n-1 5\n9 x\n")
            .expect("written");
        let (_, left) = State::take(&directory, |_| false).expect("damage does no harm");
        assert_eq!(left, BTreeMap::from([(8, 200)]));
        // A link to a plausible journal is ignored, and the file that it points to stays unchanged.
        let (journal, other) = (
            directory.join("attached"),
            directory.with_extension("other"),
        );
        std::fs::rename(&journal, &other).expect("moved");
        std::os::unix::fs::symlink(&other, &journal).expect("linked");
        let before = std::fs::read(&other).expect("there");
        let (mut state, left) = State::take(&directory, |_| false).expect("it does no harm");
        assert!(left.is_empty());
        state.attaches(9, 300).expect("written");
        assert!(!journal.is_symlink());
        assert_eq!(std::fs::read(&other).expect("there"), before);
        drop(state);
        std::fs::remove_file(&other).expect("removed");
        std::fs::remove_dir_all(&directory).expect("removed");
        // If other users can write to the directory, its contents may come from them, and writes
        // may be redirected.
        std::fs::create_dir(&directory).expect("made");
        let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        std::fs::set_permissions(&directory, open_to_all).expect("ours");
        assert!(matches!(
            State::take(&directory, |_| false),
            Err(StateError::Unusable { .. })
        ));
        std::fs::remove_dir_all(&directory).expect("removed");
        let file = directory.with_extension("file");
        std::fs::write(&file, "").expect("written");
        assert!(matches!(
            State::take(&file, |_| false),
            Err(StateError::Unusable { .. })
        ));
        std::fs::remove_file(&file).expect("removed");
    }
}
