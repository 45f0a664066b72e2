//! What is kept of a process whose memory is about to run out: a profile of that moment, and how the process ended.

use memhook_attach::{Alarm, Alarms, Condition, Crowd};
use memhook_process::{OomKill, ended_with};
use memhook_report::{Death, KilledProcess, Kills};
use std::sync::Arc;
use std::time::Duration;

/// When the memory of a control group is about to run out: 90 % of its limit are in use, or its processes wait for memory
/// for 150 ms of a second.
const CONDITIONS: [&str; 2] = ["limit >= 90%", "psi >= 15%"];
/// Time between two turns of a target that has one. The memory of a container may be filled within a second.
pub const PACE: Duration = Duration::from_millis(20);

/// All of them: what they share.
pub fn crowd() -> Crowd {
    let conditions = CONDITIONS.iter().filter_map(|text| text.parse().ok());
    Crowd::new(conditions.collect::<Vec<Condition>>())
}

/// That of one process.
pub struct BlackBox {
    pid: i32,
    crowd: Arc<Crowd>,
    alarms: Arc<Alarms>,
    /// How many alarms it has answered.
    answered: u64,
    has_answered: bool,
    kills_before: Option<u64>,
    /// As they were last seen: the group may go with the process.
    kills: Option<u64>,
    /// Its wait status, if it could be read.
    died: Option<i32>,
}

impl BlackBox {
    /// Of a process that is about to be traced.
    pub fn new(pid: i32, crowd: &Arc<Crowd>) -> BlackBox {
        let alarms = crowd.alarm_of(pid);
        crowd.begins(pid);
        BlackBox {
            pid,
            answered: alarms.given(),
            has_answered: false,
            kills_before: alarms.kills(),
            kills: None,
            alarms,
            crowd: Arc::clone(crowd),
            died: None,
        }
    }

    /// Whether a profile has to be kept now, and why. `is_gone`: the process has just ended.
    pub fn look(&mut self, is_gone: bool) -> Option<Alarm> {
        self.kills = self.alarms.kills().or(self.kills);
        if is_gone {
            self.died = ended_with(self.pid).or(self.died);
            return None;
        }
        let alarm = self.alarms.check(&mut self.answered);
        // Of many processes in a group, the smaller ones are not what fills it.
        let alarm = alarm.filter(|_| self.crowd.is_large(self.pid));
        self.has_answered |= alarm.is_some();
        alarm
    }

    /// How the process has ended, if that is worth a profile: it was killed, or its memory was about to run out.
    pub fn end(&mut self) -> Option<String> {
        self.look(true);
        let group = self.alarms.group();
        let killed = self.crowd.killed(self.pid, group.as_deref());
        let named = |kill: OomKill| KilledProcess {
            pid: kill.pid,
            name: kill.name,
        };
        let count = self.kills.zip(self.kills_before);
        let kills = Kills {
            count: count.map(|(now, before)| now.saturating_sub(before)),
            processes: killed.into_iter().map(named).collect(),
        };
        let death = Death::new(self.pid, self.died, &kills);
        let is_kept = self.has_answered || death.out_of_memory;
        is_kept.then(|| death.explanation(self.pid, &kills))
    }
}

impl Drop for BlackBox {
    fn drop(&mut self) {
        self.crowd.forget(self.pid);
    }
}
