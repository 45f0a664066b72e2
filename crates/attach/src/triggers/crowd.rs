//! Several processes that are watched for the end of their memory: the alarms of their groups, who of them is large, and
//! whom the kernel has killed.

use super::{Alarms, Condition, locked};
use memhook_process::{CgroupMemory, OomKill, OomKills, resident_counters};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// At an alarm of their group, so many of its processes are looked at: the largest.
const MOST_LOOKED_AT: usize = 3;
/// Kills that are remembered.
const MOST_KILLS: usize = 256;

/// All watched processes.
pub struct Crowd {
    /// Conditions on a whole group.
    of_group: Vec<Condition>,
    alarms: Mutex<BTreeMap<Option<PathBuf>, Arc<Alarms>>>,
    kills: Mutex<Killed>,
    /// Processes that are or were watched, and those that are.
    pids: Mutex<(BTreeSet<i32>, BTreeSet<i32>)>,
}

struct Killed {
    log: OomKills,
    found: Vec<OomKill>,
}

impl Crowd {
    /// Nobody is watched yet.
    pub fn new(of_group: Vec<Condition>) -> Crowd {
        Crowd {
            of_group,
            alarms: Mutex::default(),
            kills: Mutex::new(Killed {
                log: OomKills::follow(),
                found: Vec::new(),
            }),
            pids: Mutex::default(),
        }
    }

    /// The alarm of the group that a process is in.
    pub fn alarm_of(&self, pid: i32) -> Arc<Alarms> {
        let group = CgroupMemory::of(pid).group().map(Path::to_owned);
        let mut alarms = locked(&self.alarms);
        // Nobody is left in their groups.
        alarms.retain(|_, alarms| Arc::strong_count(alarms) > 1);
        let found = alarms.entry(group);
        let new = || Arc::new(Alarms::new(pid, self.of_group.clone()));
        Arc::clone(found.or_insert_with(new))
    }

    /// Returns true if a process is one of the largest that are watched.
    pub fn is_large(&self, pid: i32) -> bool {
        let pids = locked(&self.pids).1.clone();
        Crowd::largest(pids).contains(&pid)
    }

    /// Returns the processes of these that have the most in memory: as many as are worth a report.
    pub fn largest(pids: impl IntoIterator<Item = i32>) -> BTreeSet<i32> {
        let size = |pid| resident_counters(pid).map_or(0, |found| found.resident());
        let mut sizes: Vec<(u64, i32)> = pids.into_iter().map(|pid| (size(pid), pid)).collect();
        sizes.sort_unstable();
        let last = sizes.into_iter().rev().take(MOST_LOOKED_AT);
        last.map(|(_, pid)| pid).collect()
    }

    /// Whom the kernel has killed of those that are watched, and of the group of this one.
    pub fn killed(&self, pid: i32, group: Option<&Path>) -> Vec<OomKill> {
        let mut kills = locked(&self.kills);
        let new = kills.log.take();
        kills.found.extend(new);
        let forgotten = kills.found.len().saturating_sub(MOST_KILLS);
        kills.found.drain(..forgotten);
        let watched = locked(&self.pids).0.clone();
        let is_meant = |kill: &&OomKill| {
            kill.pid == pid
                || group.is_some_and(|group| kill.was_in(group))
                || (kill.group.is_empty() && watched.contains(&kill.pid))
        };
        kills.found.iter().filter(is_meant).cloned().collect()
    }

    /// The watch of a process begins.
    pub fn begins(&self, pid: i32) {
        let mut pids = locked(&self.pids);
        pids.0.insert(pid);
        pids.1.insert(pid);
    }

    /// The watch of a process has ended.
    pub fn ends(&self, pid: i32) {
        locked(&self.pids).1.remove(&pid);
    }

    /// Nobody is to be told any more that a process was watched.
    pub fn forget(&self, pid: i32) {
        let mut pids = locked(&self.pids);
        pids.0.remove(&pid);
        pids.1.remove(&pid);
    }

    /// Returns true if processes have been watched, and none is any more.
    pub fn is_deserted(&self) -> bool {
        let pids = locked(&self.pids);
        pids.1.is_empty() && !pids.0.is_empty()
    }
}
