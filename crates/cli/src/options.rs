//! Values of options: durations, sizes, choices.

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::time::Duration;

/// `1%`, `0.5%`, `2`: percent, as a share.
pub fn share(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').trim_end();
    match number.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 50.0 => Ok(percent / 100.0),
        _ => Err("expected a share above 0% and up to 50%, like 0.5% or 2%".into()),
    }
}

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

/// When to use colours.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
pub enum Color {
    Auto,
    Always,
    Never,
}

/// `500ms`, `30s`, `10m`, `2h`; a bare number is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let at = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let factor = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit {unit}: use ms, s, m or h")),
    };
    match number.parse::<f64>() {
        Ok(n) if n > 0.0 && n * factor < 1e9 => Ok(Duration::from_secs_f64(n * factor)),
        _ => Err("expected a positive duration like 500ms, 30s or 10m".into()),
    }
}

/// A time since the attach, as a duration; 0 is the attach.
pub fn moment(text: &str) -> Result<Duration, String> {
    let zero = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    match zero.parse::<f64>() {
        Ok(0.0) => duration(&text.replacen(zero, "1", 1)).map(|_| Duration::ZERO),
        // 700 may be meant to be milliseconds.
        Ok(_) if zero == text => Err(format!("the unit is missing: {text}ms or {text}s?")),
        _ => duration(text)
            .map_err(|_| "expected a time since the attach like 0, 500ms or 30s".into()),
    }
}

/// `100`, `4K`, `1M`, `2G`.
pub fn size(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number
        .parse::<u64>()
        .ok()
        .filter(|n| *n <= u64::MAX >> shift)
        .map(|n| n << shift)
        .ok_or_else(|| "expected a size like 100, 4K or 1M".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_sizes_and_shares() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("3"), Ok(Duration::from_secs(3)));
        assert_eq!(moment("0"), Ok(Duration::ZERO));
        assert_eq!(moment("0ms"), Ok(Duration::ZERO));
        assert_eq!(moment("1.5s"), Ok(Duration::from_millis(1500)));
        assert!(moment("0x").is_err() && moment("-1s").is_err() && moment("").is_err());
        for bad in ["", "0s", "-1s", "5x", "1e99h", "ms"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(share("1%"), Ok(0.01));
        assert_eq!(share("0.5"), Ok(0.005));
        assert_eq!(share("50%"), Ok(0.5));
        for bad in ["0", "0%", "50.1%", "-1%", "x", "", "nan%"] {
            assert!(share(bad).is_err(), "{bad}");
        }
        assert_eq!(size("4K"), Ok(4096));
        assert_eq!(size("0"), Ok(0));
        for bad in ["", "K", "-1", "99999999999G", "1.5M"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
