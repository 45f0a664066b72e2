//! The agent's own budget: a share of processor time, and an amount of memory.

use memhook_process::proc_text;
use std::time::{Duration, Instant};

/// Maximum processor time that may be saved up and used in one burst.
const BURST: Duration = Duration::from_secs(10);
/// Pause after dropping a target, so that the effect shows before another target is dropped.
const BETWEEN_SHEDS: Duration = Duration::from_secs(10);

/// Limits that hold the agent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scarce {
    /// The share of the processors is used up.
    Processor,
    /// The memory is used up.
    Memory,
    /// The number of targets is at its limit.
    Targets,
    /// The namespace of the targets has reached its limit on targets, or on processor time.
    Namespace,
}

impl Scarce {
    /// All limits.
    pub const ALL: [Scarce; 4] = [
        Scarce::Processor,
        Scarce::Memory,
        Scarce::Targets,
        Scarce::Namespace,
    ];

    /// Returns the limit's name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Scarce::Processor => "processor",
            Scarce::Memory => "memory",
            Scarce::Targets => "targets",
            Scarce::Namespace => "namespace",
        }
    }
}

/// Decision about the agent's next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The agent may attach to another process.
    Free,
    /// The agent must not attach to any process.
    HoldBack(Scarce),
    /// The agent must drop a target.
    Shed(Scarce),
}

/// Resources that the agent has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OwnUse {
    /// Processor time of all threads, in seconds.
    pub cpu_seconds: f64,
    /// Bytes in memory.
    pub resident: u64,
}

impl OwnUse {
    /// Returns the current use of this process.
    pub fn now() -> OwnUse {
        let stat = proc_text("/proc/self/stat").unwrap_or_default();
        let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
        let fields: Vec<u64> = after
            .split_ascii_whitespace()
            .map(|field| field.parse().unwrap_or(0))
            .collect();
        // The fields 14 and 15 of proc_pid_stat(5) are utime and stime.
        let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        // Pages of mapped files, most of which are debug information, do not count, because the
        // kernel can reclaim them at any time.
        let status = proc_text("/proc/self/status").unwrap_or_default();
        let kilobytes = ["RssAnon:", "RssShmem:"].map(|name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_ascii_whitespace().next());
            number
                .and_then(|number| number.parse::<u64>().ok())
                .unwrap_or(0)
        });
        OwnUse {
            cpu_seconds: (field(14) + field(15)) as f64 / ticks as f64,
            resident: kilobytes.iter().sum::<u64>() * 1024,
        }
    }
}

/// Token bucket of processor time that fills at the rate of the budget, and a bound on memory.
pub struct Budget {
    /// Processor seconds per second.
    rate: f64,
    memory: u64,
    saved: f64,
    last: Option<(Instant, f64)>,
    shed: Option<Instant>,
}

impl Budget {
    /// Creates a full bucket. `rate` is in processor seconds per second, and `memory` in bytes.
    pub fn new(rate: f64, memory: u64) -> Budget {
        Budget {
            rate,
            memory,
            saved: rate * BURST.as_secs_f64(),
            last: None,
            shed: None,
        }
    }

    /// Changes the bounds of the bucket.
    pub fn set(&mut self, rate: f64, memory: u64) {
        (self.rate, self.memory) = (rate, memory);
    }

    /// Judges the use so far.
    pub fn judge(&mut self, now: Instant, used: OwnUse) -> Verdict {
        let burst = self.rate * BURST.as_secs_f64();
        if let Some((before, cpu)) = self.last {
            let gained = now.duration_since(before).as_secs_f64() * self.rate;
            self.saved += gained - (used.cpu_seconds - cpu).max(0.0);
            // Savings beyond a burst do not count. Debts that would take minutes to pay back do not
            // count either.
            self.saved = self.saved.clamp(-3.0 * burst, burst);
        }
        self.last = Some((now, used.cpu_seconds));
        let may_shed = self
            .shed
            .is_none_or(|at| now.duration_since(at) >= BETWEEN_SHEDS);
        if used.resident > self.memory {
            return if may_shed {
                Verdict::Shed(Scarce::Memory)
            } else {
                Verdict::HoldBack(Scarce::Memory)
            };
        }
        if self.saved < -burst && may_shed {
            return Verdict::Shed(Scarce::Processor);
        }
        if self.saved <= 0.0 {
            return Verdict::HoldBack(Scarce::Processor);
        }
        // The next target takes some memory too.
        if used.resident as f64 > 0.9 * self.memory as f64 {
            return Verdict::HoldBack(Scarce::Memory);
        }
        Verdict::Free
    }

    /// Records that a target was dropped.
    pub fn has_shed(&mut self, now: Instant) {
        self.shed = Some(now);
    }
}

/// Returns the number of processors.
pub fn processors() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64)
}

/// Returns the machine's memory in bytes.
pub fn machine_memory() -> u64 {
    let info = rustix::system::sysinfo();
    // On a 64-bit kernel, the fields have the kernel's word size (sysinfo(2)).
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(cpu_seconds: f64, resident: u64) -> OwnUse {
        OwnUse {
            cpu_seconds,
            resident,
        }
    }

    /// Regardless of how its use varies, the agent stays below the budget in the long run if it
    /// obeys the verdict.
    #[test]
    fn what_is_used_stays_within_the_budget() {
        let begin = Instant::now();
        let mut budget = Budget::new(0.04, 1 << 30);
        let (mut cpu, mut targets, mut attached, mut shed) = (0.0, 0u32, 0u32, 0u32);
        for second in 0..3600u64 {
            let now = begin + Duration::from_secs(second);
            match budget.judge(now, used(cpu, 1 << 20)) {
                Verdict::Free if targets < 100 => {
                    // An attach costs a fifth of a second.
                    cpu += 0.2;
                    targets += 1;
                    attached += 1;
                }
                Verdict::Shed(why) => {
                    assert_eq!(why, Scarce::Processor);
                    budget.has_shed(now);
                    targets = targets.saturating_sub(1);
                    shed += 1;
                }
                _ => {}
            }
            cpu += 0.001 * f64::from(targets);
        }
        assert!(targets > 10, "{targets}");
        assert!(attached > shed, "{attached} {shed}");
        let most = 0.04 * (3600.0 + 4.0 * BURST.as_secs_f64());
        assert!(cpu <= most, "{cpu} of {most}");
    }

    #[test]
    fn memory_is_given_up_first_when_it_is_exceeded() {
        let now = Instant::now();
        let mut budget = Budget::new(1.0, 1000);
        assert_eq!(budget.judge(now, used(0.0, 500)), Verdict::Free);
        assert_eq!(
            budget.judge(now, used(0.0, 950)),
            Verdict::HoldBack(Scarce::Memory)
        );
        assert_eq!(
            budget.judge(now, used(0.0, 1001)),
            Verdict::Shed(Scarce::Memory)
        );
        budget.has_shed(now);
        assert_eq!(
            budget.judge(now, used(0.0, 1001)),
            Verdict::HoldBack(Scarce::Memory)
        );
        let later = now + BETWEEN_SHEDS;
        assert_eq!(
            budget.judge(later, used(0.0, 1001)),
            Verdict::Shed(Scarce::Memory)
        );
    }

    #[test]
    fn this_process_uses_something() {
        let used = OwnUse::now();
        assert!(used.resident > 1 << 16 && used.cpu_seconds >= 0.0);
        assert!(machine_memory() > used.resident && processors() >= 1.0);
    }
}
