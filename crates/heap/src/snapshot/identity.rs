//! Identity of one run of a process on this machine since it booted.

use memhook_process::{proc_text, thread_start_time};
use serde::{Deserialize, Serialize};

/// Identity of a process. It does not change when the process executes another program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Process id.
    pub pid: i32,
    /// Start time, in clock ticks since boot (proc_pid_stat(5), field 22).
    pub started: u64,
    /// Boot id of the machine: `/proc/sys/kernel/random/boot_id` (random(4)).
    pub boot: String,
}

impl ProcessIdentity {
    /// Returns the identity of a process; `None` if it is gone.
    pub fn of(pid: i32) -> Option<ProcessIdentity> {
        let boot = proc_text("/proc/sys/kernel/random/boot_id").ok()?;
        Some(ProcessIdentity {
            pid,
            started: thread_start_time(pid, pid)?,
            boot: boot.trim().to_owned(),
        })
    }
}
