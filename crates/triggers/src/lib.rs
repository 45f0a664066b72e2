//! Actions that are triggered when a [`Condition`] becomes true, and the quantities that conditions compare.

mod alarm;
mod condition;
mod crowd;
mod growth_forecast;

pub use alarm::{Alarm, Alarms};
pub use condition::{Condition, ConditionError, Quantity};
pub use crowd::Crowd;
pub use growth_forecast::GrowthForecast;

use condition::Limit;
use memhook_ledger::Totals;
use memhook_process::{CgroupMemory, MemoryLevel, MemoryPressure, resident_counters};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Period over which growth is measured.
const GROWTH_WINDOW: Duration = Duration::from_secs(60);
/// Minimum length of measurements before growth is reported, because every program grows when it starts.
const GROWTH_AT_LEAST: Duration = Duration::from_secs(5);
/// Time between two stored values of the last minute.
const GROWTH_STEP: Duration = Duration::from_millis(500);
/// Longest window that the kernel accepts.
const LONGEST_WINDOW: Duration = Duration::from_secs(10);
/// Time between two stored values of the waiting times.
const WAITING_STEP: Duration = Duration::from_millis(50);
/// Minimum time between two firings of a trigger.
const REST: Duration = Duration::from_secs(1);
/// Minimum time between two firings of a trigger that fires again as long as the situation gets worse. A trigger on a
/// share of waiting time fires again whenever this time has passed, because there is no worse value for it.
const WAITING_REST: Duration = Duration::from_secs(10);
/// Fraction of a limit below which a value must fall before it can cross the limit again.
const FALL: f64 = 0.95;

/// Quantities that conditions compare, at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of live blocks.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Resident bytes; `None` if the kernel does not report them, for example after the end of a process.
    pub rss_bytes: Option<u64>,
    /// Level of the fullest control group with a limit, or of the machine.
    pub memory: Option<MemoryLevel>,
    /// Time in which some processes waited for memory, and time in which all of them did.
    pub waited: Option<[Duration; 2]>,
}

/// Action of a trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes a report.
    Report,
    /// Sets a mark with this name; without a name, the condition's text is used.
    Mark(Option<String>),
    /// Ends the trace.
    Detach,
    /// Runs a shell command.
    Run(String),
}

impl std::str::FromStr for Action {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Action, &'static str> {
        const EXPECTED: &str = "expected report, mark, mark=NAME, detach or exec=COMMAND";
        let (word, value) = match text.split_once('=') {
            Some((word, value)) => (word, Some(value.trim())),
            None => (text, None),
        };
        match (word.trim(), value) {
            ("report", None) => Ok(Action::Report),
            ("detach", None) => Ok(Action::Detach),
            ("mark", None) => Ok(Action::Mark(None)),
            ("mark", Some(name)) if name.is_empty() || name.contains(char::is_control) => {
                Err("the name of a mark must be one line of visible characters")
            }
            ("mark", Some(name)) if name.len() > memhook_abi::MARK_BYTES => {
                Err("the name of a mark may have at most 112 bytes")
            }
            ("mark", Some(name)) => Ok(Action::Mark(Some(name.to_owned()))),
            ("exec", Some(command)) if !command.is_empty() => Ok(Action::Run(command.to_owned())),
            _ => Err(EXPECTED),
        }
    }
}

/// Rule for firing again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// Acts only if the condition has been false since it last acted.
    Anew,
    /// Also acts if the value gets much worse: half of the remaining distance to a limit is used up, or any other
    /// quantity has grown by an eighth.
    Worse,
}

/// Action with its condition.
#[derive(Clone, Debug)]
struct Armed {
    condition: Condition,
    action: Action,
    held: bool,
    fired: Option<Duration>,
    /// Value from which the situation is much worse than at the last firing.
    worse: Option<f64>,
}

/// All conditions and actions of a trace.
pub struct Triggers {
    armed: Vec<Armed>,
    again: Again,
    pid: i32,
    cgroup: CgroupMemory,
    pressure: Option<MemoryPressure>,
    past: Past,
}

/// Recent measurements.
#[derive(Default)]
struct Past {
    /// Live bytes of the last minute.
    live: VecDeque<(Duration, u64)>,
    /// Waiting times of processes, for the longest window.
    waited: VecDeque<(Duration, [Duration; 2])>,
}

