//! Processes that the kernel's OOM killer killed, according to the kernel log.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Process that the kernel killed for lack of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OomKill {
    /// Process id in the initial PID namespace.
    pub pid: i32,
    /// Name of the process (proc_pid_comm(5)).
    pub name: String,
    /// Path of the process's memory cgroup below the root of the hierarchy; empty if the kernel does not report it.
    pub group: String,
}

impl OomKill {
    /// Returns true if the process was in the control group with this directory, or in one below it.
    pub fn was_in(&self, directory: &Path) -> bool {
        let group = Path::new(self.group.trim_start_matches('/'));
        let mut ancestors = group.ancestors();
        ancestors.any(|part| !part.as_os_str().is_empty() && directory.ends_with(part))
    }
}

/// Follows the kernel's messages from now on.
pub struct OomKills {
    /// The kernel log; `None` if it may not be read (CAP_SYSLOG, `kernel.dmesg_restrict`).
    log: Option<File>,
    /// Processes whose end has been read.
    pids: BTreeSet<i32>,
}

impl OomKills {
    /// Starts with the next message.
    pub fn follow() -> OomKills {
        let open = || {
            let mut log = File::options()
                .read(true)
                .custom_flags(nix::libc::O_NONBLOCK)
                .open("/dev/kmsg")?;
            log.seek(SeekFrom::End(0))?;
            std::io::Result::Ok(log)
        };
        OomKills {
            log: open().ok(),
            pids: BTreeSet::new(),
        }
    }

    /// Returns the processes that were killed since the last call.
    pub fn take(&mut self) -> Vec<OomKill> {
        let mut found = Vec::new();
        let Some(log) = &mut self.log else {
            return found;
        };
        // Each read returns one message; a longer message is truncated (Documentation/ABI/testing/dev-kmsg).
        let mut message = [0; 8192];
        loop {
            match log.read(&mut message) {
                Ok(0) => break,
                Ok(bytes) => {
                    let text = String::from_utf8_lossy(&message[..bytes]);
                    // Each kill has one line, and usually two.
                    let killed = killed_by(&text);
                    let is_new = |kill: &OomKill| self.pids.insert(kill.pid);
                    found.extend(killed.filter(is_new));
                }
                // Messages were overwritten before they were read. The next messages are available.
                Err(error) if error.raw_os_error() == Some(nix::libc::EPIPE) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        found
    }
}

/// Parses `6,1234,5678,-;oom-kill:constraint=CONSTRAINT_MEMCG,…,task_memcg=/web,task=redis,pid=12,uid=0` (since Linux
/// 5.0). If there are many kills, the kernel prints only `Memory cgroup out of memory: Killed process 12 (redis)
/// total-vm:1234kB, …`.
fn killed_by(message: &str) -> Option<OomKill> {
    let text = message.split_once(';')?.1.lines().next()?;
    let Some(text) = text.strip_prefix("oom-kill:") else {
        let (pid, text) = text
            .split_once("ut of memory: Killed process ")?
            .1
            .split_once(" (")?;
        return Some(OomKill {
            pid: pid.parse().ok()?,
            name: text.rsplit_once(") total-vm:")?.0.to_owned(),
            group: String::new(),
        });
    };
    // The search goes backwards, because a process name may contain anything.
    let (text, pid) = text.rsplit_once(",uid=")?.0.rsplit_once(",pid=")?;
    let (group, name) = text.split_once(",task_memcg=")?.1.rsplit_once(",task=")?;
    Some(OomKill {
        pid: pid.parse().ok()?,
        name: name.to_owned(),
        group: group.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_message_is_read() {
        let text = "6,957,3054,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
                    oom_memcg=/web,task_memcg=/web/a,task=le,pid=7 ak,pid=4711,uid=0\n SUBSYSTEM=x\n";
        let kill = killed_by(text).expect("a kill");
        assert_eq!(kill.pid, 4711);
        assert_eq!(kill.name, "le,pid=7 ak");
        assert!(kill.was_in(Path::new("/sys/fs/cgroup/memory/web")));
        assert!(kill.was_in(Path::new("/sys/fs/cgroup/memory/web/a")));
        assert!(!kill.was_in(Path::new("/sys/fs/cgroup/memory/a")));
        assert!(!kill.was_in(Path::new("/sys/fs/cgroup/memory")));
        let text = "3,958,3054,-;Memory cgroup out of memory: Killed process 12 (a) b) total-vm:9kB, anon-rss:1kB\n";
        let kill = killed_by(text).expect("a kill");
        assert_eq!((kill.pid, kill.name.as_str()), (12, "a) b"));
        assert!(!kill.was_in(Path::new("/sys/fs/cgroup/memory/web")));
        for other in [
            "",
            "6,1,2,-;",
            "6,1,2,-;oom-kill:",
            "6,1,2,-;Killed process 7 (a)",
        ] {
            assert_eq!(killed_by(other), None, "{other}");
        }
        // The result is valid even if this process may not read the kernel log.
        assert!(OomKills::follow().take().iter().all(|kill| kill.pid > 0));
    }
}
