//! The loop of the agent: finds processes, attaches to those that rules choose, within the budget, and leaves them.

use crate::board::{Board, Identity, Link};
use crate::budget::{Budget, OwnUse, Scarce, Verdict, machine_memory, processors};
use crate::config::{ConfigError, File, Rule};
use crate::facts::{Facts, Machine};
use crate::journal::State;
use crate::member::Member;
use crate::proc_events::{News, ProcEvents};
use crate::rules::Rules;
use crate::said::{chain, say};
use crate::send::{Outbox, Senders};
use crate::target_job::TargetJob;
use crate::worker::{Ended, Worker};
use crate::{AgentError, Outcome};
use memhook_attach::{Obstacle, TraceConfig, obstacle};
use memhook_inject::{reloads, stops};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest time between two rounds.
const ROUND: Duration = Duration::from_millis(100);
/// How often what the agent itself uses is looked at.
const JUDGE_PERIOD: Duration = Duration::from_secs(1);
/// After this, one round lets the others of the machine have the processor.
const LEAST_PAUSE: Duration = Duration::from_millis(5);
/// A ledger of less keeps too few blocks for an estimate.
const LEAST_LEDGER: u64 = 4 << 20;
/// Looking at all processes takes at most one part in so many of a processor's time.
const SCAN_SHARE: u32 = 50;

/// The supervisor.
pub struct Supervisor {
    path: PathBuf,
    file: File,
    rules: Rules,
    machine: Machine,
    members: BTreeMap<i32, Member>,
    budget: Budget,
    verdict: Verdict,
    next_judge: Instant,
    next_scan: Instant,
    events: Option<ProcEvents>,
    state: State,
    board: Arc<Board>,
    senders: Senders,
    /// Something could not be put back.
    has_failed_to_restore: bool,
    reloads: u32,
}

impl Supervisor {
    /// A supervisor that has attached to nothing yet. `left`: what an agent before this one has left attached, which is put
    /// right first.
    pub fn new(
        path: PathBuf,
        file: File,
        state: State,
        left: &BTreeMap<i32, u64>,
        board: Arc<Board>,
    ) -> Result<Supervisor, AgentError> {
        let senders = Senders::start(&file, state.directory(), &board)?;
        let (rate, memory) = bounds(&file);
        let now = Instant::now();
        let mut supervisor = Supervisor {
            path,
            rules: Rules::new(&file),
            file,
            machine: Machine::default(),
            members: BTreeMap::new(),
            budget: Budget::new(rate, memory),
            verdict: Verdict::Free,
            next_judge: now,
            next_scan: now,
            events: ProcEvents::listen().ok(),
            state,
            board,
            senders,
            has_failed_to_restore: false,
            reloads: reloads(),
        };
        supervisor.board.agent().has_events = supervisor.events.is_some();
        supervisor.put_right(left);
        Ok(supervisor)
    }

    /// Detaches what a killed agent has left.
    fn put_right(&mut self, left: &BTreeMap<i32, u64>) {
        for (&pid, &started) in left {
            if memhook_process::thread_start_time(pid, pid) != Some(started) {
                self.forget(pid);
                continue;
            }
            match memhook_attach::recover(pid) {
                Ok(None) => {}
                Ok(Some(0)) => say(&format!(
                    "detached from process {pid}, which an agent before this one has left attached"
                )),
                Ok(Some(count)) => {
                    say(&format!(
                        "process {pid}: {count} slots of an agent before this one could not be restored; they pass through"
                    ));
                }
                // It stays in the journal, and the attach puts it right if a rule chooses it.
                Err(error) => {
                    say(&format!(
                        "process {pid} was left attached: {}",
                        chain(&error)
                    ));
                    continue;
                }
            }
            self.forget(pid);
        }
    }

    /// Nothing of ours is in a process any more.
    fn forget(&mut self, pid: i32) {
        if let Some(message) = self.state.has_left(pid) {
            say(&message);
        }
    }

