//! A control group with a limit on processor time, like that of a container.

use crate::until;
use std::path::{Path, PathBuf};

/// The group; removed when the test is over. Its processes must have ended by then.
pub struct ProcessorBox {
    folder: PathBuf,
    is_v1: bool,
}

impl ProcessorBox {
    /// Creates a group without a limit, of version 1 or 2, depending on this machine. `None` if we may not.
    pub fn new(name: &str) -> Option<ProcessorBox> {
        let name = format!("memhook-{name}-{}", std::process::id());
        [("/sys/fs/cgroup/cpu", true), ("/sys/fs/cgroup", false)]
            .into_iter()
            .find_map(|(top, is_v1)| {
                if !is_v1 {
                    // Refused where the controller is not to be had.
                    let all = Path::new(top).join("cgroup.subtree_control");
                    let _ = std::fs::write(all, "+cpu");
                }
                let folder = Path::new(top).join(&name);
                std::fs::create_dir(&folder).ok()?;
                let made = ProcessorBox { folder, is_v1 };
                made.is_set_to(None).then_some(made)
            })
    }

    /// Sets the limit, in hundredths of one processor.
    pub fn set_percent(&self, percent: Option<u32>) {
        assert!(self.is_set_to(percent), "a limit of {percent:?}");
    }

    fn is_set_to(&self, percent: Option<u32>) -> bool {
        self.limit(percent.map(|percent| percent * 1000), 100_000)
    }

    /// Gives it a thousandth of a processor: one millisecond in each second. A thread runs for several before a tick ends its
    /// turn, and then waits for seconds.
    pub fn starve(&self) {
        assert!(self.limit(Some(1_000), 1_000_000), "a limit");
    }

    /// Sets the quota of each period, both in microseconds, or none.
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

    /// Moves a process into it. That is refused while one of its threads has real-time priority, as during a hold.
    pub fn take(&self, pid: u32) {
        let members = self.folder.join("cgroup.procs");
        until("it may be moved", || {
            std::fs::write(&members, pid.to_string()).is_ok()
        });
    }

    /// Moves all its processes to the group above it.
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
        // A process that has just ended may still be counted.
        for _ in 0..1000 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
