//! A debugger that is attached to a target of a storm, as somebody would who wonders about it.

use crate::{
    looks::waits_of,
    tally::{Class, Failure, failed},
};
use std::process::{Command, Stdio};

/// Seconds after which gdb hangs, on however busy a machine.
const LIMIT: &str = "600";

/// Has gdb show a backtrace of the process and let it go.
pub fn is_shown_by_gdb(pid: u32) -> Result<(), Failure> {
    let output = Command::new("timeout")
        .args(["-k", "5", LIMIT, "gdb", "-nx", "-batch", "-p"])
        .arg(pid.to_string())
        .args(["-ex", "bt", "-ex", "detach"])
        // It would ask the network.
        .env_remove("DEBUGINFOD_URLS")
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => return failed(Class::Debugger, format!("timeout: {error}")),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    // What gdb's commands fail with is not in its status.
    if output.status.success() && text.contains("#0 ") && text.contains("detached") {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let (end, waits) = (output.status, waits_of(pid));
    failed(
        Class::Debugger,
        format!("gdb: {end}: {text}{errors}{waits}"),
    )
}
