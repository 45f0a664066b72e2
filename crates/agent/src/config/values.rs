//! Values of a configuration other than numbers and words: sizes, times, shares, patterns.

use memhook_foreign::{glob, units};
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use std::time::Duration;

/// Bytes: `65536`, `"64K"`, `"1.5G"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A time: `"500ms"`, `"30s"`, `"10m"`, `"1h"`, `"1d"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

/// A frequency: `"daily"`, `"hourly"`, or a time like that of [`Period`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Every(pub Duration);

/// A share of a resource: `"2%"`, `"0.5%"`, above 0 and at most 100 %.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Share(pub f64);

/// A share of a process's time: `"1%"`, `"0.5%"`, `"2"`, above 0 and at most 50 %, like that of
/// `attach --overhead`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Overhead(pub f64);

/// A share of the machine's memory, or a size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryLimit {
    /// A share of the machine's memory.
    Share(Share),
    /// Bytes.
    Size(Size),
}

/// A text in which `*` stands for any number of characters, and `?` for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(pub String);

impl Size {
    fn parse(text: &str) -> Option<Size> {
        units::size(text).ok().map(Size)
    }
}

impl Period {
    fn parse(text: &str) -> Option<Period> {
        units::duration(text).ok().map(Period)
    }
}

impl Every {
    fn parse(text: &str) -> Option<Every> {
        match text {
            "daily" => Some(Every(Duration::from_secs(24 * 3600))),
            "hourly" => Some(Every(Duration::from_secs(3600))),
            other => units::duration(other).ok().map(Every),
        }
    }
}

impl Share {
    fn parse(text: &str) -> Option<Share> {
        let percent = units::percent(text).filter(|percent| *percent > 0.0 && *percent <= 100.0);
        percent.map(|percent| Share(percent / 100.0))
    }
}

impl Overhead {
    fn parse(text: &str) -> Option<Overhead> {
        units::budget(text).ok().map(Overhead)
    }
}

impl MemoryLimit {
    /// Returns the bytes, on a machine with this much memory.
    pub fn bytes(self, machine: u64) -> u64 {
        match self {
            MemoryLimit::Share(share) => (machine as f64 * share.0) as u64,
            MemoryLimit::Size(size) => size.0,
        }
    }
}

impl Pattern {
    /// Returns true if the pattern matches a text.
    pub fn matches(&self, text: &str) -> bool {
        glob(&self.0, text)
    }
}

/// A number without quotation marks, or a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Text(String),
}

fn refused<'de, D: Deserializer<'de>>(is: &str, wanted: &str) -> D::Error {
    D::Error::custom(format!("\"{is}\" is not {wanted}"))
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Size, D::Error> {
        const WANTED: &str = "a size, such as \"64K\", \"512M\" or \"2G\"";
        match Written::deserialize(from) {
            Ok(Written::Number(bytes)) => Ok(Size(bytes)),
            Ok(Written::Text(text)) => {
                Size::parse(&text).ok_or_else(|| refused::<D>(&text, WANTED))
            }
            Err(_) => Err(D::Error::custom(format!("expected {WANTED}"))),
        }
    }
}

/// `Deserialize` for values that are always written as text.
macro_rules! from_text {
    ($($type:ident: $wanted:literal)*) => { $(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                let text = String::deserialize(from)
                    .map_err(|_| D::Error::custom(concat!("expected ", $wanted)))?;
                $type::parse(&text).ok_or_else(|| refused::<D>(&text, $wanted))
            }
        }
    )* };
}

impl MemoryLimit {
    fn parse(text: &str) -> Option<MemoryLimit> {
        match text.ends_with('%') {
            true => Share::parse(text).map(MemoryLimit::Share),
            false => Size::parse(text).map(MemoryLimit::Size),
        }
    }
}

impl Pattern {
    fn parse(text: &str) -> Option<Pattern> {
        (!text.is_empty()).then(|| Pattern(text.to_owned()))
    }
}

from_text! {
    Period: "a time, such as \"500ms\", \"30s\", \"10m\" or \"1h\""
    Every: "\"daily\", \"hourly\" or a time, such as \"6h\""
    Share: "a share, such as \"2%\", above 0% and at most 100%"
    Overhead: "a share of a process's time, such as \"1%\", above 0% and at most 50%"
    MemoryLimit: "a share of the memory, such as \"2%\", or a size, such as \"512M\""
    Pattern: "a pattern of at least one character"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_limits_are_read() {
        assert_eq!(Share::parse("0.5%"), Some(Share(0.005)));
        for text in ["", "0%", "101%", "%", "-1%"] {
            assert_eq!(Share::parse(text), None, "{text}");
        }
        for (text, limit) in [
            ("2%", Some(MemoryLimit::Share(Share(0.02)))),
            ("512m", Some(MemoryLimit::Size(Size(512 << 20)))),
            ("101%", None),
        ] {
            assert_eq!(MemoryLimit::parse(text), limit, "{text}");
        }
    }
}
