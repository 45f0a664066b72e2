//! `detach`: cleans up after an attacher that was killed.

use crate::output::say;
pub use crate::target::Target as Args;
use std::process::ExitCode;

/// Restores the slots.
pub fn run(target: &Args) -> anyhow::Result<ExitCode> {
    let pid = target.pid()?;
    if let Some(why) = memhook_process::first_failure(&memhook_process::preflight(pid)) {
        anyhow::bail!("{why}");
    }
    match memhook_attach::recover(pid)? {
        None => say!("Process {pid} holds nothing of memhook-rs"),
        Some(0) => say!("Detached from {pid}: every slot holds its original"),
        Some(left) => {
            say!(
                "Detached from {pid}, but {left} slots could not be restored, because threads that have to be held did not stop, or because another version's hook is behind them: run detach again"
            );
            return Ok(ExitCode::from(crate::exit_code::NOT_RESTORED));
        }
    }
    Ok(ExitCode::SUCCESS)
}
