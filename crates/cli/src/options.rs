//! Values of options: choices, and moments of a trace.

use crate::output::style;
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use memhook_foreign::units::{duration, size};
use memhook_foreign::{visible_json, visible_lines};
use memhook_report::{Document, ReportStream, document};
use std::io::Write;
use std::time::Duration;

/// What the rows of a report are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum GroupBy {
    /// The call stack of an allocation
    Site,
    /// A call in the code; a block counts for every call on its stack
    Frame,
    /// A function; a block counts for every function on its stack
    Function,
    /// The module that called the allocator
    Module,
    /// The type of a block, as far as its call stack reveals it
    Type,
    /// The thread that allocated
    Thread,
    /// The size of a block
    Size,
    /// The time from allocation to release
    Lifetime,
}

impl From<GroupBy> for memhook_report::RowsBy {
    fn from(by: GroupBy) -> Self {
        match by {
            GroupBy::Site => Self::Site,
            GroupBy::Frame => Self::Frame,
            GroupBy::Function => Self::Function,
            GroupBy::Module => Self::Module,
            GroupBy::Type => Self::Type,
            GroupBy::Thread => Self::Thread,
            GroupBy::Size => Self::Size,
            GroupBy::Lifetime => Self::Lifetime,
        }
    }
}

/// Order of the rows.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
pub enum SortBy {
    Bytes,
    Count,
    Age,
    Growth,
    Score,
}

impl From<SortBy> for memhook_report::SortBy {
    fn from(by: SortBy) -> Self {
        match by {
            SortBy::Bytes => Self::Bytes,
            SortBy::Count => Self::Count,
            SortBy::Age => Self::Age,
            SortBy::Growth => Self::Growth,
            SortBy::Score => Self::Score,
        }
    }
}

/// What reports show.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Reports")]
pub struct View {
    /// Number of rows in a report
    #[arg(short = 'T', long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    /// Show only blocks that are at least this old
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub older: Option<Duration>,
    /// Sort by bytes, count, age or growth
    #[arg(long, value_name = "ORDER", value_parser = orders_of_trace(), default_value = "bytes")]
    pub sort: SortBy,
    /// Rows by site, function, thread, ...
    #[arg(long, value_name = "ROWS", value_parser = rows_of_trace(), default_value = "site")]
    pub by: GroupBy,
}

/// Only recordings know lifetimes.
fn rows_of_trace() -> impl TypedValueParser<Value = GroupBy> {
    let of_trace = GroupBy::value_variants().iter();
    let of_trace = of_trace.filter(|&&by| by != GroupBy::Lifetime);
    let words = of_trace.filter_map(ValueEnum::to_possible_value);
    PossibleValuesParser::new(words).try_map(|word| GroupBy::from_str(&word, false))
}

/// Scores are known at the end only.
fn orders_of_trace() -> impl TypedValueParser<Value = SortBy> {
    let of_trace = SortBy::value_variants().iter();
    let of_trace = of_trace.filter(|&&by| by != SortBy::Score);
    let words = of_trace.filter_map(ValueEnum::to_possible_value);
    PossibleValuesParser::new(words).try_map(|word| SortBy::from_str(&word, false))
}

/// `--json`, of commands that write one document or lines of them.
#[derive(clap::Args, Clone, Copy)]
#[group(skip)]
pub struct Json {
    /// Write JSON instead of text
    #[arg(short, long)]
    pub json: bool,
}

impl Json {
    /// Prints a document on standard output, without colours.
    pub fn print(self, report: &impl Document) -> anyhow::Result<()> {
        let style = style(None, ReportStream::Out, Color::Never, false);
        let text = document(report, self.json, style)?;
        let shown = if self.json {
            visible_json(&text)
        } else {
            visible_lines(&text)
        };
        // A reader that went away is no error of ours.
        let _ = std::io::stdout().lock().write_all(shown.as_bytes());
        Ok(())
    }
}

/// `--color`.
#[derive(clap::Args, Clone, Copy)]
#[group(skip)]
pub struct ColorArgs {
    /// Use colours: auto, always or never
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub color: Color,
}

/// What a copy of the memory may cost.
#[derive(clap::Args, Clone, Copy)]
#[group(skip)]
pub struct CopyLimits {
    /// Longest time to hold all threads [default: 50ms]
    ///
    /// What would take longer is done in another way, or refused. On a busy machine it may take longer
    /// than estimated.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub max_hold: Option<Duration>,
    /// Limit of memory for the copy [default: all]
    ///
    /// A heap that is larger, or larger than the memory that is available, is not copied.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_memory: Option<u64>,
}

/// When to use colours.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
pub enum Color {
    Auto,
    Always,
    Never,
}

/// A time since the attach, as a duration; 0 is the attach.
pub fn moment(text: &str) -> Result<Duration, String> {
    let zero = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    match zero.parse::<f64>() {
        Ok(0.0) => duration(&text.replacen(zero, "1", 1))
            .map(|_| Duration::ZERO)
            .map_err(|error| error.to_string()),
        // 700 may be meant to be milliseconds.
        Ok(_) if zero == text => Err(format!("the unit is missing: {text}ms or {text}s?")),
        _ => duration(text)
            .map_err(|_| "expected a time since the attach like 0, 500ms or 30s".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_units() {
        assert_eq!(moment("0"), Ok(Duration::ZERO));
        assert_eq!(moment("0ms"), Ok(Duration::ZERO));
        assert_eq!(moment("1.5s"), Ok(Duration::from_millis(1500)));
        assert!(moment("0x").is_err() && moment("-1s").is_err() && moment("").is_err());
        assert!(moment("700").is_err());
    }
}
