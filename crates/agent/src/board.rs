//! State of the agent and its targets. Working threads write it, and threads that answer requests
//! read it.

use crate::budget::{OwnUse, Scarce};
use crate::config::{Destination, Mode};
use crate::kept_advice::Given;
use crossbeam_channel::{Receiver, Sender, bounded};
use memhook_process::{Chosen, thread_processor_time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Time over which growth is reported.
const GROWTH_OVER: Duration = Duration::from_secs(60);

/// Identity of a target, for metrics and stores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub started: u64,
    /// Rule that chose the process.
    pub rule: String,
    /// Name of the service, from the rule or from the program.
    pub service: String,
    /// Program of the process.
    pub process: String,
    /// Version of the service, from the rule.
    pub version: String,
    /// Namespace of the process's pod, or empty.
    pub namespace: String,
    /// Name of the process's pod, or empty.
    pub pod: String,
    /// Id of the process's pod, or empty.
    pub pod_uid: String,
    /// Id of the process's container, or empty.
    pub container: String,
    /// Name of the process's container, or empty.
    pub container_name: String,
    /// Kind and name of the object that the pod belongs to, or empty.
    pub workload_type: String,
    pub workload: String,
}

impl Identity {
    /// Returns the process that was chosen.
    pub fn chosen(&self) -> Chosen {
        Chosen {
            pid: self.pid,
            started: Some(self.started),
        }
    }
}

/// The numbers of one target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Numbers {
    /// Live bytes and blocks.
    pub live: (u64, u64),
    /// Allocated bytes and blocks since the attach.
    pub allocated: (u64, u64),
    /// Standard errors of the live and of the allocated bytes; `None` if they are exact.
    pub errors: Option<(u64, u64)>,
    /// Change of the live bytes per minute.
    pub growth_per_minute: f64,
    /// Events that were lost.
    pub lost: u64,
    /// Number of libraries that were opened before they could be patched.
    pub unwatched_libraries: u64,
    /// Number of periods in which the target ran untraced, and their total in seconds.
    pub gaps: (u64, f64),
    /// Unreachable bytes and blocks; `None` before the first search.
    pub unreachable: Option<(u64, u64)>,
    /// Number of searches, and the total time for which they held all threads, in seconds.
    pub scans: u64,
    pub scan_held: f64,
    /// Result of reclaiming; `None` unless the rule asks for it.
    pub reclaimed: Option<Reclaimed>,
    /// Advice on the target; `None` unless the rule asks for it.
    pub advised: Option<Advised>,
    /// Current mean bytes between samples; 0 if every allocation is recorded.
    pub sample_bytes: u64,
    /// Duration of the attach, and of its hold of a thread, in seconds.
    pub attach: (f64, f64),
    /// Number of profiles made.
    pub profiles: u64,
    /// Bytes in memory.
    pub resident: u64,
    /// Bytes of each part of the account; empty unless the rule asks for it.
    pub resident_parts: Vec<(&'static str, u64)>,
    /// Classes of blocks that pin the most memory; empty unless the rule asks for them.
    pub pins: Vec<Pin>,
    /// Tightest memory limit that applies to the target, and the bytes still free below it; 0 if
    /// only the machine limits it.
    pub limit: (u64, u64),
}

/// Result of reclaiming a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Value of the rule's key `reclaim`.
    pub how: &'static str,
    /// Number of attempts.
    pub rounds: u64,
    /// Bytes and blocks that the last attempt freed, or could have freed.
    pub reclaimable: (u64, u64),
    /// Bytes and blocks that all attempts have freed.
    pub freed: (u64, u64),
    /// Number of holds of one thread for reclaiming, their total time, and the longest.
    pub holds: u64,
    pub held: Duration,
    pub longest_hold: Duration,
    /// Number of attempts that could not free anything, or not everything, by reason.
    pub refusals: BTreeMap<&'static str, u64>,
    /// Reason for that in the last attempt.
    pub refused: Option<String>,
}

/// Advice on a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advised {
    /// Value of the rule's key `advise`.
    pub every: Duration,
    /// Number of attempts by this agent.
    pub attempts: u64,
    /// Number of attempts that led to advice.
    pub given: u64,
    /// The last advice, by this agent or a previous one.
    pub last: Option<Arc<Given>>,
    /// Total time for which one thread was held for the attaches.
    pub held: Duration,
    /// Number of attempts without advice, by reason.
    pub refusals: BTreeMap<&'static str, u64>,
    /// Reason why the last attempt gave no advice.
    pub refused: Option<String>,
}

/// A class of blocks that keeps the allocator from returning memory.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Pin {
    /// Type or size of the blocks.
    pub name: String,
    /// Number of blocks.
    pub own_blocks: u64,
    /// Usable bytes of the blocks.
    pub own_bytes: u64,
    /// Resident bytes that would be returned to the system if the blocks were freed and the heap
    /// trimmed.
    pub pinned_bytes: u64,
}