    /// Works until a signal asks for the end.
    pub fn run(&mut self) {
        while stops() == 0 {
            let begin = Instant::now();
            self.reload();
            self.find(begin);
            self.collect(begin);
            self.judge(begin);
            self.attend(begin);
            self.show();
            self.wait(begin);
        }
    }

    /// Leaves every target as it was, sends what can be sent, and ends.
    pub fn finish(mut self) -> Outcome {
        let now = Instant::now();
        let pids: Vec<i32> = self.members.keys().copied().collect();
        // They all see the signal by themselves, and detach side by side.
        for &pid in &pids {
            if let Some(worker) = self.members.get(&pid).and_then(Member::worker) {
                worker.link.ask_back();
            }
        }
        for pid in pids {
            let worker = self
                .members
                .get_mut(&pid)
                .and_then(|m| m.take_worker(true, now));
            if let Some(worker) = worker {
                let ended = worker.join();
                self.ended(pid, ended, now);
            }
        }
        self.members.clear();
        self.senders.finish();
        if self.has_failed_to_restore {
            Outcome::NotRestored
        } else {
            Outcome::Done
        }
    }

    fn reload(&mut self) {
        let asked = reloads();
        if asked == self.reloads {
            return;
        }
        self.reloads = asked;
        match self.reread() {
            Ok(()) => {
                say("the configuration was read again");
                self.board.agent().has_refused_configuration = false;
            }
            Err(error) => {
                say(&format!(
                    "{}; the configuration before it stays in use",
                    chain(&error)
                ));
                let mut agent = self.board.agent();
                agent.has_refused_configuration = true;
                agent.refused_configurations += 1;
            }
        }
    }

    fn reread(&mut self) -> Result<(), AgentError> {
        let file = crate::config::read(&self.path)?;
        if file.agent.state != self.file.agent.state || file.http.listen != self.file.http.listen {
            return Err(AgentError::NeedsRestart {
                path: self.path.clone(),
            });
        }
        // Before the old ones end: what cannot be used is refused as a whole.
        let changes_stores = file.files != self.file.files
            || unplaced(&file.pyroscope) != unplaced(&self.file.pyroscope)
            || unplaced(&file.labels) != unplaced(&self.file.labels)
            || file.agent.redact != self.file.agent.redact;
        if changes_stores {
            return Err(AgentError::NeedsRestart {
                path: self.path.clone(),
            });
        }
        let (rate, memory) = bounds(&file);
        self.budget.set(rate, memory);
        self.rules = Rules::new(&file);
        self.file = file;
        self.next_scan = Instant::now();
        self.drop_unchosen(true);
        Ok(())
    }

    /// Looks for processes: at those that the kernel tells of, and at all of them now and then.
    fn find(&mut self, now: Instant) {
        let mut is_scan_due = now >= self.next_scan;
        let mut found = Vec::new();
        if let Some(events) = &self.events {
            match events.news() {
                Ok(news) => {
                    for one in news {
                        match one {
                            News::Forked(pid) | News::Executes(pid) => found.push(pid),
                            News::Ended(_) => {}
                            News::Missed => is_scan_due = true,
                        }
                    }
                }
                Err(_) => {
                    self.events = None;
                    self.board.agent().has_events = false;
                }
            }
        }
        if is_scan_due {
            let begin = Instant::now();
            self.machine.look(now);
            let pause = self.file.agent.scan.0.max(begin.elapsed() * SCAN_SHARE);
            self.next_scan = now + pause;
            self.drop_unchosen(false);
            let pids: Vec<i32> = self.machine.processes().map(|facts| facts.pid).collect();
            pids.into_iter().for_each(|pid| self.choose(pid, now));
        } else {
            found.sort_unstable();
            found.dedup();
            for pid in found {
                self.machine.look_at(pid, now);
                self.choose(pid, now);
            }
        }
    }

