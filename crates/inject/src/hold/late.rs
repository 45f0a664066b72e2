//! Threads that were told to stop and did not stop in time.
//!
//! A thread in uninterruptible sleep stops when the sleep ends, and by then no caller waits for it. Only a stopped
//! thread can be released, and only by the thread that seized it (ptrace(2)), so such threads are remembered and
//! checked periodically. When this process ends, the kernel releases all of them.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::wait::{self, Stop};
use crate::{ptrace, restart, watchdog};
use memhook_process::is_untraced;

thread_local! {
    /// Ids of process and thread.
    static LATE: RefCell<Vec<(i32, i32)>> = const { RefCell::new(Vec::new()) };
}

/// Records that a seized thread must be released when it stops. Until then the watchdog prevents long stops of this
/// process, because the target's thread would stay stopped too.
pub(crate) fn let_go_later(pid: i32, tid: i32) {
    LATE.with_borrow_mut(|late| late.push((pid, tid)));
    watchdog::expect_late(true);
}

/// Releases the threads that have stopped since the last call. Each thread of ours that has ever held threads of a
/// process must call this periodically for as long as it lives, except while it holds that process.
pub fn let_late_threads_go() {
    let were_some = has_late_threads();
    LATE.with_borrow_mut(|late| late.retain(|&(pid, tid)| !has_gone(pid, tid)));
    if were_some && !has_late_threads() {
        watchdog::expect_late(false);
    }
}

/// Returns true if this thread of ours must call [`let_late_threads_go`] again soon: a seized thread may stop at any
/// moment, and stays stopped until that call.
pub fn has_late_threads() -> bool {
    !LATE.with_borrow(Vec::is_empty)
}

/// Returns true if this tracer is our own process.
pub(crate) fn is_ours(tracer: i32) -> bool {
    tracer == std::process::id() as i32
}

/// Repeats [`let_late_threads_go`] until no thread is left or `limit` has passed.
pub fn wait_for_late_threads(limit: Duration) {
    let until = Instant::now() + limit;
    let mut pace = wait::Pace::start();
    loop {
        let_late_threads_go();
        if LATE.with_borrow(Vec::is_empty) || Instant::now() >= until {
            return;
        }
        pace.pause();
    }
}

