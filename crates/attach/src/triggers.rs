//! What is to be done with a trace when its numbers reach a limit: `live > 2G` and `rss > 4G`.
//!
//! ```text
//! condition = comparison { "and" comparison }
//! comparison = quantity ( ">" | ">=" | "<" | "<=" ) size [ "/min" ]
//! quantity = "live" | "blocks" | "rss" | "growth"
//! ```

use memhook_foreign::units;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// Growth is that of the last minute.
const GROWTH_WINDOW: Duration = Duration::from_secs(60);
/// Before that much is known, nothing is said of growth: a program that has just begun grows.
const GROWTH_AT_LEAST: Duration = Duration::from_secs(5);
/// Between two values that are kept of the last minute.
const GROWTH_STEP: Duration = Duration::from_millis(500);
/// A trigger that has fired does not fire again sooner.
const REST: Duration = Duration::from_secs(1);

/// What a trigger looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Bytes of live blocks.
    Live,
    /// Live blocks.
    Blocks,
    /// Bytes in memory, as the kernel counts them.
    Rss,
    /// Live bytes that came in a minute.
    Growth,
}

impl Quantity {
    const ALL: [(&'static str, Quantity); 4] = [
        ("live", Quantity::Live),
        ("blocks", Quantity::Blocks),
        ("rss", Quantity::Rss),
        ("growth", Quantity::Growth),
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Above,
    AtLeast,
    Below,
    AtMost,
}

/// The two-letter ones first, because they begin with the others.
const COMPARISONS: [(&str, Comparison); 4] = [
    (">=", Comparison::AtLeast),
    ("<=", Comparison::AtMost),
    (">", Comparison::Above),
    ("<", Comparison::Below),
];

#[derive(Clone, Debug, PartialEq)]
struct Limit {
    quantity: Quantity,
    comparison: Comparison,
    number: f64,
}

/// When something is to be done: all of its comparisons hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    text: String,
    limits: Vec<Limit>,
}

/// A condition that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: expected {expected}")]
pub struct ConditionError {
    /// Where, from 1.
    pub column: usize,
    /// What should be there.
    pub expected: &'static str,
}

/// The numbers of a trace at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of live blocks.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Bytes in memory; `None` if the kernel does not say, as of a process that has ended.
    pub rss_bytes: Option<u64>,
}

/// The rest of a text, and where it begins.
struct Rest<'a> {
    whole: &'a str,
    rest: &'a str,
}

impl<'a> Rest<'a> {
    fn error(&self, expected: &'static str) -> ConditionError {
        let before = &self.whole[..self.whole.len() - self.rest.len()];
        ConditionError {
            column: before.chars().count() + 1,
            expected,
        }
    }

    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn word(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn limit(&mut self) -> Result<Limit, ConditionError> {
        self.skip_spaces();
        let error = self.error("live, blocks, rss or growth");
        let word = self.word(|c| c.is_ascii_alphabetic());
        let quantity = Quantity::ALL.iter().find(|(name, _)| *name == word);
        let quantity = quantity.ok_or(error)?.1;
        self.skip_spaces();
        let found = COMPARISONS
            .iter()
            .find_map(|(sign, comparison)| Some((*comparison, self.rest.strip_prefix(sign)?)));
        let (comparison, rest) = found.ok_or_else(|| self.error(">, >=, < or <="))?;
        self.rest = rest;
        self.skip_spaces();
        let error = self.error("a number like 500, 1.5G or 100M");
        let number = self.word(|c| c.is_ascii_alphanumeric() || c == '.');
        let number = units::size(number).map_err(|_| error)?;
        if let Some(rest) = self.rest.strip_prefix("/min") {
            if quantity != Quantity::Growth {
                return Err(self.error("no '/min': only growth has one"));
            }
            self.rest = rest;
        }
        Ok(Limit {
            quantity,
            comparison,
            number: number as f64,
        })
    }
}

impl std::str::FromStr for Condition {
    type Err = ConditionError;

    fn from_str(text: &str) -> Result<Condition, ConditionError> {
        let mut rest = Rest {
            whole: text,
            rest: text,
        };
        let mut limits = vec![rest.limit()?];
        loop {
            rest.skip_spaces();
            if rest.rest.is_empty() {
                return Ok(Condition {
                    text: text.trim().to_owned(),
                    limits,
                });
            }
            let error = rest.error("'and', or the end");
            if rest.word(|c| c.is_ascii_alphabetic()) != "and" {
                return Err(error);
            }
            limits.push(rest.limit()?);
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Condition {
    fn holds(&self, now: &Measured, growth: Option<f64>) -> bool {
        self.limits.iter().all(|limit| {
            let value = match limit.quantity {
                Quantity::Live => Some(now.live_bytes as f64),
                Quantity::Blocks => Some(now.live_blocks as f64),
                Quantity::Rss => now.rss_bytes.map(|bytes| bytes as f64),
                Quantity::Growth => growth,
            };
            value.is_some_and(|value| match limit.comparison {
                Comparison::Above => value > limit.number,
                Comparison::AtLeast => value >= limit.number,
                Comparison::Below => value < limit.number,
                Comparison::AtMost => value <= limit.number,
            })
        })
    }
}

/// What a trigger does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes a report.
    Report,
    /// Sets a mark of this name; without one, it is called like the condition.
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
                Err("a mark needs a name of visible characters on one line")
            }
            ("mark", Some(name)) if name.len() > memhook_abi::MARK_BYTES => {
                Err("the name of a mark takes 112 bytes at most")
            }
            ("mark", Some(name)) => Ok(Action::Mark(Some(name.to_owned()))),
            ("exec", Some(command)) if !command.is_empty() => Ok(Action::Run(command.to_owned())),
            _ => Err(EXPECTED),
        }
    }
}

