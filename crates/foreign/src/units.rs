//! Sizes, times and shares in the form that people write and read: one grammar for options, triggers and
//! configuration files.

use std::time::Duration;

/// Error in a value, with what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The value is not a size.
    #[error("expected a size like 100, 64K, 1.5G or 1T")]
    Size,
    /// The value is not a time.
    #[error("expected a positive duration like 500ms, 30s, 10m, 2h or 1d")]
    Duration,
    /// The value is not a share for tracing or watching.
    #[error("expected a share above 0% and up to 50%, like 0.5% or 2%")]
    Budget,
}

/// Splits the digits of a number, with or without a decimal point, from the unit after them.
fn split(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
    digits
        .starts_with(|c: char| c.is_ascii_digit())
        .then_some((digits, unit.trim()))
}

/// Parses bytes: `100`, `64K`, `512m`, `1.5G`, `1T`, `2MiB`.
pub fn size(text: &str) -> Result<u64, UnitError> {
    let read = || {
        let (digits, unit) = split(text)?;
        let shift = match unit.trim_end_matches("iB").trim_end_matches('B') {
            "" => 0,
            "K" | "k" => 10,
            "M" | "m" => 20,
            "G" | "g" => 30,
            "T" | "t" => 40,
            _ => return None,
        };
        match digits.parse::<u64>() {
            Ok(whole) => whole.checked_mul(1 << shift),
            Err(_) => {
                let bytes = digits.parse::<f64>().ok()? * (1u64 << shift) as f64;
                (bytes < u64::MAX as f64).then_some(bytes as u64)
            }
        }
    };
    read().ok_or(UnitError::Size)
}

/// Parses a time above 0: `500ms`, `30s`, `10m`, `1.5h`, `1d`; a bare number is seconds.
pub fn duration(text: &str) -> Result<Duration, UnitError> {
    /// Upper limit of times: several decades. No sum of such times overflows.
    const LONGEST_S: f64 = 1e9;
    let read = || {
        let (digits, unit) = split(text)?;
        let factor = match unit {
            "ms" => 1e-3,
            "" | "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        let seconds = digits.parse::<f64>().ok()? * factor;
        (seconds > 0.0 && seconds < LONGEST_S).then(|| Duration::from_secs_f64(seconds))
    };
    read().ok_or(UnitError::Duration)
}

/// Parses a share in percent: `90%`, `0.5 %`, or `2` for 2%.
pub fn percent(text: &str) -> Option<f64> {
    let (digits, unit) = split(text)?;
    let percent = digits.parse().ok()?;
    matches!(unit, "" | "%").then_some(percent)
}

/// Parses the share of a program's time that tracing or watching it may take, up to half of it.
pub fn budget(text: &str) -> Result<f64, UnitError> {
    percent(text)
        .filter(|percent| *percent > 0.0 && *percent <= 50.0)
        .map(|percent| percent / 100.0)
        .ok_or(UnitError::Budget)
}

/// Writes bytes in binary units: `96 B`, `4.1 KiB`.
pub fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1024.0 of a unit is printed as 1.0 of the next one.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_times_and_shares_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("100", 100),
            ("4K", 4096),
            ("64k", 65_536),
            ("512m", 512 << 20),
            ("1.5G", 3 << 29),
            ("1T", 1 << 40),
            ("2MiB", 2 << 20),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "K",
            "-1",
            "1X",
            "1e3",
            ".5G",
            "9999999999T",
            "1 2",
            "1.2.3",
            "inf",
        ] {
            assert_eq!(size(text), Err(UnitError::Size), "{text}");
        }
        for (text, ms) in [
            ("500ms", 500),
            ("3", 3000),
            ("1.5s", 1500),
            ("1.5m", 90_000),
            ("2min", 120_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "0s", "s", "-1s", "1y", "5x", "1e99h", "99999d"] {
            assert_eq!(duration(text), Err(UnitError::Duration), "{text}");
        }
        for (text, share) in [("1%", 0.01), ("0.5 %", 0.005), ("2", 0.02), ("50%", 0.5)] {
            assert_eq!(budget(text), Ok(share), "{text}");
        }
        for text in ["", "0", "0%", "50.1%", "%", "-1%", "1x", "NaN%"] {
            assert_eq!(budget(text), Err(UnitError::Budget), "{text}");
        }
    }

    #[test]
    fn sizes_have_the_unit_that_keeps_them_short() {
        assert_eq!(size_text(1023), "1023 B");
        assert_eq!(size_text(4198), "4.1 KiB");
        assert_eq!(size_text(1 << 20), "1.0 MiB");
        // Just below each unit: never 1024.0 of the smaller one.
        for (power, unit) in [(20, "MiB"), (30, "GiB"), (40, "TiB"), (50, "PiB")] {
            assert_eq!(size_text((1 << power) - 1), format!("1.0 {unit}"));
        }
        // 1023.95 KiB is 1,048,524.8 bytes.
        assert_eq!(size_text(1_048_524), "1023.9 KiB");
        assert_eq!(size_text(1_048_525), "1.0 MiB");
        assert_eq!(size_text(u64::MAX), "16384.0 PiB");
    }
}
