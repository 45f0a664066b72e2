//! The agent's main loop. It finds processes, attaches to those that the rules select as far as the budget allows, and
//! detaches from them.

mod departures;
mod finding;
mod leaving;
mod reloading;
mod sharing;

use crate::AgentError;
use crate::black_box::BlackBoxes;
use crate::board::{Board, Identity, Link};
use crate::budget::{Budget, OwnUse, Scarce, Verdict, machine_memory, processors};
use crate::config::{ConfigError, Experiments, File, Mode, Names, Rule};
use crate::facts::Machine;
use crate::journal::State;
use crate::kept_advice::KeptAdvice;
use crate::kubernetes::{Kubelet, Namespaces};
use crate::member::Member;
use crate::proc_events::ProcEvents;
use crate::reads::Question;
use crate::rules::Rules;
use crate::said::{chain, count_repeats, warn};
use crate::scanning::{Means, Searches};
use crate::send::{Outbox, Senders};
use crate::target_job::TargetJob;
use crate::worker::{Shared, Worker};
use departures::Departures;
pub use departures::Why;
use memhook_attach::{Lookout, SharedFiles, TraceConfig, kinship};
use memhook_inject::{reloads, stops};
use memhook_symbols::SharedReaders;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Maximum time between two rounds.
const ROUND: Duration = Duration::from_millis(100);
/// Length of a round while the agent is detaching from targets. Each detach makes room for another target.
const LEAVING_ROUND: Duration = Duration::from_millis(20);
/// Time between two checks of the agent's own use.
const JUDGE_PERIOD: Duration = Duration::from_secs(1);
/// Time between two trims of the agent's own heap. Data for name lookups is released in many arenas, and without a
/// trim, each arena would keep the memory.
const TRIM_PERIOD: Duration = Duration::from_secs(30);
/// Pause after a long round, to leave the processor to others.
const LEAST_PAUSE: Duration = Duration::from_millis(5);
/// Duration after which an attach counts as late. It must then be waiting for something.
const ATTACH_IS_LATE: Duration = Duration::from_secs(10);
/// Time limit for repairing what an earlier agent left behind in a process.
const RECOVERY: Duration = Duration::from_secs(20);
/// Reason why a process is not traced if its files cannot be read.
pub const SILENT: &str = "its files do not answer";
/// Minimum size of a ledger, which is enough for an estimate.
const LEAST_LEDGER: u64 = 4 << 20;

/// The supervisor.
pub struct Supervisor {
    path: PathBuf,
    experiments: Experiments,
    file: File,
    rules: Rules,
    machine: Machine,
    members: BTreeMap<i32, Member>,
    departures: Departures,
    /// State that the threads of all targets share.
    shared: Arc<Shared>,
    budget: Budget,
    verdict: Verdict,
    next_judge: Instant,
    next_trim: Instant,
    next_scan: Instant,
    next_show: Instant,
    events: Option<ProcEvents>,
    kubelet: Option<Kubelet>,
    /// Sequence number of the pod list that the latest scan of the machine used.
    pod_lists: u64,
    namespaces: Namespaces,
    state: State,
    /// Advice that outlives the agent; `None` if it cannot be stored.
    kept_advice: Option<Arc<KeptAdvice>>,
    board: Arc<Board>,
    senders: Senders,
    /// True if a target could not be restored completely.
    has_failed_to_restore: bool,
    reloads: u32,
}

