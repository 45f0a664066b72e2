//! Limits on the cost of a snapshot for the target and for this machine.

use std::time::{Duration, Instant};

/// Limits of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum time for which all threads may be held at a time; `None` for no limit.
    pub hold: Option<Duration>,
    /// Maximum memory of the copy; `None` for all that is available.
    pub memory: Option<u64>,
    /// True if the target may only be read. Nothing is called, written, mapped or protected in it,
    /// and it is not forked.
    pub only_looks: bool,
}

impl Limits {
    /// No limits.
    pub const NONE: Limits = Limits {
        hold: None,
        memory: None,
        only_looks: false,
    };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            hold: Some(Duration::from_millis(50)),
            memory: None,
            only_looks: false,
        }
    }
}

/// Speed of copying, measured on the bytes copied so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Speed {
    bytes: u64,
    took: Duration,
}

impl Speed {
    /// Records that `bytes` bytes were copied since a time. The latest round has more weight than
    /// earlier rounds.
    pub fn copied(&mut self, bytes: u64, since: Instant) {
        self.bytes = self.bytes / 2 + bytes;
        self.took = self.took / 2 + since.elapsed();
    }

    /// Returns the estimated number of bytes that are copied in this time.
    pub fn bytes_in(&self, time: Duration) -> u64 {
        if self.took.is_zero() {
            return 0;
        }
        (self.bytes as f64 * time.as_secs_f64() / self.took.as_secs_f64()) as u64
    }

    /// Returns the time that it takes to copy `bytes` bytes.
    pub fn time(&self, bytes: u64) -> Duration {
        if self.bytes == 0 {
            return Duration::ZERO;
        }
        self.took.mul_f64(bytes as f64 / self.bytes as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_with_bytes() {
        let mut speed = Speed::default();
        assert_eq!(speed.time(1 << 40), Duration::ZERO, "nothing is known");
        let since = Instant::now().checked_sub(Duration::from_millis(100));
        speed.copied(100 << 20, since.unwrap());
        let time = speed.time(1 << 30);
        assert!(time >= Duration::from_millis(1000), "{time:?}");
    }
}
