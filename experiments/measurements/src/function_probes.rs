//! Probes that several tools place at the entry of a function, for `--bench probes`.

use crate::Measured;
use crate::uprobe::{Event, Place, file_offset};
use memhook_tests::binary;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Method of counting the calls of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionProbe {
    /// `memhook-rs probe`.
    Count,
    /// `memhook-rs probe --args 1`: an event for each call, with a count of its argument.
    Arguments,
    /// `memhook-rs probe --args 1 --stack`: an event with a call stack for each call.
    Stack,
    /// `memhook-rs probe --latency`.
    Latency,
    /// A counting user probe of the kernel.
    Uprobe,
}

/// A probe that has been placed.
pub enum Placed {
    /// A running `memhook-rs probe`.
    Prober(Child),
    /// Kernel events, one per thread.
    Events(Vec<Event>),
}

impl FunctionProbe {
    /// All methods.
    pub const ALL: [FunctionProbe; 5] = [
        FunctionProbe::Count,
        FunctionProbe::Arguments,
        FunctionProbe::Stack,
        FunctionProbe::Latency,
        FunctionProbe::Uprobe,
    ];

    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            FunctionProbe::Count => "memhook-rs probe",
            FunctionProbe::Arguments => "memhook-rs probe --args 1",
            FunctionProbe::Stack => "memhook-rs probe --args 1 --stack",
            FunctionProbe::Latency => "memhook-rs probe --latency",
            FunctionProbe::Uprobe => "uprobe, counting in the kernel",
        }
    }

    /// Places the probe. Returns the time that this took.
    pub fn place(
        self,
        target: &Measured,
        function: &'static str,
    ) -> Result<(Placed, Duration), String> {
        self.place_at(target.pid(), function)
    }

    /// Places the probe in the process with this id. Returns the time that this took.
    pub fn place_at(self, pid: u32, function: &'static str) -> Result<(Placed, Duration), String> {
        let begin = Instant::now();
        let placed = match self {
            FunctionProbe::Count => prober(pid, function, &[])?,
            FunctionProbe::Arguments => prober(pid, function, &["--args", "1"])?,
            FunctionProbe::Stack => prober(pid, function, &["--args", "1", "--stack"])?,
            FunctionProbe::Latency => prober(pid, function, &["--latency"])?,
            FunctionProbe::Uprobe => events(pid, function)?,
        };
        Ok((placed, begin.elapsed()))
    }
}

/// Places a probe with `memhook-rs probe` at each matching function, and checks their number. Returns the reported time
/// in milliseconds: in total, and with all threads held.
pub fn place_many(pid: u32, functions: &str, count: usize) -> Result<[f64; 2], String> {
    let Placed::Prober(child) = prober(pid, functions, &[])? else {
        return Err("no prober".into());
    };
    let report = report_of(child)?;
    let placed = report["probes"].as_array().map_or(0, Vec::len);
    if placed != count {
        return Err(format!("{placed} functions were probed, and not {count}"));
    }
    let time = |name: &str| {
        report[name]
            .as_f64()
            .ok_or(format!("no {name} in the report"))
    };
    Ok([time("placed_ms")?, time("held_ms")?])
}

fn prober(pid: u32, function: &str, what: &[&str]) -> Result<Placed, String> {
    let pid = pid.to_string();
    let mut child = Command::new(binary())
        .args(["probe", &pid, "--func", function, "--json"])
        .args(what)
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
    /// Removes the probe. Returns the number of calls that the probe has counted.
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
                let report = report_of(child)?;
                let calls = report["probes"][0]["calls"].as_u64();
                calls.ok_or_else(|| format!("no calls in {report}"))
            }
        }
    }
}

/// Ends a prober, and returns its report.
fn report_of(child: Child) -> Result<serde_json::Value, String> {
    let pid = Pid::from_raw(child.id() as i32);
    kill(pid, Signal::SIGINT).map_err(|e| e.to_string())?;
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    let last = serde_json::Deserializer::from_slice(&output.stdout)
        .into_iter::<serde_json::Value>()
        .last();
    last.ok_or("no report")?.map_err(|e| e.to_string())
}
