//! Waiting for the next ptrace stop of one thread.

use std::io;
use std::time::{Duration, Instant};

use crate::{late, ptrace, watchdog};
use memhook_process::thread_state;

/// Reason why the thread stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// PTRACE_EVENT_STOP: our interrupt (SIGTRAP), or a group-stop with its stopping signal.
    Event(i32),
    /// Signal-delivery-stop: the signal takes effect only if we deliver it.
    Signal(i32),
    /// The thread has stopped at the entry or the exit of a system call.
    Syscall,
    /// PTRACE_EVENT_CLONE: the thread has created a child, which is traced too.
    Clone,
    /// The thread has exited or was killed, or the process has called execve.
    Gone,
}

/// Time to poll before sleeping: most stops are reported sooner. Longer polling would harm a target on our processor,
/// because the target could not run in the meantime. sched_yield(2) would give away a whole time slice on a loaded
/// machine, whereas a sleeper is woken soon.
const SPIN: Duration = Duration::from_micros(60);
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// Length of the pause at which it becomes worthwhile to ask whether the thread has ended. Most stops arrive during the
/// shorter pauses.
const SLOW: Duration = Duration::from_micros(100);

/// Waits until `tid` stops; `None` if it has not stopped at `until`.
///
/// This function polls, because a blocking waitpid has no deadline and would never return for a group leader that exits
/// before its threads (ptrace(2), "Death under ptrace").
pub(crate) fn wait_for_stop(pid: i32, tid: i32, until: Instant) -> Option<Stop> {
    let mut pace = Pace::start();
    loop {
        let stop = poll_stop(pid, tid);
        if stop.is_some() {
            return stop;
        }
        if Instant::now() >= until {
            return None;
        }
        if pace.pause() && pace.is_slow() && has_ended(pid, tid) {
            return Some(Stop::Gone);
        }
    }
}

/// Returns a stop of `tid` that has not been collected yet, if any.
pub(crate) fn poll_stop(pid: i32, tid: i32) -> Option<Stop> {
    match wait_now(tid) {
        Ok(None) => None,
        Ok(Some(status)) => {
            #[cfg(test)]
            crate::steps::done();
            Some(decode(tid, status))
        }
        Err(_) => {
            let_go_after_exec(pid, tid);
            Some(Stop::Gone)
        }
    }
}

/// If the thread has ended, collects its exit status and returns true.
pub(crate) fn has_ended(pid: i32, tid: i32) -> bool {
    let ended = matches!(thread_state(pid, tid), None | Some('Z' | 'X'));
    if ended {
        reap(pid, tid);
    }
    ended
}

/// Pause between two polls.
pub(crate) struct Pace {
    begin: Instant,
    sleep: Duration,
}

impl Pace {
    pub(crate) fn start() -> Pace {
        Pace {
            begin: Instant::now(),
            sleep: Duration::from_micros(20),
        }
    }

    /// Spins at first, then sleeps for increasing times. Returns `true` if it slept.
    pub(crate) fn pause(&mut self) -> bool {
        if self.begin.elapsed() < SPIN {
            std::hint::spin_loop();
            return false;
        }
        std::thread::sleep(self.sleep);
        self.sleep = (self.sleep * 5 / 4).min(SLEEP_MAX);
        true
    }

    /// Returns true after the first few sleeps.
    pub(crate) fn is_slow(&self) -> bool {
        self.sleep > SLOW
    }
}

/// Returns the wait status of `tid`, if there is one. Fails if we may not wait for this thread.
fn wait_now(tid: i32) -> io::Result<Option<i32>> {
    loop {
        let mut status = 0;
        // SAFETY: waitpid writes one int.
        let waited = unsafe { libc::waitpid(tid, &raw mut status, libc::WNOHANG | libc::__WALL) };
        watchdog::step();
        if waited >= 0 {
            return Ok((waited == tid).then_some(status));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    }
}

fn decode(tid: i32, status: i32) -> Stop {
    if !libc::WIFSTOPPED(status) {
        return Stop::Gone;
    }
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        libc::PTRACE_EVENT_STOP => Stop::Event(signal),
        libc::PTRACE_EVENT_CLONE => Stop::Clone,
        libc::PTRACE_EVENT_EXEC => {
            // After an execve, a new program runs under this id, and we must not touch it.
            let _ = ptrace::detach(tid);
            Stop::Gone
        }
        _ if signal == libc::SIGTRAP | 0x80 => Stop::Syscall,
        _ => Stop::Signal(signal),
    }
}

/// Detaches after an execve. When a thread other than the leader calls execve, it takes over the leader's id, so its
/// stop is reported under `pid` (ptrace(2), "execve(2) under ptrace").
fn let_go_after_exec(pid: i32, tid: i32) {
    // WSTOPPED alone reaps nothing.
    if pid != tid && has_changed(pid, libc::WSTOPPED).unwrap_or(false) {
        let _ = ptrace::detach(pid);
    }
}

/// Returns true if a thread has undergone this change of state (waitid(2)).
fn has_changed(tid: i32, change: i32) -> io::Result<bool> {
    // SAFETY: siginfo_t is plain data; all-zero is valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = change | libc::WNOHANG | libc::__WALL;
    // SAFETY: waitid writes one siginfo_t.
    if unsafe { libc::waitid(libc::P_PID, tid as libc::id_t, &raw mut info, flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // If nothing has changed, the call leaves the structure zeroed.
    Ok(info.si_signo == libc::SIGCHLD)
}

/// Collects the exit status of a traced thread that died. Until then the whole process cannot end, because its leader
/// waits for the thread (ptrace(2), "Death under ptrace").
pub(crate) fn reap(pid: i32, tid: i32) {
    for _ in 0..20 {
        if is_collected(tid) {
            return;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    // The thread may be alive after all.
    late::let_go_later(pid, tid);
    // A helper thread does this: on a loaded machine, a thread may take a while to die, and a leader can be collected
    // only after all other threads. If no helper thread can be started, the kernel collects the thread when we exit.
    let collector = move || {
        while !is_collected(tid) {
            std::thread::sleep(SLEEP_MAX * 10);
        }
    };
    let _ = std::thread::Builder::new()
        .name("memhook-collect".to_owned())
        .spawn(collector);
}

/// Waits for the thread's end, not for its stops. Returns true if nothing is left to wait for.
fn is_collected(tid: i32) -> bool {
    has_changed(tid, libc::WEXITED)
        .unwrap_or_else(|error| error.raw_os_error() != Some(libc::EINTR))
}
