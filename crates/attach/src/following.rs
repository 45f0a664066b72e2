//! Traces several running processes at the same time, each on its own thread: a process with its descendants, or all
//! processes that match a name or a control group.
//!
//! New processes are found by reading /proc every few milliseconds. Memory that a process allocated before it was found
//! counts as memory from before the attach. A process that ends before it is found is not traced. If the parent of a
//! process ended before the process was seen, its ancestry is unknown.
//!
//! A child that a traced process forks is not missed: it inherits everything that it needs to record by itself from its
//! first call of an allocator, and is found by its recording ([`births`]). A child is found by a search, and attached
//! to, only if there is no space left for such a recording, or if this method does not apply (counted accesses,
//! allocators that are reached by pads, a limited address space).
//!
//! The alternative is to stay attached to the parent by ptrace(2) with PTRACE_O_TRACEFORK, as `run` does with the
//! programs that it starts. That is too expensive for a program that serves others: it would stop at each fork, each
//! new thread and each signal until we answer, no debugger could attach, and our own holds would fail because the
//! process is already traced. Nor could the child be traced from its first instruction, because it begins inside
//! fork(3), where nothing may be called. With inherited recordings, no fork stops a process, and if we die, no process
//! waits for us.

mod births;
mod member;
mod obstacle;
mod parent;
mod worker;

pub use obstacle::{Obstacle, kinship, obstacle, unready};

use crate::config::TraceConfig;
use crate::error::Error;
use crate::program::Work;
use births::{Newborn, Watch};
use crossbeam_channel::RecvTimeoutError;
use member::{Advice, Member};
use memhook_inject::{allow_many_open_files, share_memory, stops};
use memhook_process::{Selector, children, has_ended, own_processor_time, parent};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};
use worker::{Begin, Permits, Until, Worker};

/// Time between two searches for children.
const CHILDREN_PAUSE: Duration = Duration::from_millis(2);
/// Time between two searches for matching processes, which read some files of every process of the machine.
const MATCHING_PAUSE: Duration = Duration::from_millis(100);
/// Searches take at most this fraction (1/n) of a processor's time, regardless of the number of processes.
const SHARE: u32 = 20;
/// Longest time until a termination signal is noticed.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// Set of processes to follow.
#[derive(Clone, Debug)]
pub enum Followed {
    /// This process and all its descendants, as long as one of them is alive.
    Family(i32),
    /// All matching processes, until the user requests the end.
    Matching(Selector),
}

/// Assigns work to each followed process.
pub trait Assigner {
    /// Returns the job for a process that will be attached to. `program`: number of the program that the process
    /// executes, counted from 1 while it is followed.
    fn work(&mut self, pid: i32, program: u32) -> Result<Work, Error>;
    /// Returns true if the user requests the end.
    fn is_over(&mut self) -> bool {
        false
    }
    /// Called when no process matches yet.
    fn waits(&mut self) {}
    /// Called when a process is not traced.
    fn is_not_traced(&mut self, pid: i32, why: &Error);
}

/// Counts of followed processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowedCount {
    /// Processes that were traced.
    pub traced: u64,
    /// Processes that ended after they were seen and before they were traced.
    pub missed: u64,
    /// Children that could not be traced from their birth, because too many were forked in a short time.
    pub late: u64,
}

/// Traces the processes until the time is over, a signal counted by [`memhook_inject::catch_stops`] arrives, the
/// assigner requests the end, or no process of a family is left. The time of a family begins with its first trace.
/// Returns when all jobs have ended. Fails if the head of a family cannot be traced; for other processes, failures are
/// only reported.
pub fn follow(
    followed: Followed,
    config: &TraceConfig,
    duration: Option<Duration>,
    assigner: &mut dyn Assigner,
) -> Result<FollowedCount, Error> {
    config.check()?;
    let own = std::process::id() as i32;
    if share_memory(own, own).is_err() {
        return Err(Error::NoKcmp);
    }
    allow_many_open_files();
    let followed_head = match followed {
        Followed::Family(head) => Some(head),
        Followed::Matching(_) => None,
    };
    let mut following = Following {
        followed,
        config: config.clone(),
        until: Until::new(duration),
        members: BTreeMap::new(),
        permits: Permits::new(),
        count: FollowedCount::default(),
        watch: followed_head.map(Watch::begin),
        newborn: Vec::new(),
        missed: Vec::new(),
    };
    let result = following.run(assigner);
    following.end_births(assigner);
    result.map(|()| following.count)
}

struct Following {
    followed: Followed,
    config: TraceConfig,
    until: Until,
    members: BTreeMap<i32, Member>,
    permits: Permits,
    count: FollowedCount,
    /// Finds the children that are traced from their birth.
    watch: Option<Watch>,
    /// Children that were found and are not traced yet.
    newborn: Vec<Newborn>,
    /// Processes that seemed to have ended before an attach.
    missed: Vec<i32>,
}

