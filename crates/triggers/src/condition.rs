//! Conditions on the numbers of a trace: `live > 2G` and `rss > 4G`.
//!
//! ```text
//! condition = comparison { "and" comparison }
//! comparison = amount ( ">" | ">=" | "<" | "<=" ) size
//!            | "growth" ( ">" | ">=" | "<" | "<=" ) size [ "/min" ]
//!            | "limit" ( ">" | ">=" | "<" | "<=" ) ( share | size )
//!            | "psi" ( ">" | ">=" | "<" | "<=" ) share
//! amount = "live" | "blocks" | "rss"
//! ```

use memhook_foreign::units;
use std::fmt;
use std::time::Duration;

/// Quantity that a condition compares with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Bytes of live blocks.
    Live,
    /// Live blocks.
    Blocks,
    /// Resident bytes, as the kernel counts them.
    Rss,
    /// Growth of the live bytes per minute.
    Growth,
    /// Used share of the limit, in the fullest control group with a limit or on the machine.
    LimitShare,
    /// Used bytes in that group or on the machine.
    LimitBytes,
    /// Share of a window in which processes waited for memory.
    Waiting {
        /// True if all processes waited at the same time, rather than only some of them.
        all: bool,
        /// Length of the window, which ends now.
        window: Duration,
    },
}

/// Window of `psi`.
const WINDOW: Duration = Duration::from_secs(1);

/// Words for quantities. For `limit`, the form of the number decides whether a share or a size is
/// meant.
const QUANTITIES: [(&str, Quantity); 6] = [
    ("live", Quantity::Live),
    ("blocks", Quantity::Blocks),
    ("rss", Quantity::Rss),
    ("growth", Quantity::Growth),
    ("limit", Quantity::LimitBytes),
    (
        "psi",
        Quantity::Waiting {
            all: false,
            window: WINDOW,
        },
    ),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Above,
    AtLeast,
    Below,
    AtMost,
}

/// The two-letter comparisons come first, because they begin with the others.
const COMPARISONS: [(&str, Comparison); 4] = [
    (">=", Comparison::AtLeast),
    ("<=", Comparison::AtMost),
    (">", Comparison::Above),
    ("<", Comparison::Below),
];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limit {
    pub quantity: Quantity,
    comparison: Comparison,
    /// Number to compare with; shares are fractions of 1.
    pub number: f64,
}

impl Limit {
    /// Returns true if the value is known and satisfies the comparison.
    pub fn holds(&self, value: Option<f64>) -> bool {
        value.is_some_and(|value| match self.comparison {
            Comparison::Above => value > self.number,
            Comparison::AtLeast => value >= self.number,
            Comparison::Below => value < self.number,
            Comparison::AtMost => value <= self.number,
        })
    }
}

/// Condition of a trigger; all its comparisons must be true.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    text: String,
    pub(super) limits: Vec<Limit>,
}

/// Syntax error of a condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: expected {expected}")]
pub struct ConditionError {
    /// Column of the error, from 1.
    pub column: usize,
    /// Text that was expected there.
    pub expected: &'static str,
}

