//! Memory that an attach may take: a share of the free memory below the limits of the target's control groups and of
//! our own.
//!
//! Memory is charged to the control group of the process that touches it first. We touch most of the memory (see
//! `memhook_stream`'s grants), so our own limits count for all of it. The target pays for page tables of the shared
//! memory, and for rings of threads that start before we notice them.

use crate::error::Error;
use memhook_foreign::size_text;
use memhook_process::{CgroupMemory, Check, MemoryLevel, thread_ids};
use memhook_stream::Plan;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Divisor of the free memory: tracing may take 1/n of it.
const SHARE: u64 = 50;
/// Bytes that must be free below a target's limit for the target to be traced.
const LEAST_FREE: u64 = 1 << 20;
/// Time for which a reading of free memory stays valid.
const MOMENT: Duration = Duration::from_millis(90);

/// Refuses to charge this number of bytes to a process or its control groups: pages of its own that we write, and
/// memory that its threads touch first.
pub(crate) fn check_charge(pid: i32, bytes: u64) -> Result<(), Error> {
    let memory = CgroupMemory::of(pid);
    let is_tight = |level: &&MemoryLevel| level.free < LEAST_FREE || bytes > level.free / SHARE;
    match memory.tightest().filter(is_tight) {
        None => Ok(()),
        Some(level) => Err(Error::Refused(format!(
            "process {pid} would be charged up to {}, and {} {level}, of which at most 1/{SHARE} may be used: name \
             fewer functions, or raise that limit",
            size_text(bytes),
            size_text(level.free),
        ))),
    }
}

/// Findings about the memory of a process, and the resulting plan.
pub struct Allowance {
    threads: usize,
    /// Tightest level that pays for the memory that we touch.
    ours: Option<MemoryLevel>,
    /// Tightest level of the target.
    theirs: Option<MemoryLevel>,
    /// `None`: not even the smallest plan fits.
    plan: Option<Plan>,
}

impl Allowance {
    /// Returns the allowance of an attach to this process.
    pub fn of(pid: i32, ring_bytes: u64) -> Allowance {
        let [ours, theirs] = CgroupMemory::of_both(std::process::id() as i32, pid);
        let (ours, theirs) = (ours.tightest_of_all(), theirs.tightest().cloned());
        let free = ours.as_ref().map(|level| level.free);
        *last_reading() = Some((Instant::now(), free));
        Allowance::from(
            thread_ids(pid).map_or(1, |t| t.len()),
            ours,
            theirs,
            ring_bytes,
        )
    }

    fn from(
        threads: usize,
        ours: Option<MemoryLevel>,
        theirs: Option<MemoryLevel>,
        ring_bytes: u64,
    ) -> Allowance {
        let share = |level: &Option<MemoryLevel>| level.as_ref().map(|l| l.free / SHARE);
        let mut plan = match share(&ours) {
            Some(share) => Plan::within(share, threads, ring_bytes),
            None => Some(Plan::default()),
        };
        if theirs.as_ref().is_some_and(|level| level.free < LEAST_FREE) {
            plan = None;
        }
        if let (Some(plan), Some(share)) = (&mut plan, share(&theirs)) {
            plan.access_index = share;
        }
        // If the target has little memory, rings that it may have to pay for have the smallest size.
        if let (Some(plan), Some(share)) = (&mut plan, share(&theirs)) {
            let good = Plan::within(share, threads, ring_bytes);
            if good.is_none_or(|good| good.first_ring < plan.first_ring) {
                plan.first_ring = memhook_abi::LEAST_RING_BYTES as u64;
            }
        }
        Allowance {
            threads,
            ours,
            theirs,
            plan,
        }
    }

    /// Returns the plan, or the reason why there is none.
    pub fn plan(&self) -> Result<Plan, Error> {
        let check = self.check();
        match (&self.plan, check.remedy) {
            (Some(plan), _) => Ok(*plan),
            (None, remedy) => Err(Error::Refused(format!(
                "{}: {}",
                check.finding,
                remedy.unwrap_or_default()
            ))),
        }
    }

    /// Returns the finding for `doctor`, including the reason for a refusal.
    pub fn check(&self) -> Check {
        let least = |threads: usize| {
            Plan::FIXED + threads as u64 * Plan::small_ring(memhook_abi::LEAST_RING_BYTES as u64)
        };
        let named = |level: &MemoryLevel| match level.path.parent() {
            None => format!("{} free on this machine", size_text(level.free)),
            Some(_) => format!(
                "{} free below the limit of {} in {}",
                size_text(level.free),
                size_text(level.limit),
                level.path.display()
            ),
        };
        let Some(plan) = &self.plan else {
            let tight = self.theirs.as_ref().filter(|level| level.free < LEAST_FREE);
            let level = tight.or(self.ours.as_ref());
            let free = level.map(&named).unwrap_or_default();
            return Check::bad(
                "memory",
                format!(
                    "{free}: tracing {} threads takes {}, more than 1/{SHARE} of the free memory",
                    self.threads,
                    size_text(least(self.threads))
                ),
                "raise that limit, or run memhook-rs outside that control group, so that its own memory does not count",
            );
        };
        let ring = Plan::small_ring(plan.first_ring);
        let mut finding = format!(
            "tracing takes {} at first ({} for each of {})",
            size_text(Plan::FIXED + self.threads as u64 * ring),
            size_text(ring),
            match self.threads {
                1 => "1 thread".to_owned(),
                threads => format!("{threads} threads"),
            }
        );
        if let Some(level) = &self.ours {
            finding += &format!(
                " and at most {}, 1/{SHARE} of {}",
                size_text(plan.allowance),
                named(level)
            );
        }
        match &self.theirs {
            Some(level) => Check::note(
                "memory",
                finding,
                format!("the process itself has {}", named(level)),
            ),
            None => Check::good("memory", finding),
        }
    }
}

