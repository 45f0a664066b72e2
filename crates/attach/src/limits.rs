//! What decides, before anything is touched, whether an attach is possible: the process itself, and the
//! resource limits that the shared memory could run into.

use crate::{config::TraceConfig, error::Error, memory_budget::Budget};
use memhook_foreign::size_text;
use memhook_process::{Check, proc_path, proc_text};
use memhook_stream::Plan;

/// Refuses what cannot be traced, with the reason and the remedy. The process is only read.
pub fn refuse(pid: i32, config: &TraceConfig) -> Result<(), Error> {
    plan(pid, config).map(drop)
}

/// As [`refuse`]; returns what the attach may take of memory.
pub(crate) fn plan(pid: i32, config: &TraceConfig) -> Result<Plan, Error> {
    config.check()?;
    let budget = Budget::of(pid, config.ring_bytes);
    let mut checks = memhook_process::preflight(pid);
    checks.extend(checks_within(&budget, pid, config));
    match memhook_process::first_failure(&checks) {
        Some(why) => Err(Error::Refused(why)),
        None => {
            let mut plan = budget.plan()?;
            if config
                .sample_bytes
                .is_some_and(|mean| mean >= SELDOM_SAMPLED)
            {
                plan.first_ring = plan.first_ring.min(RING_OF_SAMPLES);
            }
            Ok(plan)
        }
    }
}

/// Where so many bytes are allocated between two samples (mean), a ring has little in it: at ten gigabytes a second, some
/// 1,600 events between two passes that are 10 ms apart.
const SELDOM_SAMPLED: u64 = 128 << 10;
/// Bytes of such a ring at first, with room for 2,048 of them. It grows where that is not enough.
const RING_OF_SAMPLES: u64 = 32 << 10;

/// Compares the limits of the process with what would be mapped.
pub fn limit_checks(pid: i32, config: &TraceConfig) -> Vec<Check> {
    checks_within(&Budget::of(pid, config.ring_bytes), pid, config)
}

fn checks_within(budget: &Budget, pid: i32, config: &TraceConfig) -> Vec<Check> {
    let region_bytes = config.region_bytes();
    let read = |file: &str| proc_text(proc_path(pid, file));
    let (Ok(limits), Ok(statm)) = (read("limits"), read("statm")) else {
        return Vec::new();
    };
    // proc_pid_statm(5): the first field is the address space in pages.
    let pages: u64 = statm
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    let mut checks = look(&limits, pages * 4096, region_bytes, pid);
    checks.push(budget.check());
    checks
}

/// Refuses to make a memory file of this size for a process that may not have one: the kernel would end it with
/// SIGXFSZ (setrlimit(2)).
pub(crate) fn check_file_size(pid: i32, bytes: u64) -> Result<(), Error> {
    let limits = proc_text(proc_path(pid, "limits")).unwrap_or_default();
    let checks = look(&limits, 0, bytes, pid);
    match memhook_process::first_failure(&checks) {
        Some(why) => Err(Error::Refused(why)),
        None => Ok(()),
    }
}

/// A soft limit in bytes; `None`: unlimited.
fn limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn look(limits: &str, mapped: u64, region_bytes: u64, pid: i32) -> Vec<Check> {
    let mut checks = Vec::new();
    // Growing a file past this limit sends SIGXFSZ, which ends a program that does not expect it
    // (setrlimit(2)); memory files count.
    if let Some(most) = limit(limits, "Max file size").filter(|&most| most < region_bytes) {
        checks.push(Check::bad(
            "file size",
            format!(
                "process {pid} may not have files above {}, and the shared memory takes {}",
                size_text(most),
                size_text(region_bytes)
            ),
            format!("raise the limit: prlimit --pid {pid} --fsize=unlimited:"),
        ));
    }
    let left = limit(limits, "Max address space").map(|most| most.saturating_sub(mapped));
    if let Some(left) = left.filter(|&left| left < region_bytes) {
        checks.push(Check::bad(
            "address space",
            format!(
                "process {pid} has {} of address space left, and the shared memory takes {}",
                size_text(left),
                size_text(region_bytes)
            ),
            format!("--ring-size 64K takes less, or raise the limit: prlimit --pid {pid} --as=unlimited:"),
        ));
    }
    if checks.is_empty() {
        checks.push(Check::good(
            "limits",
            format!("{} can be mapped", size_text(region_bytes)),
        ));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_compared() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max file size             1048576              unlimited            bytes\n\
                    Max address space         9000000              unlimited            bytes\n";
        let failed = |text, mapped, region| -> Vec<&'static str> {
            let checks = look(text, mapped, region, 1);
            checks.iter().filter(|c| !c.ok).map(|c| c.name).collect()
        };
        assert_eq!(failed(text, 0, 1 << 20), Vec::<&str>::new());
        assert_eq!(failed(text, 0, 1 << 21), ["file size"]);
        assert_eq!(failed(text, 8_500_000, 1 << 20), ["address space"]);
        let unlimited = text
            .replace("1048576  ", "unlimited")
            .replace("9000000  ", "unlimited");
        assert_eq!(failed(&unlimited, u64::MAX, u64::MAX), Vec::<&str>::new());
    }
}
