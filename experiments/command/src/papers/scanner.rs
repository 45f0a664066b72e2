//! Runs `memhook-rs scan` on a process, once or periodically.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Maximum time between the end of the scanned process and the end of the work.
const GRACE: Duration = Duration::from_millis(300);

/// Machine on which a copy is searched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Search {
    /// This machine searches the copy.
    Here,
    /// Another machine receives and searches the copy. Only the cost of the copy remains here.
    Elsewhere,
}

/// Cost of one scan.
pub struct Scan {
    /// Milliseconds for which all threads of the process were held. Unknown for a copy that is only saved.
    pub held_ms: f64,
    /// Number of copied bytes. Unknown for a copy that is only saved.
    pub copied: f64,
    /// Seconds from the start of the command to its end.
    pub wall_s: f64,
    /// Processor time of memhook-rs in seconds.
    pub cpu_s: f64,
}

/// Returns the processor time of all ended children in seconds.
fn cpu_of_children() -> f64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0.0, |usage| {
        let us = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        us as f64 / 1e6
    })
}

/// Runs one scan with these options. No other child of this process may end during the scan.
pub fn scan(pid: u32, search: Search, options: &[&str]) -> Result<Scan, String> {
    scan_by(Command::new(memhook_tests::binary()), pid, search, options)
}

/// Runs a scan with a reduced scheduling priority, as in the paper.
pub fn scan_behind(pid: u32, search: Search) -> Result<Scan, String> {
    let mut command = Command::new("nice");
    command.arg(memhook_tests::binary());
    scan_by(command, pid, search, &[])
}

fn scan_by(
    mut command: Command,
    pid: u32,
    search: Search,
    options: &[&str],
) -> Result<Scan, String> {
    let copy = std::env::temp_dir().join(format!("memhook-papers-{pid}.snapshot"));
    command.args(["scan", "--json", "-T", "0"]).args(options);
    if search == Search::Elsewhere {
        command.arg("--force").arg("--save").arg(&copy);
    }
    let (begin, cpu) = (Instant::now(), cpu_of_children());
    let output = command
        .arg(pid.to_string())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("memhook-rs: {error}"))?;
    let (wall_s, cpu_s) = (begin.elapsed().as_secs_f64(), cpu_of_children() - cpu);
    let _ = std::fs::remove_file(&copy);
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let figure = |name: &str| report["snapshot"][name].as_f64().unwrap_or(f64::NAN);
    Ok(Scan {
        held_ms: figure("held_ms"),
        copied: figure("copied_bytes"),
        wall_s,
        cpu_s,
    })
}

/// Scans periodically while `work` runs. The period is measured from start to start. Returns the result of the work and
/// the costs of the scans.
pub fn scanning<T>(
    period: Duration,
    mut one: impl FnMut() -> Result<Scan, String> + Send,
    work: impl FnOnce() -> T,
) -> (T, Result<Vec<Scan>, String>) {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let scanner = scope.spawn(|| {
            let mut scans = Vec::new();
            let mut next = Instant::now() + period;
            loop {
                while Instant::now() < next {
                    if ended.load(Relaxed) {
                        return Ok(scans);
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                next += period;
                match one() {
                    Ok(scan) => scans.push(scan),
                    Err(why) => {
                        // The scanned process may have ended together with the work.
                        std::thread::sleep(GRACE);
                        let is_end = ended.load(Relaxed);
                        return if is_end { Ok(scans) } else { Err(why) };
                    }
                }
            }
        });
        let done = work();
        ended.store(true, Relaxed);
        (done, scanner.join().unwrap_or(Err("it panicked".into())))
    })
}

/// A running `memhook-rs scan --reclaim`. Dropping it early kills it.
pub struct Reclaimer(Option<Child>);

impl Reclaimer {
    /// Starts a scan of the process that releases leaked blocks every `seconds` seconds.
    pub fn start(pid: u32, seconds: u64) -> Result<Reclaimer, String> {
        Command::new(memhook_tests::binary())
            .args(["scan", "--reclaim", "--yes", "--json"])
            .args(["--every", &format!("{seconds}s"), &pid.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map(|child| Reclaimer(Some(child)))
            .map_err(|error| format!("memhook-rs: {error}"))
    }

    /// Stops the command. Returns the report of each round, and fails without any.
    pub fn finish(mut self) -> Result<Vec<Value>, String> {
        let child = self.0.take().ok_or("it has ended")?;
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT);
        let output = child
            .wait_with_output()
            .map_err(|error| error.to_string())?;
        let values = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
        let rounds: Vec<Value> = values.map_while(Result::ok).collect();
        match rounds.is_empty() {
            true => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            false => Ok(rounds),
        }
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
