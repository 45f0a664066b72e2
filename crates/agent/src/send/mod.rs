//! Sends profiles to their destinations. One thread encodes profiles and queues them on disk, and
//! each store has a thread that sends them. A slow disk or network therefore never delays a target.

mod backlog;
mod files;
mod otlp;
mod pyroscope;
mod queue;
mod store;

use crate::board::{Board, Identity};
use crate::config::{Destination, File};
use crate::http_client::ClientError;
use crate::said::warn;
use files::Directory;
use memhook_foreign::OwnDirectory;
use memhook_report::{Profile, ProfileFrame, ProfileSite};
pub use queue::give_up_oldest;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use store::{Encode, Store};

/// Maximum memory of profiles that wait to be encoded, as [`weight`] computes it. All targets may
/// make a profile simultaneously. Most profiles have a few dozen sites, and the largest are a
/// thousand times as large.
const MOST_WAITING_BYTES: usize = 64 << 20;

/// Directory, inside the state directory, for profiles that were kept because memory was about to
/// run out, and the maximum number and total bytes of these profiles.
const BLACK_BOX: &str = "blackbox";
const MOST_KEPT: u32 = 50;
const MOST_KEPT_BYTES: u64 = 32 << 20;

/// A profile that was made.
pub struct Made {
    /// The profile.
    pub profile: Profile,
    /// Identity of the process.
    pub identity: Arc<Identity>,
    /// Its destinations.
    pub to: Vec<Destination>,
    /// Keyword for the reason to keep the profile; set if memory was about to run out.
    pub kept_for: Option<&'static str>,
}

/// Labels of every profile of this host.
#[derive(Clone, Debug, Default)]
pub struct Common {
    /// The name of the host.
    pub host: String,
    /// Configured labels.
    pub labels: Vec<(String, String)>,
}

/// Queue of profiles, which never waits.
#[derive(Clone)]
pub struct Outbox {
    to: Sender<Made>,
    waiting_bytes: Arc<AtomicUsize>,
    board: Arc<Board>,
}

impl Outbox {
    /// Queues a profile. If too many wait, the profile is dropped and counted.
    pub fn put(&self, made: Made) {
        let bytes = weight(&made.profile);
        let has_room = |waiting: usize| {
            let all = waiting.saturating_add(bytes);
            (waiting == 0 || all <= MOST_WAITING_BYTES).then_some(all)
        };
        let taken = self.waiting_bytes.fetch_update(Relaxed, Relaxed, has_room);
        let refused = match taken {
            Ok(_) => self.to.send(made).err().map(|error| error.0),
            Err(_) => Some(made),
        };
        for to in refused.into_iter().flat_map(|made| made.to) {
            self.board.deliveries(to).drop_one("busy");
        }
    }
}

/// Estimates the memory of a profile: its sites with their stacks, and its frames with their names.
fn weight(profile: &Profile) -> usize {
    let stacks: usize = profile.stacks.iter().map(|stack| 4 * stack.len()).sum();
    let sites = profile.sites.len() * size_of::<ProfileSite>();
    // Names and paths are separate strings.
    let frames = profile.frames.len() * (size_of::<ProfileFrame>() + 256);
    stacks + sites + frames
}

/// The threads that send.
pub struct Senders {
    outbox: Outbox,
    encoder: JoinHandle<()>,
    stores: Vec<Arc<Store>>,
    posters: Vec<JoinHandle<()>>,
}

/// Reason why profiles cannot be sent as configured.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// A directory cannot be used.
    #[error("cannot use the directory {}", path.display())]
    Directory {
        /// The directory.
        path: std::path::PathBuf,
        /// Reason.
        #[source]
        source: std::io::Error,
    },
    /// Requests to a store are impossible.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
}

/// Destinations of encoded profiles.
struct Encoder {
    files: Option<Directory>,
    /// The black box, opened when the first profile is kept.
    black_box: Option<Directory>,
    state: PathBuf,
    stores: Vec<(Destination, Arc<Store>)>,
    common: Common,
    redact: bool,
    waiting_bytes: Arc<AtomicUsize>,
    board: Arc<Board>,
}

impl Senders {
    /// Starts the threads. `state` is the directory under which queued profiles are stored.
    pub fn start(
        file: &File,
        state: &OwnDirectory,
        board: &Arc<Board>,
    ) -> Result<Senders, SendError> {
        let files = match &file.files {
            Some(files) => Some(Directory::new(files)?),
            None => None,
        };
        let common = common(file);
        let mut stores = Vec::new();
        let configured = [
            (Destination::Pyroscope, &file.pyroscope, Encode::Pyroscope),
            (Destination::Otlp, &file.otlp, Encode::Otlp),
        ];
        for (to, configured, encode) in configured {
            if let Some(configured) = configured {
                let store = Store::new(to, encode, configured.get_ref(), state, board)?;
                stores.push((to, Arc::new(store)));
            } else if let Some((queue, count)) = queue::left_for(state, to) {
                warn(&format!(
                    "{count} profiles wait for {}, which is no longer configured: they stay in {} until it is, or until that directory is removed",
                    to.name(),
                    queue.display()
                ));
            }
        }
        let (to, made) = channel();
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let encoder = Encoder {
            files,
            black_box: None,
            state: state.path().to_owned(),
            stores: stores.clone(),
            common,
            redact: file.agent.redact,
            waiting_bytes: Arc::clone(&waiting_bytes),
            board: Arc::clone(board),
        };
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let encoder = thread("encoder").spawn(move || encoder.run(&made));
        let mut posters = Vec::new();
        for (_, store) in &stores {
            let store = Arc::clone(store);
            let poster = thread("sender").spawn(move || store.run());
            posters.push(poster.map_err(SendError::Thread)?);
        }
        Ok(Senders {
            outbox: Outbox {
                to,
                waiting_bytes,
                board: Arc::clone(board),
            },
            encoder: encoder.map_err(SendError::Thread)?,
            stores: stores.into_iter().map(|(_, store)| store).collect(),
            posters,
        })
    }

