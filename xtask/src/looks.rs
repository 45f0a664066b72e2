//! Commands that a storm runs on a target, and their results.

use crate::{
    disturbance::one_in,
    kinds::Kind,
    tally::{Class, Failure, failed},
};
use clap::ValueEnum;
use fastrand::Rng;
use memhook_process::{SchedulingFile, thread_state};
use memhook_tests::{binary, patience::is_for_want_of_a_processor};
use std::{
    io::Read,
    os::unix::process::ExitStatusExt,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// Time after which a command counts as hung, unless it gets hardly any processor time.
const LIMIT: Duration = Duration::from_secs(180);
/// Divisor of the elapsed time. A thread that waits for a processor is starved if it ran for less than 1/n of that
/// time.
const STARVED: u32 = 20;
/// Factor of the time limit for a starved command.
const PATIENCE: u32 = 5;
/// Bytes that fit into a pipe (pipe(7)), minus a margin.
const PIPE_BYTES: usize = 60 << 10;

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Look {
    /// Trace every allocation
    Attach,
    /// Search for untouched blocks, with as many watchpoints and marks as possible
    Stale,
    /// Trace allocations, and sample accesses to their blocks
    Access,
    /// Trace child processes from their start
    Follow,
    /// Search for unreachable blocks
    Scan,
    /// Release unreachable blocks
    Reclaim,
}

impl Look {
    /// Chooses a random command that suits this kind of target.
    pub fn choose(kind: Kind, random: &mut Rng) -> Look {
        if kind.loses_blocks() && one_in(2, random) {
            return Look::Reclaim;
        }
        match random.u64(..10) {
            0 => Look::Stale,
            1 => Look::Access,
            2 => Look::Follow,
            3 => Look::Scan,
            4 => Look::Reclaim,
            _ => Look::Attach,
        }
    }

    fn command(self) -> &'static [&'static str] {
        match self {
            Look::Attach => &["attach", "-i", "1h"],
            Look::Follow => &["attach", "-i", "1h", "--follow-fork"],
            Look::Stale => &["stale", "--older", "5ms", "--budget", "50%"],
            Look::Access => &["attach", "-i", "1h", "--scores", "--access", "sampled=50%"],
            Look::Scan => &["scan"],
            Look::Reclaim => &["scan", "--reclaim", "--yes"],
        }
    }

    /// Returns true if the command traces, and reports its result when it ends.
    pub fn traces(self) -> bool {
        !matches!(self, Look::Scan | Look::Reclaim)
    }

    /// Starts the command for a target of this kind.
    pub fn start(self, kind: Kind, pid: u32, random: &mut Rng) -> Child {
        let mut command = Command::new(binary());
        command.args(self.command()).args(["--json", "-T", "3"]);
        if self.traces() {
            let time = format!("{}ms", 1 + random.u64(..40));
            command.args(["-d", &time]);
            // With `-q`, the command does not report which processes it traces, or why it traces none.
            if self != Look::Follow {
                command.arg("-q");
            }
        } else {
            let methods = kind.snapshots();
            let method = methods[random.usize(..methods.len())];
            command.args(["--snapshot", method]);
        }
        if self == Look::Reclaim {
            command.args(["--twice", "20ms"]);
        }
        command
            .arg(pid.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("memhook-rs starts")
    }
}

/// Result of a command.
pub struct Outcome {
    pub code: Option<i32>,
    pub output: String,
    pub errors: String,
}

impl Outcome {
    /// Waits until a command exits.
    pub fn of(mut child: Child) -> Result<Outcome, Failure> {
        // The output must fit into the pipe's buffer, because it is not read before the end.
        let status = end_of(&mut child).map_err(|what| Failure(Class::Attacher, what))?;
        let (mut output, mut errors) = (String::new(), String::new());
        if let Some(mut pipe) = child.stdout.take() {
            let _ = pipe.read_to_string(&mut output);
        }
        if let Some(mut pipe) = child.stderr.take() {
            let _ = pipe.read_to_string(&mut errors);
        }
        debug_assert!(output.len() < PIPE_BYTES, "it waited for us");
        if status
            .signal()
            .is_some_and(|signal| signal != libc::SIGKILL)
        {
            return failed(Class::Attacher, format!("crashed: {status}: {errors}"));
        }
        if errors.contains("panicked") {
            return failed(Class::Attacher, format!("{status}: {errors}"));
        }
        Ok(Outcome {
            code: status.code(),
            output,
            errors: errors.trim_end().to_owned(),
        })
    }

    /// For a target that ends by itself, checks that a refusal says that the process has ended, instead of naming
    /// something that was missing because of that.
    pub fn says_that_it_ended(&self) -> Result<(), Failure> {
        let says_so = ENDED.iter().any(|words| self.errors.contains(words));
        if self.code == Some(2) && !says_so && !is_for_want_of_a_processor(&self.errors) {
            return failed(Class::Attacher, format!("refused for: {}", self.errors));
        }
        Ok(())
    }

    /// Checks that the command printed one line if the target does not exist or is not accessible, and a report if the
    /// target ended during the trace.
    pub fn is_refused_or_reported(&self, look: Look) -> Result<(), Failure> {
        match self.code {
            // A refusal without a reason is not accepted.
            Some(2) if self.errors == "memhook-rs: no process was traced" => {
                failed(Class::Attacher, &*self.errors)
            }
            // The exit code is 2 if accesses were requested for a process that had already ended.
            Some(0 | 2) if self.output.contains("\"final\":true") => Ok(()),
            Some(0 | 3) if !look.traces() && self.output.starts_with('{') => Ok(()),
            Some(2) if self.errors.lines().count() == 1 || look == Look::Follow => Ok(()),
            code => {
                let begin: String = self.output.chars().take(200).collect();
                let what = format!("exit code {code:?}: {}: {begin}", self.errors);
                failed(Class::Attacher, what)
            }
        }
    }
}

/// Texts in refusals of a process that has ended, is about to end, or executes another program.
const ENDED: [&str; 12] = [
    "is gone",
    "was killed",
    "ended",
    "no process",
    "No such process",
    "zombie",
    "is ending",
    "another program",
    // A thread may be inside malloc when the process ends.
    "stayed inside malloc",
    // The process has just started.
    "still being loaded",
    "has no glibc",
    "has no heap yet",
];

/// Waits for a command. If the command hangs, kills it and returns an error that describes its threads.
pub fn end_of(child: &mut Child) -> Result<ExitStatus, String> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => {}
            Err(error) => return Err(error.to_string()),
        }
        let elapsed = start.elapsed();
        if elapsed > LIMIT * PATIENCE || (elapsed > LIMIT && !is_starved(child.id(), elapsed)) {
            let waits = waits_of(child.id());
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("it hung for {elapsed:?}: {waits}"));
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Returns true if the first thread of a process is starved after this elapsed time.
fn is_starved(pid: u32, elapsed: Duration) -> bool {
    let pid = pid as i32;
    let figures = SchedulingFile::of(pid, pid).and_then(|file| file.read());
    let figures = figures.and_then(|figures| figures.ran().zip(figures.waited()));
    let waits_now = thread_state(pid, pid) == Some('R');
    figures.is_some_and(|(ran, waited)| gets_next_to_nothing(ran, waited, waits_now, elapsed))
}

