//! Numbers in the form that people read.

pub use memhook_foreign::size_text as bytes;

/// Standard errors of a 95 % interval.
const INTERVAL: f64 = 1.96;

/// Returns true if an estimate is so rough that only a bound on the value is known.
fn is_rough(n: u64, error: u64) -> bool {
    error > n
}

/// Returns an upper bound on the true value, with a probability of more than 95 %.
fn bound(n: u64, error: u64) -> u64 {
    n.saturating_add((INTERVAL * error as f64).round() as u64)
}

/// Formats bytes and their standard error: `4.1 KiB ± 96 B`. If the error exceeds the amount, only
/// few samples hit memory that may be much larger, so it formats only a bound: `≤ 217.4 KiB`.
pub fn with_error(n: u64, error: Option<u64>) -> String {
    match error {
        Some(error) if is_rough(n, error) => error_text(n, error),
        Some(error) => format!("{} {}", bytes(n), error_text(n, error)),
        None => bytes(n),
    }
}

/// Returns the text next to an amount that has a separate column: `± 96 B`, or `≤ 217.4 KiB`.
pub fn error_text(n: u64, error: u64) -> String {
    match is_rough(n, error) {
        true => format!("≤ {}", bytes(bound(n, error))),
        false => format!("± {}", bytes(error)),
    }
}

/// Formats a change and its standard error: `+4.1 KiB ± 96 B`. If the error is larger, the change
/// may be in either direction: `within ± 217.4 KiB`.
pub fn change_with_error(by: i64, error: Option<u64>) -> String {
    match error {
        Some(error) if is_rough(by.unsigned_abs(), error) => {
            format!("within ± {}", bytes(bound(by.unsigned_abs(), error)))
        }
        Some(error) => format!("{} ± {}", change(by), bytes(error)),
        None => change(by),
    }
}

/// Writes a change of bytes: `+4.1 KiB`, `-96 B`, `±0`.
pub fn change(n: i64) -> String {
    match n {
        0 => "±0".into(),
        1.. => format!("+{}", bytes(n.unsigned_abs())),
        _ => format!("-{}", bytes(n.unsigned_abs())),
    }
}

/// Writes a count with separators: `3,386,850`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Writes a count and its noun: `1 block`, `2 blocks`.
pub fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Writes a duration in ms: `850 ms`, `12.3 s`, `5 min 02 s`.
pub fn milliseconds(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{:.1} s", ms as f64 / 1e3),
        60_000..3_600_000 => format!("{} min {:02} s", ms / 60_000, ms / 1_000 % 60),
        _ => format!("{} h {:02} min", ms / 3_600_000, ms / 60_000 % 60),
    }
}

/// Writes a duration in seconds, of any length: `12.3 µs`, `850 ms`, `12.3 s`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        _ if seconds < 1e-6 => format!("{:.0} ns", seconds * 1e9),
        _ if seconds < 1e-3 => format!("{:.1} µs", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => milliseconds((seconds * 1e3) as u64),
    }
}

/// Returns a part of a total in percent; 0 if the total is 0.
pub fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        assert_eq!(with_error(4198, Some(96)), "4.1 KiB ± 96 B");
        assert_eq!(with_error(24, Some(113_511)), "≤ 217.3 KiB");
        assert_eq!(with_error(24, None), "24 B");
        assert_eq!(error_text(24, 113_511), "≤ 217.3 KiB");
        assert_eq!(error_text(4198, 96), "± 96 B");
        assert_eq!(change_with_error(-4198, Some(96)), "-4.1 KiB ± 96 B");
        assert_eq!(change_with_error(24, Some(113_511)), "within ± 217.3 KiB");
        assert_eq!(change(-4198), "-4.1 KiB");
        assert_eq!(change(0), "±0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(counted(1, "block"), "1 block");
        assert_eq!(milliseconds(999), "999 ms");
        assert_eq!(milliseconds(302_000), "5 min 02 s");
        assert_eq!(milliseconds(7_260_000), "2 h 01 min");
    }
}
