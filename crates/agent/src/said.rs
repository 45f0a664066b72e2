//! Warnings of the agent. A repeated fault is logged once a minute.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time after a warning during which equal warnings are only counted.
const QUIET: Duration = Duration::from_secs(60);
/// Maximum number of warnings to remember. Further warnings within a minute are logged each time.
const MOST_REMEMBERED: usize = 256;

/// Recent warnings, each with its time and its number of repeats.
static LATELY: Mutex<Repeats> = Mutex::new(Repeats(BTreeMap::new()));

struct Repeats(BTreeMap<String, (Instant, u64)>);

impl Repeats {
    /// Returns true if a warning must be logged; otherwise counts it as a repeat.
    fn is_new(&mut self, text: &str, now: Instant) -> bool {
        if let Some((_, again)) = self.0.get_mut(text) {
            *again += 1;
            return false;
        }
        if self.0.len() < MOST_REMEMBERED {
            self.0.insert(text.to_owned(), (now, 0));
        }
        true
    }

    /// Removes the warnings whose minute is over, or all warnings. Returns those that were
    /// repeated, with the number of repeats.
    fn over(&mut self, now: Instant, all: bool) -> Vec<(String, u64)> {
        let mut over = Vec::new();
        self.0.retain(|text, (at, again)| {
            let is_over = all || now.duration_since(*at) >= QUIET;
            if is_over && *again > 0 {
                over.push((text.clone(), *again));
            }
            !is_over
        });
        over
    }
}

fn lately() -> MutexGuard<'static, Repeats> {
    LATELY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Logs a problem. If the same problem was logged within the last minute, only counts it. The text
/// may contain names of processes and files, which are untrusted bytes; the writer of the log
/// escapes them.
pub fn warn(text: &str) {
    if lately().is_new(text, Instant::now()) {
        tracing::warn!("{text}");
    }
}

/// Logs the number of repeats of each warning, a minute after the warning was logged. With `all`,
/// logs all of them now.
pub fn count_repeats(all: bool) {
    let over = lately().over(Instant::now(), all);
    for (text, again) in over {
        let times = if again == 1 {
            "once"
        } else {
            &format!("{again} times")
        };
        tracing::warn!("{text} ({times} more within a minute)");
    }
}

/// Returns an error with all its sources, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_lines_become_one_with_a_count() {
        let mut repeats = Repeats(BTreeMap::new());
        let begin = Instant::now();
        let printed =
            (0..832).filter(|n| repeats.is_new("full", begin + Duration::from_millis(*n)));
        assert_eq!(printed.count(), 1);
        assert!(repeats.is_new("other", begin + Duration::from_secs(30)));
        assert_eq!(repeats.over(begin + QUIET / 2, false), []);
        assert_eq!(
            repeats.over(begin + QUIET, false),
            [("full".to_owned(), 831)]
        );
        assert!(repeats.is_new("full", begin + QUIET));
        assert!(!repeats.is_new("other", begin + QUIET));
        assert_eq!(repeats.over(begin + QUIET, true), [("other".to_owned(), 1)]);
        // Ever-changing texts are logged, and take no memory.
        for number in 0..10 * MOST_REMEMBERED {
            assert!(repeats.is_new(&number.to_string(), begin));
        }
        assert_eq!(repeats.0.len(), MOST_REMEMBERED);
    }
}
