//! Checks whether an attach to a process is possible, and explains each refusal with its reason and a remedy.
//!
//! Every attach begins with [`preflight`], which reads a few small files. [`details`], for `doctor`, also reads the
//! modules.

mod access;
mod program;
mod surroundings;

use crate::{CLibrary, living_thread, mappings};
pub(crate) use access::Status;
pub use program::is_attacher;
pub use surroundings::{filter_may_kill, has_proc};

/// Result of one check.
#[derive(Clone, Debug)]
pub struct Check {
    /// Subject of the check.
    pub name: &'static str,
    /// True if this check allows an attach.
    pub ok: bool,
    /// Finding of the check.
    pub finding: String,
    /// Remedy; if the check is ok, a remark.
    pub remedy: Option<String>,
}

impl Check {
    /// Returns a check without a problem.
    pub fn good(name: &'static str, finding: impl Into<String>) -> Check {
        Check {
            name,
            ok: true,
            finding: finding.into(),
            remedy: None,
        }
    }

    /// Returns a check that allows an attach but makes a remark.
    pub fn note(
        name: &'static str,
        finding: impl Into<String>,
        advice: impl Into<String>,
    ) -> Check {
        Check {
            remedy: Some(advice.into()),
            ..Check::good(name, finding)
        }
    }

    /// Returns a check that makes the attach impossible.
    pub fn bad(name: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check {
            ok: false,
            ..Check::note(name, finding, remedy)
        }
    }
}

/// Maximum number of repeated checks of a process without an initial thread, whose other threads may come and go.
const MOST_REPEATS: u32 = 20;

/// Purpose of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Follow its calls of allocators.
    Trace,
    /// Copy its memory and search it.
    Search,
}

/// Checks a process before it is traced. Stops at the first failure, because the later checks depend on it.
pub fn preflight(pid: i32) -> Vec<Check> {
    checked(pid, Purpose::Trace)
}

/// Like [`preflight`], for searching the process's memory. A search needs no symbols: heaps are recognized by their
/// contents.
pub fn preflight_of_search(pid: i32) -> Vec<Check> {
    checked(pid, Purpose::Search)
}

fn checked(pid: i32, purpose: Purpose) -> Vec<Check> {
    let mut left = MOST_REPEATS;
    loop {
        let (thread, mut checks) = (living_thread(pid), Vec::new());
        let Err(failure) = look(pid, purpose, &mut checks) else {
            return checks;
        };
        let ended = ended_meanwhile(pid);
        // A thread that ends loses its memory before it becomes a zombie. In that case, the checks need another thread.
        if left == 0 || ended.is_some() || living_thread(pid) == thread {
            checks.push(ended.unwrap_or(failure));
            return checks;
        }
        left -= 1;
    }
}

/// Reports that the process ended during the checks. Otherwise, it would seem to have no C library, or no memory.
fn ended_meanwhile(pid: i32) -> Option<Check> {
    let state = Status::of(pid).and_then(|status| access::state(pid, &status));
    state.err()
}

/// Returns the first failing check as one line: what, why, what to do.
pub fn first_failure(checks: &[Check]) -> Option<String> {
    checks.iter().find(|c| !c.ok).map(|c| match &c.remedy {
        Some(remedy) => format!("{}: {}", c.finding, remedy),
        None => c.finding.clone(),
    })
}

fn look(pid: i32, purpose: Purpose, checks: &mut Vec<Check>) -> Result<(), Check> {
    let status = Status::of(pid)?;
    checks.push(access::process(pid, &status));
    checks.push(access::state(pid, &status)?);
    checks.push(access::tracer(pid, &status)?);
    checks.extend(access::permission(pid, &status)?);
    let maps = mappings(pid).map_err(|e| Check::bad("mappings", e.to_string(), "try again"))?;
    let libc = CLibrary::of(pid, &maps);
    checks.push(program::executable(pid, &status, libc.as_ref(), purpose)?);
    checks.push(program::libc(pid, &status, libc.as_ref())?);
    checks.extend(surroundings::namespaces(pid));
    checks.push(surroundings::seccomp(pid, &status)?);
    checks.extend(surroundings::loading(pid, libc.as_ref(), &maps));
    checks.extend(surroundings::residue(&maps));
    Ok(())
}

/// Performs checks that take longer: the version of the C library, and further allocators.
pub fn details(pid: i32) -> Vec<Check> {
    let Ok(maps) = mappings(pid) else {
        return Vec::new();
    };
    let modules = crate::modules(pid, &maps, &mut Default::default()).unwrap_or_default();
    program::allocators(&modules)
        .into_iter()
        .chain(program::libc_version(&modules))
        .chain(program::unreadable(pid, &maps, &modules))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn refusals_name_cause_and_remedy() {
        for pid in [-1, 0, i32::MAX] {
            let failure = first_failure(&preflight(pid)).unwrap();
            assert!(failure.contains("no process"), "{failure}");
            assert!(!failure.contains('\n'));
        }
        // This test program itself is statically linked, and has symbols.
        let own = preflight(std::process::id() as i32);
        let executable = own.iter().find(|check| check.name == "executable").unwrap();
        assert!(
            executable.ok && executable.finding.contains("statically linked"),
            "{own:?}"
        );
    }

    /// Waits for a condition, with a time limit.
    fn wait_for(is_so: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !is_so() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_normal_process_passes() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        // Waits until the process executes `sleep` and its loader has finished.
        let sleeping = format!("{} ", nix::libc::SYS_clock_nanosleep);
        let is_up = || {
            let call = std::fs::read_to_string(format!("/proc/{pid}/syscall"));
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|n| n == "sleep\n") && call.is_ok_and(|c| c.starts_with(&sleeping))
        };
        wait_for(is_up);
        let (checks, details) = (preflight(pid), details(pid));
        child.kill().unwrap();
        // A killed process takes a moment to become a zombie.
        let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        wait_for(|| state().contains(") Z"));
        let zombie = preflight(pid);
        child.wait().unwrap();
        assert_eq!(first_failure(&checks), None);
        let text = |name| {
            let check = checks.iter().chain(&details).find(|c| c.name == name);
            check.map(|c| c.finding.clone()).unwrap_or_default()
        };
        assert!(text("process").contains("sleep"));
        assert!(text("libc").contains("glibc"));
        assert!(text("libc version").contains("2."), "{details:?}");
        assert!(first_failure(&zombie).is_some_and(|f| f.contains("zombie")));
    }
}
