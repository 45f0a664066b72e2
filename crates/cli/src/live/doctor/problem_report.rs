//! `doctor --report`: all facts that a maintainer needs to find out why a process cannot be traced,
//! or is traced only badly.

use memhook_foreign::{OutputFile, visible, visible_lines};
use memhook_process::ModuleImage;
use std::fmt::Write as _;
use std::io::Write as _;

/// Notice at the top of the file, for the person who sends the file.
pub const CONTENTS: &str = "versions, the kernel and its settings, the limits and the state of the process, its modules with their paths, \
     what is printed above, and the log; no contents of memory, no arguments and no environment. Read it before you send it";

/// Kernel settings below /proc/sys that decide what is permitted.
const SETTINGS: [&str; 8] = [
    "kernel/osrelease",
    "kernel/version",
    "kernel/yama/ptrace_scope",
    "kernel/perf_event_paranoid",
    "kernel/randomize_va_space",
    "vm/overcommit_memory",
    "vm/max_map_count",
    "fs/suid_dumpable",
];

/// Lines of /proc/PID/status about memory, threads and permissions. The name is left out, because
/// it may reveal what the process does.
const STATUS: [&str; 17] = [
    "State",
    "Tgid",
    "NSpid",
    "TracerPid",
    "Uid",
    "VmPeak",
    "VmSize",
    "VmLck",
    "VmRSS",
    "RssAnon",
    "VmSwap",
    "Threads",
    "CapEff",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
    "Cpus_allowed_list",
];

/// Writes the file.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn write(
    file: OutputFile,
    pid: i32,
    modules: &[ModuleImage],
    findings: &str,
    log: &str,
) -> std::io::Result<()> {
    let text = text(pid, modules, findings, log);
    file.keep()?.write_all(text.as_bytes())
}

fn text(pid: i32, modules: &[ModuleImage], findings: &str, log: &str) -> String {
    let mut out = format!(
        "memhook-rs {}, hook layout {}\n",
        env!("CARGO_PKG_VERSION"),
        memhook_abi::ABI_VERSION
    );
    out += "\n== Machine\n";
    out += &system();
    for setting in SETTINGS {
        let value = read(&format!("/proc/sys/{setting}"));
        let _ = writeln!(out, "{setting}: {}", value.as_deref().unwrap_or("-").trim());
    }
    let _ = writeln!(out, "\n== Process {pid}");
    let status = read(&format!("/proc/{pid}/status")).unwrap_or_default();
    let is_wanted = |line: &&str| {
        let (key, _) = line.split_once(':').unwrap_or_default();
        STATUS.contains(&key)
    };
    status
        .lines()
        .filter(is_wanted)
        .for_each(|line| out += &format!("{line}\n"));
    for (title, name) in [("limits", "limits"), ("control groups", "cgroup")] {
        let text = read(&format!("/proc/{pid}/{name}")).unwrap_or_default();
        let _ = writeln!(out, "\n== Process {pid}, {title}\n{}", text.trim_end());
    }
    out += "\n== Modules: addresses, build-id, path\n";
    for image in modules {
        let id = image.build_id.as_ref().map_or("-".to_owned(), |id| {
            id.iter().map(|byte| format!("{byte:02x}")).collect()
        });
        let _ = writeln!(
            out,
            "{:#x}-{:#x}  {id}  {}",
            image.start,
            image.end,
            visible(&image.path)
        );
    }
    let _ = write!(out, "\n== Findings\n{findings}\n== Log\n{log}");
    visible_lines(&out).into_owned()
}

/// Describes the distribution, the processor and the memory.
fn system() -> String {
    let line = |path: &str, key: &str| {
        let text = read(path)?;
        let found = text.lines().find(|line| line.starts_with(key))?;
        let value = found.trim_start_matches(key);
        let value = value.trim_matches(|c: char| c.is_whitespace() || "=:\"".contains(c));
        Some(value.to_owned())
    };
    let known = [
        ("distribution", line("/etc/os-release", "PRETTY_NAME")),
        ("processor", line("/proc/cpuinfo", "model name")),
        ("processors", line("/proc/self/status", "Cpus_allowed_list")),
        ("memory", line("/proc/meminfo", "MemTotal")),
        ("memory available", line("/proc/meminfo", "MemAvailable")),
    ];
    let known = known.into_iter();
    known
        .map(|(name, value)| format!("{name}: {}\n", value.as_deref().unwrap_or("-")))
        .collect()
}

fn read(path: &str) -> Option<String> {
    let bytes = std::fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
