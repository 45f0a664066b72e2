//! Pointers that a program has passed to the kernel, and that may exist nowhere else.

use crate::capture::pipes::Pipes;
use crate::capture::shared_segments::has_detached_segments;
use crate::capture::sockets::{Sockets, socket_inode};
use memhook_inject::{kernel_places, robust_list};
use memhook_process::{filter_may_kill, thread_ids};
use nix::errno::Errno;
use nix::libc::__fsword_t as fs_type_t;
use nix::sys::statfs::{FsType, statfs};
use std::path::Path;
use std::time::Duration;

/// MQUEUE_MAGIC (ipc/mqueue.c).
const QUEUES: fs_type_t = 0x1980_0202;

/// Words that the kernel holds for a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelWords {
    /// User data of epoll entries and timers, counters of eventfds, robust lists, and unread data
    /// in pipes and local sockets.
    pub words: Vec<u64>,
    /// Kernel features in use whose user data is not visible.
    pub unseen: Vec<String>,
}

/// Maximum number of threads that are examined individually.
const MOST_ASKED: usize = 2000;

impl KernelWords {
    /// Asks each thread for its alternate signal stack, and for the word that the kernel clears
    /// when the thread ends. A program that allocates either of them with malloc need not keep the
    /// address. Returns how long a thread was held.
    pub fn ask_threads(&mut self, pid: i32) -> Duration {
        let asked = if filter_may_kill(pid) {
            Err("a seccomp filter may kill the process for that".to_owned())
        } else if thread_ids(pid).is_ok_and(|threads| threads.len() > MOST_ASKED) {
            Err(format!("there are more than {MOST_ASKED}"))
        } else {
            kernel_places(pid).map_err(|error| error.to_string())
        };
        match asked {
            Ok((places, longest)) => {
                self.words.extend(places.iter().map(|place| place.start));
                longest
            }
            Err(why) => {
                let what = format!("the signal stacks of its threads (not asked: {why})");
                self.unseen.push(what);
                Duration::ZERO
            }
        }
    }
}

/// Reads the words from /proc. `epoll_event.data` is in the descriptor's fdinfo
/// (proc_pid_fdinfo(5)), and `sigevent.sigev_value` of timers is in /proc/PID/timers. Pending
/// requests of an io_uring are not visible.
pub fn kernel_words(pid: i32) -> KernelWords {
    told_in(Path::new(&format!("/proc/{pid}")), pid, true)
}

/// Like [`kernel_words`], without duplicating a descriptor of the process. While a duplicate is
/// open, the other end of a pipe or a socket would not notice that the process has closed its own.
pub fn kernel_words_without_descriptors(pid: i32) -> KernelWords {
    told_in(Path::new(&format!("/proc/{pid}")), pid, false)
}

/// Reads the words from `directory`, the directory of the process in /proc.
fn told_in(directory: &Path, pid: i32, duplicates: bool) -> KernelWords {
    let mut found = KernelWords::default();
    let mut pipes = Pipes::default();
    let mut sockets = Sockets::listed_in(directory);
    let descriptors = std::fs::read_dir(directory.join("fd"));
    for entry in descriptors.into_iter().flatten().flatten() {
        let Ok(link) = std::fs::read_link(entry.path()) else {
            continue;
        };
        if link == Path::new("anon_inode:[eventpoll]") {
            let info = directory.join("fdinfo").join(entry.file_name());
            match std::fs::read_to_string(info) {
                Ok(text) => found.words.extend(epoll_data(&text)),
                Err(error) if is_closed(&error) => {}
                Err(_) => found
                    .unseen
                    .push("the user data of an epoll descriptor".into()),
            }
        } else if link == Path::new("anon_inode:[eventfd]") {
            let info = directory.join("fdinfo").join(entry.file_name());
            match std::fs::read_to_string(info) {
                Ok(text) => found.words.extend(counter(&text)),
                Err(error) if is_closed(&error) => {}
                Err(_) => found.unseen.push("the counter of an eventfd".into()),
            }
        } else if let Some(what) = opaque(&link, &entry.path()) {
            found.unseen.push(what.into());
        } else if link.to_string_lossy().starts_with("pipe:") {
            let number = entry.file_name().to_string_lossy().parse().unwrap_or(0);
            if !duplicates || !pipes.read(pid, number, link, &mut found.words) {
                found.unseen.push("data in a pipe".into());
            }
        } else if let Some(inode) = socket_inode(&link) {
            let number = entry.file_name().to_string_lossy().parse().unwrap_or(0);
            let is_read = match duplicates {
                true => sockets.read(pid, number, inode, &mut found.words),
                false => sockets.is_of_others(inode),
            };
            if !is_read {
                found.unseen.push("data in a local socket".into());
            }
        }
    }
    // The kernel writes to the locks on the list when the thread ends (get_robust_list(2)).
    let threads = thread_ids(pid).unwrap_or_default();
    found
        .words
        .extend(threads.into_iter().filter_map(robust_list));
    if has_detached_segments(directory, pid) {
        found
            .unseen
            .push("a System V shared memory segment that it has detached".into());
    }
    match std::fs::read_to_string(directory.join("timers")) {
        Ok(text) => found.words.extend(timer_values(&text)),
        // The kernel lacks CONFIG_CHECKPOINT_RESTORE.
        Err(_) if directory.exists() => {
            found
                .unseen
                .push("its timers (the kernel does not show them)".into());
        }
        Err(_) => {}
    }
    found.words.sort_unstable();
    found.words.dedup();
    found.unseen.sort_unstable();
    found.unseen.dedup();
    found
}

