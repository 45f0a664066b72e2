//! Limits that decide whether an attach is possible before anything is touched: limits of the process itself, and
//! resource limits that the shared memory could exceed.

use crate::config::{TraceConfig, USUAL_RING_BYTES};
use crate::{error::Error, survey::memory_allowance::Allowance};
use memhook_abi::region_bytes;
use memhook_foreign::size_text;
use memhook_process::{Check, has_seccomp_filter, proc_path, proc_text};
use memhook_stream::Plan;

/// Refuses a process that cannot be traced, with the reason and the remedy. Only reads the process.
///
/// Each attach begins with this. A caller needs it only to avoid creating a file for a process that will be refused.
pub fn refuse(pid: i32, config: &TraceConfig) -> Result<(), Error> {
    plan(pid, config).map(drop)
}

/// Like [`refuse`]; returns the memory plan of the attach.
pub(crate) fn plan(pid: i32, config: &TraceConfig) -> Result<Plan, Error> {
    config.check()?;
    let allowance = Allowance::of(pid, fitting_ring_bytes(pid, config.ring_bytes));
    let mut checks = memhook_process::preflight(pid);
    checks.extend(checks_within(&allowance, pid, config));
    match memhook_process::first_failure(&checks) {
        Some(why) => {
            // The cause of the failure may be that the process has ended and its pid was reused.
            memhook_process::still_chosen(pid)?;
            Err(Error::Refused(why))
        }
        None => {
            let mut plan = allowance.plan()?;
            plan.most_ring = plan.most_ring.min(config.ring_bytes);
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

/// Mean distance between samples, in bytes, at which a ring holds few events: at ten gigabytes a second, about 1,600
/// events between two passes that are 10 ms apart.
const SELDOM_SAMPLED: u64 = 128 << 10;
/// Initial size in bytes of a ring whose process has samples at least `SELDOM_SAMPLED` bytes apart, with space for
/// 2,048 events. The ring grows if necessary.
const RING_OF_SAMPLES: u64 = 32 << 10;

/// Compares the limits of the process with the planned mappings.
pub fn limit_checks(pid: i32, config: &TraceConfig) -> Vec<Check> {
    let ring_bytes = fitting_ring_bytes(pid, config.ring_bytes);
    checks_within(&Allowance::of(pid, ring_bytes), pid, config)
}

/// Returns the address space for the region of an attach.
pub(crate) fn region_bytes_of(pid: i32, config: &TraceConfig) -> u64 {
    let limits = Limits::of(pid).unwrap_or_default();
    region_bytes(limits.fitting_ring_bytes(room_of_ring(config)) as usize) as u64
}

fn checks_within(allowance: &Allowance, pid: i32, config: &TraceConfig) -> Vec<Check> {
    let Some(limits) = Limits::of(pid) else {
        return Vec::new();
    };
    let region_bytes = region_bytes(limits.fitting_ring_bytes(room_of_ring(config)) as usize);
    let mut checks = limits.checks(pid, region_bytes as u64);
    checks.push(allowance.check());
    checks
}

/// Refuses to map a memory file of this size if the limits of the process do not allow it. A file above the process's
/// file size limit would end it with SIGXFSZ (setrlimit(2)).
pub(crate) fn check_shared_memory(pid: i32, bytes: u64) -> Result<(), Error> {
    let limits = Limits::of(pid).unwrap_or_default();
    match memhook_process::first_failure(&limits.checks(pid, bytes)) {
        Some(why) => Err(Error::Refused(why)),
        None => Ok(()),
    }
}

/// Returns the bytes that a region reserves for each ring in a process whose address space may be limited.
pub(crate) fn fitting_room_of_ring(pid: i32, config: &TraceConfig) -> u64 {
    fitting_ring_bytes(pid, room_of_ring(config))
}

/// Returns the bytes that a region reserves for each ring without limits. The number is the same for all but very large
/// rings, so that the next attach can replace this region regardless of the size of its rings.
fn room_of_ring(config: &TraceConfig) -> u64 {
    config.ring_bytes.max(USUAL_RING_BYTES)
}

/// Returns the size of a ring in a process whose address space may be limited: the requested size or less.
fn fitting_ring_bytes(pid: i32, wanted: u64) -> u64 {
    Limits::of(pid).map_or(wanted, |limits| limits.fitting_ring_bytes(wanted))
}

/// Returns true if a process is allowed to map gigabytes that it never touches.
pub(crate) fn may_reserve(pid: i32) -> bool {
    Limits::of(pid).is_some_and(|limits| {
        let is_filtered_and_locks = limits.locked > 0 && has_seccomp_filter(pid);
        limits.address_space.is_none() && limits.data.is_none() && !is_filtered_and_locks
    })
}

/// Divisor of a process's remaining address space: the region, which stays mapped after the detach, may take 1/n of it.
const SHARE: u64 = 8;
/// Smallest ring when address space is scarce.
const LEAST_RING: u64 = 64 << 10;
/// Memory that is locked for us in a process that locks all its mappings: the hook, and the memory of a remote call.
const LOCKED: u64 = 1 << 20;
/// Number of further mappings that a process must be able to have. An attach uses a few dozen, `--follow-fork` about a
/// hundred more, and the program needs the others: at the limit, its malloc fails.
const MAPPINGS: u64 = 1024;
/// Capability to lock any amount of memory (capabilities(7)).
const CAP_IPC_LOCK: u32 = 14;

/// Limits that apply to mappings in a process, in bytes (setrlimit(2)); `None`: no limit.
#[derive(Clone, Debug, Default)]
struct Limits {
    file: Option<u64>,
    address_space: Option<u64>,
    data: Option<u64>,
    memory_locked: Option<u64>,
    /// Mapped bytes, and the locked part of them.
    mapped: u64,
    /// Bytes of an earlier attach's region, which the next region replaces.
    of_region: u64,
    locked: u64,
}

/// Name in `/proc/PID/maps` of the part of a region that contains the rings.
const REPORT_PATH: &str = "/memfd:memhook-region";

/// Returns the size of the largest region that an earlier attach has left. If it counted as used memory, the new rings
/// might have to be smaller, and the new region could not replace the old one.
fn bytes_of_region(pid: i32) -> u64 {
    let maps = memhook_process::mappings(pid).unwrap_or_default();
    let reports = maps.iter().filter(|m| m.path == REPORT_PATH);
    // If a guide precedes the report, the report's mapping begins at the file offset where the guide ends.
    let bytes = reports.map(|m| m.end - m.start + m.offset);
    bytes.max().unwrap_or(0)
}

/// Checks the kernel's limit for the number of mappings: the program cannot use what we take.
fn mappings_check(pid: i32) -> Option<Check> {
    let most: u64 = proc_text("/proc/sys/vm/max_map_count")
        .ok()?
        .trim()
        .parse()
        .ok()?;
    let used = memhook_process::mappings(pid).ok()?.len() as u64;
    let left = most.saturating_sub(used);
    (left < MAPPINGS).then(|| {
        Check::bad(
            "mappings",
            format!(
                "process {pid} may have {left} more mappings (vm.max_map_count), and must have room for {MAPPINGS}"
            ),
            "raise the limit: sysctl vm.max_map_count=262144",
        )
    })
}

impl Limits {
    /// Returns `None` if the process has ended.
    fn of(pid: i32) -> Option<Limits> {
        let read = |file: &str| proc_text(proc_path(pid, file)).ok();
        let mut limits = Limits::from_text(&read("limits")?, &read("status")?);
        if limits.address_space.is_some() {
            limits.of_region = bytes_of_region(pid);
        }
        Some(limits)
    }

    fn from_text(limits: &str, status: &str) -> Limits {
        let soft = |name: &str| {
            let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let bytes = |name: &str| {
            let kibibytes = field(name)?
                .trim()
                .strip_suffix(" kB")?
                .parse::<u64>()
                .ok()?;
            kibibytes.checked_mul(1024)
        };
        let capabilities =
            field("CapEff:").and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
        let is_free = capabilities.is_some_and(|mask| mask & 1 << CAP_IPC_LOCK != 0);
        Limits {
            file: soft("Max file size"),
            address_space: soft("Max address space"),
            data: soft("Max data size"),
            memory_locked: soft("Max locked memory").filter(|_| !is_free),
            mapped: bytes("VmSize:").unwrap_or(0),
            of_region: 0,
            locked: bytes("VmLck:").unwrap_or(0),
        }
    }

    fn address_space_left(&self) -> Option<u64> {
        let of_others = self.mapped.saturating_sub(self.of_region);
        Some(self.address_space?.saturating_sub(of_others))
    }

    fn fitting_ring_bytes(&self, wanted: u64) -> u64 {
        let mut bytes = wanted;
        let most = self
            .address_space_left()
            .map_or(u64::MAX, |left| left / SHARE);
        while bytes > LEAST_RING && region_bytes(bytes as usize) as u64 > most {
            bytes /= 2;
        }
        bytes
    }

    fn checks(&self, pid: i32, region_bytes: u64) -> Vec<Check> {
        let found = [
            self.file_check(pid, region_bytes),
            self.address_space_check(pid, region_bytes),
            self.lock_check(pid),
            mappings_check(pid),
        ];
        let mut checks: Vec<Check> = found.into_iter().flatten().collect();
        if checks.is_empty() {
            checks.push(Check::good(
                "limits",
                format!("{} can be mapped", size_text(region_bytes)),
            ));
        }
        checks
    }

    /// Checks the file size limit: growing a file beyond it sends SIGXFSZ, which ends a program that does not expect
    /// it. Memory files count.
    fn file_check(&self, pid: i32, bytes: u64) -> Option<Check> {
        let most = self.file.filter(|&most| most < bytes)?;
        Some(Check::bad(
            "file size",
            format!(
                "process {pid} may not create files larger than {}, and the shared memory takes {}",
                size_text(most),
                size_text(bytes)
            ),
            format!("raise the limit: prlimit --pid {pid} --fsize=unlimited:"),
        ))
    }

    /// Checks the address space limit: the program cannot use what we take.
    fn address_space_check(&self, pid: i32, bytes: u64) -> Option<Check> {
        let left = self
            .address_space_left()
            .filter(|&left| left / SHARE < bytes)?;
        Some(Check::bad(
            "address space",
            format!(
                "process {pid} has {} of address space left (RLIMIT_AS), and the shared memory takes {}, which must \
                 be at most 1/{SHARE} of it",
                size_text(left),
                size_text(bytes)
            ),
            format!("raise the limit: prlimit --pid {pid} --as=unlimited:"),
        ))
    }

    /// Checks the limit for locked memory: if a program locks all its mappings, mapping more than this limit fails.
    fn lock_check(&self, pid: i32) -> Option<Check> {
        // If most of its memory is locked, new mappings are locked too. Otherwise, the process has locked only some
        // buffers.
        let left = self.memory_locked?.saturating_sub(self.locked);
        (self.locked > self.mapped / 2 && left < LOCKED).then(|| {
            Check::bad(
                "locked memory",
                format!(
                    "process {pid} locks all of its memory (mlockall) and may lock {} more (RLIMIT_MEMLOCK), but \
                     tracing needs {}",
                    size_text(left),
                    size_text(LOCKED)
                ),
                format!("raise the limit: prlimit --pid {pid} --memlock=unlimited:"),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_compared() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max data size             unlimited            unlimited            bytes\n\
                    Max file size             1048576              unlimited            bytes\n\
                    Max locked memory         9000000              9000000              bytes\n\
                    Max address space         9000000              unlimited            bytes\n";
        let failed = |text, status: &str, region| -> Vec<&'static str> {
            let checks = Limits::from_text(text, status).checks(1, region);
            checks.iter().filter(|c| !c.ok).map(|c| c.name).collect()
        };
        let small = "VmSize:\t 100 kB\nVmLck:\t 0 kB\n";
        assert_eq!(failed(text, small, 1 << 20), Vec::<&str>::new());
        let both = ["file size", "address space"];
        assert_eq!(failed(text, small, 2 << 20), both);
        let roomy = text.replace(
            "9000000              unlimited",
            "900000000            unlimited",
        );
        assert_eq!(failed(&roomy, small, 2 << 20), ["file size"]);
        let large = "VmSize:\t 2000 kB\nVmLck:\t 0 kB\n";
        assert_eq!(failed(text, large, 1 << 20), ["address space"]);
        let locked = "VmSize:\t 8200 kB\nVmLck:\t 8100 kB\nCapEff:\t0000000000000000\n";
        assert_eq!(failed(text, locked, 1 << 10), ["locked memory"]);
        let privileged = locked.replace("0000000000000000", "0000000000004000");
        assert_eq!(failed(text, &privileged, 1 << 10), Vec::<&str>::new());
        let unlimited = text
            .replace("1048576  ", "unlimited")
            .replace("9900000  ", "unlimited")
            .replace("9000000  ", "unlimited");
        assert_eq!(failed(&unlimited, locked, u64::MAX), Vec::<&str>::new());
    }

    #[test]
    fn rings_are_smaller_where_address_space_is_scarce() {
        let within = |address_space| Limits {
            address_space,
            ..Limits::default()
        };
        let whole = region_bytes(1 << 20) as u64;
        assert_eq!(within(None).fitting_ring_bytes(1 << 20), 1 << 20);
        assert_eq!(
            within(Some(SHARE * whole)).fitting_ring_bytes(1 << 20),
            1 << 20
        );
        assert_eq!(
            within(Some(SHARE * whole - 1)).fitting_ring_bytes(1 << 20),
            512 << 10
        );
        assert_eq!(within(Some(0)).fitting_ring_bytes(1 << 20), LEAST_RING);
        // The next region replaces the region of an earlier attach.
        let again = Limits {
            mapped: whole,
            of_region: whole,
            ..within(Some(SHARE * whole))
        };
        assert_eq!(again.fitting_ring_bytes(1 << 20), 1 << 20);
        // The wanted size is never exceeded.
        assert_eq!(within(Some(0)).fitting_ring_bytes(4096), 4096);
    }
}