/// Returns true if a thread has waited for a processor most of the time. The kernel counts a wait only when the wait
/// ends, so a thread that is waiting now is judged by its run time.
fn gets_next_to_nothing(ran: Duration, waited: Duration, waits_now: bool, all: Duration) -> bool {
    waited * 2 > all || (waits_now && ran * STARVED < all)
}

/// Describes each thread of a hanging process: its name, state, system call with arguments, and the kernel function in
/// which it waits.
pub fn waits_of(pid: u32) -> String {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let mut waits = String::new();
    for thread in threads.into_iter().flatten().flatten() {
        let read = |name: &str| {
            let text = std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            text.trim_end().replace('\n', " < ")
        };
        let stat = read("stat");
        let state = stat.rsplit(") ").next().and_then(|rest| rest.get(..1));
        waits += &format!(
            "\n    {} ({}) {}: {}; in {}; {}",
            thread.file_name().to_string_lossy(),
            read("comm"),
            state.unwrap_or("?"),
            read("syscall"),
            read("wchan"),
            read("stack"),
        );
    }
    waits
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command may be examined while it sleeps briefly between two waits for a processor.
    #[test]
    fn a_starved_command_does_not_hang() {
        let is_starved = |ran, waited, waits_now| {
            let [ran, waited] = [ran, waited].map(Duration::from_secs);
            gets_next_to_nothing(ran, waited, waits_now, LIMIT)
        };
        assert!(is_starved(3, 120, false));
        assert!(is_starved(3, 0, true));
        assert!(!is_starved(3, 10, false));
        assert!(!is_starved(90, 80, true));
    }
}
