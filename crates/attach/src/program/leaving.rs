//! Leaves a program that memhook-rs started, before the program ends.
//!
//! The launcher is the tracer of every thread, and could release a thread only by stopping it first, which some system
//! calls do not survive unnoticed (signal(7)). When the tracing thread *ends*, the kernel releases all tracees without
//! stopping any (kernel/ptrace.c, exit_ptrace). So the launcher runs on a separate thread. After that thread has ended,
//! we detach from the process as we do after an attach.

use super::started::Started;
use crate::error::Error;
use memhook_process::{thread_ids, tracer};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Longest wait for the kernel to release every thread, which it does at the very end of the tracer's exit.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two checks for tracers.
const PAUSE: Duration = Duration::from_micros(200);

/// Result of a started program.
pub enum Outcome {
    /// The program has ended with this wait status.
    Ended(i32),
    /// The program still runs and must be left.
    TimeIsUp(Left),
}

/// Processes that still run.
pub struct Left {
    first: i32,
    running: HashMap<i32, Started>,
    ended: Vec<Started>,
}

impl Left {
    pub(crate) fn new(first: i32, running: HashMap<i32, Started>, ended: Vec<Started>) -> Left {
        Left {
            first,
            running,
            ended,
        }
    }

    /// Detaches from all processes after their tracer has ended, and waits until their jobs are done.
    fn detach(self) {
        for (pid, started) in &self.running {
            await_freedom(*pid);
            started.leave();
        }
        for started in self.running.into_values().chain(self.ended) {
            started.join();
        }
    }
}

/// Runs a launcher, [`Program::start`](crate::Program::start) and the work after it, on a separate thread. If the
/// program outlives that thread, detaches from the program and waits for its end. Returns its wait status.
pub fn leaving<E: From<Error> + Send>(
    launcher: impl FnOnce() -> Result<Outcome, E> + Send,
) -> Result<i32, E> {
    let outcome = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("launcher".into());
        let thread = thread
            .spawn_scoped(scope, launcher)
            .map_err(Error::Thread)?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    match outcome {
        Outcome::Ended(status) => Ok(status),
        Outcome::TimeIsUp(left) => {
            let pid = left.first;
            left.detach();
            memhook_inject::wait_for_program(pid).map_err(|_| Error::EndMissed { pid }.into())
        }
    }
}

/// Waits until no thread of a process has a tracer: a thread can be joined before the kernel has completed its exit.
fn await_freedom(pid: i32) {
    let begin = Instant::now();
    let is_traced = || {
        let threads = thread_ids(pid).unwrap_or_default();
        threads.iter().any(|&tid| tracer(pid, tid) != 0)
    };
    while is_traced() && begin.elapsed() < PATIENCE {
        std::thread::sleep(PAUSE);
    }
}
