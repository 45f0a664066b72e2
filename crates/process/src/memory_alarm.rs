//! When a process is about to run out of memory.

use crate::growth_forecast::GrowthForecast;
use crate::{CgroupMemory, resident_counters};
use memhook_foreign::units;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Between two looks, as long as less than half of the limit is used.
const CALM_PAUSE: Duration = Duration::from_millis(50);
/// Between two alarms for the same pressure, which the kernel reports once a window.
const PRESSURE_PAUSE: Duration = Duration::from_secs(10);
/// How far the use must fall below the limit before it can pass it again.
const FALL: f64 = 0.95;

/// How much memory is too much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AlarmAt {
    /// This share of the limit of a control group, or of the machine's memory.
    Share(f64),
    /// So many bytes in use in a control group, or on the machine.
    Bytes(u64),
}

impl FromStr for AlarmAt {
    type Err = String;

    /// `90%`, `512M`.
    fn from_str(text: &str) -> Result<AlarmAt, String> {
        if text.ends_with('%') {
            return units::percent(text)
                .filter(|percent| *percent > 0.0 && *percent < 100.0)
                .map(|percent| AlarmAt::Share(percent / 100.0))
                .ok_or_else(|| "expected a share between 0% and 100%, like 90%".into());
        }
        let bytes = units::size(text).ok().filter(|bytes| *bytes > 0);
        bytes
            .map(AlarmAt::Bytes)
            .ok_or_else(|| "expected a share like 90%, or a size like 512M".into())
    }
}

/// Why an alarm was given.
#[derive(Clone, Debug, PartialEq)]
pub enum Trigger {
    /// A control group, or the machine (`/`), has nearly reached its limit.
    Limit {
        /// Which.
        group: PathBuf,
        /// Bytes in use that cannot be dropped at once.
        used: u64,
        /// Its limit.
        limit: u64,
    },
    /// The limit is reached soon if the use goes on growing as it does.
    Growth {
        /// Of which group.
        group: PathBuf,
        /// Bytes in use that cannot be dropped at once.
        used: u64,
        /// Its limit.
        limit: u64,
        /// How soon.
        left: Duration,
    },
    /// The process has more in memory than is allowed.
    Resident {
        /// Resident bytes.
        bytes: u64,
        /// How many are allowed.
        allowed: u64,
    },
    /// Processes wait for memory (proc_pressure(5)).
    Pressure,
}

impl Trigger {
    /// A word for it.
    pub fn name(&self) -> &'static str {
        match self {
            Trigger::Limit { .. } => "limit",
            Trigger::Growth { .. } => "growth",
            Trigger::Resident { .. } => "rss",
            Trigger::Pressure => "pressure",
        }
    }
}

/// As a sentence without its end.
impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: &u64| *bytes as f64 / f64::from(1 << 20);
        match self {
            Trigger::Limit { group, used, limit }
            | Trigger::Growth {
                group, used, limit, ..
            } => {
                let percent = 100.0 * *used as f64 / (*limit).max(1) as f64;
                write!(f, "{percent:.1} % of {:.1} MiB are used ", mib(limit))?;
                if group == Path::new("/") {
                    f.write_str("on this machine")?;
                } else {
                    write!(f, "in the memory cgroup {}", group.display())?;
                }
                if let Trigger::Growth { left, .. } = self {
                    let seconds = left.as_secs_f64();
                    write!(f, ", and at this rate the rest lasts for {seconds:.0} s")?;
                }
                Ok(())
            }
            Trigger::Resident { bytes, allowed } => write!(
                f,
                "{:.1} MiB are resident, more than {:.1} MiB",
                mib(bytes),
                mib(allowed)
            ),
            Trigger::Pressure => f.write_str("processes wait for memory"),
        }
    }
}

/// How much waiting for memory is too much, in the kernel's words (Documentation/accounting/psi.rst).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PressureTrigger(String);

impl FromStr for PressureTrigger {
    type Err = String;

