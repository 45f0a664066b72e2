//! Decides whether a lone recording thread may skip locked instructions.
//!
//! It may skip them if the process is registered for membarrier(2), because a second thread can then make all threads
//! pass a barrier. While a process with several threads registers, the kernel waits for an RCU grace period, about ten
//! milliseconds (sync_runqueues_membarrier_state in kernel/sched/membarrier.c). So a sleeping thread is made to
//! register the process. If all threads are busy, registering would gain nothing.

use crate::hook::presence::any_point;
use memhook_abi::flags::LONE_RECORDER;
use memhook_inject::{Held, HoldOptions, IdleThreads, hold};
use memhook_process::{has_seccomp_filter, thread_ids};
use memhook_stream::{REGISTER_GLOBAL_EXPEDITED, Region, barrier};
use std::time::Duration;

/// Time limit for holding a sleeping thread.
const PATIENCE: Duration = Duration::from_millis(50);

/// Returns true if the process has one thread.
pub fn is_alone(pid: i32) -> bool {
    thread_ids(pid).is_ok_and(|tids| tids.len() == 1)
}

/// Makes a thread that has slept since `idle` was created register its process. Returns the time for which the thread
/// was held, or `None` if the process is not registered. The caller must hold no thread of the process.
pub fn register_idle(pid: i32, idle: &IdleThreads) -> Option<Duration> {
    if !barrier() {
        return None;
    }
    let options = HoldOptions {
        thread: Some(idle.still_asleep()?),
        deadline: PATIENCE,
        ..any_point()
    };
    let mut held = hold(pid, &options).ok()?;
    let registered = register(&mut held);
    let time = held.release().ok()?;
    registered.then_some(time)
}

/// Like [`register_idle`], in a process whose only thread is held. The call returns immediately, because there is no
/// other thread to wait for.
pub fn register_alone(held: &mut Held, region: &Region) {
    if is_alone(held.pid()) && barrier() && register(held) {
        region.add_flag(LONE_RECORDER);
    }
}

fn register(held: &mut Held) -> bool {
    // A seccomp filter may kill the process for this call. Even a suspended filter may do so, if this attacher is
    // killed during the call.
    if has_seccomp_filter(held.pid()) && held.may_call(libc::SYS_membarrier) != Some(true) {
        return false;
    }
    let command = [REGISTER_GLOBAL_EXPEDITED, 0, 0, 0, 0, 0];
    held.syscall(libc::SYS_membarrier, command)
        .is_ok_and(|result| result == 0)
}
