//! Programs that handle system calls themselves (prctl(2), PR_SET_SYSCALL_USER_DISPATCH), as Wine does for Windows
//! programs. In such a thread, the kernel passes our system calls to the program's handler of SIGSYS.

use std::time::Duration;

use crate::all_threads::hold_all_within;
use crate::ptrace;
use crate::synchronous::only;
use memhook_process::{caught_signals, has_seccomp_filter};
use tracing::debug;

/// Maximum time for which all threads may be held for this check.
const LOOK_LIMIT: Duration = Duration::from_millis(20);

/// Returns a thread of `pid` whose system calls the program handles itself, if that can be seen (Linux 6.4).
///
/// Only the kernel knows which threads these are, and it reveals this only while they are stopped. The check stops no
/// thread if the handler serves a seccomp filter, or if the process has no SIGSYS handler, because its first dispatched
/// call would then have killed it. A thread that the check misses is refused when it has to make a call
/// ([`crate::Error::CallsDispatched`]).
pub fn thread_with_own_answers(pid: i32) -> Option<i32> {
    let catches = caught_signals(pid).is_some_and(|caught| caught & only(libc::SIGSYS) != 0);
    if !catches || has_seccomp_filter(pid) {
        return None;
    }
    match hold_all_within(pid, Some(LOOK_LIMIT)) {
        Ok(held) => held
            .threads
            .keys()
            .copied()
            .find(|&tid| ptrace::dispatches_calls(tid)),
        Err(error) => {
            debug!(pid, %error, "cannot find out whether it handles its own system calls");
            None
        }
    }
}
