//! One replay: a child process with one allocator.

use crate::Error;
use crate::operations::{Operation, Plan, Sums};
use crate::recorded;
use crate::variants::Variant;
use memhook_recording::Recording;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Program that makes the calls.
const REPLAYER: &[u8] = include_bytes!(env!("MEMHOOK_REPLAYER"));
/// Number of bytes of operations written in one step.
const BATCH_BYTES: usize = 1 << 18;
/// Pause between two checks for the end of the child.
const TURN: Duration = Duration::from_millis(5);

/// Part of each block that a replay writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// First and last page.
    Ends,
    /// All pages.
    All,
}

/// Limits of a replay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub resident_bytes: u64,
    pub time: Duration,
}

/// Measurements of a replay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// Time in the recording, in nanoseconds since the attach, and resident anonymous bytes.
    pub curve: Vec<(u64, u64)>,
    pub calls: u64,
    pub allocator_ns: u64,
    pub page_faults: u64,
    pub failed_calls: u64,
    /// Reason why the replay did not finish, if it did not.
    pub problem: Option<String>,
}

/// The replayer program, in a file without a name.
pub(crate) struct Replayer(File);

impl Replayer {
    pub fn new() -> Result<Replayer, Error> {
        let flags = MFdFlags::MFD_CLOEXEC;
        let memory = memfd_create(c"memhook-replayer", flags);
        let mut file = File::from(memory.map_err(|errno| Error::Start(errno.into()))?);
        file.write_all(REPLAYER).map_err(Error::Start)?;
        Ok(Replayer(file))
    }

    fn start(
        &self,
        variant: &Variant,
        sums: &Sums,
        touch: Touch,
        bounds: Bounds,
    ) -> Result<Child, Error> {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.0.as_raw_fd()));
        command
            .arg(sums.slots.to_string())
            .arg(sums.threads.max(1).to_string())
            .arg(if touch == Touch::All { "1" } else { "0" })
            .arg(bounds.resident_bytes.to_string())
            // The replay must not use the environment of this process.
            .env_clear()
            .envs(variant.settings.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if let Some(library) = &variant.library {
            command.env("LD_PRELOAD", library);
        }
        command.spawn().map_err(Error::Start)
    }

    /// Replays a recording with an allocator. Problems in the child are part of the result.
    pub fn replay(
        &self,
        recording: &Recording,
        sums: &Sums,
        plan: &Plan,
        variant: &Variant,
        touch: Touch,
        bounds: Bounds,
    ) -> Result<Measured, Error> {
        let mut child = self.start(variant, sums, touch, bounds)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = (input, output) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Error::Start(std::io::Error::other("no pipes")));
        };
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| write(recording, plan.clone(), input, &is_over));
            let reading = scope.spawn(|| read(BufReader::new(output)));
            let ended = wait(&mut child, bounds.time);
            is_over.store(true, Ordering::Relaxed);
            let written = writing.join().unwrap_or(Ok(()));
            let lines = reading.join().unwrap_or_default();
            written?;
            let status = ended.map_err(Error::Start)?;
            Ok(lines.measured(variant, status, bounds))
        })
    }
}

/// Waits for the child's end. Returns `None` if it took too long and was killed.
fn wait(child: &mut Child, most: Duration) -> std::io::Result<Option<ExitStatus>> {
    let until = Instant::now() + most;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Some(status)),
            Ok(None) if Instant::now() < until => std::thread::sleep(TURN),
            other => {
                let _ = child.kill();
                let _ = child.wait();
                return other.map(|_| None);
            }
        }
    }
}

/// Writes all calls, for as long as the child reads them.
fn write(
    recording: &Recording,
    plan: Plan,
    mut input: ChildStdin,
    is_over: &AtomicBool,
) -> Result<(), Error> {
    let mut buffer = Vec::with_capacity(BATCH_BYTES);
    let mut flush = |buffer: &mut Vec<u8>| {
        // The child's end will show why it stopped reading.
        if !is_over.load(Ordering::Relaxed) && input.write_all(buffer).is_err() {
            is_over.store(true, Ordering::Relaxed);
        }
        buffer.clear();
    };
    recorded::feed(recording, plan, |operation: Operation| {
        buffer.extend_from_slice(&operation.bytes());
        if buffer.len() >= BATCH_BYTES {
            flush(&mut buffer);
        }
    })?;
    flush(&mut buffer);
    Ok(())
}

/// Output of the child.
#[derive(Default)]
struct Lines {
    library: String,
    curve: Vec<(u64, u64)>,
    end: Option<[u64; 4]>,
    is_too_large: bool,
}

fn read(output: impl BufRead) -> Lines {
    let mut lines = Lines::default();
    for line in output.lines().map_while(Result::ok) {
        if let Some(path) = line.strip_prefix("library ") {
            lines.library = path.to_owned();
            continue;
        }
        let mut words = line.split(' ');
        let kind = words.next();
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        match (kind, numbers.as_slice()) {
            (Some("sample"), &[time, bytes]) => lines.curve.push((time, bytes)),
            (Some("end"), &[calls, ns, faults, failed]) => {
                lines.end = Some([calls, ns, faults, failed]);
            }
            (Some("too-large"), _) => lines.is_too_large = true,
            _ => {}
        }
    }
    lines
}

impl Lines {
    fn measured(self, variant: &Variant, status: Option<ExitStatus>, bounds: Bounds) -> Measured {
        let problem = self.problem(variant, status, bounds);
        let [calls, allocator_ns, page_faults, failed_calls] = self.end.unwrap_or_default();
        Measured {
            curve: self.curve,
            calls,
            allocator_ns,
            page_faults,
            failed_calls,
            problem,
        }
    }

    fn problem(
        &self,
        variant: &Variant,
        status: Option<ExitStatus>,
        bounds: Bounds,
    ) -> Option<String> {
        let Some(status) = status else {
            let most = bounds.time.as_secs_f64();
            return Some(format!("not done after {most:.1} s"));
        };
        if self.is_too_large {
            return Some("ended because it needed more memory than is available".into());
        }
        if let Some(signal) = status.signal() {
            let name = nix::sys::signal::Signal::try_from(signal);
            let name = name.map_or_else(|_| format!("signal {signal}"), |s| s.to_string());
            return Some(format!("the allocator crashed ({name})"));
        }
        if let Some(library) = &variant.library
            && !is_same(library, Path::new(&self.library))
        {
            return Some(match self.library.as_str() {
                "" => "the library cannot be loaded".into(),
                _ => "the library cannot be loaded, or has no malloc".into(),
            });
        }
        if self.end.is_none() || !status.success() {
            return Some(format!("the allocator ended the process ({status})"));
        }
        None
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    real(one).is_some_and(|one| real(other) == Some(one))
}
