//! What a child does while it runs, and how it ends.

use std::io;
use std::time::{Duration, Instant};

use super::Child;
use crate::procfs::{self, Activity};
use crate::restart::{self, Sleep};
use crate::{Error, Registers, ptrace, regs};

/// Events of `<linux/ptrace.h>`, in bits 16 and up of the wait status.
const EVENT_CLONE: i32 = 3;
const EVENT_EXEC: i32 = 4;
const EVENT_EXIT: i32 = 6;
const EVENT_STOP: i32 = 128;

/// How long threads that were told to end may take until they are looked at more closely.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// A thread in uninterruptible sleep ends later than this; its registers are done without.
const ENDING_LIMIT: Duration = Duration::from_secs(5);

/// A wait status, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// The thread (or, of the leader, the process) has ended.
    Ended(i32),
    /// A new program runs.
    Executed,
    /// The thread stands at its end, with memory and registers.
    AtEnd,
    /// It has started another thread.
    Cloned,
    /// Event stop: a new thread's first, an interrupt (SIGTRAP), or a group-stop.
    Stop(i32),
    /// Entry or exit of a system call.
    Syscall,
    /// A signal is to be delivered.
    Signal(i32),
}

/// What happened to a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It executes another program now, which is stopped before its first instruction: see
    /// [`Child::run_to_start`].
    Executed,
    /// Its last instruction is done: every thread stands still ([`Child::ending_threads`]) until
    /// [`Child::let_end`]. Holds the wait status that will come (waitpid(2)).
    Ending(i32),
    /// It has ended, with this wait status.
    Ended(i32),
}

/// A thread of an ending process.
pub struct EndingThread {
    /// Kernel thread id.
    pub tid: i32,
    /// General registers as the program left them.
    pub registers: Registers,
    /// The extended state (vector registers).
    pub extended: Vec<u8>,
}

/// Blocks until one of our threads' tracees (`of`: a thread id, or -1 for any) has something to say.
pub(super) fn wait(of: i32) -> io::Result<(i32, Status)> {
    loop {
        if let Some(found) = look(of, 0)? {
            return Ok(found);
        }
    }
}

fn look(of: i32, flags: i32) -> io::Result<Option<(i32, Status)>> {
    let mut status = 0;
    // Only of this thread: other parts of this process may have children of their own.
    let flags = flags | libc::__WALL | libc::__WNOTHREAD;
    // SAFETY: waitpid writes one int.
    let tid = unsafe { libc::waitpid(of, &raw mut status, flags) };
    #[cfg(test)]
    if tid > 0 {
        crate::steps::done();
    }
    match tid {
        -1 => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EINTR) => Ok(None),
            error => Err(error),
        },
        0 => Ok(None),
        tid => Ok(Some((tid, decode(status)))),
    }
}

fn decode(status: i32) -> Status {
    if !libc::WIFSTOPPED(status) {
        return Status::Ended(status);
    }
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        EVENT_EXEC => Status::Executed,
        EVENT_EXIT => Status::AtEnd,
        EVENT_CLONE => Status::Cloned,
        EVENT_STOP => Status::Stop(signal),
        // PTRACE_O_TRACESYSGOOD
        _ if signal == libc::SIGTRAP | 0x80 => Status::Syscall,
        _ => Status::Signal(signal),
    }
}

impl Child {
    /// Lets the program run from its start point.
    pub fn set_off(&mut self) -> Result<(), Error> {
        let pid = self.pid;
        let failed = |request| move |source| Error::ptrace(pid, pid, request, source);
        ptrace::follow_threads(pid).map_err(failed("SETOPTIONS"))?;
        ptrace::resume(pid, 0).map_err(failed("CONT"))
    }

    /// Waits for the next event; stops that are none are answered on the way.
    pub fn next_event(&mut self) -> Result<Event, Error> {
        let pid = self.pid;
        if let Some(status) = self.ended {
            return Ok(Event::Ended(status));
        }
        loop {
            let waited = wait(-1).map_err(|source| Error::ptrace(pid, pid, "WAIT", source));
            let (tid, status) = waited?;
            if let Some(event) = self.take(tid, status)? {
                return Ok(event);
            }
        }
    }