impl Supervisor {
    /// Creates a supervisor without targets. `left` lists the processes to which an earlier agent was still attached.
    /// They are repaired first.
    pub fn new(
        (path, experiments): (PathBuf, Experiments),
        file: File,
        state: State,
        left: &BTreeMap<i32, u64>,
        board: Arc<Board>,
    ) -> Result<Supervisor, AgentError> {
        let senders = Senders::start(&file, state.directory(), &board)?;
        let (rate, memory) = bounds(&file);
        let now = Instant::now();
        let kubernetes = file.kubernetes.as_ref().map(toml::Spanned::get_ref);
        let kubelet = kubernetes.map(|configured| Kubelet::start(configured, &board));
        let kept_advice = KeptAdvice::open(state.directory());
        let kept_advice = kept_advice.inspect_err(|error| {
            warn(&format!("advice ends with this agent: {error}"));
        });
        let mut supervisor = Supervisor {
            path,
            experiments,
            rules: Rules::new(&file),
            file,
            machine: Machine::default(),
            members: BTreeMap::new(),
            departures: Departures::default(),
            shared: Arc::new(Shared {
                lookout: Lookout::start().map_err(AgentError::Thread)?,
                files: SharedFiles::default(),
                names: SharedReaders::within(names_memory(memory)),
                black_boxes: BlackBoxes::start().map_err(AgentError::Thread)?,
                one_scan: Mutex::default(),
                one_examination: Mutex::default(),
                is_held_back: AtomicBool::default(),
            }),
            budget: Budget::new(rate, memory),
            verdict: Verdict::Free,
            next_judge: now,
            next_trim: now + TRIM_PERIOD,
            next_scan: now,
            next_show: now,
            events: ProcEvents::listen().ok(),
            kubelet: kubelet.transpose()?,
            pod_lists: 0,
            namespaces: Namespaces::default(),
            state,
            kept_advice: kept_advice.ok().map(Arc::new),
            board,
            senders,
            has_failed_to_restore: false,
            reloads: reloads(),
        };
        supervisor.board.agent().has_events = supervisor.events.is_some();
        supervisor.put_right(left);
        Ok(supervisor)
    }

    /// Detaches from the processes of a killed agent.
    fn put_right(&mut self, left: &BTreeMap<i32, u64>) {
        for (&pid, &started) in left {
            // A hundred recoveries may take longer than the time after which the agent counts as hung.
            self.board.tell_alive();
            if memhook_process::thread_start_time(pid, pid) != Some(started) {
                self.forget(pid);
                continue;
            }
            let (to, from) = crossbeam_channel::bounded(1);
            // Another thread does this, because its reads of the process may never return.
            let recover = move || drop(to.send(memhook_attach::recover(pid)));
            let thread = std::thread::Builder::new().name("recovery".into());
            if thread.spawn(recover).is_err() {
                continue;
            }
            let Ok(recovered) = from.recv_timeout(RECOVERY) else {
                warn(&format!("process {pid} was left attached: {SILENT}"));
                continue;
            };
            match recovered {
                Ok(None) => {}
                Ok(Some(0)) => tracing::info!(
                    "detached from process {pid}, which an earlier agent had left attached"
                ),
                Ok(Some(count)) => {
                    warn(&format!(
                        "process {pid}: {count} slots of an earlier agent could not be restored; calls through them still run the inactive hook"
                    ));
                }
                // The process stays in the journal. If a rule selects it, the next attach repairs it.
                Err(error) => {
                    warn(&format!(
                        "process {pid} was left attached: {}",
                        chain(&error)
                    ));
                    continue;
                }
            }
            self.forget(pid);
        }
    }

    /// Records that nothing of ours is left in a process.
    fn forget(&mut self, pid: i32) {
        if let Some(message) = self.state.has_left(pid) {
            warn(&message);
        }
    }

    /// Works until a signal ends it.
    pub fn run(&mut self) {
        while stops() == 0 {
            let begin = Instant::now();
            self.board.tell_alive();
            self.reload();
            self.find(begin);
            self.collect(begin);
            self.end_durations();
            self.judge(begin);
            self.depart();
            self.attend(begin);
            // If processes start and end continuously, there are many rounds per second.
            if begin >= self.next_show {
                self.next_show = begin + ROUND;
                self.show();
            }
            self.wait(begin);
        }
    }

    /// Checks the agent's resource use, and drops a target if it is too high.
    fn judge(&mut self, now: Instant) {
        if now < self.next_judge {
            return;
        }
        self.next_judge = now + JUDGE_PERIOD;
        count_repeats(false);
        if now >= self.next_trim {
            self.next_trim = now + TRIM_PERIOD;
            memhook_inject::give_memory_back();
        }
        let used = OwnUse::now();
        self.verdict = self.budget.judge(now, used);
        let is_held_back = self.verdict != Verdict::Free;
        self.shared.is_held_back.store(is_held_back, Relaxed);
        self.board.agent().used = used;
        if let Verdict::Shed(scarce) = self.verdict {
            let name = scarce.name();
            let why = format!("the agent uses more {name} than it may");
            if self.shed_newest(&why, |_| true) {
                self.budget.has_shed(now);
            }
        }
        self.judge_namespaces(now);
    }

