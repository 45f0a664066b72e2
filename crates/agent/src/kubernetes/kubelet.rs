//! Requests this machine's pods from its kubelet, periodically and soon after a process in an
//! unknown pod appears.

use super::pod_list;
use super::pods::{Pod, Pods};
use crate::board::Board;
use crate::config::Kubernetes;
use crate::http_client::{Answer, Client, ClientError, Secret, Server};
use crate::said::warn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Path of the kubelet's list.
const PATH: &str = "/pods";
/// Maximum size of the list. A pod takes a few tens of kilobytes at most.
const MOST_BYTES: u64 = 64 << 20;
/// Minimum pause between two requests. It doubles after each request that finds no new pod.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The kubelet, as the supervisor sees it.
pub struct Kubelet(Arc<Asked>);

struct Asked {
    client: Client,
    refresh: Duration,
    board: Arc<Board>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    pods: Arc<Pods>,
    /// Number of lists that were read.
    lists: u64,
    /// True if a caller waits for a pod that is not in the last list.
    is_wanted: bool,
    ends: bool,
}

/// Requests the current pods once.
pub fn ask(configured: &Kubernetes) -> Result<Pods, String> {
    let client = client(configured).map_err(|error| crate::said::chain(&error))?;
    Ok(Pods::default().with(list(&client)?, Instant::now()))
}

/// Returns true if both configurations query the same kubelet with the same settings.
pub fn is_same_server(one: Option<&Kubernetes>, other: Option<&Kubernetes>) -> bool {
    let server = |of: &Kubernetes| {
        let of = of.clone();
        let (url, refresh) = (of.kubelet.into_inner(), of.refresh.into_inner());
        (url, refresh, of.token_file, of.ca, of.verify, of.timeout)
    };
    one.map(server) == other.map(server)
}

fn client(configured: &Kubernetes) -> Result<Client, ClientError> {
    Client::new(Server {
        url: configured.kubelet.get_ref(),
        path: PATH,
        headers: vec![("Accept", "application/json".into())],
        secret: configured.token_file.clone().map(Secret::Bearer),
        ca: configured.ca.as_deref(),
        verify: configured.verify,
        timeout: configured.timeout.0,
        comes_back: |_| true,
    })
}

fn list(client: &Client) -> Result<Vec<Pod>, String> {
    match client.get(MOST_BYTES) {
        Answer::Taken { body } => pod_list::read(&body),
        Answer::Later { why, .. } | Answer::Refused { why } => Err(why),
    }
}

impl Kubelet {
    /// Starts the thread that sends the requests.
    pub fn start(
        configured: &Kubernetes,
        board: &Arc<Board>,
    ) -> Result<Kubelet, crate::AgentError> {
        let asked = Arc::new(Asked {
            client: client(configured)?,
            refresh: configured.refresh.get_ref().0,
            board: Arc::clone(board),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let of_thread = Arc::clone(&asked);
        let thread = std::thread::Builder::new().name("kubelet".into());
        thread
            .spawn(move || of_thread.run())
            .map_err(crate::AgentError::Thread)?;
        Ok(Kubelet(asked))
    }

    /// Returns the pods, and the number of the list that they come from.
    pub fn pods(&self) -> (Arc<Pods>, u64) {
        let state = self.0.lock();
        (Arc::clone(&state.pods), state.lists)
    }

    /// Records that a process is in an unknown pod.
    pub fn wants_more(&self) {
        let mut state = self.0.lock();
        if !std::mem::replace(&mut state.is_wanted, true) {
            drop(state);
            self.0.changed.notify_all();
        }
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        // The thread is not joined, because it may be waiting for an answer from the kubelet.
        self.0.lock().ends = true;
        self.0.changed.notify_all();
    }
}

impl Asked {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let (mut pause, mut is_soon) = (FIRST_PAUSE, false);
        let mut fault: Option<String> = None;
        loop {
            let listed = list(&self.client);
            if self.lock().ends {
                return;
            }
            let has_failed = listed.is_err();
            let has_new = match listed {
                Ok(listed) => {
                    if fault.take().is_some() {
                        tracing::info!("the kubelet lists its pods again");
                    }
                    self.take(listed)
                }
                Err(why) => {
                    let mut agent = self.board.agent();
                    agent.pods.get_or_insert(0);
                    agent.pod_list_failures += 1;
                    drop(agent);
                    if fault.as_ref() != Some(&why) {
                        warn(&format!(
                            "the kubelet does not list its pods, and processes in pods that it has not listed are not traced: {why}"
                        ));
                        fault = Some(why);
                    }
                    false
                }
            };
            // A request that finds no new pod is repeated only after a longer pause.
            pause = match is_soon && !has_new {
                true => (pause * 2).min(self.refresh),
                false => FIRST_PAUSE,
            };
            match self.wait(pause, has_failed) {
                None => return,
                Some(soon) => is_soon = soon,
            }
        }
    }

    /// Stores a list. Returns true if it contains a new pod.
    fn take(&self, listed: Vec<Pod>) -> bool {
        let mut state = self.lock();
        let has_new = listed.iter().any(|pod| !state.pods.has(&pod.uid));
        state.pods = Arc::new(state.pods.with(listed, Instant::now()));
        state.lists += 1;
        let count = state.pods.count();
        drop(state);
        let mut agent = self.board.agent();
        agent.pods = Some(count as u64);
        agent.pod_lists += 1;
        has_new
    }

    /// Waits until the next request is due: after the pause if a caller is waiting for the answer,
    /// otherwise after a longer time. Returns true if a caller is waiting, and `None` when the
    /// agent shuts down.
    fn wait(&self, pause: Duration, has_failed: bool) -> Option<bool> {
        let begin = Instant::now();
        let mut state = self.lock();
        // Pods that were wanted before the last answer are first looked up in that answer.
        state.is_wanted = false;
        while !state.ends {
            let is_soon = state.is_wanted || has_failed;
            let all = if is_soon { pause } else { self.refresh };
            let left = all.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Some(is_soon);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }
}
