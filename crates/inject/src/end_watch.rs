//! Observes the end of a process that is not our child.
//!
//! The parent collects the wait status; a shell does so immediately. A descriptor of the process (pidfd_open(2)) that
//! was opened before the process ended keeps the status (PIDFD_GET_INFO with PIDFD_INFO_EXIT, Linux 6.15). On older
//! kernels, the status is in /proc until the parent has collected it.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::descriptor::descriptor_of_process;
use memhook_process::ended_with;

/// Process whose end is watched.
pub struct EndWatch {
    pid: i32,
    process: Option<OwnedFd>,
}

/// `struct pidfd_info` of linux/pidfd.h, first version.
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// `_IOWR(0xFF, 11, struct pidfd_info)`.
const PIDFD_GET_INFO: libc::c_ulong = 0xc040_ff0b;
const PIDFD_INFO_EXIT: u64 = 1 << 3;

impl EndWatch {
    /// Watches the end of a living process.
    pub fn of(pid: i32) -> EndWatch {
        EndWatch {
            pid,
            process: descriptor_of_process(pid).ok(),
        }
    }

    /// Returns the wait status of an ended process, if it can be determined without being its parent.
    pub fn status(&self) -> Option<i32> {
        self.kept().or_else(|| ended_with(self.pid))
    }

    fn kept(&self) -> Option<i32> {
        let process = self.process.as_ref()?;
        let mut info = Info {
            mask: PIDFD_INFO_EXIT,
            ..Info::default()
        };
        // SAFETY: the request encodes the size of the structure, which the kernel reads and writes.
        let result =
            unsafe { libc::ioctl(process.as_raw_fd(), PIDFD_GET_INFO as _, &raw mut info) };
        (result == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_status_of_a_process_before_and_after_its_parent_took_it() {
        for (script, status) in [("exit 3", 3 << 8), ("kill -KILL $$", libc::SIGKILL)] {
            let script = format!("read line; {script}");
            let mut child = Command::new("sh")
                .args(["-c", &script])
                .stdin(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let end = EndWatch::of(child.id() as i32);
            assert_eq!(end.status(), None, "it lives");
            drop(child.stdin.take());
            while end.status().is_none() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            assert_eq!(end.status(), Some(status));
            child.wait().unwrap();
            let is_kept = end.status();
            assert!(is_kept == Some(status) || is_kept.is_none(), "{is_kept:?}");
        }
    }
}