impl Triggers {
    /// Creates triggers for a process: conditions, each with its action.
    pub fn new(
        pid: i32,
        again: Again,
        all: impl IntoIterator<Item = (Condition, Action)>,
    ) -> Triggers {
        let armed = all.into_iter().map(|(condition, action)| Armed {
            condition,
            action,
            held: false,
            fired: None,
            worse: None,
        });
        let cgroup = CgroupMemory::of(pid);
        Triggers {
            armed: armed.collect(),
            again,
            pid,
            pressure: MemoryPressure::of(cgroup.group()).ok(),
            cgroup,
            past: Past::default(),
        }
    }

    /// Returns true if there are no triggers.
    pub fn is_empty(&self) -> bool {
        self.armed.is_empty()
    }

    /// Returns the control groups of the process.
    pub fn cgroup(&self) -> &CgroupMemory {
        &self.cgroup
    }

    /// Measures the quantities that the conditions need. `live` is the ledger's sums.
    pub fn measure(&self, live: &Totals) -> Measured {
        let limits = self.armed.iter().flat_map(|armed| &armed.condition.limits);
        let is_asked = |kind: fn(&Quantity) -> bool| limits.clone().any(|l| kind(&l.quantity));
        let asks_limit = is_asked(|q| matches!(q, Quantity::LimitShare | Quantity::LimitBytes));
        let asks_waiting = is_asked(|q| matches!(q, Quantity::Waiting { .. }));
        let pressure = self.pressure.as_ref().filter(|_| asks_waiting);
        Measured {
            live_bytes: live.live_bytes,
            live_blocks: live.live_blocks,
            rss_bytes: is_asked(|q| *q == Quantity::Rss)
                .then(|| resident_counters(self.pid))
                .flatten()
                .map(|counters| counters.resident()),
            memory: asks_limit.then(|| self.cgroup.fullest_now()).flatten(),
            waited: pressure.and_then(MemoryPressure::waited),
        }
    }

    /// Returns the actions that are due now, in the order in which the user gave them. `now`: time since the attach.
    pub fn due(&mut self, now: Duration, measured: &Measured) -> Vec<(Condition, Action)> {
        self.past.take(now, measured);
        let mut due = Vec::new();
        for armed in &mut self.armed {
            let value = |limit: &Limit| self.past.value(limit.quantity, now, measured);
            let limits = &armed.condition.limits;
            let holds = limits.iter().all(|limit| limit.holds(value(limit)));
            let (first, first_value) = (limits[0], value(&limits[0]));
            let is_worse = armed.worse.zip(first_value);
            let is_worse = is_worse.is_some_and(|(worse, value)| value >= worse);
            let rest = match (self.again, first.quantity) {
                (Again::Anew, _) => REST,
                (Again::Worse, Quantity::Waiting { .. }) => WAITING_REST,
                (Again::Worse, _) => Duration::ZERO,
            };
            let has_rested = armed.fired.is_none_or(|fired| now >= fired + rest);
            // A condition that becomes true again too soon is checked again when the minimum time is over.
            if holds && has_rested && (!armed.held || is_worse) {
                armed.fired = Some(now);
                let worse = first_value.map(|value| worse(first.quantity, value, measured));
                armed.worse = worse.filter(|_| self.again == Again::Worse);
                due.push((armed.condition.clone(), armed.action.clone()));
            }
            let has_fallen = self.again == Again::Anew
                || first_value.is_some_and(|value| value < first.number * FALL);
            armed.held = match holds {
                true => armed.held || has_rested,
                false => armed.held && !has_fallen,
            };
        }
        due
    }
}

/// Returns the value at which a quantity is much worse than now.
fn worse(quantity: Quantity, value: f64, now: &Measured) -> f64 {
    let half_way = |limit: f64| value + (limit - value).max(0.0) / 2.0;
    match quantity {
        Quantity::LimitShare => half_way(1.0),
        Quantity::LimitBytes => half_way(now.memory.as_ref().map_or(0.0, |m| m.limit as f64)),
        // This quantity counts as worse after each rest.
        Quantity::Waiting { .. } => 0.0,
        _ => value * 1.125,
    }
}