/// Returns true if a descriptor could not be duplicated because the descriptor or the process is
/// gone. Any other error means that the kernel has refused (pidfd_getfd(2) came with Linux 5.6),
/// and the contents behind the descriptor are unknown.
pub fn is_closed(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EBADF | Errno::ENOENT | Errno::ESRCH))
}

/// Returns the name of a kernel feature behind this descriptor that may hold pointers that cannot
/// be read.
fn opaque(link: &Path, descriptor: &Path) -> Option<&'static str> {
    let text = link.to_str()?;
    let of_kernel = [
        ("anon_inode:[io_uring]", "an io_uring"),
        ("anon_inode:bpf-map", "a BPF map"),
        ("anon_inode:kvm-vm", "a virtual machine (KVM)"),
    ];
    if let Some((_, what)) = of_kernel.iter().find(|(name, _)| text == *name) {
        return Some(what);
    }
    // A message queue has a single name in a file system of its own, and the link shows its path
    // from the root of that file system (mq_overview(7)). Messages, and the values passed to
    // mq_notify(3), may be pointers.
    let name = text.strip_prefix('/')?;
    let is_queue = !name.contains('/')
        && statfs(descriptor).is_ok_and(|s| s.filesystem_type() == FsType(QUEUES));
    is_queue.then_some("a POSIX message queue")
}

/// Returns the counter in a line like `eventfd-count:     55d0c0ffee00` (proc_pid_fdinfo(5)).
fn counter(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix("eventfd-count:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Returns the user data in lines like `tfd:  5 events:  19 data:  55d0c0ffee00  pos:0 ino:61af
/// sdev:7`.
pub(crate) fn epoll_data(text: &str) -> impl Iterator<Item = u64> + '_ {
    text.lines()
        .filter(|line| line.starts_with("tfd:"))
        .filter_map(|line| {
            let data = line.split("data:").nth(1)?.split_whitespace().next()?;
            u64::from_str_radix(data, 16).ok()
        })
}

/// Returns the values in lines like `signal: 60/00007fff86e452a8`.
pub(crate) fn timer_values(text: &str) -> impl Iterator<Item = u64> + '_ {
    text.lines().filter_map(|line| {
        let value = line.strip_prefix("signal:")?.split('/').nth(1)?;
        u64::from_str_radix(value.trim(), 16).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn user_data_is_read() {
        let info = "pos:\t0\nflags:\t02\ntfd:        4 events:       19 data:     55d0c0ffee00  pos:0 ino:61af sdev:7\n";
        assert_eq!(epoll_data(info).collect::<Vec<_>>(), [0x55d0_c0ff_ee00]);
        let timers = "ID: 1\nsignal: 60/00007fff86e452a8\nnotify: signal/pid.2634\nClockID: 0\n";
        assert_eq!(timer_values(timers).collect::<Vec<_>>(), [0x7fff_86e4_52a8]);
        let info = "pos:\t0\neventfd-count:     55d0c0ffee00\neventfd-id: 3\n";
        assert_eq!(counter(info), Some(0x55d0_c0ff_ee00));
        assert_eq!(kernel_words(i32::MAX), KernelWords::default());
    }

    /// The test directory resembles a process for which the kernel reveals little.
    #[test]
    fn what_cannot_be_seen_is_named() {
        let directory = std::env::temp_dir().join(format!("memhook-told-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(directory.join("fd")).unwrap();
        for (number, link) in [
            "anon_inode:[io_uring]",
            "anon_inode:[eventpoll]",
            "socket:[7]",
            "pipe:[8]",
            "/dev/null",
        ]
        .iter()
        .enumerate()
        {
            symlink(link, directory.join(format!("fd/{number}"))).unwrap();
        }
        // A directory cannot be read as a file.
        std::fs::create_dir_all(directory.join("fdinfo/1")).unwrap();
        let told = told_in(&directory, i32::MAX, true);
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(told.words.is_empty());
        assert_eq!(
            told.unseen,
            [
                "an io_uring",
                "data in a local socket",
                "its timers (the kernel does not show them)",
                "the user data of an epoll descriptor",
            ]
        );
    }
}
