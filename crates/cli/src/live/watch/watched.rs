//! What the watches of all processes share: where reports go, when memory is scarce, whom the kernel has killed.

use super::Args;
use super::alarm::Alarms;
use super::evidence::Evidence;
use crate::exit_code;
use crate::live::signals::NameWait;
use memhook_attach::Condition;
use memhook_process::{CgroupMemory, OomKill, OomKills, resident_counters};
use memhook_report::KilledProcess;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// At an alarm of their group, so many of its processes get a report: the largest.
const MOST_REPORTS: usize = 3;

/// All watched processes.
pub(super) struct Watched {
    /// What is looked at in a group.
    of_group: Vec<Condition>,
    rss_above: Option<Condition>,
    directory: PathBuf,
    evidence: Mutex<Evidence>,
    alarms: Mutex<BTreeMap<Option<PathBuf>, Arc<Alarms>>>,
    kills: Mutex<Killed>,
    crowd: Mutex<Crowd>,
    is_one_of_several: bool,
}

struct Killed {
    log: OomKills,
    found: Vec<OomKill>,
}

#[derive(Default)]
struct Crowd {
    /// Processes that are or were watched.
    pids: BTreeSet<i32>,
    /// Those whose trace has not ended.
    running: BTreeSet<i32>,
    code: u8,
}

pub(super) fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    /// Makes the directory of the reports. `several`: how many processes there are in a group; 0: one is watched alone.
    pub(super) fn new(args: &Args, several: usize) -> anyhow::Result<Arc<Watched>> {
        let evidence = Evidence::new(&args.output, args.keep, args.exec.clone())?;
        Ok(Arc::new(Watched {
            of_group: args.psi.iter().chain([&args.at]).cloned().collect(),
            rss_above: args.rss_above.clone(),
            directory: evidence.directory().to_owned(),
            evidence: Mutex::new(evidence),
            alarms: Mutex::default(),
            kills: Mutex::new(Killed {
                log: OomKills::follow(),
                found: Vec::new(),
            }),
            crowd: Mutex::default(),
            is_one_of_several: several > 0,
        }))
    }

    /// The alarm of the group that a process is in.
    pub(super) fn alarm_of(&self, pid: i32) -> Arc<Alarms> {
        let group = CgroupMemory::of(pid).group().map(Path::to_owned);
        let mut alarms = locked(&self.alarms);
        let found = alarms.entry(group);
        let new = || Arc::new(Alarms::new(pid, self.of_group.clone()));
        Arc::clone(found.or_insert_with(new))
    }

    /// The alarms of a process.
    pub(super) fn own_alarms(&self, pid: i32) -> Alarms {
        Alarms::new(pid, self.rss_above.clone())
    }

    pub(super) fn evidence(&self) -> MutexGuard<'_, Evidence> {
        locked(&self.evidence)
    }

    /// Where the reports go.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether a process is one of the largest that are watched.
    pub(super) fn is_large(&self, pid: i32) -> bool {
        let pids: Vec<i32> = locked(&self.crowd).running.iter().copied().collect();
        let size = |pid| resident_counters(pid).map_or(0, |found| found.resident());
        let own = size(pid);
        let larger = pids
            .iter()
            .filter(|&&other| other != pid && size(other) > own);
        larger.count() < MOST_REPORTS
    }

    /// Whom the kernel has killed of those that are watched, and of the group of this one.
    pub(super) fn killed(&self, pid: i32, group: Option<&Path>) -> Vec<KilledProcess> {
        let mut kills = locked(&self.kills);
        let new = kills.log.take();
        kills.found.extend(new);
        let watched = locked(&self.crowd).pids.clone();
        let is_meant = |kill: &&OomKill| {
            kill.pid == pid
                || group.is_some_and(|group| kill.was_in(group))
                || (kill.group.is_empty() && watched.contains(&kill.pid))
        };
        let found = kills.found.iter().filter(is_meant);
        let process = |kill: &OomKill| KilledProcess {
            pid: kill.pid,
            name: kill.name.clone(),
        };
        found.map(process).collect()
    }

    /// Begins to wait for names at the end of the watch of a process.
    pub(super) fn name_wait(&self) -> NameWait {
        match self.is_one_of_several {
            true => NameWait::begin_beside_others(),
            false => NameWait::begin(),
        }
    }

    pub(super) fn begins(&self, pid: i32) {
        let mut crowd = locked(&self.crowd);
        crowd.pids.insert(pid);
        crowd.running.insert(pid);
    }

    /// The trace of a process has ended, with this exit code.
    pub(super) fn ends(&self, pid: i32, code: u8) {
        let mut crowd = locked(&self.crowd);
        crowd.running.remove(&pid);
        crowd.code = crowd.code.max(code);
    }

    /// Whether processes have been watched, and none is any more.
    pub(super) fn is_deserted(&self) -> bool {
        let crowd = locked(&self.crowd);
        crowd.running.is_empty() && !crowd.pids.is_empty()
    }

    /// Waits until all reports are written; the exit code.
    pub(super) fn finish(&self) -> u8 {
        let is_written = self.evidence().finish();
        let code = locked(&self.crowd).code;
        match is_written {
            true => code,
            false => code.max(exit_code::BAD_INPUT),
        }
    }
}
