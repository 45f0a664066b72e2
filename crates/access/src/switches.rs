//! Cost of watchpoints when a thread is scheduled or descheduled. Each time, the kernel writes the
//! debug registers, which causes an exit if it runs in a virtual machine. Perf events of any kind
//! also add work to each context switch of a thread.

use memhook_process::SchedulingFile;
use std::collections::BTreeMap;

/// Cost of scheduling a thread that has a ring for its accesses. Measured in a virtual machine,
/// where the cost is highest (docs/scores-evaluation.md).
const RING_NS: f64 = 1_000.0;
/// Additional cost of each watchpoint of the thread.
const WATCHPOINT_NS: f64 = 500.0;
/// Cost of opening, arming and closing an event of a running thread. Each step interrupts the
/// thread's processor. A sleeping thread costs nothing.
const EVENT_NS: f64 = 15_000.0;

/// Counts how often threads are scheduled.
#[derive(Default)]
pub struct Switches {
    threads: BTreeMap<i32, (SchedulingFile, u64)>,
    last_ns: u64,
    per_second: f64,
}

impl Switches {
    /// Checks some threads of a process. Returns how often they were scheduled since the last call,
    /// not counting new threads.
    pub fn take(&mut self, pid: i32, tids: &[i32], now_ns: u64) -> u64 {
        self.threads.retain(|tid, _| tids.contains(tid));
        let mut taken = 0;
        for &tid in tids {
            if let Some((file, known)) = self.threads.get_mut(&tid) {
                let turns = file.read().and_then(|said| said.turns());
                taken += turns.unwrap_or(*known).saturating_sub(*known);
                *known = turns.unwrap_or(*known);
            } else if let Some(file) = SchedulingFile::of(pid, tid)
                && let Some(turns) = file.read().and_then(|said| said.turns())
            {
                self.threads.insert(tid, (file, turns));
            }
        }
        let passed_ns = now_ns.saturating_sub(self.last_ns);
        if self.last_ns > 0 && passed_ns > 0 {
            self.per_second = taken as f64 * 1e9 / passed_ns as f64;
        }
        self.last_ns = now_ns;
        taken
    }

    /// Makes the next call start a new count.
    pub fn rest(&mut self) {
        self.threads.clear();
        self.last_ns = 0;
    }

    /// Returns the rate per second at the last check.
    pub fn per_second(&self) -> f64 {
        self.per_second
    }
}

/// Returns the cost of scheduling a thread once, with the given number of watchpoints.
pub fn switch_ns(watchpoints: usize) -> f64 {
    RING_NS + WATCHPOINT_NS * watchpoints as f64
}

/// Returns an upper bound on the cost when `events` threads get one event each, or one thread gets
/// all of them. No more threads can run than there are processors.
pub fn events_ns(events: usize, processors: usize) -> f64 {
    EVENT_NS * events.min(processors) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_threads_that_run_are_interrupted() {
        assert_eq!(events_ns(0, 4), 0.0);
        assert_eq!(events_ns(3, 4), 3.0 * events_ns(1, 4));
        assert_eq!(events_ns(1000, 4), events_ns(4, 4));
    }

    #[test]
    fn a_thread_that_sleeps_is_put_on_a_processor_again() {
        let pid = std::process::id() as i32;
        let tid = memhook_inject::own_thread();
        let mut switches = Switches::default();
        assert_eq!(switches.take(pid, &[tid], 1), 0);
        // A sleep that ends before the thread has left its processor is not a context switch.
        let slept = || -> u64 {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let mut lines = status.lines();
            let number = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            number.unwrap().trim().parse().unwrap()
        };
        let before = slept();
        while slept() < before + 50 {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        let taken = switches.take(pid, &[tid], 1_000_000_001);
        assert!(taken >= 50, "{taken}");
        assert_eq!(switches.per_second(), taken as f64);
        // A thread that is not in the list is forgotten.
        assert_eq!(switches.take(pid, &[], 2_000_000_001), 0);
        assert_eq!(switches.take(pid, &[tid], 3_000_000_001), 0);
    }
}
