//! Messages of the agent on standard error, where journald(8) or a container runtime keeps them: one line an event.

use memhook_foreign::visible;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// After a line was printed, equal ones are only counted for this time.
const QUIET: Duration = Duration::from_secs(60);
/// Lines that are remembered; more different ones within that time are printed as they come.
const MOST_REMEMBERED: usize = 256;

/// Lines that were printed lately, each with its time and how often it came again.
static LATELY: Mutex<Repeats> = Mutex::new(Repeats(BTreeMap::new()));

struct Repeats(BTreeMap<String, (Instant, u64)>);

impl Repeats {
    /// Whether a line is to be printed; otherwise it is counted.
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

    /// Takes out the lines whose time is over, or all of them, and returns those that came again, with how often.
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

/// Prints one line, unless an equal one was printed within the last minute: then it is counted. It may contain names of
/// processes and files, which are foreign bytes.
pub fn say(text: &str) {
    if lately().is_new(text, Instant::now()) {
        answer(text);
    }
}

/// Prints one line, however often it comes: the answer to somebody who waits for it.
pub fn answer(text: &str) {
    use std::io::Write;
    // Nobody can be told that nobody can be told.
    let _ = writeln!(std::io::stderr(), "memhook-rs: {}", visible(text));
}

/// Prints how often lines came again, a minute after each was printed; at the end, of `all` lines at once.
pub fn say_repeats(all: bool) {
    let over = lately().over(Instant::now(), all);
    for (text, again) in over {
        let times = if again == 1 {
            "once"
        } else {
            &format!("{again} times")
        };
        answer(&format!("{text} ({times} more within a minute)"));
    }
}

/// An error with all its sources, in one line.
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
        // What comes in endless variety is printed, and takes no memory.
        for number in 0..10 * MOST_REMEMBERED {
            assert!(repeats.is_new(&number.to_string(), begin));
        }
        assert_eq!(repeats.0.len(), MOST_REMEMBERED);
    }
}
