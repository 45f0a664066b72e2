//! One store. Requests wait in its queue, and a thread sends the oldest first.

use super::backlog::Backlog;
use super::queue::{QUEUES, Queue, directory};
use super::{Common, SendError, otlp, pyroscope};
use crate::board::{Board, Deliveries, Identity};
use crate::config::{Destination, Store as Configured};
use crate::http_client::{Answer, Client, Secret, Server};
use crate::said::warn;
use memhook_foreign::OwnDirectory;
use memhook_report::Profile;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Pause before the second attempt; doubled for each further attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);
/// Grace period for waiting requests at the end.
const LAST_SENDS: Duration = Duration::from_secs(3);

/// Encoding of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encode {
    /// Requests of Pyroscope.
    Pyroscope,
    /// Requests of OpenTelemetry collectors.
    Otlp,
}

impl Encode {
    /// Returns the configured store.
    fn server(self, configured: &Configured) -> Server<'_> {
        let (path, mut headers) = match self {
            Encode::Pyroscope => (pyroscope::PATH, pyroscope::headers()),
            Encode::Otlp => (otlp::PATH, otlp::headers()),
        };
        if let Some(tenant) = &configured.tenant {
            headers.push(("X-Scope-OrgID", tenant.get_ref().clone()));
        }
        let basic = configured
            .username
            .as_ref()
            .zip(configured.password_file.clone());
        let basic = basic.map(|(username, password)| Secret::Basic {
            username: username.get_ref().clone(),
            password,
        });
        Server {
            url: configured.url.get_ref(),
            path,
            headers,
            secret: basic.or_else(|| configured.token_file.clone().map(Secret::Bearer)),
            ca: configured.ca.as_deref(),
            verify: true,
            timeout: configured.timeout.0,
            comes_back: match self {
                Encode::Pyroscope => |status| matches!(status, 408 | 425 | 429 | 500..),
                // According to the OTLP specification ("Retryable response codes"), no other codes
                // are retryable.
                Encode::Otlp => |status| matches!(status, 429 | 502..=504),
            },
        }
    }

    fn encode(self, profile: &Profile, identity: &Identity, common: &Common) -> Vec<u8> {
        match self {
            Encode::Pyroscope => pyroscope::push(profile, identity, common),
            Encode::Otlp => otlp::request(profile, identity, common),
        }
    }

    /// Returns the part that the store rejected although it reported success for the request.
    fn refused(self, answer: &[u8]) -> Option<String> {
        match self {
            Encode::Pyroscope => None,
            Encode::Otlp => otlp::refused(answer),
        }
    }
}

/// A store.
pub struct Store {
    of: Destination,
    encode: Encode,
    client: Client,
    board: Arc<Board>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    queue: Queue,
    /// Deadline of the agent's end.
    ends: Option<Instant>,
    /// True if the disk has failed, and this was reported.
    disk_has_failed: bool,
}