impl Past {
    /// Stores the values that later checks need.
    fn take(&mut self, now: Duration, measured: &Measured) {
        let is_due = |last: Option<Duration>, step| last.is_none_or(|last| now >= last + step);
        if is_due(self.live.back().map(|last| last.0), GROWTH_STEP) {
            self.live.push_back((now, measured.live_bytes));
        }
        while self.live.len() > 1 && self.live[1].0 + GROWTH_WINDOW <= now {
            self.live.pop_front();
        }
        if let Some(waited) = measured.waited
            && is_due(self.waited.back().map(|last| last.0), WAITING_STEP)
        {
            self.waited.push_back((now, waited));
        }
        while self.waited.len() > 1 && self.waited[1].0 + LONGEST_WINDOW <= now {
            self.waited.pop_front();
        }
    }

    /// Returns a quantity once enough is known.
    fn value(&self, quantity: Quantity, now: Duration, measured: &Measured) -> Option<f64> {
        let memory = measured.memory.as_ref();
        match quantity {
            Quantity::Live => Some(measured.live_bytes as f64),
            Quantity::Blocks => Some(measured.live_blocks as f64),
            Quantity::Rss => measured.rss_bytes.map(|bytes| bytes as f64),
            Quantity::Growth => self.growth(now, measured.live_bytes),
            Quantity::LimitShare => memory.map(MemoryLevel::share),
            Quantity::LimitBytes => memory.map(|memory| memory.used() as f64),
            Quantity::Waiting { all, window } => {
                let kind = usize::from(all);
                let mut before = self.waited.iter().rev();
                let (then, waited) = before.find(|(time, _)| *time + window <= now)?;
                let waited = measured.waited?[kind].saturating_sub(waited[kind]);
                Some(waited.as_secs_f64() / (now - *then).as_secs_f64())
            }
        }
    }

