//! Raised priority during a hold.

use crate::precedence::{SHORTEST_NS, USUAL_NS, set_turn};
use std::marker::PhantomData;

/// Guard that lets the calling thread run before ordinary threads. A stopped thread of the target waits for us, and on
/// a busy machine we would otherwise be scheduled milliseconds later. Without the privilege (CAP_SYS_NICE or
/// RLIMIT_RTPRIO, sched(7)), or in a control group without a real-time budget, the guard requests short time slices
/// instead, which are scheduled sooner.
pub(crate) struct Urgency {
    is_raised: bool,
    has_short_turns: bool,
    /// The scheduling policy is the calling thread's.
    _not_send: PhantomData<*const ()>,
}

impl Urgency {
    pub(crate) fn begin() -> Urgency {
        // SAFETY: takes and returns integers; 0 is the calling thread.
        let policy = unsafe { libc::sched_getscheduler(0) };
        // Any other policy was set deliberately, so it is kept.
        let is_ordinary = policy & !libc::SCHED_RESET_ON_FORK == libc::SCHED_OTHER;
        // Round robin at the lowest real-time priority; children, if any, get the ordinary policy.
        let is_raised = is_ordinary && set_policy(libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, 1);
        let has_short_turns = is_ordinary && !is_raised;
        if has_short_turns {
            set_turn(SHORTEST_NS);
        }
        Urgency {
            is_raised,
            has_short_turns,
            _not_send: PhantomData,
        }
    }

    /// Returns true if the thread runs before all ordinary threads.
    pub(crate) fn is_raised(&self) -> bool {
        self.is_raised
    }
}

/// Sets policy and priority of the calling thread. Returns true if that was allowed.
fn set_policy(policy: i32, priority: i32) -> bool {
    let parameter = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the kernel reads one sched_param.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) == 0 }
}

impl Drop for Urgency {
    fn drop(&mut self) {
        if self.has_short_turns {
            set_turn(USUAL_NS);
        }
        if self.is_raised && !set_policy(libc::SCHED_OTHER, 0) {
            // Without CAP_SYS_NICE the flag cannot be removed (sched(7)).
            set_policy(libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: takes and returns integers.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn the_policy_comes_back() {
        let before = policy();
        drop(Urgency::begin());
        assert_eq!(policy(), before);
    }

    /// Drops CAP_SYS_NICE, so that only RLIMIT_RTPRIO allows the thread a higher priority.
    fn give_up_the_capability() {
        const CAP_SYS_NICE: u32 = 23;
        // Version 3 (capget(2)), and 0 for the calling thread.
        let header = [0x2008_0522u32, 0];
        // Effective, permitted and inheritable sets: first the lower halves of all three, then the upper halves.
        let mut sets = [0u32; 6];
        // SAFETY: the kernel reads the header, and reads or writes the six words.
        unsafe {
            libc::syscall(libc::SYS_capget, &raw const header, &raw mut sets);
            sets[0] &= !(1 << CAP_SYS_NICE);
            let set = libc::syscall(libc::SYS_capset, &raw const header, &raw const sets);
            assert_eq!(set, 0);
        }
    }

    #[test]
    fn the_policy_comes_back_without_the_capability() {
        let check = || {
            let urgency = Urgency::begin();
            give_up_the_capability();
            drop(urgency);
            let after = policy() & !libc::SCHED_RESET_ON_FORK;
            assert_eq!(after, libc::SCHED_OTHER);
        };
        std::thread::spawn(check).join().unwrap();
    }
}