/// Activity of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The agent will attach to the target, now or as soon as there is room.
    Waiting,
    /// An attach is in progress.
    Attaching,
    /// The target is traced.
    Traced,
    /// The agent is detaching from it.
    Leaving,
    /// The target cannot be traced, for this reason. The agent will try again.
    Refused(String),
    /// The time that the rule allows for the target is over, or the agent left the target to save
    /// resources.
    Left(String),
}

impl Phase {
    /// Returns the phase's name in metrics and documents.
    pub fn name(&self) -> &'static str {
        match self {
            Phase::Waiting => "waiting",
            Phase::Attaching => "attaching",
            Phase::Traced => "traced",
            Phase::Leaving => "leaving",
            Phase::Refused(_) => "refused",
            Phase::Left(_) => "left",
        }
    }

    /// Names of all phases.
    pub const NAMES: [&str; 6] = [
        "waiting",
        "attaching",
        "traced",
        "leaving",
        "refused",
        "left",
    ];
}

/// A row of the board.
#[derive(Clone, Debug)]
pub struct Row {
    /// Identity of the process.
    pub identity: Arc<Identity>,
    /// Mode of the trace.
    pub mode: Mode,
    /// Current phase of the process.
    pub phase: Phase,
    /// Numbers of the process, once it is traced.
    pub numbers: Option<Numbers>,
}

/// State shared by the supervisor, the thread of a target, and the board.
#[derive(Debug)]
pub struct Link {
    is_wanted_back: AtomicBool,
    attached: OnceLock<Instant>,
    has_left: AtomicBool,
    numbers: Mutex<Option<Numbers>>,
    /// Threads that work only for this target.
    threads: Mutex<BTreeSet<i32>>,
    calls: (Sender<()>, Receiver<()>),
}

impl Default for Link {
    fn default() -> Link {
        Link {
            is_wanted_back: AtomicBool::default(),
            attached: OnceLock::new(),
            has_left: AtomicBool::default(),
            numbers: Mutex::default(),
            threads: Mutex::default(),
            // One wake-up is enough, because the receiving thread checks everything.
            calls: bounded(1),
        }
    }
}

impl Link {
    /// Wakes the thread.
    pub fn call(&self) {
        // If the channel is full, the thread has not received the last wake-up yet.
        let _ = self.calls.0.try_send(());
    }

    /// Returns the channel of calls, which must be emptied.
    pub fn calls(&self) -> &Receiver<()> {
        &self.calls.1
    }

    /// Asks the thread to detach.
    pub fn ask_back(&self) {
        self.is_wanted_back.store(true, Relaxed);
        self.call();
    }

    /// Returns true if the thread was asked to detach.
    pub fn is_asked_back(&self) -> bool {
        self.is_wanted_back.load(Relaxed)
    }

    /// Records that every slot has been patched.
    pub fn tell_attached(&self) {
        let _ = self.attached.set(Instant::now());
    }

    /// Returns true if the target is attached.
    pub fn is_attached(&self) -> bool {
        self.attached.get().is_some()
    }

    /// Returns the time since the attach.
    pub fn attached_for(&self) -> Option<Duration> {
        self.attached.get().map(Instant::elapsed)
    }

    /// Records that no thread of the process is held, and that nothing in the process is changed
    /// any longer.
    pub fn tell_left(&self) {
        self.has_left.store(true, Relaxed);
    }

    /// Returns true if the agent has left the process.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Relaxed)
    }

    /// Records that a thread works only for this target.
    pub fn tell_thread(&self, tid: i32) {
        lock(&self.threads).insert(tid);
    }

    /// Returns the processor time of those threads.
    pub fn used(&self) -> Duration {
        let threads = lock(&self.threads);
        threads
            .iter()
            .copied()
            .filter_map(thread_processor_time)
            .sum()
    }

    /// Publishes numbers.
    pub fn tell(&self, numbers: &Numbers) {
        *lock(&self.numbers) = Some(numbers.clone());
    }

    /// Returns the last numbers.
    pub fn numbers(&self) -> Option<Numbers> {
        lock(&self.numbers).clone()
    }
}

/// Outcomes of the profiles for one destination.
#[derive(Debug, Default)]
pub struct Deliveries {
    /// Number of delivered profiles.
    pub sent: AtomicU64,
    /// Number of retries.
    pub retries: AtomicU64,
    /// Bytes that wait to be sent.
    pub waiting_bytes: AtomicU64,
    /// Dropped profiles, by reason.
    dropped: Mutex<BTreeMap<&'static str, u64>>,
}

impl Deliveries {
    /// Counts a dropped profile.
    pub fn drop_one(&self, reason: &'static str) {
        *lock(&self.dropped).entry(reason).or_default() += 1;
    }

