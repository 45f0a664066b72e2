//! Programs that answer system calls themselves (prctl(2), PR_SET_SYSCALL_USER_DISPATCH), as Wine does those of Windows
//! programs: the kernel hands what our code asks for in such a thread to the program's handler of SIGSYS.

use std::time::Duration;

use crate::all_threads::hold_all_within;
use crate::ptrace;
use crate::synchronous::only;
use memhook_process::{caught_signals, has_seccomp_filter};
use tracing::debug;

/// For how long all threads may be held for the look.
const LOOK_LIMIT: Duration = Duration::from_millis(20);

/// A thread of `pid` whose system calls its program answers itself, if that can be seen (Linux 6.4).
///
/// Only the kernel knows, and it says so of stopped threads only; so nothing is stopped where there is no handler of SIGSYS,
/// without which the first such call would end the process, or where the handler is that of a seccomp filter. What is
/// missed here is refused when the thread is to make a call ([`crate::Error::CallsDispatched`]).
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
            debug!(pid, %error, "nobody knows whether it answers system calls itself");
            None
        }
    }
}
