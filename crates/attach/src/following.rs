//! Several running processes, traced at the same time, each by a thread of its own: a process with all that
//! descend from it, or all that match a name or a control group.
//!
//! New processes are found by looking at /proc every few milliseconds; what a process did before it was found
//! counts as memory from before the attach, and one that lives no longer than that is not traced. One whose parent
//! ended before it was seen is not known to descend from a followed one.
//!
//! A child that a traced process forks is not missed: it inherits all that it takes to record by itself, from
//! its first call of an allocator on, and is then found by that ([`births`]). Only where there is no more room for
//! that, or where it cannot be used (counted accesses, allocators that are reached by pads, a limited address
//! space), is a child found and attached to as above.
//!
//! The alternative is to stay attached to the parent by ptrace(2) with PTRACE_O_TRACEFORK, as `run` does with the
//! programs that it starts. A program that serves others must not pay for that: each fork, each new thread and each
//! signal would stop it until we answer, no debugger could attach, and our own holds would find the process traced
//! already. Nor would the child be seen from its first instruction, because it begins inside of fork(3), where
//! nothing may be called in it. Here nobody is stopped for a fork, and nobody waits for us when we die.

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

/// Between two looks for children.
const CHILDREN_PAUSE: Duration = Duration::from_millis(2);
/// Between two looks for processes that match, which read some files of every process of the machine.
const MATCHING_PAUSE: Duration = Duration::from_millis(100);
/// Looking takes at most one part in so many of a processor's time, however many processes there are.
const SHARE: u32 = 20;
/// A signal that asks for the end is noticed within this time.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// Which processes are followed.
#[derive(Clone, Debug)]
pub enum Followed {
    /// This one and all that descend from it, for as long as one of them lives.
    Family(i32),
    /// All that match, for as long as nobody asks for the end.
    Matching(Selector),
}

/// Who says what is done with each process.
pub trait Assigner {
    /// One is about to be attached to: what is done with the `program`th program that it executes while it
    /// is followed, from 1 on.
    fn work(&mut self, pid: i32, program: u32) -> Result<Work, Error>;
    /// Returns true if the user wants the end.
    fn is_over(&mut self) -> bool {
        false
    }
    /// No process matches yet.
    fn waits(&mut self) {}
    /// One is not traced.
    fn is_not_traced(&mut self, pid: i32, why: &Error);
}

/// Result of following several processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowedCount {
    /// Processes that were traced.
    pub traced: u64,
    /// Processes that were seen and ended before they were traced.
    pub missed: u64,
    /// Children that could not be traced from their birth, because too many came at a time.
    pub late: u64,
}

/// Traces the processes until the time is over, a signal counted by [`memhook_inject::catch_stops`] comes, the assigner
/// asks for the end, or no process of a family is left. The time of a family begins with its first trace. Returns when
/// all jobs have ended. If the head of a family cannot be traced, that is an error; other processes are only reported.
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
    /// Processes that ended before anybody attached to them, as far as was known then.
    missed: Vec<i32>,
}

impl Following {
    fn run(&mut self, assigner: &mut dyn Assigner) -> Result<(), Error> {
        let mut has_waited = false;
        if let Followed::Matching(_) = self.followed {
            self.until.begin();
        }
        while stops() == 0 && !self.until.is_over() && !assigner.is_over() {
            // Not the time that passes: on a busy machine most of that is others', and the pause would be minutes.
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

    /// Waits so long, or until a signal asks for the end or a child has been found that is traced from its birth.
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
                // Nobody finds children from their birth.
                None | Some(Err(RecvTimeoutError::Disconnected)) => std::thread::sleep(slice),
            }
        }
    }

    /// Returns true if a child that is traced from its birth is still to come.
    fn has_newborn(&self) -> bool {
        let is_coming = |watch: &Watch| !watch.births().is_quiet() || !watch.found.is_empty();
        !self.newborn.is_empty() || self.watch.as_ref().is_some_and(is_coming)
    }

    /// Takes in the children that are traced from their birth.
    fn receive(&mut self, assigner: &mut dyn Assigner) {
        if let Some(watch) = &self.watch {
            self.newborn.extend(watch.found.try_iter());
        }
        for newborn in std::mem::take(&mut self.newborn) {
            let pid = newborn.pid;
            self.missed.retain(|&missed| missed != pid);
            let member = self.members.entry(pid).or_insert_with(|| Member::new(pid));
            // A process of the same number, which has ended.
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

    /// Finds no more children, and waits until all jobs have ended, those of the last children, too.
    fn end_births(&mut self, assigner: &mut dyn Assigner) {
        if let Some(mut watch) = self.watch.take() {
            self.newborn.extend(watch.end());
            self.receive(assigner);
            self.join(assigner);
            // Those with the number of a process that had not been collected yet.
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

    /// Until the next look, after one that used so much of a processor.
    fn pause(&self, look: Duration) -> Duration {
        let least = match self.followed {
            Followed::Family(_) => CHILDREN_PAUSE,
            Followed::Matching(_) => MATCHING_PAUSE,
        };
        least.max(look * SHARE)
    }

    /// The processes that are to be followed and live.
    fn look(&self) -> Vec<i32> {
        let own = std::process::id() as i32;
        let head = match &self.followed {
            Followed::Matching(selector) => {
                let found = selector.look();
                return found.into_iter().map(|candidate| candidate.pid).collect();
            }
            Followed::Family(head) => *head,
        };
        // Whether anybody is followed is decided by the head.
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

    /// Returns true for the process without which nothing is done.
    fn is_head(&self, pid: i32) -> bool {
        matches!(self.followed, Followed::Family(head) if head == pid)
    }

    /// Takes in what became of the traces that have ended, and forgets the processes that have.
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

    /// Attaches to those that wait for it.
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
                Some(Obstacle::Error(why)) if is_head && !member.was_traced() => return Err(why),
                // The next look forgets it, and counts it if it was never traced.
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

    /// Waits for the ends of all traces. An attach may only now have failed.
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
