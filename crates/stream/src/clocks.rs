//! Clocks with which the hook can timestamp events, as read by this process.

/// Reads the processor's time stamp counter. On machines with an invariant TSC, the counters of all cores run in sync
/// (Intel SDM volume 3, 18.17.1), so the target's readings are comparable with ours.
#[cfg(target_arch = "x86_64")]
pub fn time_stamp_counter() -> u64 {
    // SAFETY: rdtsc has no operands and touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Reads CLOCK_MONOTONIC in nanoseconds, the same for all processes of one time namespace.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: clock_gettime writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