/// Handles the next stop of a thread. Returns true if the thread now runs untraced, or has ended.
fn has_gone(pid: i32, tid: i32) -> bool {
    match wait::poll_stop(pid, tid) {
        // The watchdog may have released the thread. A child of ours can be waited for even then (wait(2)).
        None => is_untraced(pid, tid),
        Some(Stop::Gone) => true,
        Some(Stop::Event(_)) => {
            restart::repeat_at_once(tid);
            ptrace::detach(tid).is_ok()
        }
        // The requested stop follows this one.
        Some(Stop::Signal(signal)) => {
            let _ = ptrace::resume(tid, signal);
            false
        }
        Some(Stop::Syscall | Stop::Clone) => {
            let _ = ptrace::resume(tid, 0);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{LONG, Program, anywhere, name_of_test, send, state};
    use crate::timing::Timing;
    use crate::{Error, stop, survey::Survey};
    use memhook_process::{RemoteAddress, children, read_word, tracer};
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    /// Ends the sleep, and checks that the thread continues.
    fn is_let_go(mut program: Program, rounds: u64) {
        let pid = program.pid();
        for child in children(pid) {
            send(child, libc::SIGKILL);
        }
        let until = Instant::now() + LONG;
        while read_word(pid, RemoteAddress(rounds)).unwrap() < 3 {
            assert!(
                Instant::now() < until,
                "it does not go on: state {}",
                state(pid, pid)
            );
            let_late_threads_go();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(tracer(pid, pid), 0);
        assert!(LATE.with_borrow(Vec::is_empty));
        // The program has received the signal that arrived in the meantime.
        assert_eq!(program.line(), "heard");
        send(pid, libc::SIGTERM);
        program.ends_well();
    }

    /// Returns a program in uninterruptible sleep, like the parent in vfork(2) until its child has ended.
    fn sleeper() -> (Program, u64) {
        let mut program = Program::start("vforks", &[]);
        let rounds = program.addresses()["rounds"];
        let pid = program.pid();
        // Once the program has a child, the vfork is the cause of its sleep.
        let until = Instant::now() + LONG;
        while children(pid).is_empty() || state(pid, pid) != 'D' {
            assert!(Instant::now() < until, "it does not sleep");
            std::thread::sleep(Duration::from_millis(1));
        }
        (program, rounds)
    }

    #[test]
    fn a_thread_that_stops_too_late_goes_on() {
        let (program, rounds) = sleeper();
        let pid = program.pid();
        let survey = Survey::of(pid, Timing::QUICK).unwrap();
        let held = stop::try_hold(pid, pid, &anywhere(), &survey);
        assert!(matches!(held, Err(Error::DoesNotStop { .. })));
        send(pid, libc::SIGUSR1);
        is_let_go(program, rounds);
    }

    #[test]
    fn it_goes_on_too_if_all_threads_were_to_stop() {
        let (program, rounds) = sleeper();
        let held =
            crate::all_threads::stop_all(program.pid(), &Default::default(), Some(Duration::ZERO));
        assert!(matches!(held, Err(Error::StopsTooLate { .. })));
        send(program.pid(), libc::SIGUSR1);
        is_let_go(program, rounds);
    }

    /// If a thread's tracer is another thread of this process, and not a foreign one, a hold waits until that tracer
    /// has released it.
    #[test]
    fn a_thread_that_another_one_of_ours_lets_go_late_is_held_after_it() {
        for all in [false, true] {
            let mut program = Program::start("busy", &[]);
            program.addresses();
            let pid = program.pid();
            let (seized, is_seized) = std::sync::mpsc::channel();
            let other = std::thread::spawn(move || {
                let sleep = stop::seize(pid, pid, None).unwrap();
                assert!(sleep.is_some());
                let_go_later(pid, pid);
                seized.send(()).unwrap();
                // After the sleep, the hold has normally begun. If not, it finds the thread already released.
                std::thread::sleep(Duration::from_millis(200));
                wait_for_late_threads(Duration::from_secs(20));
                assert!(!has_late_threads());
            });
            is_seized.recv().unwrap();
            if all {
                drop(crate::hold_all(pid).unwrap());
            } else {
                let mut options = anywhere();
                options.thread = Some(pid);
                stop::hold(pid, &options).unwrap().release().unwrap();
            }
            other.join().unwrap();
            assert_eq!(tracer(pid, pid), 0);
        }
    }

    /// Stopping this process in the meantime does not leave the thread stopped.
    #[test]
    fn this_process_is_not_stopped_for_long_as_long_as_a_thread_may_be_late() {
        // This runs in a separate process, because a stop affects all threads of a process.
        let mut stopped = Command::new(std::env::current_exe().unwrap())
            .arg(name_of_test(module_path!(), "stopped_with_a_late_thread"))
            .args(["--exact", "--ignored", "--nocapture"])
            .env(STOPPED, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(stopped.stdout.take().unwrap()).lines();
        let (tell, goes_on) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if line == GOES_ON {
                    let _ = tell.send(());
                }
            }
        });
        if goes_on.recv_timeout(2 * LONG).is_err() {
            let _ = stopped.kill();
            panic!("it stands still, or has failed: {:?}", stopped.wait());
        }
        send(stopped.id() as i32, libc::SIGCONT);
        stopped.stdin.take().unwrap().write_all(b"\n").unwrap();
        let status = stopped.wait().unwrap();
        assert!(status.success(), "{status}");
        reader.join().unwrap();
    }

    /// Variable that is set for the process to be stopped.
    const STOPPED: &str = "MEMHOOK_TEST_STOPPED";
    /// Message that the holder sends after its watchdog has resumed it.
    const GOES_ON: &str = "it goes on";

    /// Process for the test above.
    #[test]
    #[ignore = "the process to be stopped, started by another test"]
    fn stopped_with_a_late_thread() {
        if std::env::var(STOPPED).is_err() {
            return;
        }
        let (program, rounds) = sleeper();
        let pid = program.pid();
        let survey = Survey::of(pid, Timing::QUICK).unwrap();
        let held = stop::try_hold(pid, pid, &anywhere(), &survey);
        assert!(matches!(held, Err(Error::DoesNotStop { .. })));
        send(std::process::id() as i32, libc::SIGSTOP);
        let until = Instant::now() + LONG;
        // It takes a moment until every thread has stopped.
        while !watchdog::has_continued() {
            assert!(Instant::now() < until, "it is not stopped");
            std::thread::sleep(Duration::from_millis(1));
        }
        println!("\n{GOES_ON}");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        // A SIGCONT from another process has cancelled the stop, which therefore does not take effect later.
        while watchdog::has_continued() {
            assert!(Instant::now() < until + LONG, "it would stop again");
            std::thread::sleep(Duration::from_millis(1));
        }
        send(pid, libc::SIGUSR1);
        is_let_go(program, rounds);
    }
}
