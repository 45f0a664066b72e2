//! End of a traced process.

use std::fmt;

/// End of a process that memhook-rs did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Exited with this status.
    Exited(i32),
    /// Killed by this signal.
    Killed(i32),
    /// Executes another program.
    Executed,
    /// Ended in a way that only its parent knows.
    Unknown,
}

impl Ending {
    /// Converts a wait status (wait(2)).
    pub fn of_status(status: i32) -> Ending {
        match status & 0x7f {
            0 => Ending::Exited(status >> 8 & 0xff),
            signal => Ending::Killed(signal),
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Ending::Exited(status) => write!(f, "ended with status {status}"),
            Ending::Killed(signal) => match nix::sys::signal::Signal::try_from(signal) {
                Ok(name) => write!(f, "was ended by signal {signal} ({name})"),
                // Real-time signals have no names.
                Err(_) => write!(f, "was ended by signal {signal}"),
            },
            Ending::Executed => write!(f, "executes another program"),
            Ending::Unknown => write!(f, "has ended, and only its parent knows how"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_words() {
        let of = |status| Ending::of_status(status).to_string();
        assert_eq!(of(0), "ended with status 0");
        assert_eq!(of(3 << 8), "ended with status 3");
        assert_eq!(of(9), "was ended by signal 9 (SIGKILL)");
        // With a core dump.
        assert_eq!(of(0x80 | 11), "was ended by signal 11 (SIGSEGV)");
        assert_eq!(of(40), "was ended by signal 40");
    }
}