    /// Attaches to waiting processes, within the budget.
    fn attend(&mut self, now: Instant) {
        let mut held_back: BTreeSet<Scarce> = match self.verdict {
            Verdict::Free => BTreeSet::new(),
            Verdict::HoldBack(why) | Verdict::Shed(why) => BTreeSet::from([why]),
        };
        let most = *self.file.agent.max_targets.get_ref() as usize;
        let mut due: Vec<(u64, i32)> = self
            .members
            .values()
            .filter(|member| member.is_due(now))
            .map(|member| (member.identity.started, member.identity.pid))
            .collect();
        if due.is_empty() {
            self.tell_held_back(BTreeSet::new());
            return;
        }
        // The oldest processes come first, because they are the servers that start others.
        due.sort_unstable();
        let is_free = held_back.is_empty();
        for (_, pid) in due {
            if !is_free {
                break;
            }
            let workers = self.members.values();
            let workers = workers.filter_map(|member| Some((member, member.worker()?)));
            let (traced, attaching) = workers.fold((0, 0), |(all, new), (member, worker)| {
                // An attach that waits for an unresponsive file does not hold up others.
                let is_late = now.duration_since(member.since) > ATTACH_IS_LATE;
                (
                    all + 1,
                    new + usize::from(!is_late && !worker.link.is_attached()),
                )
            });
            if traced >= most {
                held_back.insert(Scarce::Targets);
                break;
            }
            // More simultaneous attaches would only slow each other down, and each holds a thread
            // of its target.
            if attaching >= processors() as usize {
                break;
            }
            match self.is_shared_out(pid) {
                true => drop(held_back.insert(Scarce::Namespace)),
                false if !self.attach(pid, now) => drop(held_back.insert(Scarce::Targets)),
                false => {}
            }
        }
        self.tell_held_back(held_back);
    }

    /// Begins an attach. Returns false if the rule is at its limit of targets.
    fn attach(&mut self, pid: i32, now: Instant) -> bool {
        let Some(member) = self.members.get(&pid) else {
            return true;
        };
        let (rule, identity) = (Arc::clone(&member.rule), Arc::clone(&member.identity));
        let of_rule = self.members.values().filter(|other| {
            other.worker().is_some() && other.rule.name.get_ref() == rule.name.get_ref()
        });
        if rule
            .max_targets
            .is_some_and(|most| of_rule.count() >= most as usize)
        {
            return false;
        }
        let config = rule.tracing(ledger_bytes(&self.file));
        let traced = self
            .members
            .iter()
            .filter(|(_, member)| member.worker().is_some());
        let is_kin = kinship(pid, traced.map(|(&pid, _)| pid)).is_some();
        let Some(member) = self.members.get_mut(&pid) else {
            return true;
        };
        if is_kin {
            member.wait_a_moment(now);
        } else if !member.is_cleared(now) {
            let question = Question::Obstacle(Box::new(config));
            match self.machine.ask(pid, question) {
                true => member.asked(),
                false => self.refused(pid, SILENT.into(), now),
            }
        } else if rule.mode == Mode::Scan {
            let is_inherited = member.is_inherited;
            self.begin_searches(pid, rule, is_inherited, now);
        } else {
            self.begin(pid, config, rule, identity, now);
        }
        true
    }

    fn begin(
        &mut self,
        pid: i32,
        config: TraceConfig,
        rule: Arc<Rule>,
        identity: Arc<Identity>,
        now: Instant,
    ) {
        // The journal is written before the attach. If we are killed during the attach, the next agent finds the
        // process.
        if let Err(error) = self.state.attaches(pid, identity.started) {
            return self.refused(pid, unwritten(&error), now);
        }
        let chosen = identity.chosen();
        let link = Arc::new(Link::default());
        let outbox: Outbox = self.senders.outbox();
        let has_names = self.file.symbols.names == Names::Agent;
        let names = has_names.then_some(&self.shared.names);
        let job = TargetJob::new(
            Arc::clone(&link),
            identity,
            rule,
            outbox,
            (names, &self.shared.black_boxes),
        );
        let worker = Worker::start(chosen, config, job, link, &self.shared);
        self.started(pid, worker, now);
    }

