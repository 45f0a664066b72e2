//! Scheduler counters of a thread.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// /proc/PID/task/TID/schedstat of one thread, kept open so that each further read is one system call.
pub struct SchedulingFile(File);

/// Counters at one moment: time on processors, time waiting for a processor, and the number of times that the thread
/// was scheduled (sched-stats.rst in the kernel's documentation).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Scheduling([u8; 64]);

impl SchedulingFile {
    /// Opens the file of a thread; `None` if the thread has ended or the kernel does not keep these counters.
    pub fn of(pid: i32, tid: i32) -> Option<SchedulingFile> {
        let path = format!("/proc/{pid}/task/{tid}/schedstat");
        File::open(path).ok().map(SchedulingFile)
    }

    /// Returns the current counters.
    pub fn read(&self) -> Option<Scheduling> {
        let mut text = [0; 64];
        let bytes = self.0.read_at(&mut text, 0).ok()?;
        (bytes > 0).then_some(Scheduling(text))
    }
}

impl Scheduling {
    /// Returns how long the thread has run.
    pub fn ran(&self) -> Option<Duration> {
        self.field(0).map(Duration::from_nanos)
    }

    /// Returns how long the thread has waited for a processor.
    pub fn waited(&self) -> Option<Duration> {
        self.field(1).map(Duration::from_nanos)
    }

    /// Returns how often the thread was scheduled.
    pub fn turns(&self) -> Option<u64> {
        self.field(2)
    }

    fn field(&self, number: usize) -> Option<u64> {
        let text = std::str::from_utf8(&self.0).ok()?;
        text.split([' ', '\n']).nth(number)?.parse().ok()
    }
}
