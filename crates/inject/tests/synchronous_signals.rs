//! Pending synchronous signals of a stopped thread reach the program before the thread does anything for us.

mod common;

use common::{Program, anywhere, patiently, send, with_held};
use memhook_inject::{Error, hold_all, thread_with_own_answers};
use memhook_process::RemoteAddress;

/// Holds a program that gets one synchronous signal after another, and makes it run a call for us each time.
fn traps(kind: &str, all: bool) {
    let mut program = Program::start("traps", &[kind]);
    let at = program.addresses();
    let pid = program.pid();
    for _ in 0..400 {
        if all {
            patiently(|| hold_all(pid).map(drop));
        }
        with_held(pid, &anywhere(), |held| {
            held.call(RemoteAddress(at["getpid"]), &[])
        });
    }
    send(pid, libc::SIGTERM);
    println!("{kind}: {}", program.line());
    program.ends_well();
}

/// SECCOMP_RET_TRAP, which browsers use: the handler provides the result of the system call.
#[test]
fn calls_that_a_filter_traps() {
    traps("filtered", false);
}

#[test]
fn breakpoints() {
    traps("breakpoint", false);
}

#[test]
fn signals_that_a_thread_sends_to_itself() {
    traps("raised", false);
    traps("killed", true);
}

#[test]
fn signals_that_wait_because_they_are_blocked() {
    traps("blocked", true);
}

#[test]
fn signals_of_another_thread() {
    traps("sent", true);
}

/// prctl(2), PR_SET_SYSCALL_USER_DISPATCH: the program would handle our calls.
#[test]
fn a_thread_that_answers_system_calls_itself_is_left_alone() {
    let mut program = Program::start("traps", &["dispatched"]);
    program.addresses();
    let pid = program.pid();
    assert_eq!(thread_with_own_answers(std::process::id() as i32), None);
    for _ in 0..100 {
        patiently(|| {
            hold_all(pid).map(drop)?;
            assert_eq!(thread_with_own_answers(pid), Some(pid));
            Ok(())
        });
        with_held(pid, &anywhere(), |held| {
            match held.syscall(libc::SYS_getpid, [0; 6]) {
                Err(Error::CallsDispatched { .. }) => Ok(()),
                other => panic!("{other:?}"),
            }
        });
    }
    send(pid, libc::SIGTERM);
    println!("{}", program.line());
    program.ends_well();
}