    /// The rule that a process falls under now, and whether only because of its parent.
    fn rule_of(&self, facts: &Facts) -> Option<(Arc<Rule>, bool)> {
        if let Some(rule) = self.rules.of(facts, None) {
            return Some((rule, false));
        }
        let parent = self.members.get(&facts.parent)?;
        Some((self.rules.of(facts, Some(&parent.rule))?, true))
    }

    fn choose(&mut self, pid: i32, now: Instant) {
        let Some(facts) = self.machine.get(pid) else {
            return;
        };
        // If the process id is used again, or another program is executed, its thread will notice.
        let is_known = |member: &Member| {
            let identity = &member.identity;
            let is_same = identity.started == facts.started && identity.process == facts.program();
            is_same || member.worker().is_some()
        };
        if self.members.get(&pid).is_some_and(is_known) {
            return;
        }
        match self.rule_of(facts) {
            Some((rule, is_inherited)) => {
                let identity = identity(facts, &rule);
                let member = Member::new(identity, rule, is_inherited, now);
                self.members.insert(pid, member);
            }
            None => drop(self.members.remove(&pid)),
        }
    }

    /// Leaves what no rule means any more, and forgets what has ended.
    fn drop_unchosen(&mut self, is_reloaded: bool) {
        let mut gone = Vec::new();
        for (&pid, member) in &self.members {
            let facts = self.machine.get(pid);
            let facts = facts.filter(|facts| facts.started == member.identity.started);
            let Some(facts) = facts else {
                // Its thread notices the end by itself.
                if member.worker().is_none() && !is_reloaded {
                    gone.push(pid);
                }
                continue;
            };
            // A process that was chosen for its memory stays chosen when it has shrunk, or when it was chosen with its parent.
            let as_chosen = Facts {
                resident: u64::MAX,
                ..facts.clone()
            };
            let parents = member.is_inherited.then_some(&*member.rule);
            let chosen = self.rules.of(&as_chosen, parents);
            if chosen.is_some_and(|rule| rule.is_same(&member.rule)) {
                continue;
            }
            match member.worker() {
                Some(worker) => worker.link.ask_back(),
                None => gone.push(pid),
            }
        }
        for pid in gone {
            self.members.remove(&pid);
            self.forget(pid);
        }
    }

    /// Takes in what became of the traces that have ended.
    fn collect(&mut self, now: Instant) {
        for pid in self.members.keys().copied().collect::<Vec<i32>>() {
            let worker = self
                .members
                .get_mut(&pid)
                .and_then(|m| m.take_worker(false, now));
            if let Some(worker) = worker {
                let was_asked = worker.link.is_asked_back();
                let ended = worker.join();
                self.ended(pid, ended, now);
                if was_asked {
                    self.after_leaving(pid, now);
                }
            }
        }
    }

    fn ended(&mut self, pid: i32, ended: Ended, now: Instant) {
        let retry = self.file.agent.retry.0;
        let Some(member) = self.members.get_mut(&pid) else {
            return;
        };
        let program = member.identity.process.clone();
        match ended {
            Ended::Gone => {
                // What it executes now may fall under another rule, or under none.
                self.members.remove(&pid);
                self.forget(pid);
                self.machine.look_at(pid, now);
                return self.choose(pid, now);
            }
            Ended::Left => member.let_be("its time by the rule is over"),
            Ended::NotRestored(why) => {
                say(&format!(
                    "process {pid} ({program}): {why}; run: memhook-rs detach {pid}"
                ));
                self.has_failed_to_restore = true;
                member.let_be(&why);
                // It stays in the journal.
                return;
            }
            Ended::Refused(error) => {
                let why = chain(&error);
                self.refused(pid, why, now);
            }
            Ended::Panicked => {
                if let Some(member) = self.members.get_mut(&pid) {
                    say(&format!(
                        "process {pid} was left because of a fault of ours"
                    ));
                    member.failed(now, retry, "a fault of the agent".into());
                }
            }
        }
        self.forget(pid);
    }

