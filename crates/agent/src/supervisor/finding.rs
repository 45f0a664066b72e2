//! Finds the processes of the machine, and selects those that match the rules.

use super::departures::Why;
use super::{SILENT, Supervisor};
use crate::board::Identity;
use crate::config::Rule;
use crate::facts::Facts;
use crate::member::Member;
use crate::proc_events::News;
use crate::reads::{Answer, Heard};
use crate::said::warn;
use memhook_foreign::visible;
use memhook_process::own_processor_time;
use std::sync::Arc;
use std::time::Instant;

/// Minimum pause between two scans of all processes, as a multiple of the processor time of a scan:
/// scans use at most 2 % of one processor.
const SCAN_SHARE: u32 = 50;

impl Supervisor {
    /// Finds the processes that the kernel reports, and periodically scans for all processes.
    pub(super) fn find(&mut self, now: Instant) {
        let mut is_scan_due = self.take_pods() || now >= self.next_scan;
        self.hear(now);
        let (mut found, mut touched) = (Vec::new(), Vec::new());
        if let Some(events) = &self.events {
            match events.news() {
                Ok(news) => {
                    for one in news {
                        match one {
                            News::Forked(pid) => found.push(pid),
                            News::Executes(pid) => {
                                found.push(pid);
                                touched.push(pid);
                            }
                            News::Ended(pid) => touched.push(pid),
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
        for pid in touched {
            self.call(pid);
        }
        if is_scan_due {
            // Processor time is measured instead of elapsed time, because on a busy machine most of
            // the elapsed time belongs to other processes.
            let before = own_processor_time();
            self.machine.look(now);
            let used = own_processor_time().saturating_sub(before);
            let pause = self.file.agent.scan.0.max(used * SCAN_SHARE);
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
        if let Some(kubelet) = &self.kubelet
            && self.machine.has_unknown_pods()
        {
            kubelet.wants_more();
        }
    }

    /// Processes the answers from the files of processes.
    fn hear(&mut self, now: Instant) {
        for Heard {
            pid,
            started,
            answer,
        } in self.machine.heard()
        {
            let member = self.members.get_mut(&pid);
            let mut asked =
                member.filter(|member| member.is_asked() && member.identity.started == started);
            match (answer, &mut asked) {
                (Answer::Inside(_), _) => self.choose(pid, now),
                (Answer::Obstacle(None), Some(member)) => member.cleared(now),
                // An obstacle in a process that has just started may disappear by itself.
                (Answer::Obstacle(Some(why)), Some(member)) => {
                    if member.wait_a_moment(now) {
                        self.refused(pid, why, now);
                    }
                }
                (Answer::Obstacle(_), None) => {}
                (Answer::None, asked) => {
                    self.board.agent().silent_files += 1;
                    match asked {
                        Some(_) => self.refused(pid, SILENT.into(), now),
                        None => warn(&format!("process {pid} is not traced: {SILENT}")),
                    }
                }
            }
        }
        self.board.agent().hung_readers = self.machine.reads().hung() as u64;
    }

    /// Takes the kubelet's list of pods. Returns true if the list is new.
    fn take_pods(&mut self) -> bool {
        let Some(kubelet) = &self.kubelet else {
            return false;
        };
        let (pods, lists) = kubelet.pods();
        let is_new = std::mem::replace(&mut self.pod_lists, lists) != lists;
        self.machine.set_pods(pods);
        is_new
    }

    /// Makes the thread that traces a process check that the process has not been replaced. If the
    /// process is quiet, the thread seldom checks this by itself.
    fn call(&self, pid: i32) {
        if let Some(worker) = self.members.get(&pid).and_then(Member::worker) {
            worker.link.call();
        }
    }

    /// Returns the current rule of a process, and true if it matches only the parent.
    fn rule_of(&self, facts: &Facts) -> Option<(Arc<Rule>, bool)> {
        if let Some(rule) = self.rules.of(facts, None) {
            return Some((rule, false));
        }
        let parent = self.members.get(&facts.parent)?;
        Some((self.rules.of(facts, Some(&parent.rule))?, true))
    }

    pub(super) fn choose(&mut self, pid: i32, now: Instant) {
        let Some(facts) = self.machine.get(pid) else {
            return;
        };
        // If the process id is reused, or another program is executed, the member's thread will
        // notice.
        let is_known = |member: &Member| {
            let identity = &member.identity;
            let is_same =
                identity.started == facts.started && identity.process == visible(facts.program());
            is_same || member.worker().is_some()
        };
        if self.members.get(&pid).is_some_and(is_known) {
            return;
        }
        match self.rule_of(facts) {
            // The process is chosen as soon as its files were read.
            Some(_) if !self.machine.has_read(pid) => {}
            Some((rule, is_inherited)) => {
                let Some(facts) = self.machine.get(pid) else {
                    return;
                };
                let identity = identity(facts, &rule);
                let member = Member::new(identity, rule, is_inherited, now);
                self.members.insert(pid, member);
            }
            None => drop(self.members.remove(&pid)),
        }
    }

    /// Detaches from processes that no rule matches any more, and forgets processes that have
    /// ended.
    pub(super) fn drop_unchosen(&mut self, is_reloaded: bool) {
        let (mut gone, mut left) = (Vec::new(), Vec::new());
        for (&pid, member) in &self.members {
            let facts = self.machine.get(pid);
            let facts = facts.filter(|facts| facts.started == member.identity.started);
            let Some(facts) = facts else {
                match member.worker() {
                    // The thread notices the end by itself.
                    Some(worker) => worker.link.call(),
                    None if !is_reloaded => gone.push(pid),
                    None => {}
                }
                continue;
            };
            // A process that was selected for its memory size stays selected when it shrinks, and
            // so does one that was selected with its parent.
            let as_chosen = Facts {
                resident: u64::MAX,
                ..facts.clone()
            };
            let parents = member.is_inherited.then_some(&*member.rule);
            let chosen = self.rules.of(&as_chosen, parents);
            let is_meant = chosen
                .is_some_and(|rule| Arc::ptr_eq(&rule, &member.rule) || rule.is_same(&member.rule));
            if is_meant {
                continue;
            }
            match member.worker() {
                Some(_) => left.push(pid),
                None => gone.push(pid),
            }
        }
        for pid in left {
            self.let_go(pid, Why::NotMeant);
        }
        for pid in gone {
            self.members.remove(&pid);
            self.forget(pid);
        }
    }
}

fn identity(facts: &Facts, rule: &Rule) -> Identity {
    // Names with control characters are made harmless here, so that every display shows the same
    // text.
    let program = visible(facts.program()).into_owned();
    let pod = facts.place.pod();
    Identity {
        pid: facts.pid,
        started: facts.started,
        rule: rule.name.get_ref().clone(),
        service: rule.service.clone().unwrap_or_else(|| program.clone()),
        process: program,
        version: rule.version.clone().unwrap_or_default(),
        namespace: facts.namespace.clone().unwrap_or_default(),
        pod: facts.pod.clone().unwrap_or_default(),
        pod_uid: facts.pod_uid.clone().unwrap_or_default(),
        container: facts.container.clone().unwrap_or_default(),
        container_name: facts.container_name().unwrap_or_default().to_owned(),
        workload_type: pod.map_or_else(String::new, |pod| pod.workload_type.clone()),
        workload: pod.map_or_else(String::new, |pod| pod.workload.clone()),
    }
}
