//! Shorter pauses for tests. What the agent does once in an hour, a test cannot wait for.

use std::sync::OnceLock;
use std::time::Duration;

/// The variable that says by how much pauses are divided.
const VARIABLE: &str = "MEMHOOK_AGENT_HASTE";
/// Largest divisor.
const MOST: u32 = 100;

/// A pause as it is kept: what the configuration says, unless a test has asked for less. Limits that protect processes are
/// not shortened by it.
pub fn hastened(pause: Duration) -> Duration {
    static DIVISOR: OnceLock<u32> = OnceLock::new();
    pause / *DIVISOR.get_or_init(|| divisor(std::env::var(VARIABLE).ok().as_deref()))
}

fn divisor(text: Option<&str>) -> u32 {
    let number = text.and_then(|text| text.parse().ok()).unwrap_or(1);
    number.clamp(1, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_shortens_pauses() {
        for (text, by) in [
            (None, 1),
            (Some(""), 1),
            (Some("fast"), 1),
            (Some("0"), 1),
            (Some("20"), 20),
            (Some("100000"), MOST),
        ] {
            assert_eq!(divisor(text), by, "{text:?}");
        }
    }
}
