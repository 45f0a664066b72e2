//! The exit codes of all commands.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | all went well; of `gate`: within the limits |
//! | 1 | the trace was cut short by the target; of `gate`: a limit is exceeded (or `--error-exitcode`) |
//! | 2 | bad input, a target that cannot be traced, or an output that is not complete |
//! | 3 | slots could not be restored, remembered backtraces were wrong, or a gate gives no verdict |
//!
//! `run`, and `gate` with a program that fails, end as the program does.

use memhook_attach::{Detached, End};
use memhook_gate::Outcome;
use std::process::ExitCode;

/// All went well.
pub const DONE: u8 = 0;
/// The target went on untraced before the end was asked for.
pub const CUT_SHORT: u8 = 1;
/// Bad input, a target that cannot be traced, or an output that is not complete.
pub const BAD_INPUT: u8 = 2;
/// Slots could not be restored.
pub const NOT_RESTORED: u8 = 3;
/// Remembered backtraces were wrong.
pub const WRONG: u8 = 3;
/// Of `gate`: a limit is exceeded, if nothing else is asked for.
pub const LIMIT_EXCEEDED: u8 = 1;
/// Of `gate`: nothing was found, but not everything was seen.
pub const NO_VERDICT: u8 = 3;

/// The exit code of a trace of a running process; what went wrong is told.
pub fn of_trace(end: &End, pid: i32) -> u8 {
    match end {
        End::Detached(Detached::SlotsLeft(left)) => {
            eprintln!(
                "memhook-rs: {left} slots of process {pid} could not be restored; they pass through"
            );
            NOT_RESTORED
        }
        End::Detached(Detached::Failed(error)) => {
            let error = crate::printing::chain(error);
            eprintln!("memhook-rs: {error}; run: memhook-rs detach {pid}");
            NOT_RESTORED
        }
        _ => DONE,
    }
}

/// The exit code of a verdict; `failed`: if a limit is exceeded.
pub fn of_verdict(outcome: Outcome, failed: u8) -> u8 {
    match outcome {
        Outcome::Passed => DONE,
        Outcome::Failed => failed,
        Outcome::Unsound => NO_VERDICT,
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
