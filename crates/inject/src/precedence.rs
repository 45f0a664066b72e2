//! Precedence for a thread that other threads wait for, so that it is scheduled soon.
//!
//! The thread requests short time slices (sched_setattr(2), `sched_runtime` of an ordinary thread; since Linux 6.12).
//! That needs no privilege, and an older kernel ignores it. A lower niceness also gives the thread more processor time,
//! but does harm where holders have no real-time priority. In a control group, the kernel gives the group's share to
//! the processor with the group's heaviest threads. With a quota, the other threads, including holders of targets, then
//! hardly run on the other processors.

use crate::raw_calls::call;
use crate::urgency::Urgency;

/// Shortest time slice that may be requested, in nanoseconds.
pub(crate) const SHORTEST_NS: u64 = 100_000;
/// Time slice of a thread that may never run out of work. It is short because the target needs the processor too.
const SHORT_NS: u64 = 500_000;
/// Default time slice of a thread.
pub(crate) const USUAL_NS: u64 = 0;

/// Niceness of a thread with precedence. It is low enough that a thread that has slept gets a processor immediately
/// among many busy threads, and high enough that the busy threads do not have to wait for long.
const NICE: i32 = -10;

/// Gives the calling thread precedence over ordinary threads for the rest of its life. A niceness that was set
/// explicitly is left unchanged. Unlike a hold, this does not use real-time priority, because this thread may never run
/// out of work.
pub fn take_precedence() {
    set_turn(SHORT_NS);
    if !Urgency::begin().is_raised() {
        return;
    }
    // SAFETY: takes and returns integers; on Linux, 0 is only the calling thread (setpriority(2), BUGS).
    unsafe {
        if libc::getpriority(libc::PRIO_PROCESS, 0) == 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
        }
    }
}

/// Requests time slices of this length for the calling thread. An ordinary thread keeps its niceness; threads with
/// another policy are left alone. This function does not call the C library.
pub(crate) fn set_turn(turn_ns: u64) {
    let mut attributes = Attributes::default();
    let (at, bytes) = (
        (&raw mut attributes).expose_provenance(),
        size_of::<Attributes>(),
    );
    // SAFETY: the kernel writes at most the size that it is given; 0 is the calling thread.
    if unsafe { call(libc::SYS_sched_getattr, [0, at, bytes, 0, 0, 0]) } < 0
        || attributes.policy != libc::SCHED_OTHER as u32
    {
        return;
    }
    attributes.runtime = turn_ns;
    let at = (&raw const attributes).expose_provenance();
    // SAFETY: the kernel reads the attributes, which state their size.
    unsafe { call(libc::SYS_sched_setattr, [0, at, 0, 0, 0, 0]) };
}

/// struct sched_attr, first version (sched_setattr(2)).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn_ns() -> u64 {
        let mut attributes = Attributes::default();
        let (at, bytes) = (
            (&raw mut attributes).expose_provenance(),
            size_of::<Attributes>(),
        );
        // SAFETY: as above.
        let got = unsafe { call(libc::SYS_sched_getattr, [0, at, bytes, 0, 0, 0]) };
        assert_eq!(got, 0);
        attributes.runtime
    }

    #[test]
    fn only_the_calling_thread_gets_it() {
        let before = turn_ns();
        let with = std::thread::spawn(|| {
            take_precedence();
            turn_ns()
        });
        let with = with.join().expect("it ends");
        assert!(with == SHORT_NS || with == before, "{with}");
        assert_eq!(turn_ns(), before);
    }
}
