//! How long the consumer sleeps between passes.

use std::time::Duration;

/// Passes without an event after which the target counts as quiet.
const QUIET_PASSES: u32 = 100;

/// Adapts to the target.
#[derive(Default)]
pub struct Pacing {
    quiet_passes: u32,
}

impl Pacing {
    /// Sleeps after a pass that took `events`.
    ///
    /// Busy: trail the producers, batches are cheap, chasing the head is not. Otherwise a
    /// millisecond, the resolution of the clock word. Quiet: longer, to cost next to nothing; the
    /// first events after a pause may carry a time that is that much too early, and a ring of the
    /// usual size takes a burst of 13 million events a second meanwhile.
    pub fn sleep(&mut self, events: u64) {
        self.quiet_passes = if events == 0 {
            self.quiet_passes.saturating_add(1)
        } else {
            0
        };
        std::thread::sleep(match events {
            1000.. => Duration::from_micros(200),
            _ if self.quiet_passes < QUIET_PASSES => Duration::from_millis(1),
            _ => Duration::from_millis(5),
        });
    }
}