    /// Returns the numbers of dropped profiles, by reason.
    pub fn dropped(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.dropped).clone()
    }
}

/// State of the agent as a whole.
#[derive(Clone, Debug, Default)]
pub struct AgentState {
    /// Processors and memory used so far.
    pub used: OwnUse,
    /// Limits that currently hold the agent back.
    pub held_back: BTreeSet<Scarce>,
    /// Attaches that failed.
    pub failures: u64,
    /// Number of targets that were dropped to stay within the budget.
    pub shed: u64,
    /// True if the last configuration was refused, and an older one is in use.
    pub has_refused_configuration: bool,
    /// Number of refused configurations.
    pub refused_configurations: u64,
    /// True if the kernel reports new processes.
    pub has_events: bool,
    /// Number of profiles that were kept because memory was about to run out, or had run out, by
    /// reason.
    pub kept_profiles: BTreeMap<&'static str, u64>,
    /// Number of abandoned reads of targets' files, and of the threads that these reads still
    /// block.
    pub silent_files: u64,
    pub hung_readers: u64,
    /// Number of known pods; `None` if the agent does not ask the kubelet.
    pub pods: Option<u64>,
    /// Number of pod lists received from the kubelet, and of failures to get one.
    pub pod_lists: u64,
    pub pod_list_failures: u64,
}

/// State of the agent and of all targets.
pub struct Board {
    rows: Mutex<Vec<Row>>,
    agent: Mutex<AgentState>,
    deliveries: [(Destination, Deliveries); 3],
    /// Milliseconds from the start to the last step of the supervisor. It has no lock, so that
    /// reading it never waits.
    alive: AtomicU64,
    began: Instant,
}

impl Board {
    /// Creates an empty board.
    pub fn new() -> Arc<Board> {
        Arc::new(Board {
            rows: Mutex::default(),
            agent: Mutex::default(),
            deliveries: Destination::ALL.map(|destination| (destination, Deliveries::default())),
            alive: AtomicU64::new(0),
            began: Instant::now(),
        })
    }

    /// Replaces the rows.
    pub fn set_rows(&self, rows: Vec<Row>) {
        *lock(&self.rows) = rows;
    }

    /// Returns the rows.
    pub fn rows(&self) -> Vec<Row> {
        lock(&self.rows).clone()
    }

    /// Returns the state of the agent, locked for changes.
    pub fn agent(&self) -> MutexGuard<'_, AgentState> {
        lock(&self.agent)
    }

    /// Returns the deliveries to this destination.
    pub fn deliveries(&self, to: Destination) -> &Deliveries {
        let found = self
            .deliveries
            .iter()
            .find(|(destination, _)| *destination == to);
        // All destinations exist.
        found.map_or(&self.deliveries[0].1, |(_, deliveries)| deliveries)
    }

    /// Returns the deliveries to all destinations.
    pub fn all_deliveries(&self) -> impl Iterator<Item = &(Destination, Deliveries)> {
        self.deliveries.iter()
    }

    /// Records that the supervisor makes progress.
    pub fn tell_alive(&self) {
        self.alive.store(self.age().as_millis() as u64, Relaxed);
    }

    /// Returns the time since the supervisor last made progress.
    pub fn silent_for(&self) -> Duration {
        let alive = Duration::from_millis(self.alive.load(Relaxed));
        self.age().saturating_sub(alive)
    }

    /// Returns the time since the agent started.
    pub fn age(&self) -> Duration {
        self.began.elapsed()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Growth of a number of bytes.
#[derive(Debug, Default)]
pub struct Growth {
    points: VecDeque<(Duration, u64)>,
}

impl Growth {
    /// Records the number at this time. Returns its change per minute over the last minute, or over
    /// the recorded time if that is shorter.
    pub fn next(&mut self, now: Duration, bytes: u64) -> f64 {
        self.points.push_back((now, bytes));
        while self.points.len() > 2 && now.saturating_sub(self.points[1].0) >= GROWTH_OVER {
            self.points.pop_front();
        }
        let Some(&(then, before)) = self.points.front() else {
            return 0.0;
        };
        let seconds = now.saturating_sub(then).as_secs_f64();
        if seconds < 1.0 {
            return 0.0;
        }
        (bytes as f64 - before as f64) * 60.0 / seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_that_of_the_last_minute() {
        let mut growth = Growth::default();
        let mut last = 0.0;
        for second in 0..600u64 {
            // The number grows by 10 bytes a second for five minutes, and then stops.
            last = growth.next(Duration::from_secs(second), 10 * second.min(300));
            match second {
                0 => assert_eq!(last, 0.0),
                1..300 => assert_eq!(last, 600.0, "{second}"),
                _ => assert!(last <= 600.0),
            }
        }
        assert_eq!(last, 0.0);
        assert!(growth.points.len() < 70);
        assert_eq!(Growth::default().next(Duration::MAX, 5), 0.0);
    }
}
