//! Checks that the process exists, and that we may trace it.

use super::Check;
use crate::{living_thread, proc_path, proc_text, process_name, thread_state, threads::in_status};
use std::{fs, os::unix::fs::MetadataExt};

/// `/proc/PID/status` (proc_pid_status(5)).
pub(crate) struct Status {
    text: String,
    /// Name as shown by `ps`.
    pub name: String,
}

impl Status {
    /// Reads the status of a process. The error says why the status cannot be read.
    pub fn of(pid: i32) -> Result<Status, Check> {
        let missing = |_| {
            Check::bad(
                "process",
                format!("no process {pid}"),
                "check the PID, and that it belongs to this PID namespace",
            )
        };
        let text = proc_text(proc_path(pid, "status")).map_err(missing)?;
        let status = Status::from_text(text);
        match status.field("Tgid:") {
            group if group == pid.to_string() => Ok(status),
            group => Err(Check::bad(
                "process",
                format!("{pid} is a thread"),
                format!("use its process id, {group}"),
            )),
        }
    }

    /// Parses the text of a status file.
    pub fn from_text(text: String) -> Status {
        let name = in_status(&text, "Name:").unwrap_or_default().to_owned();
        Status { text, name }
    }

    /// Returns the value of a field, whose name ends with a colon, or an empty string.
    pub fn field(&self, name: &str) -> &str {
        in_status(&self.text, name).unwrap_or_default()
    }
}

pub(super) fn process(pid: i32, status: &Status) -> Check {
    let threads = status.field("Threads:");
    let uid = status
        .field("Uid:")
        .split_whitespace()
        .next()
        .unwrap_or("?");
    Check::good(
        "process",
        format!("{pid} is {}, of uid {uid}, threads: {threads}", status.name),
    )
}

pub(super) fn state(pid: i32, status: &Status) -> Result<Check, Check> {
    let name = &status.name;
    let state = status.field("State:");
    if state.starts_with(['Z', 'X']) {
        return Err(Check::bad(
            "state",
            format!("process {pid} ({name}) is a zombie"),
            "it has ended, but its parent has not reaped it yet",
        ));
    }
    if status.field("VmSize:").is_empty() {
        // Kernel threads are children of kthreadd, process 2 (kernel/kthread.c). Other processes without memory are
        // about to end.
        if pid != 2 && status.field("PPid:") != "2" {
            return Err(Check::bad(
                "state",
                format!("process {pid} ({name}) is ending"),
                "there is nothing left to trace",
            ));
        }
        return Err(Check::bad(
            "state",
            format!("process {pid} ({name}) is a kernel thread"),
            "only user processes have a heap",
        ));
    }
    if has_been_killed(status) {
        return Err(Check::bad(
            "state",
            format!("process {pid} ({name}) was killed, or executes another program"),
            "try again if it still exists",
        ));
    }
    Ok(match state.chars().next() {
        Some('T') => Check::note(
            "state",
            "stopped",
            format!("it allocates nothing until it continues: kill -CONT {pid}"),
        ),
        Some('D') => Check::note(
            "state",
            "in uninterruptible sleep",
            "if all its threads stay there, the attach gives up after a few seconds",
        ),
        _ => Check::good("state", state),
    })
}

/// Returns true if a thread has not yet taken its SIGKILL. The kernel sends this signal to all other threads if a
/// process ends, or if a thread executes another program (zap_other_threads in kernel/signal.c). Some of these threads
/// may already have lost their memory while the thread with this status still has it.
fn has_been_killed(status: &Status) -> bool {
    const SIGKILL: u64 = 1 << (nix::libc::SIGKILL - 1);
    let pending = u64::from_str_radix(status.field("SigPnd:"), 16);
    pending.is_ok_and(|pending| pending & SIGKILL != 0)
}

pub(super) fn tracer(pid: i32, status: &Status) -> Result<Check, Check> {
    let tracer = thread_state::tracer(pid, living_thread(pid));
    if tracer == 0 {
        return Ok(Check::good("tracer", "none"));
    }
    if tracer == std::process::id() as i32 {
        return Ok(Check::good("tracer", "this process, which started it"));
    }
    Err(Check::bad(
        "tracer",
        format!(
            "process {pid} ({}) is already traced by {tracer} ({})",
            status.name,
            process_name(tracer)
        ),
        "detach that debugger first",
    ))
}

fn yama() -> String {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    scope.unwrap_or_default().trim().to_owned()
}

/// Returns true if we have a capability, regardless of user namespaces.
pub(super) fn have_capability(bit: u32) -> bool {
    let status = proc_text("/proc/self/status").unwrap_or_default();
    in_status(&status, "CapEff:")
        .and_then(|hex| u64::from_str_radix(hex, 16).ok())
        .is_some_and(|mask| mask & 1 << bit != 0)
}