/// Unparsed rest of a text, and its position.
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
        let error = self.error("live, blocks, rss, growth, limit or psi");
        let word = self.word(|c| c.is_ascii_alphabetic());
        let quantity = QUANTITIES.iter().find(|(name, _)| *name == word);
        let mut quantity = quantity.ok_or(error)?.1;
        self.skip_spaces();
        let found = COMPARISONS
            .iter()
            .find_map(|(sign, comparison)| Some((*comparison, self.rest.strip_prefix(sign)?)));
        let (comparison, rest) = found.ok_or_else(|| self.error(">, >=, < or <="))?;
        self.rest = rest;
        self.skip_spaces();
        let error = self.error(match quantity {
            Quantity::Waiting { .. } => "a share above 0% and up to 100%, like 15%",
            Quantity::LimitBytes => "a share between 0% and 100%, like 90%, or a size like 512M",
            _ => "a number like 500, 1.5G or 100M",
        });
        let digits = self.word(|c| c.is_ascii_alphanumeric() || c == '.');
        let size = || units::size(digits).ok().map(|bytes| bytes as f64);
        let rest = self.rest.trim_start().strip_prefix('%');
        let share = rest.and_then(|_| units::percent(digits));
        let share = share
            .filter(|share| *share > 0.0)
            .map(|share| share / 100.0);
        self.rest = rest.unwrap_or(self.rest);
        let number = match (quantity, rest) {
            (Quantity::Waiting { .. }, _) => share.filter(|share| *share <= 1.0),
            (Quantity::LimitBytes, Some(_)) => {
                quantity = Quantity::LimitShare;
                share.filter(|share| *share < 1.0)
            }
            (_, Some(_)) => None,
            (Quantity::LimitBytes, None) => size().filter(|bytes| *bytes > 0.0),
            _ => size(),
        };
        let number = number.ok_or(error)?;
        if let Some(rest) = self.rest.strip_prefix("/min") {
            if quantity != Quantity::Growth {
                return Err(self.error("no '/min': only growth has one"));
            }
            self.rest = rest;
        }
        Ok(Limit {
            quantity,
            comparison,
            number,
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
    /// Parses a condition on memory pressure, in the kernel's syntax
    /// (Documentation/accounting/psi.rst). For example, `some 150000 1000000` is 150 ms within a
    /// second.
    ///
    /// # Errors
    /// Returns a description of the expected text.
    pub fn of_pressure(words: &str) -> Result<Condition, String> {
        /// Windows that the kernel accepts.
        const WINDOWS: std::ops::RangeInclusive<u64> = 500_000..=10_000_000;
        let split: Vec<&str> = words.split_whitespace().collect();
        let [kind @ ("some" | "full"), waiting, window] = split[..] else {
            return Err(
                "expected 'some' or 'full', a stall time and a window, both in microseconds, like 'some 150000 \
                 1000000'"
                    .into(),
            );
        };
        let number = |text: &str| {
            text.parse::<u64>()
                .map_err(|_| format!("{text} is not a number"))
        };
        let (waiting, window) = (number(waiting)?, number(window)?);
        if !WINDOWS.contains(&window) {
            return Err("the window must be between 500000 and 10000000 microseconds".into());
        }
        if !(1..=window).contains(&waiting) {
            return Err("the stall time must be more than 0, and at most the window".into());
        }
        let limit = Limit {
            quantity: Quantity::Waiting {
                all: kind == "full",
                window: Duration::from_micros(window),
            },
            comparison: Comparison::AtLeast,
            number: waiting as f64 / window as f64,
        };
        Ok(Condition {
            text: format!("psi {kind} {waiting} {window}"),
            limits: vec![limit],
        })
    }

    /// Returns the first quantity of the condition, and the number.
    pub fn first(&self) -> (Quantity, f64) {
        (self.limits[0].quantity, self.limits[0].number)
    }

    fn compares(&self, is_meant: impl Fn(Quantity) -> bool) -> bool {
        self.limits.iter().any(|limit| is_meant(limit.quantity))
    }

    /// Returns true if the condition depends on how long processes wait for memory.
    pub fn needs_pressure(&self) -> bool {
        self.compares(|quantity| matches!(quantity, Quantity::Waiting { .. }))
    }

    /// Returns true if the condition depends on live blocks, which only a trace knows.
    pub fn needs_trace(&self) -> bool {
        self.compares(|quantity| {
            matches!(
                quantity,
                Quantity::Live | Quantity::Blocks | Quantity::Growth
            )
        })
    }

    /// Returns true if the condition depends on the resident memory of one process.
    pub fn needs_process(&self) -> bool {
        self.compares(|quantity| quantity == Quantity::Rss)
    }

    /// Returns true if the condition depends on the memory in use of a control group, or of the
    /// machine.
    pub fn compares_limit(&self) -> bool {
        self.compares(|quantity| matches!(quantity, Quantity::LimitShare | Quantity::LimitBytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("live > 90%", 8, "a number"),
            ("limit > 0%", 9, "a share between"),
            ("limit > 100%", 9, "or a size"),
            ("limit > 0", 9, "or a size"),
            ("limit > x", 9, "or a size"),
            ("psi > 15", 7, "a share above"),
            ("psi > 101%", 7, "a share above"),
            ("psi > -1%", 7, "a share above"),
            ("größe > 1", 1, "live, blocks"),
        ] {
            let error = text.parse::<Condition>().unwrap_err();
            assert_eq!(error.column, column, "{text}: {error}");
            assert!(error.expected.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn shares_sizes_and_the_kernels_words_are_read() {
        let first = |text: &str| text.parse::<Condition>().expect(text).first();
        assert_eq!(first("limit >= 90%"), (Quantity::LimitShare, 0.9));
        assert_eq!(
            first("limit>0.5 % and live > 1"),
            (Quantity::LimitShare, 0.005)
        );
        let bytes = (512 << 20) as f64;
        assert_eq!(first("limit >= 512m"), (Quantity::LimitBytes, bytes));
        let waiting = |all, ms| Quantity::Waiting {
            all,
            window: Duration::from_millis(ms),
        };
        assert_eq!(first("psi >= 15%"), (waiting(false, 1000), 0.15));
        let pressure = |words| Condition::of_pressure(words).map(|found| found.first());
        let some = pressure(" some  150000 1000000 ");
        assert_eq!(some, Ok((waiting(false, 1000), 0.15)), "the same");
        assert_eq!(
            pressure("full 500000 500000"),
            Ok((waiting(true, 500), 1.0))
        );
        for bad in [
            "",
            "nonsense",
            "some",
            "some 150000",
            "many 150000 1000000",
            "some x 1000000",
            "some 0 1000000",
            "some 2000000 1000000",
            "some 1 400000",
            "some 1 20000000",
            "some 1 1000000 1",
        ] {
            assert!(Condition::of_pressure(bad).is_err(), "{bad}");
        }
    }
}
