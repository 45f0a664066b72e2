//! Raises an alarm, with the reason, before the memory of a process or its group runs out.

use super::{Action, Again, Condition, GrowthForecast, Measured, Quantity, Triggers, locked};
use memhook_ledger::Totals;
use memhook_process::MemoryLevel;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time between two checks, regardless of the number of watched processes in a group.
const PAUSE: Duration = Duration::from_millis(5);
/// Like `PAUSE`, while less than this share of the limit is used.
const CALM_PAUSE: Duration = Duration::from_millis(50);
const CALM: f64 = 0.4;

/// Reason for a report.
#[derive(Clone)]
pub struct Alarm {
    /// Reason in one word.
    pub reason: &'static str,
    /// Explanation, a sentence without its full stop.
    pub explanation: String,
    /// Directory of the control group that is about to run out; `/` stands for the machine. `None`: the group of the
    /// process.
    pub place: Option<PathBuf>,
}

impl Alarm {
    /// Returns the alarm for a condition that is true now.
    fn new(condition: &Condition, now: &Measured) -> Alarm {
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        let (reason, explanation) = match (condition.first(), &now.memory) {
            ((Quantity::Waiting { .. }, _), _) => ("pressure", "processes wait for memory".into()),
            ((Quantity::Rss, allowed), _) => {
                let bytes = now.rss_bytes.unwrap_or(0) as f64;
                let text = format!(
                    "{:.1} MiB are resident, more than {:.1} MiB",
                    mib(bytes),
                    mib(allowed)
                );
                ("rss", text)
            }
            (_, Some(level)) => ("limit", used(level)),
            _ => ("limit", condition.to_string()),
        };
        let is_of_level = reason == "limit";
        let level = now.memory.as_ref().filter(|_| is_of_level);
        Alarm {
            reason,
            explanation,
            place: level.map(|level| level.path.clone()),
        }
    }

    /// Returns the alarm for a limit that will be reached within this time if growth continues.
    fn of_growth(level: &MemoryLevel, left: Duration) -> Alarm {
        let (used, seconds) = (used(level), left.as_secs_f64());
        Alarm {
            reason: "growth",
            explanation: format!("{used}, and at this rate the rest lasts for {seconds:.0} s"),
            place: Some(level.path.clone()),
        }
    }
}

fn used(level: &MemoryLevel) -> String {
    let (percent, mib) = (
        100.0 * level.share(),
        level.limit as f64 / f64::from(1 << 20),
    );
    let place = match level.is_machine() {
        true => "on this machine".to_owned(),
        false => format!("in the memory cgroup {}", level.path.display()),
    };
    format!("{percent:.1} % of {mib:.1} MiB are used {place}")
}

/// Alarms of a control group and its ancestors, or of a process.
pub struct Alarms(Mutex<State>);

struct State {
    triggers: Triggers,
    growth: GrowthForecast,
    began: Instant,
    next: Instant,
    /// Number of alarms so far.
    given: u64,
    last: Option<Alarm>,
    /// The last known number: the group may disappear along with its processes.
    kills: Option<u64>,
}

impl Alarms {
    /// Creates the alarms of a process or its group.
    pub fn new(pid: i32, conditions: impl IntoIterator<Item = Condition>) -> Alarms {
        let now = Instant::now();
        let reports = conditions.into_iter().map(|one| (one, Action::Report));
        Alarms(Mutex::new(State {
            triggers: Triggers::new(pid, Again::Worse, reports),
            growth: GrowthForecast::default(),
            began: now,
            next: now,
            given: 0,
            last: None,
            kills: None,
        }))
    }

    /// Returns an alarm that occurred since `answered`.
    pub fn check(&self, answered: &mut u64) -> Option<Alarm> {
        let mut state = locked(&self.0);
        let now = Instant::now();
        if now >= state.next {
            let (is_calm, alarm) = state.look();
            state.next = now + if is_calm { CALM_PAUSE } else { PAUSE };
            if alarm.is_some() {
                state.given += 1;
                state.last = alarm;
            }
        }
        if std::mem::replace(answered, state.given) == state.given {
            return None;
        }
        state.last.clone()
    }

    /// Returns the number of alarms.
    pub fn given(&self) -> u64 {
        locked(&self.0).given
    }

    /// Returns the number of the group's processes that the kernel is known to have killed for lack of memory, or
    /// `None` if the kernel does not report it.
    pub fn kills(&self) -> Option<u64> {
        let mut state = locked(&self.0);
        state.kills = state.triggers.cgroup().kills().or(state.kills);
        state.kills
    }

    /// Returns the directory of the group.
    pub fn group(&self) -> Option<PathBuf> {
        let state = locked(&self.0);
        state.triggers.cgroup().group().map(Path::to_owned)
    }
}

impl State {
    /// Returns true if little memory is used, and an alarm if one is due.
    fn look(&mut self) -> (bool, Option<Alarm>) {
        let now = self.began.elapsed();
        // No condition here is about live blocks.
        let measured = self.triggers.measure(&Totals::default());
        let due = self.triggers.due(now, &measured);
        let due = due.first().map(|due| Alarm::new(&due.0, &measured));
        let Some(level) = &measured.memory else {
            return (false, due);
        };
        let forecast = || {
            let left = self.growth.look(now, level.used(), level.limit)?;
            Some(Alarm::of_growth(level, left))
        };
        (level.share() < CALM, due.or_else(forecast))
    }
}
