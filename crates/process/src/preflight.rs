//! Whether a process can be attached to, and if not, why and what to do.

use crate::{ElfView, Mapping, mappings, module};
use std::{collections::HashMap, fs};

/// One finding.
#[derive(Clone, Debug)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// False: the attach is impossible.
    pub ok: bool,
    /// What was found.
    pub finding: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

fn good(name: &'static str, finding: impl Into<String>) -> Check {
    Check {
        name,
        ok: true,
        finding: finding.into(),
        remedy: None,
    }
}

fn bad(name: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check {
        name,
        ok: false,
        finding: finding.into(),
        remedy: Some(remedy.into()),
    }
}

/// Looks at a process; stops at the first thing that makes everything after it unknowable.
pub fn preflight(pid: i32) -> Vec<Check> {
    let mut checks = Vec::new();
    let failed = look(pid, &mut checks).err();
    checks.extend(failed);
    checks
}

/// The first failing check as one line: what, why, what to do.
pub fn first_failure(checks: &[Check]) -> Option<String> {
    checks.iter().find(|c| !c.ok).map(|c| match &c.remedy {
        Some(remedy) => format!("{}: {}", c.finding, remedy),
        None => c.finding.clone(),
    })
}

fn status_field<'a>(status: &'a str, name: &str) -> &'a str {
    status
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or("")
        .trim()
}

fn look(pid: i32, checks: &mut Vec<Check>) -> Result<(), Check> {
    let status = match fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) if pid > 0 && status_field(&status, "Tgid") == pid.to_string() => status,
        Ok(status) if pid > 0 => {
            return Err(bad(
                "process",
                format!("{pid} is a thread"),
                format!("use its process id, {}", status_field(&status, "Tgid")),
            ));
        }
        _ => {
            return Err(bad(
                "process",
                format!("no process {pid}"),
                "check the pid, and that it is of this pid namespace",
            ));
        }
    };
    let name = status_field(&status, "Name").to_owned();
    checks.push(good("process", format!("{pid} is {name}")));
    if status_field(&status, "State").starts_with(['Z', 'X']) {
        return Err(bad(
            "state",
            format!("process {pid} ({name}) is a zombie"),
            "it has ended; its parent has not collected it yet",
        ));
    }
    if status_field(&status, "VmSize").is_empty() {
        return Err(bad(
            "state",
            format!("process {pid} ({name}) is a kernel thread"),
            "only user processes have a heap",
        ));
    }
    let tracer = status_field(&status, "TracerPid");
    if tracer != "0" && !tracer.is_empty() {
        let comm = fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
        return Err(bad(
            "tracer",
            format!(
                "process {pid} ({name}) is already traced by {tracer} ({})",
                comm.trim()
            ),
            "detach that debugger first",
        ));
    }
    checks.push(good("tracer", "none"));
    permission(pid, &name)?;
    checks.push(good("permission", "granted"));
    let executable = fs::read(format!("/proc/{pid}/exe")).map_err(|e| {
        bad(
            "executable",
            format!("/proc/{pid}/exe: {e}"),
            "run as root or as the owner of the process",
        )
    })?;
    let elf = ElfView::parse(&executable).map_err(|what| {
        bad(
            "executable",
            format!("process {pid} ({name}) is {what}"),
            "only 64-bit x86 programs can be traced",
        )
    })?;
    if elf.interpreter().is_none() {
        return Err(bad(
            "executable",
            format!("process {pid} ({name}) is statically linked: there are no GOT slots to patch"),
            "link it dynamically",
        ));
    }
    checks.push(good("executable", "64-bit x86, dynamically linked"));
    let maps = mappings(pid).map_err(|e| bad("mappings", e.to_string(), "try again"))?;
    libc_kind(pid, &name, &maps, checks)?;
    environment(pid, &status, checks);
    Ok(())
}

