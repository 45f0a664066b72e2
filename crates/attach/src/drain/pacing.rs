//! Pauses of the consumer between passes.

use memhook_stream::PassStats;
use std::time::Duration;

/// Number of passes without an event after which the target counts as quiet.
const QUIET_PASSES: u32 = 100;
/// Like `QUIET_PASSES`, if a lookout watches the target. This many passes take all events and put them in order: with
/// pairs, a pass takes the events that the previous pass has claimed, and the ledger waits for one more pass.
const QUIET_PASSES_WATCHED: u32 = 4;
/// Pause while the target is quiet. The time of the first events after the pause may be too early, by up to the length
/// of the pause. A full-grown ring can store a burst of 13 million events a second for this time. The owner of a
/// smaller ring may have to wait for the next pass, and then gets a larger ring.
const QUIET: Duration = Duration::from_millis(5);
/// Longest pause if everything is recorded: the resolution of the clock word, which advances once per pass.
const LONGEST: Duration = Duration::from_millis(1);
/// Like `LONGEST`, if most calls are skipped. Each wake-up interrupts the thread that runs on our processor. If that
/// thread is a client of the traced server, the server has nothing to do meanwhile, and then handles smaller batches.
const LONGEST_SELECTIVE: Duration = QUIET;
/// Like `LONGEST`, while sampling keeps to a budget that includes the cost of the passes.
const LONGEST_SAMPLING: Duration = Duration::from_millis(10);
const SHORTEST: Duration = Duration::from_micros(100);
/// Target fill level of the fullest ring, in thousandths: high enough that many events share the fixed cost of a pass
/// and its cold caches, and low enough to leave space for a burst.
const GOAL: u32 = 150;

/// Pause between passes, adapted to the target.
pub struct Pacing {
    quiet_passes: u32,
    quiet_after: u32,
    pause: Duration,
    longest: Duration,
    is_sampling: bool,
}

impl Pacing {
    /// Creates the pacing of a target. `is_selective`: sampling or a size filter skips most calls. `is_watched`: a
    /// lookout watches the target while it is quiet.
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

    /// Sets whether sampling keeps to a budget.
    pub fn set_sampling(&mut self, is_sampling: bool) {
        self.is_sampling = is_sampling;
    }

    /// Returns true while sampling keeps to a budget.
    pub fn is_sampling(&self) -> bool {
        self.is_sampling
    }

    /// Returns the pause after a pass. The consumer stays behind the producers: if it followed closely, the cache lines
    /// of the head would move between the cores for every event.
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

    /// Returns true if no event has come for a while.
    pub fn is_quiet(&self) -> bool {
        self.quiet_passes >= self.quiet_after
    }

    /// Shortens the pauses, because the target has made a request and more may follow.
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
        // Rates are in ring sizes per millisecond. The pause ends when a ring reaches the target level.
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
        // This filter still lets many events through.
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
        // The pause stays the same until an event comes.
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
