//! A control group with a limit on processor time, as for a container.

use crate::until;
use std::path::{Path, PathBuf};

/// The control group. Dropping it removes the group, whose processes must have exited.
pub struct ProcessorBox {
    folder: PathBuf,
    is_v1: bool,
}

impl ProcessorBox {
    /// Creates a group without a limit, in version 1 or 2 of control groups, depending on the
    /// machine. Returns `None` if this is not permitted.
    pub fn new(name: &str) -> Option<ProcessorBox> {
        let name = format!("memhook-{name}-{}", std::process::id());
        [("/sys/fs/cgroup/cpu", true), ("/sys/fs/cgroup", false)]
            .into_iter()
            .find_map(|(top, is_v1)| {
                if !is_v1 {
                    // Fails if the controller is not available, which is harmless.
                    let all = Path::new(top).join("cgroup.subtree_control");
                    let _ = std::fs::write(all, "+cpu");
                }
                let folder = Path::new(top).join(&name);
                std::fs::create_dir(&folder).ok()?;
                let made = ProcessorBox { folder, is_v1 };
                made.is_set_to(None).then_some(made)
            })
    }

    /// Sets the limit as a percentage of one processor.
    pub fn set_percent(&self, percent: Option<u32>) {
        assert!(self.is_set_to(percent), "a limit of {percent:?}");
    }

    fn is_set_to(&self, percent: Option<u32>) -> bool {
        self.limit(percent.map(|percent| percent * 1000), 100_000)
    }

    /// Limits the group to a thousandth of a processor: one millisecond per second. A thread runs
    /// for several milliseconds before a tick throttles it, and then waits for seconds.
    pub fn starve(&self) {
        assert!(self.limit(Some(1_000), 1_000_000), "a limit");
    }

    /// Sets the quota per period, both in microseconds; `None` removes the quota.
    fn limit(&self, quota: Option<u32>, period: u32) -> bool {
        let write = |name: &str, value: String| std::fs::write(self.folder.join(name), value);
        match (self.is_v1, quota) {
            (true, None) => write("cpu.cfs_quota_us", "-1".into()),
            (true, Some(quota)) => write("cpu.cfs_period_us", period.to_string())
                .and_then(|()| write("cpu.cfs_quota_us", quota.to_string())),
            (false, None) => write("cpu.max", format!("max {period}")),
            (false, Some(quota)) => write("cpu.max", format!("{quota} {period}")),
        }
        .is_ok()
    }

    /// Moves a process into the group. The kernel refuses this while a thread of the process has
    /// real-time priority, as during a hold.
    pub fn take(&self, pid: u32) {
        let members = self.folder.join("cgroup.procs");
        until("it may be moved", || {
            std::fs::write(&members, pid.to_string()).is_ok()
        });
    }

    /// Moves all processes of the group to the parent group.
    pub fn empty(&self) {
        let above = self.folder.with_file_name("cgroup.procs");
        until("all may be moved", || {
            let members = std::fs::read_to_string(self.folder.join("cgroup.procs"));
            let members = members.unwrap_or_default();
            for pid in members.lines() {
                let _ = std::fs::write(&above, pid);
            }
            members.is_empty()
        });
    }
}

impl Drop for ProcessorBox {
    fn drop(&mut self) {
        // A process that has just exited may still count.
        for _ in 0..1000 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
