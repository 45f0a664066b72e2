//! Memory that an attach may take: a share of what is free, below the limits of the target's control groups and of our
//! own.
//!
//! What we touch first is charged to our control group (see `memhook_stream`'s grants), so our own limits
//! count for all of it. What is left to the target are pages of the kernel that say where the shared
//! memory is, and rings of threads that begin faster than we look.

use crate::error::Error;
use memhook_foreign::size_text;
use memhook_process::{CgroupMemory, Check, MemoryLevel, thread_ids};
use memhook_stream::Plan;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The share of what is free that tracing may take: one part in so many.
const SHARE: u64 = 50;
/// A target that has less than this below its limit is left alone (bytes).
const LEAST_FREE: u64 = 1 << 20;
/// For so long, what is free counts as the same.
const MOMENT: Duration = Duration::from_millis(90);

/// Refuses to charge so many bytes to a process, or to its control groups: pages of its own that we write, and memory
/// that its threads are the first to touch.
pub(crate) fn check_charge(pid: i32, bytes: u64) -> Result<(), Error> {
    let memory = CgroupMemory::of(pid);
    let is_tight = |level: &&MemoryLevel| level.free < LEAST_FREE || bytes > level.free / SHARE;
    match memory.tightest().filter(is_tight) {
        None => Ok(()),
        Some(level) => Err(Error::Refused(format!(
            "process {pid} would be charged up to {}, and {} {level}, of which one part in {SHARE} may be taken: name \
             fewer functions, or raise that limit",
            size_text(bytes),
            size_text(level.free),
        ))),
    }
}

/// Findings about the memory of a process, with their consequence.
pub struct Allowance {
    threads: usize,
    /// The tightest level that pays for what we touch.
    ours: Option<MemoryLevel>,
    /// The tightest level of the target.
    theirs: Option<MemoryLevel>,
    /// `None`: not even the least fits.
    plan: Option<Plan>,
}

impl Allowance {
    /// Allowance of an attach to this process.
    pub fn of(pid: i32, ring_bytes: u64) -> Allowance {
        let [ours, theirs] = CgroupMemory::of_both(std::process::id() as i32, pid);
        let (ours, theirs) = (ours.tightest_of_all(), theirs.tightest().cloned());
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
        // Where the target has little, the rings that it may have to pay for itself are the smallest.
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

    /// The plan, or why there is none.
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

    /// Returns the finding for `doctor`, with the reason why an attach would refuse.
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
                    "{free}: tracing {} threads takes {}, and is to stay below one part in {SHARE} of what is free",
                    self.threads,
                    size_text(least(self.threads))
                ),
                "raise that limit, or run memhook-rs outside of that control group, where what it takes is its own",
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
                " and at most {}, one part in {SHARE} of {}",
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

/// Returns the bytes that may be taken now, when `taken` bytes are: fewer when memory has become scarce.
pub fn allowance_now(plan: &Plan, taken: u64) -> u64 {
    let more = free_for_us().map_or(u64::MAX, |free| free / SHARE);
    plan.allowance.min(taken.saturating_add(more))
}

/// Returns the free memory for this process as of a moment ago: an attacher of many processes would otherwise read the
/// same files for each.
fn free_for_us() -> Option<u64> {
    static LAST: Mutex<Option<(Instant, Option<u64>)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
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

/// The share of what is free that live blocks and call stacks of one process may take, unless the user
/// says otherwise: one part in so many. Large enough to keep all of nearly any process's blocks, and
/// small enough that neither this machine nor our own container runs out of memory because of us.
const LEDGER_SHARE: u64 = 4;
/// And at most so much, whatever is free (bytes): a ledger that reaches its bound walks over all of its table
/// while rings fill.
const LEDGER_MOST: u64 = 1 << 30;

/// Bytes for the ledger of one process.
pub fn for_a_ledger() -> u64 {
    let level = CgroupMemory::of(std::process::id() as i32).tightest_of_all();
    let share = level.map_or(LEDGER_MOST, |level| level.free / LEDGER_SHARE);
    share.clamp(memhook_ledger::LEAST_BYTES as u64, LEDGER_MOST)
}

/// Notices that processes of the target's control group are killed for lack of memory.
pub struct KillCount {
    memory: CgroupMemory,
    before: Option<u64>,
}

impl KillCount {
    /// From now on.
    pub fn of(pid: i32) -> KillCount {
        let memory = CgroupMemory::of(pid);
        let before = memory.kills();
        KillCount { memory, before }
    }

    /// Explains the end of a process, if memory may be the reason.
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
        // Both live below one limit.
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
