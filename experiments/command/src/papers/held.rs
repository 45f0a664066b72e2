//! Stop and copy: stops a process, reads all its writable memory, and continues it. Serves as the baseline for
//! snapshots.

use memhook_process::mappings;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Cost of a stop and copy.
pub struct Stopped {
    /// Time from the signal that stops the process to the signal that continues it.
    pub held_ms: f64,
    /// Bytes that were read.
    pub bytes: f64,
}

/// Buffer for a copy. Its pages are populated before the process is stopped.
pub struct Copier(Vec<u8>);

impl Copier {
    /// Creates a buffer for a process of this size.
    pub fn with_room(bytes: usize) -> Copier {
        Copier(vec![1; bytes])
    }

    /// Stops the process, copies its memory, and lets it continue.
    pub fn copy(&mut self, pid: u32) -> Result<Stopped, String> {
        let say = |error: &dyn std::fmt::Display| error.to_string();
        let memory = File::open(format!("/proc/{pid}/mem")).map_err(|error| say(&error))?;
        let process = Pid::from_raw(pid as i32);
        let begin = Instant::now();
        kill(process, Signal::SIGSTOP).map_err(|error| say(&error))?;
        let copied = self.copy_stopped(pid, &memory);
        let continued = kill(process, Signal::SIGCONT);
        let held_ms = begin.elapsed().as_secs_f64() * 1e3;
        continued.map_err(|error| say(&error))?;
        Ok(Stopped {
            held_ms,
            bytes: copied? as f64,
        })
    }

    fn copy_stopped(&mut self, pid: u32, memory: &File) -> Result<usize, String> {
        let begin = Instant::now();
        while !is_stopped(pid) {
            if begin.elapsed() > Duration::from_secs(1) {
                return Err("it does not stop".into());
            }
            std::thread::yield_now();
        }
        let maps = mappings(pid as i32).map_err(|error| error.to_string())?;
        let mut at = 0;
        for map in maps.iter().filter(|map| map.write) {
            let length = (map.end - map.start) as usize;
            let Some(room) = self.0.get_mut(at..at + length) else {
                return Err(format!("more than {} bytes", self.0.len()));
            };
            // Device memory and pages that were never mapped cannot be read.
            at += memory.read_at(room, map.start).unwrap_or(0);
        }
        Ok(at)
    }
}

/// Returns true if all threads are stopped: `T` after the name (proc_pid_stat(5)).
fn is_stopped(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let mut tasks = tasks.into_iter().flatten().flatten();
    tasks.all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit(')').next().map(str::trim_start);
        state.is_none_or(|state| state.starts_with(['T', 'Z', 'X']))
    })
}
