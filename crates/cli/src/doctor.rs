//! `doctor`: the preflight, printed.

use std::process::ExitCode;

/// Prints every finding; exit code 2 if the process cannot be traced.
pub fn run(pid: i32) -> anyhow::Result<ExitCode> {
    let checks = memhook_process::preflight(pid);
    for check in &checks {
        let mark = if check.ok { "ok  " } else { "FAIL" };
        println!("{mark} {:<11} {}", check.name, check.finding);
        if let Some(remedy) = &check.remedy {
            println!("                 {remedy}");
        }
    }
    Ok(ExitCode::from(if checks.iter().all(|c| c.ok) {
        0
    } else {
        2
    }))
}
