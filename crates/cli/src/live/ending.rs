//! The exit code after a trace: the code of a started program, or a code that describes an error.

use crate::exit_code::{DONE, NOT_RESTORED};
use memhook_attach::{Detached, End};
use std::process::ExitCode;

/// Returns the exit code of a trace of a running process, and reports errors.
pub fn of_trace(end: &End, pid: i32) -> u8 {
    match fault(end, pid) {
        Some(fault) => {
            eprintln!("memhook-rs: {fault}");
            NOT_RESTORED
        }
        None => DONE,
    }
}

/// Describes in one line what could not be restored.
pub fn fault(end: &End, pid: i32) -> Option<String> {
    match end {
        End::Detached(Detached::SlotsLeft(left)) => Some(format!(
            "{left} slots of process {pid} could not be restored; calls through them still run the inactive hook"
        )),
        End::Detached(Detached::Failed(error)) => {
            let error = crate::remedies::in_words(error);
            Some(format!("{error}; run: memhook-rs detach {pid}"))
        }
        _ => None,
    }
}

/// Exits with the status of the program. Ctrl-C ends a shell script only if the signal kills the
/// script's current command.
pub fn end_as(status: i32) -> ExitCode {
    if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGINT {
        memhook_attach::finish_keeping_tables();
        memhook_inject::end_by(libc::SIGINT);
    }
    ExitCode::from(of_program(status))
}

/// Returns the code that a shell would return for a program: its exit status, or 128 plus the
/// signal that ended it.
pub fn of_program(status: i32) -> u8 {
    if libc::WIFSIGNALED(status) {
        128 | libc::WTERMSIG(status) as u8
    } else {
        libc::WEXITSTATUS(status) as u8
    }
}
