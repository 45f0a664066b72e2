//! Shorter pauses for tests, which cannot wait for hourly actions of the agent.

use std::sync::OnceLock;
use std::time::Duration;

/// Environment variable with the divisor of pauses.
const VARIABLE: &str = "MEMHOOK_AGENT_HASTE";
/// Maximum divisor.
const MOST: u32 = 100;

/// Returns the configured pause, or a shorter pause if a test requested it. Does not shorten limits
/// that protect processes.
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
