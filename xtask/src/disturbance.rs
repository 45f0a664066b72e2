//! Disturbances of an attacher.

use fastrand::Rng;
use std::process::Child;
use std::time::Duration;

/// Latest time of a disturbance after the attacher's start. The injection ends before this time.
const LATEST_US: u64 = 120_000;
/// Longest stop of an attacher, which exceeds the wait of its watchdog.
const LONGEST_STOP_US: u64 = 800_000;

/// Returns true in one of `count` cases; 0: never.
pub fn one_in(count: u64, random: &mut Rng) -> bool {
    count > 0 && random.u64(..count) == 0
}

/// Returns a random moment during an attach.
pub fn moment(random: &mut Rng) -> Duration {
    Duration::from_micros(random.u64(..LATEST_US))
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
    pub fn choose(kill: u64, stop: u64, random: &mut Rng) -> Disturbance {
        let at = moment(random);
        if one_in(kill, random) {
            Disturbance::Kill(at)
        } else if one_in(stop, random) {
            let time = Duration::from_micros(random.u64(..LONGEST_STOP_US));
            Disturbance::Stop(at, time, one_in(2, random))
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