    /// An attach has failed.
    fn refused(&mut self, pid: i32, why: String, now: Instant) {
        if memhook_process::has_ended(pid) {
            self.members.remove(&pid);
            return;
        }
        let retry = self.file.agent.retry.0;
        self.board.agent().failures += 1;
        if let Some(member) = self.members.get_mut(&pid)
            && let Some(why) = member.failed(now, retry, why)
        {
            let program = &member.identity.process;
            say(&format!("process {pid} ({program}) is not traced: {why}"));
        }
    }

    /// A target that was asked to come back has: by a rule that ended, or to save resources.
    fn after_leaving(&mut self, pid: i32, now: Instant) {
        let Some(member) = self.members.get_mut(&pid) else {
            return;
        };
        let is_chosen = self.machine.get(pid).is_some_and(|facts| {
            let parents = member.is_inherited.then_some(&*member.rule);
            let rule = self.rules.of(facts, parents);
            rule.is_some_and(|rule| rule.is_same(&member.rule))
        });
        if is_chosen {
            let pause = self.file.agent.retry.0.saturating_mul(6);
            member.rest(now, pause, "it was left to stay within the budget");
        } else {
            // Another rule may choose it.
            self.members.remove(&pid);
            self.choose(pid, now);
        }
    }

    /// Looks at what the agent uses, and gives up a target where that is too much.
    fn judge(&mut self, now: Instant) {
        if now < self.next_judge {
            return;
        }
        self.next_judge = now + JUDGE_PERIOD;
        let used = OwnUse::now();
        self.verdict = self.budget.judge(now, used);
        self.board.agent().used = used;
        if let Verdict::Shed(scarce) = self.verdict {
            let traced = self.members.values().filter(|member| {
                let worker = member.worker();
                worker.is_some_and(|w| w.link.is_attached() && !w.link.is_asked_back())
            });
            // The newest: what it has to tell is the least.
            if let Some(newest) = traced.max_by_key(|member| member.since) {
                let name = scarce.name();
                say(&format!(
                    "process {} ({}) is left, because the agent uses more {name} than it may",
                    newest.identity.pid, newest.identity.process
                ));
                if let Some(worker) = newest.worker() {
                    worker.link.ask_back();
                }
                self.budget.has_shed(now);
                self.board.agent().shed += 1;
            }
        }
    }

