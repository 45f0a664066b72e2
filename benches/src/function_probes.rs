//! Probes at the entry of a function of a program, by several tools: for `--bench probes`.

use crate::targets::Measured;
use crate::uprobe::{Event, Place, file_offset};
use memhook_tests::binary;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A way to count the calls of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionProbe {
    /// `memhook-rs probe`.
    Count,
    /// `memhook-rs probe --latency`.
    Latency,
    /// A user probe of the kernel that counts.
    Uprobe,
}

/// A probe that is in place.
pub enum Placed {
    /// A running `memhook-rs probe`.
    Prober(Child),
    /// Events of the threads.
    Events(Vec<Event>),
}

impl FunctionProbe {
    /// All of them.
    pub const ALL: [FunctionProbe; 3] = [
        FunctionProbe::Count,
        FunctionProbe::Latency,
        FunctionProbe::Uprobe,
    ];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            FunctionProbe::Count => "memhook-rs probe",
            FunctionProbe::Latency => "memhook-rs probe --latency",
            FunctionProbe::Uprobe => "uprobe, counting in the kernel",
        }
    }

    /// Places it; returns how long that took, from the command to the probe.
    pub fn place(
        self,
        target: &Measured,
        function: &'static str,
    ) -> Result<(Placed, Duration), String> {
        let begin = Instant::now();
        let placed = match self {
            FunctionProbe::Count => prober(target.pid(), function, "--count")?,
            FunctionProbe::Latency => prober(target.pid(), function, "--latency")?,
            FunctionProbe::Uprobe => events(target.pid(), function)?,
        };
        Ok((placed, begin.elapsed()))
    }
}

fn prober(pid: u32, function: &str, what: &str) -> Result<Placed, String> {
    let pid = pid.to_string();
    let mut child = Command::new(binary())
        .args(["probe", &pid, "--func", function, what, "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let errors = child.stderr.take().ok_or("no pipe")?;
    let mut line = String::new();
    BufReader::new(errors)
        .read_line(&mut line)
        .map_err(|e| e.to_string())?;
    if line.starts_with("Probing") {
        Ok(Placed::Prober(child))
    } else {
        let _ = (child.kill(), child.wait());
        Err(line)
    }
}

fn events(pid: u32, function: &str) -> Result<Placed, String> {
    let mut events = Vec::new();
    for tid in memhook_process::thread_ids(pid as i32).map_err(|e| e.to_string())? {
        let place = Place {
            file_offset: file_offset(pid as i32, |module| module.is_main, function)?,
            at_return: false,
        };
        let event = Event::open(tid, place, None)?;
        event.enable()?;
        events.push(event);
    }
    Ok(Placed::Events(events))
}

impl Placed {
    /// Takes it out; returns how many calls it has counted.
    pub fn finish(self) -> Result<u64, String> {
        match self {
            Placed::Events(events) => {
                let counts: Result<Vec<u64>, String> = events
                    .iter()
                    .map(|event| event.disable().and_then(|()| event.count()))
                    .collect();
                Ok(counts?.into_iter().sum())
            }
            Placed::Prober(child) => {
                let pid = Pid::from_raw(child.id() as i32);
                kill(pid, Signal::SIGINT).map_err(|e| e.to_string())?;
                let output = child.wait_with_output().map_err(|e| e.to_string())?;
                let last = serde_json::Deserializer::from_slice(&output.stdout)
                    .into_iter::<serde_json::Value>()
                    .last();
                let report = last.ok_or("no report")?.map_err(|e| e.to_string())?;
                let calls = report["probes"][0]["calls"].as_u64();
                calls.ok_or_else(|| format!("no calls in {report}"))
            }
        }
    }
}
