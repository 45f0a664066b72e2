//! The values of a configuration that are more than numbers and words: sizes, times, shares, patterns.

use serde::Deserialize;
use serde::de::{Deserializer, Error};
use std::time::Duration;

/// Bytes: `65536`, `"64K"`, `"1.5G"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A time: `"500ms"`, `"30s"`, `"10m"`, `"1h"`, `"1d"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

/// A share of something: `"2%"`, `"0.5%"`, above 0 and at most 100 %.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Share(pub f64);

/// A share of a process's time: `"1%"`, `"0.5%"`, `"2"`, above 0 and at most 50 %, as `attach --overhead` has it.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Overhead(pub f64);

/// A share of the machine's memory, or a size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryLimit {
    /// A share of what the machine has.
    Share(Share),
    /// Bytes.
    Size(Size),
}

/// A text in which `*` stands for any characters, none included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(pub String);

/// A number and what follows it.
fn number(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
    let value: f64 = digits.parse().ok()?;
    (value.is_finite() && !digits.starts_with('.')).then_some((value, unit.trim()))
}

impl Size {
    /// Reads one.
    pub fn parse(text: &str) -> Option<Size> {
        let (value, unit) = number(text)?;
        let shift = match unit.trim_end_matches("iB").trim_end_matches('B') {
            "" => 0,
            "K" | "k" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return None,
        };
        let bytes = value * (1u64 << shift) as f64;
        (bytes <= (1u64 << 60) as f64).then_some(Size(bytes as u64))
    }
}

impl Period {
    /// Reads one.
    pub fn parse(text: &str) -> Option<Period> {
        /// Longer than any process of interest lives.
        const LONGEST: f64 = 400.0 * 86_400.0;
        let (value, unit) = number(text)?;
        let seconds = match unit {
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        } * value;
        (seconds > 0.0 && seconds <= LONGEST).then(|| Period(Duration::from_secs_f64(seconds)))
    }
}

impl Share {
    /// Reads one.
    pub fn parse(text: &str) -> Option<Share> {
        let (value, unit) = number(text)?;
        (unit == "%" && value > 0.0 && value <= 100.0).then_some(Share(value / 100.0))
    }
}

impl Overhead {
    /// Reads one.
    pub fn parse(text: &str) -> Option<Overhead> {
        let (percent, unit) = number(text)?;
        let is_share = matches!(unit, "" | "%") && percent > 0.0 && percent <= 50.0;
        is_share.then_some(Overhead(percent / 100.0))
    }
}

impl MemoryLimit {
    /// In bytes, on a machine with so much memory.
    pub fn bytes(self, machine: u64) -> u64 {
        match self {
            MemoryLimit::Share(share) => (machine as f64 * share.0) as u64,
            MemoryLimit::Size(size) => size.0,
        }
    }
}

impl Pattern {
    /// Whether a text is what the pattern says.
    pub fn matches(&self, text: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = text.strip_prefix(first) else {
            return false;
        };
        let Some(last) = parts.next_back() else {
            return rest.is_empty();
        };
        // The first place for each part is as good as any later one.
        for part in parts {
            let Some(at) = rest.find(part) else {
                return false;
            };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }
}

/// A number that is written without quotation marks, or a text.
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

/// `Deserialize` for what is always written as text.
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
        let share = Share::parse(text).map(MemoryLimit::Share);
        share.or_else(|| Size::parse(text).map(MemoryLimit::Size))
    }
}

impl Pattern {
    fn parse(text: &str) -> Option<Pattern> {
        (!text.is_empty()).then(|| Pattern(text.to_owned()))
    }
}

from_text! {
    Period: "a time, such as \"500ms\", \"30s\", \"10m\" or \"1h\""
    Share: "a share, such as \"2%\", above 0% and at most 100%"
    Overhead: "a share of a process's time, such as \"1%\", above 0% and at most 50%"
    MemoryLimit: "a share of the memory, such as \"2%\", or a size, such as \"512M\""
    Pattern: "a pattern of at least one character"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_times_and_shares_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("64K", 65536),
            ("1.5G", 3 << 29),
            ("2MiB", 2 << 20),
        ] {
            assert_eq!(Size::parse(text), Some(Size(bytes)), "{text}");
        }
        for text in ["", "K", "-1", "1X", "1e3", ".5G", "9999999T", "1 2"] {
            assert_eq!(Size::parse(text), None, "{text}");
        }
        for (text, ms) in [
            ("500ms", 500),
            ("1.5s", 1500),
            ("2m", 120_000),
            ("1h", 3_600_000),
        ] {
            let period = Period(Duration::from_millis(ms));
            assert_eq!(Period::parse(text), Some(period), "{text}");
        }
        for text in ["", "5", "0s", "s", "-1s", "1y", "99999d"] {
            assert_eq!(Period::parse(text), None, "{text}");
        }
        assert_eq!(Share::parse("0.5%"), Some(Share(0.005)));
        for text in ["", "5", "0%", "101%", "%", "-1%"] {
            assert_eq!(Share::parse(text), None, "{text}");
        }
        for (text, share) in [("1%", 0.01), ("0.5 %", 0.005), ("2", 0.02), ("50%", 0.5)] {
            assert_eq!(Overhead::parse(text), Some(Overhead(share)), "{text}");
        }
        for text in ["", "0%", "50.1%", "%", "-1%", "1x", "NaN%"] {
            assert_eq!(Overhead::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_star_stands_for_anything() {
        let matches = |pattern: &str, text| Pattern(pattern.to_owned()).matches(text);
        assert!(matches("nginx", "nginx") && !matches("nginx", "nginx2"));
        assert!(matches("*", "") && matches("*", "anything"));
        assert!(matches("/opt/*/bin/*", "/opt/a/b/bin/c") && !matches("/opt/*/bin/*", "/opt/bin"));
        assert!(matches("a*a", "aa") && !matches("a*a", "a"));
        assert!(matches("a**b*", "a-b") && !matches("a*b", "a-b-"));
        assert!(matches("*.so", "x.so.so") && !matches("*.so", "x.so.1"));
    }
}