impl Store {
    /// Creates a store, with the waiting requests of an earlier agent.
    pub fn new(
        of: Destination,
        encode: Encode,
        configured: &Configured,
        state: &OwnDirectory,
        board: &Arc<Board>,
    ) -> Result<Store, SendError> {
        let client = Client::new(encode.server(configured))?;
        let queue = directory(state, of)
            .and_then(|own| Queue::open(own, configured.queue.0, configured.max_age.0));
        let (queue, given_up) = queue.map_err(|source| SendError::Directory {
            path: state.path().join(QUEUES).join(of.name()),
            source,
        })?;
        if let Some(queued) = queue.queued() {
            tracing::info!(
                "{} profiles have waited for {}; they are sent to {}",
                queued.count,
                of.name(),
                configured.url.get_ref()
            );
        }
        for _ in 0..given_up {
            board.deliveries(of).drop_one("full");
        }
        let store = Store {
            of,
            encode,
            client,
            board: Arc::clone(board),
            state: Mutex::new(State {
                queue,
                ends: None,
                disk_has_failed: false,
            }),
            changed: Condvar::new(),
        };
        store.tell_waiting(&store.lock());
        Ok(store)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deliveries(&self) -> &Deliveries {
        self.board.deliveries(self.of)
    }

    fn tell_waiting(&self, state: &State) {
        let bytes = state.queue.bytes();
        self.deliveries().waiting_bytes.store(bytes, Relaxed);
    }

    /// Puts a profile into the queue.
    pub fn put(&self, profile: &Profile, identity: &Identity, common: &Common) {
        let request = self.encode.encode(profile, identity, common);
        let mut state = self.lock();
        let put = state.queue.put(&request);
        self.tell_waiting(&state);
        for _ in 0..put.given_up {
            self.deliveries().drop_one("full");
        }
        let has_failed = put.error.is_some();
        let is_new = !std::mem::replace(&mut state.disk_has_failed, has_failed);
        drop(state);
        self.changed.notify_all();
        if let Some(error) = put.error {
            self.deliveries().drop_one("disk");
            if is_new {
                warn(&format!(
                    "profiles for {} are lost: {error}",
                    self.of.name()
                ));
            }
        }
    }

    /// Asks the thread to end.
    pub fn end(&self) {
        self.lock().ends = Some(Instant::now() + LAST_SENDS);
        self.changed.notify_all();
    }

    /// Waits for the given time, or until the agent ends. Returns true if the agent ends.
    fn pause(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        let mut state = self.lock();
        while state.ends.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Sends until the agent ends.
    pub fn run(&self) {
        let mut pauses = Pauses::default();
        let mut backlog = Backlog::default();
        let mut fault = None;
        loop {
            let mut state = self.lock();
            for _ in 0..state.queue.expire() {
                self.deliveries().drop_one("age");
            }
            let next = state.queue.oldest();
            self.tell_waiting(&state);
            let ends = state.ends;
            let Some((waiting, request)) = next else {
                if ends.is_some() {
                    return;
                }
                // The thread waits until a request is queued, or the agent ends.
                let waited = self.changed.wait_timeout(state, Duration::from_secs(60));
                drop(waited);
                continue;
            };
            drop(state);
            if ends.is_some_and(|ends| Instant::now() >= ends) {
                return;
            }
            let answer = match self.client.post(&request) {
                Answer::Taken { body } => match self.encode.refused(&body) {
                    Some(why) => Answer::Refused { why },
                    None => Answer::Taken { body },
                },
                answer => answer,
            };
            let mut pause = Duration::ZERO;
            let is_done = !matches!(answer, Answer::Later { .. });
            match answer {
                Answer::Taken { .. } | Answer::Refused { .. } => {
                    let mut state = self.lock();
                    state.queue.remove(waiting);
                    self.tell_waiting(&state);
                    pause = backlog.pause(state.queue.queued());
                }
                Answer::Later { .. } => {}
            }
            match answer {
                Answer::Taken { .. } => {
                    self.deliveries().sent.fetch_add(1, Relaxed);
                    pauses = Pauses::default();
                    if fault.take().is_some() {
                        tracing::info!("{} takes profiles again", self.of.name());
                    }
                }
                Answer::Refused { why } => {
                    self.deliveries().drop_one("refused");
                    self.tell(
                        &mut fault,
                        format!("refuses a profile, which is dropped: {why}"),
                    );
                }
                Answer::Later { why, after } => {
                    self.deliveries().retries.fetch_add(1, Relaxed);
                    self.tell(
                        &mut fault,
                        format!("takes no profiles, which wait on the disk: {why}"),
                    );
                    pause = pauses.next(after);
                }
            }
            if is_done {
                pause = pause.mul_f64(pauses.jitter());
            }
            if !pause.is_zero() && self.pause(pause) {
                // The rest waits for the next start.
                return;
            }
        }
    }

    /// Reports a problem, unless it was the last one reported.
    fn tell(&self, told: &mut Option<String>, what: String) {
        if told.as_ref() != Some(&what) {
            warn(&format!("{} {what}", self.of.name()));
            *told = Some(what);
        }
    }
}

/// Pauses before further attempts.
struct Pauses {
    next: Duration,
    random: u64,
}

impl Default for Pauses {
    fn default() -> Pauses {
        use std::hash::{BuildHasher, RandomState};
        Pauses {
            next: FIRST_PAUSE,
            // The generator is seeded by the system.
            random: RandomState::new().hash_one(0) | 1,
        }
    }
}

impl Pauses {
    /// Returns a random number from 0 to 1.
    fn share(&mut self) -> f64 {
        // The generator is xorshift64.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a random factor with a mean of 1, so that hosts that send a backlog are not
    /// synchronized.
    fn jitter(&mut self) -> f64 {
        0.5 + self.share()
    }

    /// Returns the next pause. The pause grows each time. It differs between hosts, so that they do
    /// not all return to a store at the same time after the store was down.
    fn next(&mut self, wanted: Option<Duration>) -> Duration {
        let pause = self.next.mul_f64(0.5 + 0.5 * self.share());
        self.next = (self.next * 2).min(LONGEST_PAUSE);
        match wanted {
            // The next attempt is made after the requested time, but not at exactly the same moment
            // on all hosts.
            Some(wanted) => wanted + pause.min(wanted.mul_f64(0.1) + FIRST_PAUSE),
            None => pause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_differ() {
        let (mut one, mut other) = (Pauses::default(), Pauses::default());
        let mut differ = false;
        for attempt in 0..20u32 {
            let (a, b) = (one.next(None), other.next(None));
            differ |= a != b;
            let most = (FIRST_PAUSE * 2u32.pow(attempt.min(12))).min(LONGEST_PAUSE);
            assert!(a >= most / 2 && a <= most, "{attempt}: {a:?}");
        }
        assert!(differ);
        let asked = Duration::from_secs(30);
        let pause = one.next(Some(asked));
        assert!(pause >= asked && pause <= asked.mul_f64(1.2));
    }
}