    /// Answers one stop.
    fn take(&mut self, tid: i32, status: Status) -> Result<Option<Event>, Error> {
        let is_known = self.threads.contains(&tid);
        match status {
            Status::Ended(status) if tid == self.pid => {
                super::forward::stop_forwarding();
                self.threads.clear();
                self.ended = Some(status);
                return Ok(Some(Event::Ended(status)));
            }
            Status::Ended(_) => drop(self.threads.remove(&tid)),
            Status::Executed => {
                // Whichever thread called it has the leader's id now, and is the only one.
                self.threads = [self.pid].into();
                self.ending.clear();
                return Ok(Some(Event::Executed));
            }
            // A process that was cloned without SIGCHLD counts as a thread for PTRACE_O_TRACECLONE.
            _ if !is_known && procfs::state(self.pid, tid).is_none() => drop(ptrace::detach(tid)),
            Status::AtEnd => return self.thread_ends(tid),
            Status::Cloned | Status::Syscall | Status::Stop(libc::SIGTRAP) => {
                self.threads.insert(tid);
                let _ = ptrace::resume(tid, 0);
            }
            // Stopped by job control: it stays so until SIGCONT.
            Status::Stop(signal) => {
                self.threads.insert(tid);
                let _ = ptrace::listen(tid);
                if tid == self.pid {
                    super::forward::stop_too(signal);
                }
            }
            Status::Signal(signal) => {
                // A signal that is ignored would not have woken an untraced thread (kernel/signal.c,
                // sig_ignored): the kernel makes the call again unless a handler is to run.
                if let Ok(now) = regs::read(tid)
                    && restart::must_be_repeated(&now)
                {
                    let again = restart::repeat(&now, &Sleep::default(), Duration::ZERO);
                    let _ = regs::write(tid, &again);
                }
                let _ = ptrace::resume(tid, signal);
            }
        }
        Ok(None)
    }

    fn thread_ends(&mut self, tid: i32) -> Result<Option<Event>, Error> {
        let Ok(registers) = regs::read(tid) else {
            self.threads.remove(&tid);
            return Ok(None);
        };
        let others_live = self.threads.iter().any(|&t| t != tid);
        if registers.orig_rax as i64 == libc::SYS_exit && others_live {
            self.threads.remove(&tid);
            let _ = ptrace::resume(tid, 0);
            return Ok(None);
        }
        // exit_group, a fatal signal, or the last thread's exit: the process ends.
        let status = ptrace::event_message(tid).unwrap_or(0) as i32;
        self.add_ending(tid, registers);
        if self.wait_for_the_others()? {
            return Ok(Some(Event::Ending(status)));
        }
        Ok(None)
    }

    fn add_ending(&mut self, tid: i32, registers: Registers) {
        self.ending.push(EndingThread {
            tid,
            registers,
            extended: regs::read_extended(tid).unwrap_or_default(),
        });
    }

    /// Waits until every thread stands at its end; false if it was only an execve, which ends the
    /// other threads of its process.
    fn wait_for_the_others(&mut self) -> Result<bool, Error> {
        let begin = Instant::now();
        let mut next_look = begin + LOOK_PAUSE;
        loop {
            let is_there = |tid: i32| self.ending.iter().any(|t| t.tid == tid);
            let missing: Vec<i32> = self
                .threads
                .iter()
                .copied()
                .filter(|&tid| !is_there(tid))
                .collect();
            if missing.is_empty() || begin.elapsed() > ENDING_LIMIT {
                return Ok(true);
            }
            let pid = self.pid;
            let found = look(-1, libc::WNOHANG);
            match found.map_err(|source| Error::ptrace(pid, pid, "WAIT", source))? {
                Some((tid, Status::AtEnd)) => match regs::read(tid) {
                    Ok(registers) => self.add_ending(tid, registers),
                    Err(_) => drop(self.threads.remove(&tid)),
                },
                Some((tid, status)) => drop(self.take(tid, status)?),
                None => std::thread::sleep(Duration::from_micros(50)),
            }
            if Instant::now() < next_look {
                continue;
            }
            next_look = Instant::now() + LOOK_PAUSE;
            for tid in missing {
                match procfs::state(pid, tid) {
                    None | Some('Z' | 'X') => drop(self.threads.remove(&tid)),
                    Some(_) if is_executing(pid, tid) => {
                        for ended in std::mem::take(&mut self.ending) {
                            self.threads.remove(&ended.tid);
                            let _ = ptrace::resume(ended.tid, 0);
                        }
                        return Ok(false);
                    }
                    Some(_) => {}
                }
            }
        }
    }

    /// The threads of a process at its end; empty before.
    pub fn ending_threads(&self) -> &[EndingThread] {
        &self.ending
    }

    /// Lets a process at its end go on to it; [`Event::Ended`] follows.
    pub fn let_end(&mut self) {
        for thread in std::mem::take(&mut self.ending) {
            let _ = ptrace::resume(thread.tid, 0);
        }
    }
}

fn is_executing(pid: i32, tid: i32) -> bool {
    let calls = [libc::SYS_execve, libc::SYS_execveat];
    matches!(procfs::activity(pid, tid), Activity::Blocked(nr) if calls.contains(&nr))
}
