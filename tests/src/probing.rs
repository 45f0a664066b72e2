//! A running `probe`, and its output.

use crate::{Target, binary, patience};
use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStderr, Command, Stdio};

/// A running `memhook-rs probe`; dropping it kills the process.
pub struct Prober {
    child: Child,
    errors: BufReader<ChildStderr>,
}

impl Prober {
    /// Probes functions of a target with JSON output; returns when the probes are in place.
    pub fn start(target: &Target, functions: &str, options: &[&str]) -> Prober {
        Prober::of(target.pid(), functions, options)
    }

    /// Probes functions of any process with JSON output; returns when the probes are in place.
    pub fn of(pid: u32, functions: &str, options: &[&str]) -> Prober {
        for tries in 1.. {
            let mut prober = Prober::spawn(pid, functions, options);
            let line = patience::line(&mut prober.errors);
            if line.starts_with("Probing") {
                return prober;
            }
            let may_be_tried_again = patience::is_for_want_of_a_processor(&line);
            assert!(may_be_tried_again && tries < patience::TRIES, "{line}");
        }
        unreachable!("the last one probes, or the test has failed")
    }

    /// Probes functions of any process with JSON output; returns immediately.
    pub fn spawn(pid: u32, functions: &str, options: &[&str]) -> Prober {
        let has_format = options.iter().any(|o| ["-f", "--format"].contains(o));
        let mut child = Command::new(binary())
            .args(["probe", &pid.to_string(), "--func", functions])
            .args((!has_format).then_some("--json"))
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("memhook-rs starts");
        let errors = BufReader::new(child.stderr.take().expect("piped"));
        Prober { child, errors }
    }

    /// Asks `probe` to detach, and returns the report.
    pub fn finish(self) -> serde_json::Value {
        // SAFETY: kill takes plain integers; the child has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
        self.report()
    }

    /// Waits for the end of `probe`, and returns the report.
    pub fn report(self) -> serde_json::Value {
        let output = self.output();
        let last = output.lines().last().expect("a report");
        serde_json::from_str(last).expect("JSON")
    }

    /// Asks `probe` to detach, and returns the output.
    pub fn finish_text(self) -> String {
        // SAFETY: kill takes plain integers; the child has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
        self.output()
    }

    fn output(mut self) -> String {
        let mut output = String::new();
        let mut pipe = self.child.stdout.take().expect("piped");
        pipe.read_to_string(&mut output).expect("readable");
        let mut errors = String::new();
        self.errors.read_to_string(&mut errors).expect("readable");
        let status = patience::end_of(&mut self.child);
        assert!(status.success(), "{status}: {errors}");
        output
    }

    /// Kills `probe`, so that it cannot clean up.
    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the number of calls by function.
pub fn calls(report: &serde_json::Value) -> BTreeMap<String, u64> {
    let rows = report["probes"].as_array().expect("rows");
    let row = |row: &serde_json::Value| {
        let name = row["function"].as_str().expect("a name").to_owned();
        (name, row["calls"].as_u64().expect("a number"))
    };
    rows.iter().map(row).collect()
}

/// Returns the locations at which the code of a process differs from its files. Fails if a mapping
/// of memhook-rs remains.
pub fn changed_code(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("the target lives");
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("may be read");
    let mut found = Vec::new();
    for line in maps.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if line.contains("memhook") {
            found.push(line.to_owned());
        }
        let [range, flags, offset, _, _, path] = fields[..] else {
            continue;
        };
        if !flags.contains('x') || !path.starts_with('/') || path.starts_with("/memfd") {
            continue;
        }
        let (start, end) = range.split_once('-').expect("a range");
        let number = |text| u64::from_str_radix(text, 16).expect("a number");
        let (start, end) = (number(start), number(end));
        let file = std::fs::read(path).expect("readable");
        let offset = number(offset) as usize;
        let expected = &file[offset..file.len().min(offset + (end - start) as usize)];
        let mut now = vec![0; expected.len()];
        memory.read_exact_at(&mut now, start).expect("readable");
        let differs = now.iter().zip(expected).position(|(now, then)| now != then);
        found.extend(differs.map(|at| format!("{path}: {:#x}", offset + at)));
    }
    found
}