/// Something to be done when a condition begins to hold, and again when it has not held in between.
#[derive(Clone, Debug)]
struct Armed {
    condition: Condition,
    action: Action,
    held: bool,
    fired: Option<Duration>,
}

/// All that is to be done.
#[derive(Clone, Debug, Default)]
pub struct Triggers {
    armed: Vec<Armed>,
    /// Live bytes of the last minute.
    past: VecDeque<(Duration, u64)>,
}

impl Triggers {
    /// Of conditions and what each leads to.
    pub fn new(all: impl IntoIterator<Item = (Condition, Action)>) -> Triggers {
        Triggers {
            armed: all
                .into_iter()
                .map(|(condition, action)| Armed {
                    condition,
                    action,
                    held: false,
                    fired: None,
                })
                .collect(),
            past: VecDeque::new(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.armed.is_empty()
    }

    /// What has to be done now, in the order in which it was asked for. `now`: since the attach.
    pub fn due(&mut self, now: Duration, measured: &Measured) -> Vec<(Condition, Action)> {
        let growth = self.growth(now, measured.live_bytes);
        let mut due = Vec::new();
        for armed in &mut self.armed {
            let holds = armed.condition.holds(measured, growth);
            let has_rested = armed.fired.is_none_or(|fired| now >= fired + REST);
            // One that comes again too soon is looked at again after its rest.
            if holds && !armed.held && has_rested {
                armed.fired = Some(now);
                due.push((armed.condition.clone(), armed.action.clone()));
            }
            if !holds || has_rested {
                armed.held = holds;
            }
        }
        due
    }

    /// Bytes a minute, once enough is known.
    fn growth(&mut self, now: Duration, live: u64) -> Option<f64> {
        if self
            .past
            .back()
            .is_none_or(|(last, _)| now >= *last + GROWTH_STEP)
        {
            self.past.push_back((now, live));
        }
        while self.past.len() > 1 && self.past[1].0 + GROWTH_WINDOW <= now {
            self.past.pop_front();
        }
        let (then, before) = *self.past.front()?;
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

    fn live(live_bytes: u64) -> Measured {
        Measured {
            live_bytes,
            live_blocks: live_bytes / 10,
            rss_bytes: Some(2 * live_bytes),
        }
    }

    #[test]
    fn conditions_are_read() {
        for (text, below, above) in [
            ("live > 2K", 2048, 2049),
            ("live>=1.5K", 1535, 1536),
            ("blocks > 100", 1000, 1010),
            ("rss > 1K", 512, 513),
            (" live > 1 and rss > 4000 ", 2000, 2001),
        ] {
            let condition = condition(text);
            assert!(!condition.holds(&live(below), None), "{text}");
            assert!(condition.holds(&live(above), None), "{text}");
            assert_eq!(condition.to_string(), text.trim());
        }
        assert!(condition("live < 5").holds(&live(4), None));
        assert!(!condition("live <= 5").holds(&live(6), None));
        assert!(
            !condition("growth > 0").holds(&live(6), None),
            "it is not known"
        );
        assert!(condition("growth > 1M/min").holds(&live(6), Some(2e6)));
        let gone = Measured::default();
        assert!(!condition("rss < 1G").holds(&gone, None), "it has ended");
    }

    #[test]
    fn errors_say_where() {
        for (text, column, expected) in [
            ("", 1, "live, blocks"),
            ("size > 1", 1, "live, blocks"),
            ("live 1", 6, ">, >="),
            ("live > x", 8, "a number"),
            ("live > 1.2.3", 8, "a number"),
            ("live > 1Q", 8, "a number"),
            ("live > 1/min", 9, "only growth"),
            ("live > 1 or rss > 1", 10, "'and'"),
            ("live > 1 and", 13, "live, blocks"),
            ("größe > 1", 1, "live, blocks"),
        ] {
            let error = text.parse::<Condition>().unwrap_err();
            assert_eq!(error.column, column, "{text}: {error}");
            assert!(error.expected.contains(expected), "{text}: {error}");
        }
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
        let mut triggers = Triggers::new([
            (condition("live > 100"), Action::Report),
            (condition("live > 200"), Action::Detach),
        ]);
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
        let mut triggers = Triggers::default();
        let mut growth =
            |seconds: u64, bytes: u64| triggers.growth(Duration::from_secs(seconds), bytes);
        assert_eq!(growth(0, 1000), None);
        assert_eq!(growth(4, 9000), None);
        assert_eq!(growth(10, 2000), Some(6000.0));
        for second in 11..200 {
            growth(second, 2000);
        }
        assert_eq!(growth(200, 2000), Some(0.0));
        assert_eq!(growth(201, 1000), Some(-1000.0));
    }
}