    /// Attaches to those that wait for it, as far as the budget goes.
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
        // The oldest processes first, which are the servers that others come from.
        due.sort_unstable();
        let is_free = held_back.is_empty();
        for (_, pid) in due {
            if !is_free {
                break;
            }
            let workers = self.members.values().filter_map(Member::worker);
            let (traced, attaching) = workers.fold((0, 0), |(all, new), worker| {
                (all + 1, new + usize::from(!worker.link.is_attached()))
            });
            if traced >= most {
                held_back.insert(Scarce::Targets);
                break;
            }
            // More at the same time would only make each other slower, and each holds a thread of its target.
            if attaching >= processors() as usize {
                break;
            }
            if !self.attach(pid, now) {
                held_back.insert(Scarce::Targets);
            }
        }
        self.tell_held_back(held_back);
    }

    /// Begins an attach. Returns false if the rule has as many targets as it may have.
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
        let config = rule.tracing(self.ledger_bytes());
        let traced = self
            .members
            .iter()
            .filter(|(_, member)| member.worker().is_some());
        let obstacle = obstacle(pid, traced.map(|(&pid, _)| pid), &config);
        match obstacle {
            None => self.begin(pid, config, rule, identity, now),
            Some(obstacle) => {
                let Some(member) = self.members.get_mut(&pid) else {
                    return true;
                };
                // What is wrong with a process that has just begun may pass by itself.
                if member.wait_a_moment(now)
                    && let Obstacle::Error(why) = obstacle
                {
                    self.refused(pid, chain(&why), now);
                }
            }
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
        // Written down before: if we are killed in the middle of the attach, the next agent finds the process.
        if let Err(error) = self.state.attaches(pid, identity.started) {
            let why = format!("the list of attached processes cannot be written: {error}");
            self.refused(pid, why, now);
            return;
        }
        let link = Arc::new(Link::default());
        let outbox: Outbox = self.senders.outbox();
        let job = TargetJob::new(Arc::clone(&link), identity, rule, outbox);
        match Worker::start(pid, config, job, link) {
            Ok(worker) => {
                if let Some(member) = self.members.get_mut(&pid) {
                    member.traced_by(worker, now);
                }
            }
            Err(error) => self.refused(pid, format!("no thread can be started: {error}"), now),
        }
    }

    /// What the ledger of one target may take, so that all together stay below the bound.
    fn ledger_bytes(&self) -> u64 {
        let (_, memory) = bounds(&self.file);
        let targets = u64::from(*self.file.agent.max_targets.get_ref());
        // Half is for ledgers; names, profiles and rings take the rest.
        (memory / 2 / targets).max(LEAST_LEDGER)
    }

    fn tell_held_back(&self, held_back: BTreeSet<Scarce>) {
        let mut agent = self.board.agent();
        for scarce in held_back.difference(&agent.held_back) {
            let why = match scarce {
                Scarce::Processor => "its share of the processors (max_cpu) is used up",
                Scarce::Memory => "its memory (max_memory) is used up",
                Scarce::Targets => "there are as many targets as there may be (max_targets)",
            };
            say(&format!("processes wait to be traced: {why}"));
        }
        agent.held_back = held_back;
    }

    /// Puts everything on the board.
    fn show(&self) {
        self.board
            .set_rows(self.members.values().map(Member::row).collect());
    }

    /// Until the next round: until the kernel tells something, or it is time.
    fn wait(&self, begin: Instant) {
        let now = Instant::now();
        let soonest = self.members.values().filter_map(Member::next_attempt).min();
        let until = soonest.map_or(ROUND, |at| at.saturating_duration_since(now));
        // A round takes its time, and must not be all that a processor does.
        let pause = until
            .min(ROUND)
            .max(LEAST_PAUSE)
            .max(now.duration_since(begin));
        let Some(events) = &self.events else {
            return std::thread::sleep(pause.min(ROUND));
        };
        let mut sources = [PollFd::new(events, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: pause.min(ROUND).as_nanos() as _,
        };
        // An interruption is as good as a message.
        let is_ready = poll(&mut sources, Some(&timeout)).is_ok_and(|ready| ready > 0);
        if is_ready {
            // On a busy machine the messages do not end: several are taken together.
            std::thread::sleep(LEAST_PAUSE);
        }
    }
}

fn unplaced<T>(spanned: &Option<toml::Spanned<T>>) -> Option<&T> {
    spanned.as_ref().map(toml::Spanned::get_ref)
}

/// Processor seconds a second, and bytes.
fn bounds(file: &File) -> (f64, u64) {
    let memory = file.agent.max_memory.bytes(machine_memory());
    (file.agent.max_cpu.0 * processors(), memory)
}

fn identity(facts: &Facts, rule: &Rule) -> Identity {
    let program = facts.program().to_owned();
    Identity {
        pid: facts.pid,
        started: facts.started,
        rule: rule.name.get_ref().clone(),
        service: rule.service.clone().unwrap_or_else(|| program.clone()),
        process: program,
        version: rule.version.clone().unwrap_or_default(),
        namespace: facts.namespace.clone().unwrap_or_default(),
        pod: facts.pod.clone().unwrap_or_default(),
        container: facts.container.clone().unwrap_or_default(),
    }
}

impl From<ConfigError> for AgentError {
    fn from(error: ConfigError) -> AgentError {
        AgentError::Config(error)
    }
}
