//! Tests a holder that hangs while no file descriptor is free. This test is a separate program, because the limit on
//! descriptors applies to a whole process.

mod common;

use common::{LONG, Program, anywhere, patiently, state};
use memhook_inject::{hold, wait_for_late_threads};
use std::time::Duration;

/// Limits descriptors to numbers below this one.
fn limit_descriptors(limit: libc::rlim_t) -> libc::rlim_t {
    // SAFETY: rlimit is plain integers; all-zero is valid.
    let mut limits: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: both calls get a live structure.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limits), 0);
        let before = std::mem::replace(&mut limits.rlim_cur, limit);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limits), 0);
        before
    }
}

/// The watchdog would kill the holder if it did not react.
#[test]
fn the_target_is_let_go() {
    let mut program = Program::start("busy", &[]);
    program.addresses();
    let pid = program.pid();
    let held = patiently(|| hold(pid, &anywhere()));
    let tid = held.tid();
    let before = limit_descriptors(0);
    // The holder makes no progress for so long that it is told to release the thread. On a busy machine, the watchdog
    // may be late.
    let has_let_go = (0..60).any(|_| {
        // The watchdog measures elapsed time.
        std::thread::sleep(Duration::from_secs(1));
        // SAFETY: the id is that of a live process. The request succeeds for a thread that is held, and fails for
        // others (ptrace(2), ESRCH).
        unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, tid, 0, &mut 0u64) != 0 }
    });
    limit_descriptors(before);
    assert!(has_let_go);
    assert_ne!(state(pid, tid), 't');
    drop(held);
    // Waiting for a thread's stop would also reap its process.
    wait_for_late_threads(LONG);
    common::send(pid, libc::SIGTERM);
    program.ends_well();
}
