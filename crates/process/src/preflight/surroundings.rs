//! Checks the environment of the process: namespaces, system call filters, and remains of an earlier attach.

use super::Check;
use super::access::{CAP_SYS_ADMIN, Status, have_capability};
use crate::hook_copies::is_hook;
use crate::{CLibrary, CLibraryKind, Mapping, has_seccomp_filter, is_static, proc_path};
use nix::errno::Errno;
use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};
use std::{fs, path::Path};

pub(super) fn namespaces(pid: i32) -> Vec<Check> {
    let other = |kind: &&str| {
        let ours = fs::read_link(format!("/proc/self/ns/{kind}")).ok();
        let its = fs::read_link(proc_path(pid, &format!("ns/{kind}"))).ok();
        its.is_some() && ours != its
    };
    let others: Vec<&str> = ["pid", "mnt", "user", "time"]
        .into_iter()
        .filter(other)
        .collect();
    let mut checks = vec![if others.is_empty() {
        Check::good("namespaces", "the same as ours")
    } else {
        Check::good("namespaces", format!("its own: {}", others.join(", ")))
    }];
    if others.contains(&"time") {
        checks.push(Check::note(
            "clock",
            "its CLOCK_MONOTONIC differs from ours",
            "keep the coarse clock",
        ));
    }
    checks
}

/// Checks seccomp. Mode 1 kills at any system call except four (seccomp(2)), so our first call would end the target. A
/// filter may also kill, but this check cannot tell whether it would. A tracer with CAP_SYS_ADMIN and without a filter
/// can suspend a filter while a thread is stopped (ptrace(2), PTRACE_O_SUSPEND_SECCOMP). If the same filter applies to
/// us, as is usual in a container, it allows the target the calls that it allows us.
pub(super) fn seccomp(pid: i32, status: &Status) -> Result<Check, Check> {
    judge_seccomp(pid, status, &Rights::ours())
}

/// Returns true if a seccomp filter may kill a process for a system call that we make in a stopped thread.
pub fn filter_may_kill(pid: i32) -> bool {
    has_seccomp_filter(pid) && !Rights::ours().may_suspend
}

/// Privileges that decide whether a target with a filter can be traced.
struct Rights {
    may_suspend: bool,
    /// Number of filters that apply to us, if the kernel reports it (since Linux 5.9).
    filters: Option<u32>,
}

impl Rights {
    fn ours() -> Rights {
        let Ok(own) = Status::of(std::process::id() as i32) else {
            return Rights {
                may_suspend: false,
                filters: None,
            };
        };
        // This file exists on kernels built with CONFIG_CHECKPOINT_RESTORE.
        let kernel_can = Path::new("/proc/sys/kernel/ns_last_pid").exists();
        let unfiltered = own.field("Seccomp:") == "0";
        Rights {
            may_suspend: kernel_can && unfiltered && have_capability(CAP_SYS_ADMIN),
            filters: own.field("Seccomp_filters:").parse().ok(),
        }
    }
}

fn judge_seccomp(pid: i32, status: &Status, rights: &Rights) -> Result<Check, Check> {
    let name = &status.name;
    let filters: Option<u32> = status.field("Seccomp_filters:").parse().ok();
    match status.field("Seccomp:") {
        "1" => Err(Check::bad(
            "seccomp",
            format!(
                "process {pid} ({name}) is in seccomp strict mode: a system call made in it would kill it"
            ),
            "it cannot be traced",
        )),
        "0" | "" => Ok(Check::good("seccomp", "no filter")),
        _ if rights.may_suspend => Ok(Check::good(
            "seccomp",
            "a filter is active; it is suspended while a thread is held",
        )),
        _ if filters.is_some() && filters > rights.filters => Err(Check::bad(
            "seccomp",
            format!(
                "process {pid} ({name}) has a seccomp filter that does not apply to us: a system call made in it might kill it"
            ),
            "run as root and without a filter, so that memhook-rs can suspend this one",
        )),
        _ => Ok(Check::note(
            "seccomp",
            "a filter is active",
            "it must allow mmap, mprotect and memfd_create: a filter that kills instead of refusing would end the process",
        )),
    }
}

/// Returns true if a process has /proc in its own file system, through which its loader opens the hook. A sandbox may
/// prevent that: the root of Chromium's renderers is the directory of a process that has ended.
pub fn has_proc(pid: i32) -> bool {
    match statfs(proc_path(pid, "root/proc").as_str()) {
        Ok(found) => found.filesystem_type() == PROC_SUPER_MAGIC,
        Err(error) => !matches!(error, Errno::ENOENT | Errno::ESRCH | Errno::ENOTDIR),
    }
}

/// Returns the consequences if the loader cannot load the hook.
pub(super) fn loading(pid: i32, libc: Option<&CLibrary>, maps: &[Mapping]) -> Option<Check> {
    let reason = if libc.is_some_and(|libc| libc.kind == CLibraryKind::Musl) {
        "on musl, that takes no lock of the process"
    } else if is_static(pid) {
        "it is statically linked and has none"
    } else if !has_proc(pid) && !has_hook(maps) {
        // A process that has changed its root since an earlier attach still has the hook.
        "its file system has no /proc (a sandbox, or a root without it), through which its loader would open the hook"
    } else {
        return None;
    };
    Some(Check::good(
        "loading",
        format!("the hook is mapped without the loader of process {pid}: {reason}"),
    ))
}

fn has_hook(maps: &[Mapping]) -> bool {
    maps.iter().any(is_hook)
}

/// Reports mappings left by an earlier attach, which the next attach reuses.
pub(super) fn residue(maps: &[Mapping]) -> Option<Check> {
    has_hook(maps)
        .then(|| {
            Check::good(
                "earlier attach",
                "its hook is still loaded, in this process or in the parent that it was forked from, and is reused",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(mode: &str, filters: &str, may_suspend: bool, ours: Option<u32>) -> bool {
        let status = Status::from_text(format!(
            "Name:\tx\nSeccomp:\t{mode}\nSeccomp_filters:\t{filters}\n"
        ));
        let rights = Rights {
            may_suspend,
            filters: ours,
        };
        judge_seccomp(1, &status, &rights).is_ok()
    }

    #[test]
    fn a_filter_that_does_not_apply_to_us_must_be_suspended() {
        assert!(judged("0", "0", false, Some(0)));
        assert!(judged("2", "1", true, Some(0)));
        assert!(judged("2", "1", false, Some(1)));
        assert!(!judged("2", "2", false, Some(1)));
        assert!(!judged("2", "1", false, Some(0)));
        assert!(!judged("1", "0", true, Some(0)));
    }
}
