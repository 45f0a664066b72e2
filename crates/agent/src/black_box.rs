//! Evidence about a process whose memory is about to run out: a profile of that moment, and how the process ended.
//!
//! One thread watches each control group, regardless of the number of processes in it, and wakes only the tracing
//! threads that have work to do.

use crate::board::Link;
use memhook_process::{OomKill, ended_with};
use memhook_report::{Death, KilledProcess, Kills};
use memhook_triggers::{Alarm, Alarms, Condition, Crowd};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Conditions under which the memory of a control group is considered about to run out: 90 % of its limit is in use, or
/// its processes stall on memory for 150 ms per second.
const CONDITIONS: [&str; 2] = ["limit >= 90%", "psi >= 15%"];
/// Time between two checks of a group. A container can fill its memory within a second.
const ROUND: Duration = Duration::from_millis(20);

/// The black boxes of all processes, and the thread that watches their groups.
pub struct BlackBoxes {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    crowd: Crowd,
    groups: Mutex<Vec<Group>>,
    ends: AtomicBool,
}

/// A control group with processes that have a black box.
struct Group {
    alarms: Arc<Alarms>,
    /// Number of answered alarms.
    answered: u64,
    kills: Option<u64>,
    processes: Vec<Arc<Process>>,
}

struct Process {
    pid: i32,
    link: Arc<Link>,
    /// The alarm to answer.
    alarm: Mutex<Option<Alarm>>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BlackBoxes {
    /// Starts the thread, which sleeps until there is a process.
    pub fn start() -> std::io::Result<BlackBoxes> {
        let conditions = CONDITIONS.iter().filter_map(|text| text.parse().ok());
        let shared = Arc::new(Shared {
            crowd: Crowd::new(conditions.collect::<Vec<Condition>>()),
            groups: Mutex::default(),
            ends: AtomicBool::default(),
        });
        let thread = std::thread::Builder::new().name("black boxes".into());
        let of_thread = Arc::clone(&shared);
        let thread = thread.spawn(move || of_thread.run())?;
        Ok(BlackBoxes {
            shared,
            thread: Some(thread),
        })
    }

    /// Creates the black box of a process that is about to be traced. `link` wakes the thread that traces it.
    pub fn add(&self, pid: i32, link: &Arc<Link>) -> BlackBox {
        let alarms = self.shared.crowd.alarm_of(pid);
        self.shared.crowd.begins(pid);
        let kills_before = alarms.kills();
        let process = Arc::new(Process {
            pid,
            link: Arc::clone(link),
            alarm: Mutex::default(),
        });
        let mut groups = locked(&self.shared.groups);
        match groups
            .iter_mut()
            .find(|of| Arc::ptr_eq(&of.alarms, &alarms))
        {
            Some(group) => group.processes.push(Arc::clone(&process)),
            None => groups.push(Group {
                answered: alarms.given(),
                kills: kills_before,
                alarms: Arc::clone(&alarms),
                processes: vec![Arc::clone(&process)],
            }),
        }
        drop(groups);
        self.unpark();
        BlackBox {
            shared: Arc::clone(&self.shared),
            process,
            has_answered: false,
            kills_before,
            alarms,
            died: None,
        }
    }

    fn unpark(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for BlackBoxes {
    fn drop(&mut self) {
        self.shared.ends.store(true, Relaxed);
        self.unpark();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        // When memory runs out, little time is left.
        memhook_inject::take_precedence();
        while !self.ends.load(Relaxed) {
            if self.look() {
                std::thread::park_timeout(ROUND);
            } else {
                std::thread::park();
            }
        }
    }

    /// Checks each group. Returns true if there are any.
    fn look(&self) -> bool {
        let mut groups = locked(&self.groups);
        // One full group may have several watched groups below it. The alarm then goes to the largest processes of all
        // these watched groups.
        let mut meant = BTreeMap::<(&str, Option<PathBuf>), (Alarm, Vec<Arc<Process>>)>::new();
        for group in groups.iter_mut() {
            if let Some(alarm) = group.alarms.check(&mut group.answered) {
                let place = alarm.place.clone().or_else(|| group.alarms.group());
                let found = meant.entry((alarm.reason, place));
                let (_, processes) = found.or_insert_with(|| (alarm, Vec::new()));
                processes.extend(group.processes.iter().cloned());
            }
            let kills = group.alarms.kills();
            if kills > group.kills {
                group.kills = kills;
                // Without this call, the thread that traces a quiet target would notice the target's end only at its
                // next turn.
                group
                    .processes
                    .iter()
                    .for_each(|process| process.link.call());
            }
        }
        let are_some = !groups.is_empty();
        drop(groups);
        for (alarm, processes) in meant.into_values() {
            let large = Crowd::largest(processes.iter().map(|process| process.pid));
            for process in processes
                .iter()
                .filter(|process| large.contains(&process.pid))
            {
                *locked(&process.alarm) = Some(alarm.clone());
                process.link.call();
            }
        }
        are_some
    }
}

/// Black box of one process.
pub struct BlackBox {
    shared: Arc<Shared>,
    process: Arc<Process>,
    alarms: Arc<Alarms>,
    has_answered: bool,
    kills_before: Option<u64>,
    /// Wait status of the process, if it could be read.
    died: Option<i32>,
}

impl BlackBox {
    /// Returns the alarm, if a profile has to be kept now. `is_gone` is true if the process has
    /// just ended.
    pub fn look(&mut self, is_gone: bool) -> Option<Alarm> {
        let pid = self.process.pid;
        if is_gone {
            self.died = ended_with(pid).or(self.died);
            return None;
        }
        let alarm = locked(&self.process.alarm).take();
        self.has_answered |= alarm.is_some();
        alarm
    }

    /// Returns how the process has ended if a profile is useful in that case: it was killed, or its memory was about to
    /// run out.
    pub fn end(&mut self) -> Option<String> {
        self.look(true);
        let pid = self.process.pid;
        let group = self.alarms.group();
        let killed = self.shared.crowd.killed(pid, group.as_deref());
        let named = |kill: OomKill| KilledProcess {
            pid: kill.pid,
            name: kill.name,
        };
        let count = self.alarms.kills().zip(self.kills_before);
        let kills = Kills {
            count: count.map(|(now, before)| now.saturating_sub(before)),
            processes: killed.into_iter().map(named).collect(),
        };
        let death = Death::new(pid, self.died, &kills);
        let is_kept = self.has_answered || death.out_of_memory;
        is_kept.then(|| death.explanation(pid, &kills))
    }
}

impl Drop for BlackBox {
    fn drop(&mut self) {
        self.shared.crowd.forget(self.process.pid);
        let mut groups = locked(&self.shared.groups);
        for group in groups.iter_mut() {
            group
                .processes
                .retain(|one| !Arc::ptr_eq(one, &self.process));
        }
        groups.retain(|group| !group.processes.is_empty());
    }
}
