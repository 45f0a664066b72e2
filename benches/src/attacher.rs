//! Runs memhook-rs as a process beside the target.

use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStderr, Command, Stdio},
};

/// The final report of an attach.
pub struct Report(pub Value);

impl Report {
    fn number(&self, part: &str, field: &str) -> f64 {
        self.0[part][field].as_f64().unwrap_or(0.0)
    }

    /// Number of events that could not be recorded.
    pub fn lost(&self) -> u64 {
        self.0["totals"]["lost_events"].as_u64().unwrap_or(0)
    }

    /// Number of allocations and releases.
    pub fn events(&self) -> u64 {
        (self.number("totals", "allocations") + self.number("totals", "releases")) as u64
    }

    /// Number of truncated call stacks.
    pub fn truncated(&self) -> u64 {
        self.0["totals"]["truncated_stacks"].as_u64().unwrap_or(0)
    }

    /// Duration of the attach in milliseconds.
    pub fn attach_ms(&self) -> f64 {
        self.number("attach", "attach_ms")
    }

    /// Longest time for which a thread was stopped, in milliseconds.
    pub fn held_ms(&self) -> f64 {
        self.number("attach", "held_ms")
    }
}

/// A running attacher; dropping it early kills its process.
pub struct Attacher {
    child: Child,
    errors: BufReader<ChildStderr>,
}

impl Attacher {
    /// Attaches, and returns when every slot is patched.
    pub fn start(pid: u32, options: &[String]) -> Result<Attacher, String> {
        let mut child = Command::new(memhook_tests::binary())
            .args(["attach", "--json", "-i", "1h", "-T", "1"])
            .args(options)
            .arg(pid.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("memhook-rs: {e}"))?;
        let errors = BufReader::new(child.stderr.take().expect("piped"));
        let mut attacher = Attacher { child, errors };
        let mut line = String::new();
        attacher
            .errors
            .read_line(&mut line)
            .map_err(|e| e.to_string())?;
        if line.starts_with("Attached to") {
            Ok(attacher)
        } else {
            Err(line.trim().to_owned())
        }
    }

    /// Returns the processor time of all threads of the attacher so far, in nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        cpu_ns(self.child.id())
    }

    /// Asks the attacher to detach, and returns the final report.
    pub fn detach(self) -> Result<Report, String> {
        // SAFETY: kill takes plain integers; the child has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
        self.last_report()
    }

    /// Waits until the attacher exits, which it does when the target has ended, and returns the
    /// final report.
    pub fn last_report(mut self) -> Result<Report, String> {
        let mut output = String::new();
        if let Some(mut pipe) = self.child.stdout.take() {
            pipe.read_to_string(&mut output)
                .map_err(|e| e.to_string())?;
        }
        let mut errors = String::new();
        self.errors
            .read_to_string(&mut errors)
            .map_err(|e| e.to_string())?;
        let status = self.child.wait().map_err(|e| e.to_string())?;
        if !status.success() {
            return Err(format!("memhook-rs ended with {status}: {}", errors.trim()));
        }
        let last = output.lines().last().unwrap_or_default();
        let value = serde_json::from_str(last).map_err(|e| format!("the report: {e}"))?;
        Ok(Report(value))
    }
}

impl Drop for Attacher {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Returns the processor time of the existing threads of a process, in nanoseconds: the sum of the
/// first number of each /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst in
/// the kernel's sources).
pub fn cpu_ns(pid: u32) -> u64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .sum()
}
