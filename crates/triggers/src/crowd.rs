//! Several processes that are watched because their memory may run out: the alarms of their groups, the largest
//! processes, and the processes that the kernel has killed.

use super::{Alarms, Condition, locked};
use memhook_process::{CgroupMemory, OomKill, OomKills, resident_counters};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Number of processes that are examined after an alarm of their group, the largest processes first.
const MOST_LOOKED_AT: usize = 3;
/// Maximum number of remembered kills.
const MOST_KILLS: usize = 256;

/// All watched processes.
pub struct Crowd {
    /// Conditions on a whole group.
    of_group: Vec<Condition>,
    alarms: Mutex<BTreeMap<Option<PathBuf>, Arc<Alarms>>>,
    kills: Mutex<Killed>,
    /// All processes that are or were watched, and the processes that are watched now.
    pids: Mutex<(BTreeSet<i32>, BTreeSet<i32>)>,
}

struct Killed {
    log: OomKills,
    found: Vec<OomKill>,
}

impl Crowd {
    /// Creates an empty set.
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

    /// Returns the alarm of the group of a process.
    pub fn alarm_of(&self, pid: i32) -> Arc<Alarms> {
        let group = CgroupMemory::of(pid).group().map(Path::to_owned);
        let mut alarms = locked(&self.alarms);
        // No process is left in these groups.
        alarms.retain(|_, alarms| Arc::strong_count(alarms) > 1);
        let found = alarms.entry(group);
        let new = || Arc::new(Alarms::new(pid, self.of_group.clone()));
        Arc::clone(found.or_insert_with(new))
    }

    /// Returns true if a process is among the largest watched processes.
    pub fn is_large(&self, pid: i32) -> bool {
        let pids = locked(&self.pids).1.clone();
        Crowd::largest(pids).contains(&pid)
    }

    /// Returns the given processes with the most resident memory, at most as many as get a report.
    pub fn largest(pids: impl IntoIterator<Item = i32>) -> BTreeSet<i32> {
        let size = |pid| resident_counters(pid).map_or(0, |found| found.resident());
        let mut sizes: Vec<(u64, i32)> = pids.into_iter().map(|pid| (size(pid), pid)).collect();
        sizes.sort_unstable();
        let last = sizes.into_iter().rev().take(MOST_LOOKED_AT);
        last.map(|(_, pid)| pid).collect()
    }

    /// Returns the watched processes, and the processes in the group of `pid`, that the kernel has killed.
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

    /// Begins the watch of a process.
    pub fn begins(&self, pid: i32) {
        let mut pids = locked(&self.pids);
        pids.0.insert(pid);
        pids.1.insert(pid);
    }

    /// Ends the watch of a process.
    pub fn ends(&self, pid: i32) {
        locked(&self.pids).1.remove(&pid);
    }

    /// Forgets that a process was watched.
    pub fn forget(&self, pid: i32) {
        let mut pids = locked(&self.pids);
        pids.0.remove(&pid);
        pids.1.remove(&pid);
    }

    /// Returns true if processes have been watched, but none is now.
    pub fn is_deserted(&self) -> bool {
        let pids = locked(&self.pids);
        pids.1.is_empty() && !pids.0.is_empty()
    }
}
