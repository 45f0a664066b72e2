//! Is it there, and may we?

use super::Check;
use crate::proc_text;
use std::{fs, os::unix::fs::MetadataExt};

/// `/proc/PID/status` (proc_pid_status(5)).
pub(crate) struct Status {
    text: String,
    /// Name, as `ps` shows it.
    pub name: String,
}

impl Status {
    /// Reads it; the error says why there is none.
    pub fn of(pid: i32) -> Result<Status, Check> {
        let text = match pid {
            1.. => fs::read(format!("/proc/{pid}/status")).ok(),
            _ => None,
        };
        let Some(text) = text else {
            return Err(Check::bad(
                "process",
                format!("no process {pid}"),
                "check the pid, and that it is of this pid namespace",
            ));
        };
        let status = Status::from_text(String::from_utf8_lossy(&text).into_owned());
        match status.field("Tgid") {
            group if group == pid.to_string() => Ok(status),
            group => Err(Check::bad(
                "process",
                format!("{pid} is a thread"),
                format!("use its process id, {group}"),
            )),
        }
    }

    /// The status of one thread of a process; `None` if it has ended.
    pub fn of_thread(tid: i32) -> Option<Status> {
        let text = fs::read(format!("/proc/{tid}/status")).ok()?;
        Some(Status::from_text(
            String::from_utf8_lossy(&text).into_owned(),
        ))
    }

    /// The content of such a file.
    pub fn from_text(text: String) -> Status {
        let mut status = Status {
            text,
            name: String::new(),
        };
        status.name = status.field("Name").to_owned();
        status
    }

    /// A field's value, or an empty string.
    pub fn field(&self, name: &str) -> &str {
        let find = |line: &'_ str| line.strip_prefix(name)?.strip_prefix(':').map(str::len);
        self.text
            .lines()
            .find_map(|line| find(line).map(|n| &line[line.len() - n..]))
            .unwrap_or("")
            .trim()
    }
}

pub(super) fn process(pid: i32, status: &Status) -> Check {
    let threads = status.field("Threads");
    let uid = status.field("Uid").split_whitespace().next().unwrap_or("?");
    Check::good(
        "process",
        format!("{pid} is {}, of uid {uid}, threads: {threads}", status.name),
    )
}

pub(super) fn state(pid: i32, status: &Status) -> Result<Check, Check> {
    let name = &status.name;
    let state = status.field("State");
    if state.starts_with(['Z', 'X']) {
        return Err(Check::bad(
            "state",
            format!("process {pid} ({name}) is a zombie"),
            "it has ended; its parent has not collected it yet",
        ));
    }
    if status.field("VmSize").is_empty() {
        // Kernel threads are children of kthreadd, process 2 (kernel/kthread.c); an ending process has
        // given up its memory already.
        if pid != 2 && status.field("PPid") != "2" {
            return Err(Check::bad(
                "state",
                format!("process {pid} ({name}) is ending"),
                "nothing of it is left to be traced",
            ));
        }
        return Err(Check::bad(
            "state",
            format!("process {pid} ({name}) is a kernel thread"),
            "only user processes have a heap",
        ));
    }
    Ok(match state.chars().next() {
        Some('T') => Check::note(
            "state",
            "stopped",
            format!("nothing is allocated until it goes on: kill -CONT {pid}"),
        ),
        Some('D') => Check::note(
            "state",
            "in uninterruptible sleep",
            "if all its threads stay there, the attach gives up after some seconds",
        ),
        _ => Check::good("state", state),
    })
}

pub(super) fn tracer(pid: i32, status: &Status) -> Result<Check, Check> {
    let tracer = status.field("TracerPid");
    if matches!(tracer, "0" | "") {
        return Ok(Check::good("tracer", "none"));
    }
    if tracer == std::process::id().to_string() {
        return Ok(Check::good("tracer", "this process, which started it"));
    }
    let comm = proc_text(format!("/proc/{tracer}/comm")).unwrap_or_default();
    Err(Check::bad(
        "tracer",
        format!(
            "process {pid} ({}) is already traced by {tracer} ({})",
            status.name,
            comm.trim()
        ),
        "detach that debugger first",
    ))
}

fn yama() -> String {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    scope.unwrap_or_default().trim().to_owned()
}

/// Whether we hold a capability; user namespaces not looked at.
pub(super) fn have_capability(bit: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << bit != 0)
}

/// capabilities(7)
const CAP_SYS_PTRACE: u32 = 19;
pub(super) const CAP_SYS_ADMIN: u32 = 21;

/// May we trace it? Also says by which right, and what Yama allows.
pub(super) fn permission(pid: i32, status: &Status) -> Result<Vec<Check>, Check> {
    // Opening mem asks the kernel the same question as PTRACE_ATTACH (ptrace(2), "Ptrace access
    // mode checking").
    let Err(error) = fs::File::open(format!("/proc/{pid}/mem")) else {
        let right = match have_capability(CAP_SYS_PTRACE) {
            true => "granted by CAP_SYS_PTRACE",
            false => "granted to the same user",
        };
        let scope = match yama().as_str() {
            "" => "not in this kernel".to_owned(),
            "0" => "ptrace_scope 0: no restriction".to_owned(),
            scope => format!("ptrace_scope {scope}: we pass"),
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
    const AS_ROOT: &str = "run as root, or with CAP_SYS_PTRACE";
    let uid = |path: &str| fs::metadata(path).map(|m| m.uid()).ok();
    let owner = uid(&format!("/proc/{pid}"));
    // The files below it belong to root when the process is not dumpable (proc(5), "/proc/pid").
    let files_owner = uid(&format!("/proc/{pid}/status"));
    let me = uid("/proc/self");
    let scope = yama();
    if scope == "3" {
        let remedy = "it can be lifted only by a reboot with another setting";
        return ("kernel.yama.ptrace_scope is 3".into(), remedy);
    }
    if let (Some(owner), Some(me)) = (owner, me)
        && owner != me
    {
        if me == 0 {
            let reason =
                format!("it belongs to uid {owner}, and we are root without CAP_SYS_PTRACE");
            let remedy = "give it to this container (docker run --cap-add=SYS_PTRACE)";
            return (reason, remedy);
        }
        return (
            format!("it belongs to uid {owner}, we are uid {me}"),
            AS_ROOT,
        );
    }
    if owner != files_owner {
        let reason = "it is not dumpable (prctl PR_SET_DUMPABLE, or a program nobody may read)";
        return (reason.into(), AS_ROOT);
    }
    if matches!(scope.as_str(), "1" | "2") {
        let remedy = match scope.as_str() {
            "1" => "run as root, or: sysctl kernel.yama.ptrace_scope=0",
            _ => AS_ROOT,
        };
        return (format!("kernel.yama.ptrace_scope is {scope}"), remedy);
    }
    let other_user_namespace = fs::read_link(format!("/proc/{pid}/ns/user")).ok()
        != fs::read_link("/proc/self/ns/user").ok();
    match other_user_namespace {
        true => ("it is in another user namespace".into(), AS_ROOT),
        false => (error.to_string(), AS_ROOT),
    }
}
