//! The exit codes of all commands.

use memhook_attach::Detached;
use std::process::ExitCode;

/// The exit code after a detach, whose failure is told.
pub fn detached(how: Detached, pid: i32) -> u8 {
    match how {
        Detached::Clean => 0,
        Detached::SlotsLeft(left) => {
            eprintln!(
                "memhook-rs: {left} slots of process {pid} could not be restored; they pass through"
            );
            3
        }
        Detached::Failed(error) => {
            let error = anyhow::Error::from(error);
            eprintln!("memhook-rs: {error:#}; run: memhook-rs detach {pid}");
            3
        }
    }
}

/// Ends with the status of a program that was run. A shell script ends by Ctrl-C only if what it runs
/// dies of the signal.
pub fn end_as(status: i32) -> ExitCode {
    if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGINT {
        memhook_inject::end_by(libc::SIGINT);
    }
    ExitCode::from(of_program(status))
}

/// What a shell would say of a program: its exit status, or 128 and the signal that ended it.
pub fn of_program(status: i32) -> u8 {
    if libc::WIFSIGNALED(status) {
        128 | libc::WTERMSIG(status) as u8
    } else {
        libc::WEXITSTATUS(status) as u8
    }
}
