//! Detaches from a target when its time has expired, when no rule matches it, or when it exceeds
//! the budget, and from all targets when the agent ends.

use super::departures::{Why, patience};
use super::{LEAST_PAUSE, ROUND, Supervisor};
use crate::Outcome;
use crate::budget::processors;
use crate::member::Member;
use crate::said::warn;
use crate::worker::Ended;
use std::time::Instant;

impl Supervisor {
    /// Queues a target to be left.
    pub(super) fn let_go(&mut self, pid: i32, why: Why) {
        let Some(member) = self.members.get_mut(&pid) else {
            return;
        };
        if member.worker().is_some() && member.leaves(why) {
            self.departures.add(pid);
        }
    }

    /// Leaves the next targets, a few at a time.
    pub(super) fn depart(&mut self) {
        if self.departures.is_empty() {
            return;
        }
        // More simultaneous detaches would only slow each other down.
        let most = processors() as usize;
        let mut under_way = self.under_way();
        while let Some(pid) = self.departures.next(under_way, most) {
            if let Some(worker) = self.members.get(&pid).and_then(Member::worker) {
                worker.link.ask_back();
                under_way += 1;
            }
        }
    }

    /// Returns the number of targets that are being left.
    fn under_way(&self) -> usize {
        let workers = self.members.values().filter_map(Member::worker);
        workers
            .filter(|worker| worker.link.is_asked_back() && !worker.link.has_left())
            .filter(|worker| !worker.is_finished())
            .count()
    }

    /// Returns true if any target is being left, or is queued to be left.
    pub(super) fn is_leaving(&self) -> bool {
        !self.departures.is_empty() || self.under_way() > 0
    }

    /// Leaves the targets whose time by their rule is over.
    pub(super) fn end_durations(&mut self) {
        let over: Vec<i32> = self
            .members
            .values()
            .filter(|member| {
                let traced_for = member
                    .worker()
                    .and_then(|worker| worker.link.attached_for());
                let most = member.rule.duration.map(|duration| duration.0);
                most.is_some_and(|most| traced_for.is_some_and(|time| time >= most))
            })
            .map(|member| member.identity.pid)
            .collect();
        for pid in over {
            self.let_go(pid, Why::TimeIsOver);
        }
    }

    /// Detaches from every target and restores it, sends waiting requests as far as possible, and
    /// ends.
    pub fn finish(mut self) -> Outcome {
        let pids: Vec<i32> = self.members.keys().copied().collect();
        pids.iter()
            .for_each(|&pid| self.let_go(pid, Why::AgentEnds));
        let traced = |this: &Self| {
            let workers = this.members.values().filter(|m| m.worker().is_some());
            workers.map(|m| m.identity.pid).collect::<Vec<i32>>()
        };
        let begin = Instant::now();
        let until = begin + patience(traced(&self).len());
        let mut next_show = begin;
        loop {
            let now = Instant::now();
            self.board.tell_alive();
            self.depart();
            self.collect(now);
            let left = traced(&self);
            if left.is_empty() {
                break;
            }
            if now >= until {
                return self.give_up(&left);
            }
            if now >= next_show {
                next_show = now + ROUND;
                self.show();
            }
            std::thread::sleep(LEAST_PAUSE);
        }
        self.members.clear();
        self.senders.finish();
        if self.has_failed_to_restore {
            Outcome::NotRestored
        } else {
            Outcome::Done
        }
    }

    /// Ends although some targets have not been left. These targets continue on their own, as they
    /// would after the death of the agent. They stay in the journal, so that the next agent repairs
    /// them. Holds of their threads end with this process. Profiles that were not encoded yet are
    /// lost.
    fn give_up(&self, left: &[i32]) -> Outcome {
        for pid in left {
            let program = self.members.get(pid).map(|m| m.identity.process.as_str());
            warn(&format!(
                "process {pid} ({}) could not be left in time: its calls pass through, and the next agent detaches from it, or: memhook-rs detach {pid}",
                program.unwrap_or_default()
            ));
        }
        Outcome::NotRestored
    }

    /// Collects the outcomes of traces that have ended.
    pub(super) fn collect(&mut self, now: Instant) {
        for pid in self.members.keys().copied().collect::<Vec<i32>>() {
            let worker = self
                .members
                .get_mut(&pid)
                .and_then(|m| m.take_worker(false, now));
            if let Some(worker) = worker {
                let why = self.members.get_mut(&pid).and_then(Member::has_left);
                let ended = worker.join();
                self.shared.files.forget();
                self.ended(pid, ended, now);
                if matches!(why, Some(Why::NotMeant | Why::Scarce)) {
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
        tracing::info!(
            pid,
            process = program,
            outcome = ended.name(),
            "a trace has ended"
        );
        match ended {
            Ended::Gone => {
                // The new program of the process may match another rule, or none.
                self.members.remove(&pid);
                self.forget(pid);
                self.machine.look_at(pid, now);
                return self.choose(pid, now);
            }
            Ended::Left => member.let_be("its time limit (duration) is over"),
            Ended::NotRestored(why) => {
                warn(&format!(
                    "process {pid} ({program}): {why}; run: memhook-rs detach {pid}"
                ));
                self.has_failed_to_restore = true;
                member.let_be(&why);
                // The process stays in the journal.
                return;
            }
            Ended::Refused(why) => self.refused(pid, why, now),
            Ended::Panicked => {
                if let Some(member) = self.members.get_mut(&pid) {
                    warn(&format!(
                        "memhook-rs detached from process {pid} after an internal error"
                    ));
                    member.failed(now, retry, "an internal error".into());
                }
            }
        }
        self.forget(pid);
    }

    /// Handles a failed attach.
    pub(super) fn refused(&mut self, pid: i32, why: String, now: Instant) {
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
            warn(&format!("process {pid} ({program}) is not traced: {why}"));
        }
    }

    /// Handles a target from which the agent detached on purpose, because the target's rule ended
    /// or to save resources.
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
            // Another rule may choose the process.
            self.members.remove(&pid);
            self.choose(pid, now);
        }
    }
}