    /// `some 150000 1000000`: waiting and window in microseconds.
    fn from_str(text: &str) -> Result<PressureTrigger, String> {
        /// What the kernel takes as a window.
        const WINDOWS: std::ops::RangeInclusive<u64> = 500_000..=10_000_000;
        let words: Vec<&str> = text.split_whitespace().collect();
        let [kind @ ("some" | "full"), waiting, window] = words[..] else {
            return Err(
                "expected 'some' or 'full', a time of waiting and a window, both in microseconds, \
                 like 'some 150000 1000000'"
                    .into(),
            );
        };
        let number = |text: &str| {
            text.parse::<u64>()
                .map_err(|_| format!("{text} is no number"))
        };
        let (waiting, window) = (number(waiting)?, number(window)?);
        if !WINDOWS.contains(&window) {
            return Err("the window must be between 500000 and 10000000 microseconds".into());
        }
        if !(1..=window).contains(&waiting) {
            return Err("the time of waiting must not be 0, nor longer than the window".into());
        }
        Ok(PressureTrigger(format!("{kind} {waiting} {window}")))
    }
}

/// Pressure that cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum AlarmError {
    /// The kernel keeps no account of it.
    #[error(
        "pressure cannot be watched here: this kernel keeps no account of it ({}: {error}), as without CONFIG_PSI or with psi=0",
        .path.display()
    )]
    NoPressure {
        /// The file.
        path: PathBuf,
        /// What the kernel answered.
        error: std::io::Error,
    },
    /// The kernel does not take this trigger from us.
    #[error(
        "pressure cannot be watched with '{words}' ({}: {error}): without CAP_SYS_RESOURCE, a window must be a multiple of 2000000",
        .path.display()
    )]
    Pressure {
        /// The file.
        path: PathBuf,
        /// The trigger.
        words: String,
        /// What the kernel answered.
        error: std::io::Error,
    },
}

/// Looks now and then how much memory the control groups of a process may still have.
pub struct MemoryAlarm {
    cgroup: CgroupMemory,
    at: AlarmAt,
    /// The share of a limit at which the next alarm is due.
    next_share: f64,
    pressure: Option<File>,
    next_pressure: Instant,
    next_look: Instant,
    began: Instant,
    growth: GrowthForecast,
}

impl MemoryAlarm {
    /// For the groups of a process: `at` of the limits that they have, or pressure.
    ///
    /// # Errors
    /// When the kernel does not take that trigger.
    pub fn new(
        pid: i32,
        at: AlarmAt,
        pressure: Option<&PressureTrigger>,
    ) -> Result<MemoryAlarm, AlarmError> {
        let cgroup = CgroupMemory::of(pid);
        let pressure = pressure.map(|trigger| watch_pressure(cgroup.group(), &trigger.0));
        let now = Instant::now();
        Ok(MemoryAlarm {
            at,
            next_share: f64::NAN,
            pressure: pressure.transpose()?,
            next_pressure: now,
            next_look: now,
            began: now,
            growth: GrowthForecast::default(),
            cgroup,
        })
    }

    /// How many processes of its group the kernel has killed for want of memory; `None` where it does not say.
    pub fn kills(&self) -> Option<u64> {
        self.cgroup.kills()
    }

    /// The directory of its own group.
    pub fn group(&self) -> Option<&Path> {
        self.cgroup.group()
    }

    /// Whether there is an alarm. After one, there is another when half of what was left is used, too, or after the
    /// use has fallen.
    pub fn check(&mut self) -> Option<Trigger> {
        let now = Instant::now();
        if let Some(file) = &self.pressure
            && now >= self.next_pressure
            && is_raised(file)
        {
            self.next_pressure = now + PRESSURE_PAUSE;
            return Some(Trigger::Pressure);
        }
        if now < self.next_look {
            return None;
        }
        let levels = self.cgroup.now();
        let used = |level: &crate::MemoryLevel| level.limit.saturating_sub(level.free);
        let share = |level: &crate::MemoryLevel| used(level) as f64 / level.limit.max(1) as f64;
        let fullest = levels.iter().max_by(|a, b| share(a).total_cmp(&share(b)));
        if let Some(level) = fullest {
            let first = match self.at {
                AlarmAt::Share(share) => share,
                AlarmAt::Bytes(bytes) => bytes as f64 / level.limit.max(1) as f64,
            };
            let share = share(level);
            if self.next_share.is_nan() || share < first * FALL {
                self.next_share = first;
            }
            if share < 0.5 * first {
                self.next_look = now + CALM_PAUSE;
            }
            if share >= self.next_share {
                self.next_share = share + (1.0 - share).max(0.0) / 2.0;
                return Some(Trigger::Limit {
                    group: level.path.clone(),
                    used: used(level),
                    limit: level.limit,
                });
            }
            let left = self.growth.look(now - self.began, used(level), level.limit);
            if let Some(left) = left {
                return Some(Trigger::Growth {
                    group: level.path.clone(),
                    used: used(level),
                    limit: level.limit,
                    left,
                });
            }
        }
        None
    }
}

