//! Pauses of the consumer between passes.

use memhook_stream::PassStats;
use std::time::Duration;

/// Passes without an event after which the target counts as quiet.
const QUIET_PASSES: u32 = 100;
/// Like the constant above, where a lookout watches a quiet target. In so many passes everything is taken and put in
/// order: with pairs a pass takes what the one before has claimed, and the ledger waits for one more.
const QUIET_PASSES_WATCHED: u32 = 4;
/// While the target is quiet. The first events after a pause may carry a time that is that much too
/// early. A ring that has grown takes a burst of 13 million events a second meanwhile; the owner of one that has
/// not may have to wait for the next pass, and then gets more.
const QUIET: Duration = Duration::from_millis(5);
/// The resolution of the clock word, which moves once a pass, when all is recorded.
const LONGEST: Duration = Duration::from_millis(1);
/// Like the constant above, where most calls are passed over. Each time that we wake, the thread on our processor
/// pauses for a moment. Where that is a client of the server that we trace, the server has nothing to do meanwhile, and
/// handles smaller batches afterwards.
const LONGEST_SELECTIVE: Duration = QUIET;
/// Like the constant above, while samples are taken to keep to a budget that includes the passes.
const LONGEST_SAMPLING: Duration = Duration::from_millis(10);
const SHORTEST: Duration = Duration::from_micros(100);
/// Goal for the level of the fullest ring, in thousandths: many events then share the fixed cost of a pass and its cold
/// caches, and there is still room for a burst.
const GOAL: u32 = 150;

/// Adapts to the target.
pub struct Pacing {
    quiet_passes: u32,
    quiet_after: u32,
    pause: Duration,
    longest: Duration,
    is_sampling: bool,
}

impl Pacing {
    /// `is_selective`: by samples or sizes most calls are passed by. `is_watched`: somebody else looks after the target
    /// while it is quiet.
    pub fn new(is_selective: bool, is_watched: bool) -> Self {
        let longest = if is_selective {
            LONGEST_SELECTIVE
        } else {
            LONGEST
        };
        Self {
            quiet_passes: 0,
            quiet_after: if is_watched {
                QUIET_PASSES_WATCHED
            } else {
                QUIET_PASSES
            },
            pause: longest,
            longest,
            is_sampling: false,
        }
    }

    /// Sets whether samples are taken to keep to a budget.
    pub fn set_sampling(&mut self, is_sampling: bool) {
        self.is_sampling = is_sampling;
    }

    /// Returns true while samples are taken to keep to a budget.
    pub fn is_sampling(&self) -> bool {
        self.is_sampling
    }

    /// Returns how long to sleep after a pass. Trails the producers: to chase the head makes its cache lines travel
    /// between the cores for every event.
    pub fn pause_after(&mut self, stats: &PassStats) -> Duration {
        self.quiet_passes = if stats.events == 0 && stats.left == 0 {
            self.quiet_passes.saturating_add(1)
        } else {
            0
        };
        let longest = if self.is_sampling {
            LONGEST_SAMPLING
        } else {
            self.longest
        };
        if self.is_quiet() {
            return QUIET.max(longest);
        }
        let wanted = self.pause * GOAL / stats.fullest.max(GOAL / 2);
        self.pause = wanted.clamp(SHORTEST, longest);
        self.pause
    }

    /// Returns true if nothing has come for a while.
    pub fn is_quiet(&self) -> bool {
        self.quiet_passes >= self.quiet_after
    }

    /// The target has asked for something: more may follow, and is not to wait.
    pub fn expect_more(&mut self) {
        self.quiet_passes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(fullest: u32) -> PassStats {
        PassStats {
            events: u64::from(fullest),
            fullest,
            ..PassStats::default()
        }
    }

    #[test]
    fn the_pause_follows_the_rate() {
        let mut pacing = Pacing::new(false, false);
        // Ring-fulls a millisecond; the ring then is that full after the pause.
        for (rate, expected_us) in [(0.9, 120..200), (0.3, 400..600), (0.01, 1000..1001)] {
            let mut pause = pacing.pause;
            for _ in 0..20 {
                let full = rate * pause.as_secs_f64() * 1e6;
                pause = pacing.pause_after(&pass(full as u32));
            }
            assert!(
                expected_us.contains(&pause.as_micros()),
                "{rate}: {pause:?}"
            );
        }
    }

    #[test]
    fn a_quiet_target_is_left_alone() {
        let mut pacing = Pacing::new(false, false);
        for _ in 0..QUIET_PASSES - 1 {
            assert_eq!(pacing.pause_after(&pass(0)), LONGEST);
        }
        assert_eq!(pacing.pause_after(&pass(0)), QUIET);
        assert_eq!(pacing.pause_after(&pass(1)), LONGEST);
    }

    #[test]
    fn few_events_are_not_looked_for_often() {
        let mut pacing = Pacing::new(true, false);
        pacing.set_sampling(true);
        assert_eq!(pacing.pause_after(&pass(1)), LONGEST_SAMPLING);
        pacing.set_sampling(false);
        assert_eq!(pacing.pause_after(&pass(1)), LONGEST_SELECTIVE);
        // Many that are selected nevertheless.
        for _ in 0..20 {
            pacing.pause_after(&pass(900));
        }
        assert!(pacing.pause_after(&pass(900)) <= LONGEST);
    }

    #[test]
    fn a_watched_target_is_quiet_soon() {
        let mut pacing = Pacing::new(true, true);
        for _ in 0..QUIET_PASSES_WATCHED {
            assert!(!pacing.is_quiet());
            pacing.pause_after(&pass(0));
        }
        assert!(pacing.is_quiet());
        // It stays so until something comes.
        pacing.pause_after(&pass(0));
        assert!(pacing.is_quiet());
        pacing.pause_after(&pass(1));
        assert!(!pacing.is_quiet());
        for _ in 0..QUIET_PASSES_WATCHED {
            pacing.pause_after(&pass(0));
        }
        pacing.expect_more();
        assert!(!pacing.is_quiet());
    }
}
