//! Harness for runs of `stale`, their output, and the watched program.

use memhook_inject::Watchpoint;
use memhook_tests::{Target, binary, build_target, patience};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::OnceLock;

/// Number of blocks of each kind that the target creates before it is ready, and again on request;
/// and their size in bytes.
pub(super) const COUNT: u64 = 2000;
pub(super) const BYTES: u64 = 1000;
/// Functions that create the blocks.
pub(super) const KINDS: [&str; 4] = ["cold_block", "written_block", "read_block", "mixed_block"];

pub(super) fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build_target("stale", &["-O1", "-g", "-pthread"]))
}

/// A watching memhook-rs; dropping it kills the process.
pub(super) struct Watching {
    pub(super) child: Child,
    errors: BufReader<ChildStderr>,
}

impl Watching {
    /// Starts the command, and returns when the process is watched.
    pub(super) fn begin(target: &Target, options: &[&str]) -> Watching {
        let mut child = Command::new(binary())
            .args(["stale", &target.pid().to_string(), "-T", "1000"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("memhook-rs starts");
        let mut errors = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        while !line.starts_with("Watching") {
            line.clear();
            let read = errors.read_line(&mut line).expect("readable");
            assert!(read > 0, "it ended and did not watch");
        }
        Watching { child, errors }
    }

    pub(super) fn signal(&self, signal: i32) {
        // SAFETY: kill takes plain integers; the child has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// Waits until the command exits, and returns its output.
    pub(super) fn output(mut self) -> String {
        let mut output = String::new();
        let mut pipe = self.child.stdout.take().expect("piped");
        pipe.read_to_string(&mut output).expect("readable");
        let mut errors = String::new();
        self.errors.read_to_string(&mut errors).expect("readable");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}: {errors}");
        output
    }

    /// Reads reports until one fulfils the condition, then stops the command. Returns the last
    /// report.
    pub(super) fn report_when(mut self, is_shown: impl Fn(&Value) -> bool) -> Value {
        let mut output = BufReader::new(self.child.stdout.take().expect("piped"));
        let mut last = String::new();
        let parsed = |line: &str| serde_json::from_str::<Value>(line).expect("JSON");
        loop {
            let line = patience::line(&mut output);
            assert!(!line.is_empty(), "not shown to the end: {last}");
            last = line;
            if is_shown(&parsed(&last)) {
                break;
            }
        }
        self.signal(libc::SIGINT);
        let mut rest = String::new();
        output.read_to_string(&mut rest).expect("readable");
        let status = patience::end_of(&mut self.child);
        assert!(status.success(), "{status}");
        parsed(rest.lines().last().unwrap_or(&last))
    }

    /// Returns the last report.
    pub(super) fn report(self) -> Value {
        let output = self.output();
        serde_json::from_str(output.lines().last().expect("a report")).expect("JSON")
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the only site with this function as its innermost frame.
pub(super) fn site<'a>(report: &'a Value, function: &str) -> &'a Value {
    let sites = report["sites"].as_array().expect("sites").iter();
    let is_it = |site: &&Value| {
        let name = site["stack"][0]["function"].as_str();
        name.is_some_and(|name| name.starts_with(function))
    };
    let found: Vec<&Value> = sites.filter(is_it).collect();
    assert_eq!(found.len(), 1, "{function}: {report}");
    found[0]
}

/// Returns true if nearly all blocks of a kind are stale according to a report. A report may
/// contain no blocks yet.
pub(super) fn is_stale(report: &Value, kind: &str) -> bool {
    let mut sites = report["sites"].as_array().expect("sites").iter();
    sites.any(|site| {
        let name = site["stack"][0]["function"].as_str().unwrap_or_default();
        name.starts_with(kind) && site["stale_bytes"].as_u64() > Some(COUNT * BYTES * 9 / 10)
    })
}

/// Returns the lower bound, the estimate and the upper bound.
pub(super) fn interval(site: &Value) -> [u64; 3] {
    ["stale_bytes_low", "stale_bytes", "stale_bytes_high"]
        .map(|name| site[name].as_u64().expect("a number"))
}

/// Returns true if the kernel tracks writes to any mapping of the process: `uw` in VmFlags
/// (proc_pid_smaps(5)).
pub(super) fn has_write_protection(target: &Target) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{}/smaps", target.pid())).expect("it lives");
    let mut flags = maps
        .lines()
        .filter_map(|line| line.strip_prefix("VmFlags:"));
    flags.any(|flags| flags.split_whitespace().any(|flag| flag == "uw"))
}

/// Returns true if this machine has hardware watchpoints, and permits their use.
pub(super) fn has_watchpoints(target: &Target) -> bool {
    Watchpoint::reserve(target.pid() as i32, 0, true).is_ok()
}