    fn begin_searches(&mut self, pid: i32, rule: Arc<Rule>, is_inherited: bool, now: Instant) {
        let Some(member) = self.members.get(&pid) else {
            return;
        };
        // The process is periodically attached to for advice.
        if rule.advise.is_some()
            && let Err(error) = self.state.attaches(pid, member.identity.started)
        {
            return self.refused(pid, unwritten(&error), now);
        }
        let reclaim = rule.reclaim_of(is_inherited);
        let (_, memory) = bounds(&self.file);
        let searches = Searches::new(
            Arc::clone(&member.identity),
            rule,
            Means {
                // Only one copy exists at a time, and it may use the memory that the ledgers leave free.
                memory: memory / 2,
                directory: self.file.agent.state.clone(),
                has_names: self.file.symbols.names == Names::Agent,
                files: self.file.files.clone(),
                kept_advice: self.kept_advice.clone(),
            },
            Arc::new(Link::default()),
            Arc::clone(&self.shared),
        );
        self.started(pid, Worker::start_searches(searches, reclaim), now);
    }

    fn started(&mut self, pid: i32, worker: std::io::Result<Worker>, now: Instant) {
        match worker {
            Ok(worker) => {
                if let Some(member) = self.members.get_mut(&pid) {
                    member.traced_by(worker, now);
                }
            }
            Err(error) => self.refused(pid, format!("no thread can be started: {error}"), now),
        }
    }

    fn tell_held_back(&self, held_back: BTreeSet<Scarce>) {
        let mut agent = self.board.agent();
        for scarce in held_back.difference(&agent.held_back) {
            let why = match scarce {
                Scarce::Processor => "its share of the processors (max_cpu) is used up",
                Scarce::Memory => "its memory (max_memory) is used up",
                Scarce::Targets => "the limit of targets is reached (max_targets)",
                Scarce::Namespace => {
                    "their namespace has reached its limit of targets or of processor time ([[kubernetes.namespace]])"
                }
            };
            warn(&format!("processes wait to be traced: {why}"));
        }
        agent.held_back = held_back;
    }

    /// Updates the board.
    fn show(&self) {
        self.board
            .set_rows(self.members.values().map(Member::row).collect());
    }

    /// Waits for the next round, until the kernel reports a process or the time is over.
    fn wait(&self, begin: Instant) {
        let now = Instant::now();
        let soonest = self.members.values().filter_map(Member::next_attempt).min();
        let until = soonest.map_or(ROUND, |at| at.saturating_duration_since(now));
        // A round takes some time, and rounds must not keep a processor fully busy.
        let round = if self.is_leaving() {
            LEAVING_ROUND
        } else {
            ROUND
        };
        let pause = until
            .min(round)
            .max(LEAST_PAUSE)
            .max(now.duration_since(begin));
        let sources = self.events.as_ref().map(|events| events.as_fd());
        let sources = sources.into_iter().chain(self.machine.reads().bell());
        let sources = sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN));
        let mut sources: Vec<PollFd<'_>> = sources.collect();
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: pause.min(ROUND).as_nanos() as _,
        };
        // An interruption counts as a message.
        let is_ready = poll(&mut sources, Some(&timeout)).is_ok_and(|ready| ready > 0);
        if is_ready {
            // On a busy machine, messages never stop arriving, so several are taken at once.
            std::thread::sleep(LEAST_PAUSE);
        }
    }
}

/// Returns the message for a process to which the agent does not attach, because the next agent would not find it.
fn unwritten(error: &impl std::fmt::Display) -> String {
    format!("the list of attached processes cannot be written: {error}")
}

/// Returns the maximum memory that the agent may use at one time to read names. The rest is for targets to which it
/// attaches in the meantime.
fn names_memory(memory: u64) -> u64 {
    memory / 2
}

/// Returns the limit of one target's ledger, such that all ledgers together stay below the bound.
pub fn ledger_bytes(file: &File) -> u64 {
    let (_, memory) = bounds(file);
    let targets = u64::from(*file.agent.max_targets.get_ref());
    // Half is for ledgers. Names, profiles and rings take the rest.
    (memory / 2 / targets).max(LEAST_LEDGER)
}

/// Returns the budget: processor seconds per second, and bytes.
fn bounds(file: &File) -> (f64, u64) {
    let memory = file.agent.max_memory.bytes(machine_memory());
    (file.agent.max_cpu.0 * processors(), memory)
}

impl From<ConfigError> for AgentError {
    fn from(error: ConfigError) -> AgentError {
        AgentError::Config(error)
    }
}
