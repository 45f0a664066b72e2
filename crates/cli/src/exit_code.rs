//! The exit codes of all commands.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | all went well; of `gate`: within the limits |
//! | 1 | the target went on untraced for a time; of `gate`: a limit is exceeded (or `--error-exitcode`) |
//! | 2 | bad input, a target that cannot be traced, or an output that is not complete |
//! | 3 | slots could not be restored, remembered backtraces were wrong, a gate gives no verdict, or a scan did not search all of the heap |
//!
//! `run`, and `gate` with a program that fails, end with the program's status.

use memhook_gate::Outcome;

/// Success.
pub const DONE: u8 = 0;
/// The target ran untraced for a time, because memhook-rs was not running.
pub const HAS_GAPS: u8 = 1;
/// Bad input, a target that cannot be traced, or incomplete output.
pub const BAD_INPUT: u8 = 2;
/// Slots could not be restored.
pub const NOT_RESTORED: u8 = 3;
/// A remembered backtrace was wrong.
pub const WRONG: u8 = 3;
/// `gate`: a limit is exceeded. This is the default code.
pub const LIMIT_EXCEEDED: u8 = 1;
/// `gate`: no limit was exceeded, but not everything was seen.
pub const NO_VERDICT: u8 = 3;
/// `scan`: a part of the heap could not be searched, so a leak there would not be found.
pub const NOT_ALL_SEARCHED: u8 = 3;

/// Returns the exit code of a verdict. `failed` is the code for an exceeded limit.
pub fn of_verdict(outcome: Outcome, failed: u8) -> u8 {
    match outcome {
        Outcome::Passed => DONE,
        Outcome::Failed => failed,
        Outcome::Unsound => NO_VERDICT,
    }
}
