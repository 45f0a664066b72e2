//! Priority for the time of a hold.

use std::marker::PhantomData;

/// While it lives, the calling thread runs before ordinary ones, because a stopped thread of the target waits
/// for us, and on a busy machine our turn would come milliseconds later. Without the privilege
/// (CAP_SYS_NICE or RLIMIT_RTPRIO, sched(7)) nothing changes.
pub(crate) struct Urgency {
    before: Option<(i32, i32)>,
    /// The scheduling policy is the calling thread's.
    _not_send: PhantomData<*const ()>,
}

impl Urgency {
    pub(crate) fn begin() -> Urgency {
        Urgency {
            before: raise(),
            _not_send: PhantomData,
        }
    }
}

fn raise() -> Option<(i32, i32)> {
    // SAFETY: takes and returns integers; 0 is the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    let mut before = parameter(0);
    // SAFETY: sched_getparam writes one sched_param.
    if policy < 0 || unsafe { libc::sched_getparam(0, &raw mut before) } != 0 {
        return None;
    }
    if policy != libc::SCHED_OTHER {
        return None; // somebody has chosen it
    }
    // Round robin at the lowest real-time priority; children, if any, are ordinary.
    let urgent = parameter(1);
    let policy_and_flag = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    // SAFETY: sched_setscheduler reads one sched_param.
    let raised = unsafe { libc::sched_setscheduler(0, policy_and_flag, &raw const urgent) };
    (raised == 0).then_some((policy, before.sched_priority))
}

fn parameter(priority: i32) -> libc::sched_param {
    libc::sched_param {
        sched_priority: priority,
    }
}

impl Drop for Urgency {
    fn drop(&mut self) {
        if let Some((policy, priority)) = self.before {
            let before = parameter(priority);
            // SAFETY: as in `raise`.
            unsafe { libc::sched_setscheduler(0, policy, &raw const before) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_comes_back() {
        // SAFETY: takes and returns integers.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        drop(Urgency::begin());
        assert_eq!(policy(), before);
    }
}