/// Returns the total bytes that may be taken now, including the `taken` bytes. The number decreases when memory becomes
/// scarce.
pub fn allowance_now(plan: &Plan, taken: u64) -> u64 {
    let more = free_for_us().map_or(u64::MAX, |free| free / SHARE);
    plan.allowance.min(taken.saturating_add(more))
}

/// Latest reading of the free memory for this process.
static LAST: Mutex<Option<(Instant, Option<u64>)>> = Mutex::new(None);

fn last_reading() -> MutexGuard<'static, Option<(Instant, Option<u64>)>> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a recent value of the free memory for this process. Without it, each step of an attach, and an attacher of
/// many processes for each process, would read the same files.
fn free_for_us() -> Option<u64> {
    let mut last = last_reading();
    match *last {
        Some((at, free)) if at.elapsed() < MOMENT => free,
        _ => {
            let ours = CgroupMemory::of(std::process::id() as i32).tightest_of_all();
            let free = ours.map(|level| level.free);
            *last = Some((Instant::now(), free));
            free
        }
    }
}

/// Divisor of the free memory for live blocks and call stacks of one process, unless the user sets a limit. The
/// resulting share (1/n) is large enough for all blocks of nearly any process, and small enough that we cause neither
/// this machine nor our own container to run out of memory.
const LEDGER_SHARE: u64 = 4;
/// Upper limit of this memory in bytes. It exists because a ledger at its limit walks its whole table while rings fill
/// up.
const LEDGER_MOST: u64 = 1 << 30;

/// Returns the bytes for the ledger of one process.
pub fn for_a_ledger() -> u64 {
    let share = free_for_us().map_or(LEDGER_MOST, |free| free / LEDGER_SHARE);
    share.clamp(memhook_ledger::LEAST_BYTES as u64, LEDGER_MOST)
}

/// Counts the OOM kills in the target's control group.
pub struct KillCount {
    memory: CgroupMemory,
    before: Option<u64>,
}

impl KillCount {
    /// Begins to count.
    pub fn of(pid: i32) -> KillCount {
        let memory = CgroupMemory::without_limits(pid);
        let before = memory.kills();
        KillCount { memory, before }
    }

    /// Explains the end of a process if lack of memory may be the reason.
    pub fn explain(&self, pid: i32) -> Option<String> {
        let killed = self.memory.kills()?.checked_sub(self.before?)?;
        let group = self.memory.group()?.display();
        (killed > 0).then(|| {
            format!(
                "process {pid} has ended, and its control group {group} ran out of memory meanwhile: the kernel has killed {killed} of its processes"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn level(free: u64) -> Option<MemoryLevel> {
        Some(MemoryLevel {
            path: PathBuf::from("/sys/fs/cgroup/box"),
            limit: 24 << 20,
            free,
        })
    }

    fn refusal(allowance: &Allowance) -> String {
        let error = allowance.plan().expect_err("refused").to_string();
        assert!(!error.contains('\n'), "{error}");
        error
    }

    #[test]
    fn rings_are_chosen_by_what_is_free() {
        let plan = |threads, ours, theirs| {
            let allowance = Allowance::from(threads, ours, theirs, 1 << 20);
            assert!(allowance.check().ok);
            allowance.plan().expect("it fits")
        };
        let roomy = plan(32, level(16 << 30), None);
        assert_eq!(
            (roomy.first_ring, roomy.allowance),
            (64 << 10, (16 << 30) / 50)
        );
        assert_eq!(plan(2, level(16 << 30), None).first_ring, 256 << 10);
        // The target's own limit makes rings small; the allowance is ours.
        let boxed = plan(32, level(16 << 30), level(18 << 20));
        assert_eq!((boxed.first_ring, boxed.allowance), (4096, (16 << 30) / 50));
        // Both levels are below the same limit.
        assert_eq!(plan(8, level(30 << 20), level(30 << 20)).first_ring, 4096);
    }

    #[test]
    fn a_refusal_has_the_numbers() {
        let inside = Allowance::from(32, level(18 << 20), level(18 << 20), 1 << 20);
        assert!(refusal(&inside).contains("18.0 MiB free below the limit of 24.0 MiB in /sys/fs"));
        assert!(refusal(&inside).contains("32 threads"));
        let nothing_left = Allowance::from(1, level(16 << 30), level(900 << 10), 1 << 20);
        assert!(refusal(&nothing_left).contains("900.0 KiB free"));
    }
}
