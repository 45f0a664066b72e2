//! Values of options: choices, and moments of a trace.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use memhook_foreign::units::duration;
use memhook_report::{FormatChoice, Progress, RESERVED_NAMES, RowsBy, SortBy};
use std::ffi::OsStr;
use std::time::Duration;

/// Kinds of rows of a report.
const ROWS: [(RowsBy, &str); 8] = [
    (RowsBy::Site, "The call stack of an allocation"),
    (
        RowsBy::Frame,
        "A call in the code; a block counts for every call on its stack",
    ),
    (
        RowsBy::Function,
        "A function; a block counts for every function on its stack",
    ),
    (RowsBy::Module, "The module that called the allocator"),
    (
        RowsBy::Type,
        "The type of a block, as far as its call stack reveals it",
    ),
    (RowsBy::Thread, "The thread that allocated"),
    (RowsBy::Size, "The size of a block"),
    (RowsBy::Lifetime, "The time from allocation to release"),
];

/// Returns the words for kinds of rows. A trace lacks the last kind, because only recordings know lifetimes.
pub fn rows(is_trace: bool) -> impl TypedValueParser<Value = RowsBy> {
    let possible = &ROWS[..ROWS.len() - usize::from(is_trace)];
    let words = possible
        .iter()
        .map(|(by, help)| PossibleValue::new(by.name()).help(*help));
    PossibleValuesParser::new(words).map(|word| {
        let found = ROWS.iter().find(|(by, _)| by.name() == word);
        found.map_or(RowsBy::Site, |(by, _)| *by)
    })
}

/// Returns the words for orders. A trace lacks the last one, because scores are known only at the
/// end.
pub fn orders(is_trace: bool) -> impl TypedValueParser<Value = SortBy> {
    const ORDERS: [(&str, SortBy); 6] = [
        ("bytes", SortBy::Bytes),
        ("count", SortBy::Count),
        ("age", SortBy::Age),
        ("growth", SortBy::Growth),
        ("time", SortBy::Time),
        ("score", SortBy::Score),
    ];
    let possible = &ORDERS[..ORDERS.len() - usize::from(is_trace)];
    PossibleValuesParser::new(possible.iter().map(|(word, _)| *word)).map(|word| {
        let found = ORDERS.iter().find(|(name, _)| *name == word);
        found.map_or(SortBy::Bytes, |(_, order)| *order)
    })
}

/// Order of rows: an order that every report has, or the value of a user-defined score.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    By(SortBy),
    Score(String),
}

/// Parser of an order. Any other word is the name of a score, which may not exist.
#[derive(Clone)]
pub struct OrderParser;

impl TypedValueParser for OrderParser {
    type Value = Order;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Order, clap::Error> {
        let known = orders(false).parse_ref(command, arg, value).map(Order::By);
        let name = value.to_str().map(|name| Order::Score(name.to_owned()));
        known.or_else(|refusal| name.ok_or(refusal))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(RESERVED_NAMES.iter().map(PossibleValue::new)))
    }
}

/// Parses a format other than JSON, which has an option of its own.
pub fn format(word: &str) -> Result<FormatChoice, String> {
    match word.parse()? {
        FormatChoice::Json => Err("for JSON there is --json".into()),
        format => Ok(format),
    }
}

/// Options about the contents of reports.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Reports")]
pub struct View {
    /// Number of rows in a report
    #[arg(
        short = 'T',
        long,
        value_name = "N",
        default_value_t = 10,
        allow_negative_numbers = true
    )]
    pub top: usize,
    /// Show only blocks that are at least this old
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub older: Option<Duration>,
    /// Sort by bytes, count, age, growth or time
    ///
    /// Time is that in the allocator (--alloc-time).
    #[arg(long, value_name = "ORDER", value_parser = orders(true), default_value = "bytes")]
    pub sort: SortBy,
    /// Rows by site, function, thread, ...
    #[arg(long, value_name = "ROWS", value_parser = rows(true), default_value = "site")]
    pub by: RowsBy,
}

/// `--color`.
#[derive(clap::Args, Clone, Copy)]
#[group(skip)]
pub struct ColorArgs {
    /// Use colours: auto, always or never
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub color: Color,
}

/// When to use colours.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
pub enum Color {
    Auto,
    Always,
    Never,
}

/// The option `-q` of commands whose only status lines are about slow work.
#[derive(clap::Args, Clone, Copy)]
#[group(skip)]
pub struct Quiet {
    /// Print no status lines
    #[arg(short, long)]
    quiet: bool,
}

impl Quiet {
    /// Turns status lines off, if requested.
    pub fn begin(self) {
        if self.quiet {
            Progress::hide();
        }
    }
}

/// A moment of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Moment {
    /// This long after the attach.
    After(Duration),
    /// At the mark with this name.
    Mark(String),
}

/// Parses a time since the attach (`0`, `500ms`), or the name of a mark.
pub fn moment(text: &str) -> Result<Moment, String> {
    if let Some(name) = text.strip_prefix("mark:") {
        return Ok(Moment::Mark(name.to_owned()));
    }
    let zero = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    match zero.parse::<f64>() {
        Ok(0.0) => duration(&text.replacen(zero, "1", 1))
            .map(|_| Moment::After(Duration::ZERO))
            .map_err(|error| error.to_string()),
        // The user may mean 700 milliseconds.
        Ok(_) if zero == text => Err(format!("the unit is missing: {text}ms or {text}s?")),
        Ok(_) => duration(text).map(Moment::After).map_err(|_| {
            format!("expected a time since the attach like 500ms, or a mark: mark:{text}")
        }),
        Err(_) if text.is_empty() => Err("expected a time since the attach, or a mark".into()),
        Err(_) => Ok(Moment::Mark(text.to_owned())),
    }
}

/// Limit of the time for which all threads are held for a copy.
#[derive(clap::Args, Clone, Copy)]
#[group(skip)]
pub struct HoldLimit {
    /// Longest time to hold all threads [default: 50ms]
    ///
    /// memhook-rs chooses another way, or refuses, if a hold would take longer. On a busy machine a hold may take
    /// longer than estimated.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub max_hold: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_times_with_units_or_marks() {
        let after = |ms| Ok(Moment::After(Duration::from_millis(ms)));
        assert_eq!(moment("0"), after(0));
        assert_eq!(moment("0ms"), after(0));
        assert_eq!(moment("1.5s"), after(1500));
        let mark = |name: &str| Ok(Moment::Mark(name.into()));
        assert_eq!(moment("warm"), mark("warm"));
        assert_eq!(moment("mark:30s"), mark("30s"));
        for bad in ["0x", "-1s", "", "700", "3laps"] {
            assert!(moment(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_score_takes_the_name_of_an_order() {
        let orders = orders(false);
        let words = orders.possible_values().into_iter().flatten();
        let words: Vec<String> = words.map(|word| word.get_name().to_owned()).collect();
        assert_eq!(words, RESERVED_NAMES);
    }
}