fn permission(pid: i32, name: &str) -> Result<(), Check> {
    // Opening mem asks the kernel the same question as PTRACE_ATTACH (ptrace(2), "Ptrace access
    // mode checking").
    let Err(e) = fs::File::open(format!("/proc/{pid}/mem")) else {
        return Ok(());
    };
    let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    use std::os::unix::fs::MetadataExt;
    let uid = |path: &str| fs::metadata(path).map(|m| m.uid());
    let owner = uid(&format!("/proc/{pid}"));
    // The files below it belong to root when the process is not dumpable (proc(5), "/proc/pid").
    let files_owner = uid(&format!("/proc/{pid}/status"));
    let me = uid("/proc/self");
    let reason = match (&owner, &files_owner, &me) {
        (Ok(owner), _, Ok(me)) if owner != me => {
            format!("it belongs to uid {owner}, we are uid {me}")
        }
        (Ok(owner), Ok(files), _) if owner != files => {
            "it is not dumpable (prctl PR_SET_DUMPABLE, or a program nobody may read)".to_owned()
        }
        _ if matches!(yama.trim(), "1" | "2" | "3") => {
            format!("kernel.yama.ptrace_scope is {}", yama.trim())
        }
        _ => e.to_string(),
    };
    Err(bad(
        "permission",
        format!("not permitted to trace process {pid} ({name}): {reason}"),
        "run as root, or with CAP_SYS_PTRACE",
    ))
}

fn libc_kind(pid: i32, name: &str, maps: &[Mapping], checks: &mut Vec<Check>) -> Result<(), Check> {
    let modules = module::modules(pid, maps, &mut HashMap::new())
        .map_err(|e| bad("modules", e.to_string(), "try again"))?;
    let libc = modules
        .iter()
        .find(|m| m.name().starts_with("libc.so.6") || m.name().starts_with("libc-2."));
    let Some(libc) = libc else {
        return Err(bad(
            "libc",
            format!("process {pid} ({name}) does not run on glibc"),
            "only glibc 2.17 and later is supported",
        ));
    };
    checks.push(good("libc", format!("glibc, {}", libc.path)));
    for module in &modules {
        let Ok(elf) = ElfView::parse(&module.bytes) else {
            continue;
        };
        let allocator = [
            ("mallocx", "jemalloc"),
            ("tc_malloc", "tcmalloc"),
            ("mi_malloc", "mimalloc"),
        ]
        .iter()
        .find(|(symbol, _)| elf.exported(symbol).is_some());
        if let Some((_, allocator)) = allocator {
            checks.push(good(
                "allocator",
                format!("{allocator} in {}", module.name()),
            ));
        }
        let unwind = elf.has_section(".eh_frame");
        let symbols = if elf.has_section(".debug_info") {
            "debug info"
        } else if elf.has_section(".symtab") {
            "symbols"
        } else {
            "dynamic symbols only"
        };
        checks.push(good(
            "module",
            format!(
                "{}: {symbols}, {}",
                module.path,
                if unwind {
                    "unwind table"
                } else {
                    "no unwind table"
                }
            ),
        ));
    }
    Ok(())
}

fn environment(pid: i32, status: &str, checks: &mut Vec<Check>) {
    for kind in ["pid", "mnt", "user"] {
        let of = |who: &str| fs::read_link(format!("/proc/{who}/ns/{kind}")).ok();
        if of("self") != of(&pid.to_string()) {
            checks.push(good("namespace", format!("its own {kind} namespace")));
        }
    }
    if !matches!(status_field(status, "Seccomp"), "0" | "") {
        checks.push(good(
            "seccomp",
            "a filter is active: the attach fails cleanly if it forbids mmap or memfd_create",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_cause_and_remedy() {
        assert!(
            first_failure(&preflight(-1))
                .unwrap()
                .contains("no process")
        );
        assert!(
            first_failure(&preflight(i32::MAX))
                .unwrap()
                .contains("no process")
        );
        // This test program is itself static.
        let own = first_failure(&preflight(std::process::id() as i32)).unwrap();
        assert!(own.contains("statically linked"), "{own}");
    }

    #[test]
    fn a_normal_process_passes() {
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
        let checks = preflight(child.id() as i32);
        let failure = first_failure(&checks);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(failure, None);
        assert!(checks.iter().any(|c| c.name == "libc"));
    }
}
