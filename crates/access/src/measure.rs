//! Costs of a page fault and of a watchpoint trap on this machine, measured in this process.

use crate::controller::Costs;
use crate::pages::PAGE_BYTES;
use memhook_inject::{Watchpoint, WriteWatch};
use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Number of measurements. Their median counts.
const TIMES: usize = 7;
const PAGES: usize = 64;

fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

/// Returns the cost of the first write to a write-protected page, in nanoseconds.
fn fault_ns() -> io::Result<f64> {
    let watch = WriteWatch::of_ourselves()?;
    let page = PAGE_BYTES as usize;
    let mut memory = vec![1u8; (PAGES + 1) * page];
    let address = memory.as_ptr().addr();
    let first = address.next_multiple_of(page) - address;
    let range = (address + first) as u64..(address + first + PAGES * page) as u64;
    watch.add(range.clone())?;
    let mut times = Vec::new();
    for _ in 0..TIMES {
        watch.written(range.clone(), &mut Vec::new())?;
        let begin = Instant::now();
        for at in (first..first + PAGES * page).step_by(page) {
            memory[at] = memory[at].wrapping_add(1);
        }
        times.push(begin.elapsed().as_nanos() as f64 / PAGES as f64);
        black_box(&memory);
    }
    median(times).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Returns the cost of an access to a watched word, in nanoseconds. Fails if there are no
/// watchpoints, or if they do not fire, which happens in some emulators.
fn trap_ns(tid: i32, with_kernel: bool) -> io::Result<f64> {
    let word = Box::new(AtomicU64::new(0));
    let address = word.as_ptr().addr() as u64;
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let watchpoint = Watchpoint::reserve(tid, address, with_kernel)?;
        watchpoint.arm(None)?;
        let begin = Instant::now();
        word.fetch_add(1, Relaxed);
        times.push(begin.elapsed().as_nanos() as f64);
        if !watchpoint.has_fired() {
            return Err(io::Error::other("hardware watchpoints do not fire here"));
        }
    }
    median(times).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Means of this machine for a watch.
pub struct Means {
    /// Costs of events, with a cautious guess for those that could not be measured.
    pub costs: Costs,
    /// Reason why writes to pages cannot be watched.
    pub no_pages: Option<io::Error>,
    /// True if watchpoints see the kernel's accesses. The error is the reason why there are no
    /// watchpoints.
    pub watchpoints: io::Result<bool>,
}

/// Returns the cost of a trap, and true if watchpoints see the kernel's accesses.
fn trap() -> (io::Result<f64>, bool) {
    let tid = memhook_inject::own_thread();
    // Watching the kernel's accesses needs more permission (perf_event_paranoid 1).
    match trap_ns(tid, true) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            (trap_ns(tid, false), false)
        }
        other => (other, true),
    }
}

/// Returns true if watchpoints see the kernel's accesses; the error is the reason why there are no
/// watchpoints.
pub fn watchpoints() -> io::Result<bool> {
    let (trap, with_kernel) = trap();
    trap.map(|_| with_kernel)
}

/// Determines which methods of watching memory this machine supports, and measures their costs.
pub fn measure() -> Means {
    let fault = fault_ns();
    let (trap, with_kernel) = trap();
    Means {
        costs: Costs {
            fault_ns: fault.as_ref().map_or(5_000.0, |&ns| ns.max(1.0)),
            trap_ns: trap.as_ref().map_or(50_000.0, |&ns| ns.max(1.0)),
        },
        no_pages: fault.err(),
        watchpoints: trap.map(|_| with_kernel),
    }
}