/// Bit numbers of capabilities(7).
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_SYS_PTRACE: u32 = 19;
pub(super) const CAP_SYS_ADMIN: u32 = 21;

/// Checks that we may trace the process, and names the applicable permission and Yama's setting.
pub(super) fn permission(pid: i32, status: &Status) -> Result<Vec<Check>, Check> {
    // Opening mem is subject to the same permission check as PTRACE_ATTACH (ptrace(2), "Ptrace access mode checking").
    let Err(error) = fs::File::open(proc_path(pid, "mem")) else {
        let right = if have_capability(CAP_SYS_PTRACE) {
            "granted by CAP_SYS_PTRACE"
        } else {
            "granted to the same user"
        };
        let scope = match yama().as_str() {
            "" => "not in this kernel".to_owned(),
            "0" => "ptrace_scope 0: no restriction".to_owned(),
            scope => format!("ptrace_scope {scope}: memhook-rs is permitted"),
        };
        return Ok(vec![
            Check::good("permission", right),
            Check::good("Yama", scope),
        ]);
    };
    let (reason, remedy) = refusal(pid, &error);
    Err(Check::bad(
        "permission",
        format!(
            "not permitted to trace process {pid} ({}): {reason}",
            status.name
        ),
        remedy,
    ))
}

fn refusal(pid: i32, error: &std::io::Error) -> (String, &'static str) {
    const AS_ROOT: &str = "run as root, or with CAP_SYS_PTRACE and CAP_DAC_OVERRIDE";
    const GRANT: &str = "give CAP_SYS_PTRACE to this container (docker run --cap-add=SYS_PTRACE)";
    const BEYOND_ROOT: &str = "a sandbox or security module (seccomp, AppArmor, SELinux) refuses even root: run outside of it, on the host";
    const ITS_NAMESPACE: &str = "run on the host, or in the user namespace of the process";
    let uid = |path: &str| fs::metadata(path).map(|m| m.uid()).ok();
    let owner = uid(&format!("/proc/{pid}"));
    // The files below that directory belong to root if the process is not dumpable (proc(5), "/proc/pid").
    let files_owner = uid(&proc_path(pid, "status"));
    let me = uid("/proc/self");
    let scope = yama();
    let as_root = match me {
        // There is no more privileged user to switch to.
        Some(0) if have_capability(CAP_SYS_PTRACE) => BEYOND_ROOT,
        Some(0) => GRANT,
        _ => AS_ROOT,
    };
    if scope == "3" {
        let remedy = "only a reboot with another setting changes that";
        return ("kernel.yama.ptrace_scope is 3".into(), remedy);
    }
    // The kernel would let us trace the process, but only its owner may open mem, whose mode is 0600.
    let is_owner = files_owner.is_some() && files_owner == me;
    if have_capability(CAP_SYS_PTRACE) && !have_capability(CAP_DAC_OVERRIDE) && !is_owner {
        let reason = "its files in /proc belong to another user, and memhook-rs has CAP_SYS_PTRACE but not CAP_DAC_OVERRIDE";
        return (
            reason.into(),
            "add that capability, or run as the user of the process",
        );
    }
    if let (Some(owner), Some(me)) = (owner, me)
        && owner != me
    {
        if me == 0 {
            let reason = format!(
                "it belongs to uid {owner}, and memhook-rs runs as root without CAP_SYS_PTRACE"
            );
            return (reason, GRANT);
        }
        return (
            format!("it belongs to uid {owner}, and memhook-rs runs as uid {me}"),
            as_root,
        );
    }
    if owner != files_owner {
        let reason =
            "it is not dumpable (prctl PR_SET_DUMPABLE, or a program that nobody may read)";
        return (reason.into(), as_root);
    }
    if matches!(scope.as_str(), "1" | "2") {
        let remedy = match scope.as_str() {
            "1" if me != Some(0) => "run as root, or: sysctl kernel.yama.ptrace_scope=0",
            _ => as_root,
        };
        return (format!("kernel.yama.ptrace_scope is {scope}"), remedy);
    }
    // A sandbox may hide these links. In that case, nothing is known about the process's namespace.
    if let (Ok(its), Ok(ours)) = (
        fs::read_link(proc_path(pid, "ns/user")),
        fs::read_link("/proc/self/ns/user"),
    ) && its != ours
    {
        return ("it is in another user namespace".into(), ITS_NAMESPACE);
    }
    (error.to_string(), as_root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_process_that_still_has_memory_is_named() {
        let with = |pending: &str| {
            let text = format!(
                "Name:\tserver\nState:\tR (running)\nPPid:\t1\nVmSize:\t 1 kB\nSigPnd:\t{pending}\n"
            );
            state(7, &Status::from_text(text))
        };
        assert!(with("0000000000000200").is_ok_and(|check| check.ok));
        let refused = with("0000000000000100").unwrap_err();
        assert!(
            refused.finding.contains("process 7 (server) was killed"),
            "{refused:?}"
        );
    }
}