/// Looks how much of a process is in memory.
pub struct ResidentAlarm {
    pid: i32,
    allowed: u64,
    next: u64,
}

impl ResidentAlarm {
    /// More than `allowed` resident bytes are too much.
    pub fn new(pid: i32, allowed: u64) -> ResidentAlarm {
        ResidentAlarm {
            pid,
            allowed,
            next: allowed,
        }
    }

    /// Whether there is an alarm. After one, there is another when it has grown by an eighth, or after it has fallen.
    pub fn check(&mut self) -> Option<Trigger> {
        let (bytes, allowed) = (resident_counters(self.pid)?.resident(), self.allowed);
        if (bytes as f64) < allowed as f64 * FALL {
            self.next = allowed;
        }
        (bytes > self.next).then(|| {
            self.next = bytes + bytes / 8;
            Trigger::Resident { bytes, allowed }
        })
    }
}

/// Asks the kernel to tell of pressure in a group, or on the machine (Documentation/accounting/psi.rst).
fn watch_pressure(group: Option<&Path>, words: &str) -> Result<File, AlarmError> {
    let of_group = group.map(|group| group.join("memory.pressure"));
    let path = of_group
        .filter(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from("/proc/pressure/memory"));
    let open = || {
        let mut file = File::options().read(true).write(true).open(&path)?;
        file.write_all(words.as_bytes())?;
        Ok(file)
    };
    open().map_err(|error: std::io::Error| match error.raw_os_error() {
        Some(nix::libc::ENOENT | nix::libc::EOPNOTSUPP) => AlarmError::NoPressure { path, error },
        _ => AlarmError::Pressure {
            path,
            words: words.to_owned(),
            error,
        },
    })
}

fn is_raised(file: &File) -> bool {
    let mut files = [PollFd::new(file.as_fd(), PollFlags::POLLPRI)];
    let found = poll(&mut files, PollTimeout::ZERO).unwrap_or(0);
    // A group that is gone is an error.
    let events = files[0].revents().unwrap_or(PollFlags::empty());
    found > 0 && events.contains(PollFlags::POLLPRI) && !events.contains(PollFlags::POLLERR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_sizes() {
        assert_eq!("90%".parse(), Ok(AlarmAt::Share(0.9)));
        assert_eq!("512m".parse(), Ok(AlarmAt::Bytes(512 << 20)));
        for bad in ["", "%", "0%", "100%", "-1%", "x", "0", "99999999999G"] {
            assert!(bad.parse::<AlarmAt>().is_err(), "{bad}");
        }
    }

    #[test]
    fn resident_memory_of_this_process() {
        let pid = std::process::id() as i32;
        let own = resident_counters(pid).expect("our own").resident();
        let mut alarm = ResidentAlarm::new(pid, own / 2);
        let trigger = alarm.check().expect("an alarm");
        assert_eq!(trigger.name(), "rss");
        assert_eq!(alarm.check(), None, "only once");
        assert_eq!(ResidentAlarm::new(pid, u64::MAX).check(), None);
    }

    #[test]
    fn triggers_for_pressure_are_checked() {
        let trigger: PressureTrigger = " some  150000 1000000 ".parse().expect("a trigger");
        assert_eq!(trigger.0, "some 150000 1000000");
        assert!("full 500000 500000".parse::<PressureTrigger>().is_ok());
        for bad in [
            "",
            "nonsense",
            "some",
            "some 150000",
            "many 150000 1000000",
            "some x 1000000",
            "some 0 1000000",
            "some 2000000 1000000",
            "some 1 400000",
            "some 1 20000000",
            "some 1 1000000 1",
        ] {
            assert!(bad.parse::<PressureTrigger>().is_err(), "{bad}");
        }
        // A kernel that keeps no account of it says so in other words.
        let path = PathBuf::from("/proc/pressure/memory");
        let none = AlarmError::NoPressure {
            path,
            error: std::io::Error::from_raw_os_error(nix::libc::ENOENT),
        };
        assert!(none.to_string().contains("keeps no account"), "{none}");
    }

    #[test]
    fn the_machine_has_a_limit() {
        let at = "0.001%".parse().unwrap();
        let mut alarm = MemoryAlarm::new(std::process::id() as i32, at, None).unwrap();
        let trigger = alarm.check().expect("an alarm");
        assert_eq!(trigger.name(), "limit");
        assert!(trigger.to_string().contains("% of"), "{trigger}");
    }
}