    /// Returns a queue for profiles.
    pub fn outbox(&self) -> Outbox {
        self.outbox.clone()
    }

    /// Encodes the remaining profiles, and ends. Profiles that cannot be sent within moments stay
    /// on disk for the next start. All other outboxes must have been dropped.
    pub fn finish(self) {
        drop(self.outbox);
        let _ = self.encoder.join();
        self.stores.iter().for_each(|store| store.end());
        for poster in self.posters {
            let _ = poster.join();
        }
    }
}

/// Returns the host and the configured labels.
fn common(file: &File) -> Common {
    let host = rustix::system::uname();
    let labels = file.labels.iter().flat_map(|labels| labels.get_ref());
    Common {
        host: host.nodename().to_string_lossy().into_owned(),
        labels: labels
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    }
}

impl Encoder {
    fn run(mut self, made: &Receiver<Made>) {
        for made in made {
            let bytes = weight(&made.profile);
            self.encode_apart(made);
            self.waiting_bytes.fetch_sub(bytes, Relaxed);
        }
    }

    /// Encodes in a thread that ends immediately afterwards. A longer-lived thread would keep its
    /// last released blocks of each size (glibc's per-thread caches), and with them the pages
    /// around these blocks, which may be anywhere in the heap.
    fn encode_apart(&mut self, made: Made) {
        let mut left = Some(made);
        let thread = std::thread::Builder::new().name("encoder".into());
        std::thread::scope(|scope| {
            let work = || left.take().map(|made| self.encode(made));
            if let Ok(thread) = thread.spawn_scoped(scope, work)
                && thread.join().is_err()
            {
                warn("a profile is lost because of an internal error");
            }
        });
        // No thread is available.
        if let Some(made) = left {
            self.encode(made);
        }
    }

    /// Keeps a profile in the state directory.
    fn keep(&mut self, reason: &'static str, profile: &Profile, identity: &Identity) {
        if self.black_box.is_none() {
            let own = OwnDirectory::make(&self.state).and_then(|own| own.below(BLACK_BOX));
            let opened = own.and_then(|own| Directory::of(own, MOST_KEPT, MOST_KEPT_BYTES));
            match opened {
                Ok(directory) => self.black_box = Some(directory),
                Err(error) => {
                    let path = self.state.join(BLACK_BOX);
                    warn(&format!(
                        "no profile is kept in {}: {error}",
                        path.display()
                    ));
                }
            }
        }
        let Some(black_box) = &mut self.black_box else {
            return;
        };
        match black_box.put_for(reason, profile, identity) {
            Ok(()) => *self.board.agent().kept_profiles.entry(reason).or_default() += 1,
            Err(problem) => problem.iter().for_each(|problem| warn(problem)),
        }
    }

    fn encode(&mut self, made: Made) {
        let Made {
            profile,
            identity,
            to,
            kept_for,
        } = made;
        let profile = if self.redact {
            profile.without_directories()
        } else {
            profile
        };
        if let Some(reason) = kept_for {
            self.keep(reason, &profile, &identity);
        }
        for to in to {
            let deliveries = self.board.deliveries(to);
            if to == Destination::Files {
                let Some(files) = &mut self.files else {
                    continue;
                };
                match files.put(&profile, &identity) {
                    Ok(()) => deliveries
                        .sent
                        .fetch_add(1, std::sync::atomic::Ordering::Relaxed),
                    Err(problem) => {
                        deliveries.drop_one("disk");
                        if let Some(problem) = problem {
                            warn(&problem);
                        }
                        continue;
                    }
                };
            }
            if let Some((_, store)) = self.stores.iter().find(|(of, _)| *of == to) {
                store.put(&profile, &identity, &self.common);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(sites: usize) -> Made {
        let mut profile = Profile::default();
        profile.sites.resize(sites, ProfileSite::default());
        Made {
            profile,
            identity: Arc::default(),
            to: vec![Destination::Pyroscope],
            kept_for: None,
        }
    }

    /// Two thousand targets may all queue their profiles before the first profile is encoded.
    #[test]
    fn what_waits_is_bounded_by_its_size() {
        let board = Board::new();
        let (to, made_ones) = channel();
        let outbox = Outbox {
            to,
            waiting_bytes: Arc::default(),
            board: Arc::clone(&board),
        };
        let dropped = || {
            let dropped = board.deliveries(Destination::Pyroscope).dropped();
            dropped.get("busy").copied().unwrap_or(0)
        };
        for _ in 0..2000 {
            outbox.put(made(30));
        }
        assert_eq!(dropped(), 0);
        // This profile alone is larger than the limit for all waiting profiles, so it is refused.
        outbox.put(made(MOST_WAITING_BYTES / size_of::<ProfileSite>() + 1));
        assert_eq!(dropped(), 1);
        let encoder = Encoder {
            files: None,
            black_box: None,
            state: PathBuf::new(),
            stores: Vec::new(),
            common: Common::default(),
            redact: false,
            waiting_bytes: Arc::clone(&outbox.waiting_bytes),
            board: Arc::clone(&board),
        };
        let waiting_bytes = Arc::clone(&outbox.waiting_bytes);
        assert_ne!(waiting_bytes.load(Relaxed), 0);
        drop(outbox);
        encoder.run(&made_ones);
        assert_eq!((dropped(), waiting_bytes.load(Relaxed)), (1, 0));
    }
}
