//! Limits on the share of one namespace's targets, which protect the other namespaces.

use super::Supervisor;
use super::departures::Why;
use crate::board::Identity;
use crate::kubernetes::limits_of;
use crate::member::Member;
use crate::said::warn;
use std::time::Instant;

impl Supervisor {
    /// Drops the newest selected target. Returns true if there was one.
    pub(super) fn shed_newest(&mut self, why: &str, is_meant: impl Fn(&Identity) -> bool) -> bool {
        let traced = self.members.values().filter(|member| {
            let worker = member.worker();
            worker.is_some_and(|worker| worker.link.is_attached())
                && !member.is_leaving()
                && is_meant(&member.identity)
        });
        // The newest target has the least evidence.
        let Some(newest) = traced.max_by_key(|member| member.since) else {
            return false;
        };
        let pid = newest.identity.pid;
        warn(&format!(
            "process {pid} ({}) is left, because {why}",
            newest.identity.process
        ));
        self.let_go(pid, Why::Scarce);
        self.board.agent().shed += 1;
        true
    }

    /// Checks how much the targets of each namespace use, and drops one of them if that is too
    /// much.
    pub(super) fn judge_namespaces(&mut self, now: Instant) {
        if self.file.kubernetes.is_none() {
            return;
        }
        let targets = self.members.values().filter_map(|member| {
            let worker = member.worker().filter(|worker| !worker.is_finished())?;
            let identity = &member.identity;
            let is_of_pod = !identity.namespace.is_empty();
            is_of_pod.then(|| {
                (
                    identity.pid,
                    identity.namespace.as_str(),
                    worker.link.used(),
                )
            })
        });
        self.namespaces.judge(now, &self.file, targets);
        for namespace in self.namespaces.to_shed() {
            let why = format!(
                "tracing the namespace {namespace} uses more of the processors than it may ([[kubernetes.namespace]])"
            );
            if self.shed_newest(&why, |identity| identity.namespace == namespace) {
                self.namespaces.has_shed(&namespace, now);
            }
        }
    }

    /// Returns true if the namespace of a process is at its limits.
    pub(super) fn is_shared_out(&self, pid: i32) -> bool {
        let Some(member) = self.members.get(&pid) else {
            return false;
        };
        let namespace = &member.identity.namespace;
        let limits = limits_of(&self.file, namespace).filter(|_| !namespace.is_empty());
        let Some(limits) = limits else {
            return false;
        };
        let is_of_it = |other: &&Member| other.identity.namespace == *namespace;
        let traced = self.members.values().filter(is_of_it);
        let traced = traced.filter(|other| other.worker().is_some()).count();
        let is_full = limits
            .max_targets
            .is_some_and(|most| traced >= most as usize);
        is_full || !self.namespaces.is_free(namespace)
    }
}
