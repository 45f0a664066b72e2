//! Disturbances of an attacher.

use std::process::Child;
use std::time::Duration;

/// Latest time of a disturbance after the attacher's start. The injection ends before this time.
const LATEST_US: u64 = 120_000;
/// Longest stop of an attacher, which exceeds the wait of its watchdog.
const LONGEST_STOP_US: u64 = 800_000;

/// xorshift64
pub struct Random(u64);

impl Random {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// Returns true in one of `count` cases, or never if `count` is 0.
    pub fn one_in(&mut self, count: u64) -> bool {
        count > 0 && self.below(count) == 0
    }

    /// Returns a random time during an attach.
    pub fn moment(&mut self) -> Duration {
        Duration::from_micros(self.below(LATEST_US))
    }
}

/// Kind and time of a disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// Nothing
    None,
    /// SIGKILL
    Kill(Duration),
    /// SIGSTOP; after the second time SIGCONT, or SIGKILL
    Stop(Duration, Duration, bool),
}

impl Disturbance {
    /// Chooses a disturbance: a kill in one of `kill` cycles, and a stop in one of `stop` cycles.
    pub fn choose(kill: u64, stop: u64, random: &mut Random) -> Disturbance {
        let at = random.moment();
        if random.one_in(kill) {
            Disturbance::Kill(at)
        } else if random.one_in(stop) {
            let time = Duration::from_micros(random.below(LONGEST_STOP_US));
            Disturbance::Stop(at, time, random.one_in(2))
        } else {
            Disturbance::None
        }
    }

    /// Returns true if the attacher ends without a message.
    pub fn kills(self) -> bool {
        matches!(self, Disturbance::Kill(_) | Disturbance::Stop(_, _, true))
    }

    /// Disturbs the attacher. Calls `between` while the attacher is stopped.
    pub fn apply(
        self,
        attacher: &mut Child,
        between: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let send = |child: &Child, signal| {
            // SAFETY: plain integers; the child has not been waited for.
            unsafe { libc::kill(child.id() as i32, signal) };
        };
        match self {
            Disturbance::None => Ok(()),
            Disturbance::Kill(at) => {
                std::thread::sleep(at);
                send(attacher, libc::SIGKILL);
                Ok(())
            }
            Disturbance::Stop(at, time, kill) => {
                std::thread::sleep(at);
                send(attacher, libc::SIGSTOP);
                let result = between();
                std::thread::sleep(time);
                send(attacher, if kill { libc::SIGKILL } else { libc::SIGCONT });
                result
            }
        }
    }
}