    /// Returns the growth in bytes per minute.
    fn growth(&self, now: Duration, live: u64) -> Option<f64> {
        let (then, before) = *self.live.front()?;
        let time = now.saturating_sub(then);
        let grown = live as f64 - before as f64;
        (time >= GROWTH_AT_LEAST).then(|| grown * 60.0 / time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(text: &str) -> Condition {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    fn of_this_process<const N: usize>(again: Again, all: [(Condition, Action); N]) -> Triggers {
        Triggers::new(std::process::id() as i32, again, all)
    }

    /// Returns a measurement with `live_bytes` live bytes, twice as many resident bytes, and the same number of used
    /// bytes out of a limit of 1000.
    fn live(live_bytes: u64) -> Measured {
        Measured {
            live_bytes,
            live_blocks: live_bytes / 10,
            rss_bytes: Some(2 * live_bytes),
            memory: Some(MemoryLevel {
                path: "/".into(),
                limit: 1000,
                free: 1000 - live_bytes.min(1000),
            }),
            waited: None,
        }
    }

    #[test]
    fn conditions_hold() {
        let holds = |text: &str, now: &Measured| {
            let value = |quantity| Past::default().value(quantity, Duration::ZERO, now);
            let condition = condition(text);
            assert_eq!(condition.to_string(), text.trim());
            let mut limits = condition.limits.iter();
            limits.all(|limit| limit.holds(value(limit.quantity)))
        };
        for (text, below, above) in [
            ("live > 2K", 2048, 2049),
            ("live>=1.5K", 1535, 1536),
            ("blocks > 100", 1000, 1010),
            ("rss > 1K", 512, 513),
            (" live > 1 and rss > 4000 ", 2000, 2001),
            ("limit >= 50%", 499, 500),
            ("limit > 300", 300, 301),
        ] {
            assert!(!holds(text, &live(below)), "{text}");
            assert!(holds(text, &live(above)), "{text}");
        }
        assert!(holds("live < 5", &live(4)));
        assert!(!holds("live <= 5", &live(6)));
        assert!(!holds("growth > 0", &live(6)), "it is not known");
        let gone = Measured::default();
        for text in ["rss < 1G", "limit < 90%", "psi < 100%"] {
            assert!(!holds(text, &gone), "it has ended");
        }
    }

    #[test]
    fn actions_are_read() {
        for text in [
            "",
            "report=1",
            "exec",
            "exec=",
            "mark=",
            "stop",
            "mark=a\nb",
        ] {
            assert!(text.parse::<Action>().is_err(), "{text}");
        }
        let command = "exec=echo a=b".parse();
        assert_eq!(command, Ok(Action::Run("echo a=b".into())));
        assert_eq!("mark= x ".parse(), Ok(Action::Mark(Some("x".into()))));
    }

    #[test]
    fn a_trigger_fires_when_its_condition_begins_to_hold() {
        let mut triggers = of_this_process(
            Again::Anew,
            [
                (condition("live > 100"), Action::Report),
                (condition("live > 200"), Action::Detach),
            ],
        );
        let mut fired = |ms: u64, bytes: u64| {
            let due = triggers.due(Duration::from_millis(ms), &live(bytes));
            due.into_iter()
                .map(|(_, action)| action)
                .collect::<Vec<_>>()
        };
        assert_eq!(fired(0, 100), []);
        assert_eq!(fired(100, 101), [Action::Report]);
        assert_eq!(fired(200, 150), [], "it goes on");
        assert_eq!(fired(300, 50), []);
        assert_eq!(fired(400, 150), [], "too soon");
        assert_eq!(
            fired(1100, 150),
            [Action::Report],
            "it still holds after the rest"
        );
        assert_eq!(fired(5000, 0), []);
        assert_eq!(fired(6000, 201), [Action::Report, Action::Detach]);
    }

    #[test]
    fn growth_is_that_of_the_last_minute() {
        let mut past = Past::default();
        let mut growth = |seconds: u64, bytes: u64| {
            let now = Duration::from_secs(seconds);
            past.take(now, &live(bytes));
            past.growth(now, bytes)
        };
        assert_eq!(growth(0, 1000), None);
        assert_eq!(growth(4, 9000), None);
        assert_eq!(growth(10, 2000), Some(6000.0));
        for second in 11..200 {
            growth(second, 2000);
        }
        assert_eq!(growth(200, 2000), Some(0.0));
        assert_eq!(growth(201, 1000), Some(-1000.0));
    }

    /// Triggers as in `watch`: a report whenever the situation gets much worse.
    #[test]
    fn a_trigger_fires_again_when_it_gets_worse() {
        let report = |text| (condition(text), Action::Report);
        let all = [
            report("limit >= 80%"),
            report("limit >= 900"),
            report("rss > 100"),
        ];
        let mut triggers = of_this_process(Again::Worse, all);
        let mut ms = 0;
        let mut fired = |bytes: u64| {
            ms += 5;
            let due = triggers.due(Duration::from_millis(ms), &live(bytes));
            let texts = due.into_iter().map(|(condition, _)| condition.to_string());
            texts.collect::<Vec<_>>().join(", ")
        };
        for (bytes, expected) in [
            (50, ""),
            (51, "rss > 100"),
            (57, ""),
            (58, "rss > 100"),
            (49, ""),
            (51, ""),
            (47, ""),
            (51, "rss > 100"),
            (800, "limit >= 80%, rss > 100"),
            (890, ""),
            (900, "limit >= 80%, limit >= 900, rss > 100"),
            (949, ""),
            (950, "limit >= 80%, limit >= 900"),
            (790, ""),
            (800, ""),
            (700, ""),
            (850, "limit >= 80%"),
        ] {
            assert_eq!(fired(bytes), expected, "{bytes}");
        }
    }

    /// The share of waiting time is known once the window has passed, and the trigger fires at most every ten seconds.
    #[test]
    fn waiting_is_that_of_its_window() {
        let pressure = Condition::of_pressure("some 500000 1000000").expect("words");
        let mut triggers = of_this_process(Again::Worse, [(pressure, Action::Report)]);
        let mut fired = Vec::new();
        for ms in (0..30_000).step_by(100) {
            // From the fifth to the sixteenth second, 60 ms out of every 100.
            let waited = (ms.clamp(5_000, 16_000) - 5_000) * 6 / 10;
            let measured = Measured {
                waited: Some([Duration::from_millis(waited), Duration::ZERO]),
                ..Measured::default()
            };
            if !triggers
                .due(Duration::from_millis(ms), &measured)
                .is_empty()
            {
                fired.push(ms);
            }
        }
        assert_eq!(fired, [5_900, 15_900]);
    }

    #[test]
    fn only_what_is_asked_for_is_measured() {
        let of = |text| of_this_process(Again::Anew, [(condition(text), Action::Report)]);
        let totals = Totals::default();
        let plain = of("live > 1").measure(&totals);
        assert_eq!(plain, Measured::default());
        assert!(of("rss > 1").measure(&totals).rss_bytes.is_some());
        let memory = of("limit > 0.001%")
            .measure(&totals)
            .memory
            .expect("a limit");
        assert!(memory.share() > 0.00001, "{memory:?}");
    }
}
