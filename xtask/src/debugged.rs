//! Attaches a debugger to a target of a storm, as a user might do.

use crate::{
    looks::{end_of, waits_of},
    tally::{Class, Failure, failed},
};
use std::{
    fs::File,
    io::{self, Read, Seek},
    process::{Command, ExitStatus, Stdio},
};

/// Runs gdb to print a backtrace of the process and to detach.
pub fn is_shown_by_gdb(pid: u32) -> Result<(), Failure> {
    let (status, text) = match run(pid) {
        Ok(ended) => ended,
        Err(error) => return failed(Class::Debugger, format!("gdb: {error}")),
    };
    match status {
        Ok(status) if status.success() && text.contains("#0 ") && text.contains("detached") => {
            Ok(())
        }
        // gdb's status does not show failures of its commands.
        Ok(status) => {
            let waits = waits_of(pid);
            failed(Class::Debugger, format!("gdb: {status}: {text}{waits}"))
        }
        Err(what) => {
            let waits = waits_of(pid);
            // PTRACE_ATTACH sends a SIGSTOP to each thread. If gdb was killed before it had waited for all of these
            // stops, the remaining signals stop the process (ptrace(2)). This would look like a fault of ours. SAFETY:
            // kill takes plain integers; the target has not been waited for.
            unsafe { libc::kill(pid as i32, libc::SIGCONT) };
            failed(Class::Debugger, format!("gdb: {what}{text}{waits}"))
        }
    }
}

/// Runs gdb. Returns its exit status or a description of its hang, and its output.
fn run(pid: u32) -> io::Result<(Result<ExitStatus, String>, String)> {
    // gdb writes a line for each thread, which may exceed the capacity of a pipe.
    let path = std::env::temp_dir().join(format!("storm-{}-gdb", std::process::id()));
    let mut said = File::options()
        .read(true)
        .append(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(path)?;
    let mut gdb = Command::new("gdb")
        .args(["-nx", "-batch", "-p"])
        .arg(pid.to_string())
        .args(["-ex", "bt", "-ex", "detach"])
        // Otherwise, gdb would query debuginfod servers.
        .env_remove("DEBUGINFOD_URLS")
        .stdin(Stdio::null())
        .stdout(said.try_clone()?)
        .stderr(said.try_clone()?)
        .spawn()?;
    let status = end_of(&mut gdb);
    let mut text = Vec::new();
    said.rewind()?;
    said.read_to_end(&mut text)?;
    Ok((status, String::from_utf8_lossy(&text).into_owned()))
}
