//! `cargo xtask peers`: the benchmark that `cargo bench -p memhook-benches` leaves out, because it takes long.

use std::process::{Command, ExitCode};

/// Runs it.
pub fn run() -> ExitCode {
    let status = Command::new(env!("CARGO"))
        .args(["bench", "-p", "memhook-benches", "--bench", "peers"])
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            eprintln!("peers: {status}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("peers: cargo: {error}");
            ExitCode::FAILURE
        }
    }
}