impl Following {
    fn run(&mut self, assigner: &mut dyn Assigner) -> Result<(), Error> {
        let mut has_waited = false;
        if let Followed::Matching(_) = self.followed {
            self.until.begin();
        }
        while stops() == 0 && !self.until.is_over() && !assigner.is_over() {
            // Processor time counts here: elapsed time would make the pause minutes long on a busy machine.
            let before = own_processor_time();
            self.collect(assigner)?;
            self.receive(assigner);
            for pid in self.look() {
                self.members.entry(pid).or_insert_with(|| Member::new(pid));
            }
            if self.members.is_empty() {
                if let Followed::Family(_) = self.followed {
                    if self.has_newborn() {
                        std::thread::sleep(CHILDREN_PAUSE);
                        continue;
                    }
                    break;
                }
                if !std::mem::replace(&mut has_waited, true) {
                    assigner.waits();
                }
            }
            self.attend(assigner)?;
            self.wait(self.pause(own_processor_time().saturating_sub(before)));
        }
        Ok(())
    }

    /// Waits for the given time, or until a termination signal arrives or a child that is traced from its birth is
    /// found.
    fn wait(&mut self, pause: Duration) {
        let until = Instant::now() + pause;
        while stops() == 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let slice = left.min(LONGEST_WAIT);
            let found = self.watch.as_ref().map(|w| w.found.recv_timeout(slice));
            match found {
                Some(Ok(newborn)) => {
                    self.newborn.push(newborn);
                    break;
                }
                Some(Err(RecvTimeoutError::Timeout)) => {}
                // No thread searches for births.
                None | Some(Err(RecvTimeoutError::Disconnected)) => std::thread::sleep(slice),
            }
        }
    }

    /// Returns true if more children that are traced from their birth may follow.
    fn has_newborn(&self) -> bool {
        let is_coming = |watch: &Watch| !watch.births().is_quiet() || !watch.found.is_empty();
        !self.newborn.is_empty() || self.watch.as_ref().is_some_and(is_coming)
    }

    /// Adds the found children that are traced from their birth.
    fn receive(&mut self, assigner: &mut dyn Assigner) {
        if let Some(watch) = &self.watch {
            self.newborn.extend(watch.found.try_iter());
        }
        for newborn in std::mem::take(&mut self.newborn) {
            let pid = newborn.pid;
            self.missed.retain(|&missed| missed != pid);
            let member = self.members.entry(pid).or_insert_with(|| Member::new(pid));
            // An earlier process with the same pid, which has ended.
            if member.is_traced() {
                self.newborn.push(newborn);
                continue;
            }
            if !member.is_current(pid) {
                *member = Member::new(pid);
            }
            let begin = Begin {
                chosen: member.chosen(pid),
                config: self.config.clone(),
                until: self.until.clone(),
                permits: self.permits.clone(),
                births: None,
            };
            let work = assigner.work(pid, member.next_program());
            match work.and_then(|work| Worker::take_over(begin, newborn.session, work)) {
                Ok(worker) => member.traced_by(worker),
                Err(why) => {
                    let why = member.let_be(why);
                    assigner.is_not_traced(pid, &why);
                }
            }
        }
    }

    /// Ends the search for births, and waits until all jobs have ended, including those of the last children.
    fn end_births(&mut self, assigner: &mut dyn Assigner) {
        if let Some(mut watch) = self.watch.take() {
            self.newborn.extend(watch.end());
            self.receive(assigner);
            self.join(assigner);
            // Children that reuse the pid of a process whose job was not collected before.
            self.receive(assigner);
            self.count.late = watch.births().missed();
        }
        self.join(assigner);
        for newborn in self.newborn.drain(..) {
            newborn.leave();
            self.count.missed += 1;
        }
        self.count.missed += self.missed.len() as u64;
    }

    /// Returns the length of the pause after a search that took the given processor time.
    fn pause(&self, look: Duration) -> Duration {
        let least = match self.followed {
            Followed::Family(_) => CHILDREN_PAUSE,
            Followed::Matching(_) => MATCHING_PAUSE,
        };
        least.max(look * SHARE)
    }

    /// Returns the living processes to follow.
    fn look(&self) -> Vec<i32> {
        let own = std::process::id() as i32;
        let head = match &self.followed {
            Followed::Matching(selector) => {
                let found = selector.look();
                return found.into_iter().map(|candidate| candidate.pid).collect();
            }
            Followed::Family(head) => *head,
        };
        // The head decides whether any process is followed.
        let has_begun = match self.members.get(&head) {
            Some(member) => member.was_traced(),
            None => self.count.traced > 0,
        };
        if !has_begun {
            return vec![head];
        }
        let mut family: BTreeSet<i32> = self.members.keys().copied().collect();
        let mut unseen: Vec<i32> = family.iter().copied().collect();
        while let Some(pid) = unseen.pop() {
            // We may be a child of the shell that is followed.
            let new = children(pid).into_iter().filter(|&child| child != own);
            let new: Vec<i32> = new.filter(|&child| family.insert(child)).collect();
            unseen.extend(new);
        }
        family.into_iter().collect()
    }

    /// Returns true for the process whose failure ends the whole trace.
    fn is_head(&self, pid: i32) -> bool {
        matches!(self.followed, Followed::Family(head) if head == pid)
    }

    /// Collects the results of ended traces, and forgets ended processes.
    fn collect(&mut self, assigner: &mut dyn Assigner) -> Result<(), Error> {
        for pid in self.members.keys().copied().collect::<Vec<i32>>() {
            let is_head = self.is_head(pid);
            let Some(member) = self.members.get_mut(&pid) else {
                continue;
            };
            let is_needed = is_head && !member.was_traced();
            match member.follow_up(pid, is_needed, &mut self.count) {
                None => {}
                Some(Advice::Tell(why)) if is_needed => return Err(why),
                Some(Advice::Tell(why)) => assigner.is_not_traced(pid, &why),
                Some(Advice::Forget { is_missed }) => {
                    self.members.remove(&pid);
                    if is_missed {
                        self.missed.push(pid);
                    }
                }
            }
        }
        Ok(())
    }

    /// Begins the attaches that are due.
    fn attend(&mut self, assigner: &mut dyn Assigner) -> Result<(), Error> {
        let now = Instant::now();
        let waiting = self.members.iter().filter(|(_, member)| member.is_due(now));
        for pid in waiting.map(|(&pid, _)| pid).collect::<Vec<i32>>() {
            let is_head = self.is_head(pid);
            let is_covered = |watch: &Watch| watch.births().cover(pid);
            let comes_by_itself = !is_head && self.watch.as_ref().is_some_and(is_covered);
            let obstacle = if comes_by_itself {
                None
            } else {
                self.obstacle(pid)
            };
            if let Some(obstacle) = &obstacle {
                tracing::debug!(pid, ?obstacle, "not attached to yet");
            }
            let Some(member) = self.members.get_mut(&pid) else {
                continue;
            };
            if comes_by_itself {
                member.wait_shortly(now);
                continue;
            }
            let why = match obstacle {
                None => {
                    let begin = Begin {
                        chosen: member.chosen(pid),
                        config: self.config.clone(),
                        until: self.until.clone(),
                        permits: self.permits.clone(),
                        births: self
                            .watch
                            .as_ref()
                            .filter(|_| is_head)
                            .map(|w| Arc::clone(w.births())),
                    };
                    let work = assigner.work(pid, member.next_program());
                    match work.and_then(|work| Worker::start(begin, work)) {
                        Ok(worker) => {
                            member.traced_by(worker);
                            None
                        }
                        Err(why) => Some(member.let_be(why)),
                    }
                }
                Some(Obstacle::BorrowsMemory) if is_head && !member.was_traced() => {
                    let of = parent(pid).unwrap_or_default();
                    let why = memhook_inject::Error::SharesMemory {
                        pid: of,
                        other: pid,
                    };
                    match member.wait(now, Some(why.into())) {
                        Some(why) => return Err(why),
                        None => None,
                    }
                }
                Some(Obstacle::OfOurs | Obstacle::BorrowsMemory) => {
                    member.wait(now, None);
                    None
                }
                Some(Obstacle::Error(why @ Error::StillLoaded { .. }))
                    if is_head && !member.was_traced() =>
                {
                    match member.wait(now, Some(why)) {
                        Some(why) => return Err(why),
                        None => None,
                    }
                }
                Some(Obstacle::Error(why)) if is_head && !member.was_traced() => return Err(why),
                // The next search will drop the process, and count it if it was never traced.
                Some(Obstacle::Error(_)) if has_ended(pid) => None,
                Some(Obstacle::Error(why)) => member.wait(now, Some(why)),
            };
            if let Some(why) = why {
                assigner.is_not_traced(pid, &why);
            }
        }
        Ok(())
    }

    fn obstacle(&self, pid: i32) -> Option<Obstacle> {
        let traced = self.members.iter().filter(|(_, m)| m.is_traced());
        obstacle(pid, traced.map(|(&other, _)| other), &self.config)
    }

    /// Waits for the end of all traces. An attach may still fail at this point.
    fn join(&mut self, assigner: &mut dyn Assigner) {
        for (&pid, member) in &mut self.members {
            let is_head = matches!(self.followed, Followed::Family(head) if head == pid);
            if let Some(why) = member.join(&mut self.count)
                && (is_head || !has_ended(pid))
            {
                assigner.is_not_traced(pid, &member.let_be(why));
            }
        }
    }
}
