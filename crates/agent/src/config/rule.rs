//! Settings of a trace by a rule, and equality of rules.

use super::SAMPLE_BYTES;
use super::keys::{Mode, Reclaim, Rule};
use memhook_attach::{DEPTH_TO_ROOTS, OnFull};

impl Rule {
    /// Returns the settings for tracing a process that this rule has chosen.
    pub fn tracing(&self, ledger_bytes: u64) -> memhook_attach::TraceConfig {
        let depth = match self.mode {
            // Call stacks are not used.
            Mode::Summary | Mode::Scan => 1,
            Mode::Sampled | Mode::Exact => {
                let depth = self.depth.as_ref();
                depth.map_or(DEPTH_TO_ROOTS, |depth| *depth.get_ref())
            }
        };
        let sample = self.sample.as_ref().map(|sample| sample.get_ref().0);
        let overhead = self.overhead.as_ref().map(|share| share.get_ref().0);
        let is_sampled = self.mode != Mode::Exact && overhead.is_none();
        let on_full = if is_sampled || overhead.is_some() {
            OnFull::Wait
        } else {
            OnFull::Adapt
        };
        memhook_attach::TraceConfig {
            depth,
            on_full,
            ring_bytes: on_full.usual_ring_bytes(),
            sample_bytes: is_sampled.then(|| sample.unwrap_or(SAMPLE_BYTES)),
            overhead,
            max_memory: Some(ledger_bytes),
            // With many targets, none may use several processors.
            drains: Some(1),
            ..memhook_attach::TraceConfig::default()
        }
    }

    /// Returns what is done with a process's unreachable blocks. If `is_inherited`, this rule
    /// matches only the process's parent and does not name its own program, so none of its blocks
    /// are freed.
    pub fn reclaim_of(&self, is_inherited: bool) -> Option<Reclaim> {
        let reclaim = *self.reclaim.as_ref()?.get_ref();
        Some(match is_inherited {
            true => Reclaim::ReportOnly,
            false => reclaim,
        })
    }

    /// Returns true if a process traced by one of the two rules may continue under the other
    /// without a new attach.
    pub fn is_same(&self, other: &Rule) -> bool {
        format!("{:?}", Unplaced(self)) == format!("{:?}", Unplaced(other))
    }
}

/// A rule without its place in the file.
struct Unplaced<'a>(&'a Rule);

impl std::fmt::Debug for Unplaced<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Rule {
            name,
            executable,
            process,
            cgroup,
            container,
            pod,
            namespace,
            workload,
            opt_in,
            memory_above,
            uid,
            mode,
            sample,
            overhead,
            depth,
            send,
            interval,
            service,
            version,
            resident,
            pins,
            reclaim,
            advise,
            blackbox,
            max_hold,
            follow_forks,
            max_targets,
            duration,
        } = self.0;
        let send: Vec<_> = send.iter().map(toml::Spanned::get_ref).collect();
        let sample = sample.as_ref().map(toml::Spanned::get_ref);
        let overhead = overhead.as_ref().map(toml::Spanned::get_ref);
        let depth = depth.as_ref().map(toml::Spanned::get_ref);
        let reclaim = reclaim.as_ref().map(toml::Spanned::get_ref);
        let advise = advise.as_ref().map(toml::Spanned::get_ref);
        let workload = workload.as_ref().map(toml::Spanned::get_ref);
        let of_pod = (container, pod, namespace, workload, opt_in);
        let choice = (executable, process, cgroup, of_pod, memory_above, uid);
        let work = (
            mode,
            sample,
            overhead,
            depth,
            send,
            interval.get_ref(),
            service,
            version,
            resident,
            pins,
            (reclaim, advise, blackbox),
            max_hold,
        );
        let bounds = (follow_forks, max_targets, duration);
        write!(f, "{} {choice:?} {work:?} {bounds:?}", name.get_ref())
    }
}
