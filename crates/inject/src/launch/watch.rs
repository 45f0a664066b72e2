//! Events of traced processes while they run and when they exit.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use super::Child;
use super::alarm::Alarm;
use crate::restart;
use crate::survey::Survey;
use crate::{Error, Registers, ptrace, regs};
use memhook_process::{Activity, process_of, thread_state};

/// Time after which threads that were told to exit are examined more closely.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// Maximum wait for the missing threads of an exiting process. Only uninterruptible sleep takes longer, and the
/// registers of such a thread stay unknown.
const ENDING_LIMIT: Duration = Duration::from_secs(5);

/// Decoded wait status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// The thread has ended or, if the thread is the leader, the process has ended.
    Ended(i32),
    /// A new program runs.
    Executed,
    /// The thread has stopped at its exit (PTRACE_EVENT_EXIT), so its memory and registers still exist.
    AtEnd,
    /// The thread has started another thread or process.
    Cloned,
    /// Event stop: the first stop of a new thread, an interrupt (SIGTRAP), or a group-stop.
    Stop(i32),
    /// Entry or exit of a system call.
    Syscall,
    /// A signal waits for delivery.
    Signal(i32),
}

/// Event of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Another traced process has forked this process, which is running. Reported only if forks are followed.
    Forked,
    /// The process now executes another program, which is stopped before its first instruction, as for
    /// [`Child::run_to_start`].
    Executed,
    /// The process has executed its last instruction. Every thread is stopped ([`Child::ending_threads`]) until
    /// [`Child::let_end`]. The value is the future wait status (waitpid(2)).
    Ending(i32),
    /// The process has ended, with this wait status.
    Ended(i32),
}

/// Thread of an ending process.
pub struct EndingThread {
    /// Kernel thread id.
    pub tid: i32,
    /// General registers as the program left them.
    pub registers: Registers,
    /// The extended state (vector registers).
    pub extended: Vec<u8>,
}

/// Traced process.
pub(super) struct Process {
    /// Threads that are seized and have not ended.
    pub threads: BTreeSet<i32>,
    /// Threads that are stopped at their end.
    ending: Vec<EndingThread>,
    /// Set once it is ending.
    end: Option<End>,
    /// Survey made at the start point, for each hold there.
    pub survey: Option<Survey>,
    /// Offset from the thread pointer at which threads of a static program store their ids.
    pub thread_number_at: Option<u32>,
}

struct End {
    begun: Instant,
    next_look: Instant,
    /// The future wait status of the process.
    status: i32,
    /// True if [`Event::Ending`] was reported.
    is_told: bool,
}

impl Process {
    pub fn new(pid: i32) -> Process {
        Process {
            threads: [pid].into(),
            ending: Vec::new(),
            end: None,
            survey: None,
            thread_number_at: None,
        }
    }

    fn add_ending(&mut self, tid: i32, registers: Registers) {
        self.ending.push(EndingThread {
            tid,
            registers,
            extended: regs::read_extended(tid).unwrap_or_default(),
        });
    }

    /// Returns the threads that have not reached their end.
    fn missing(&self) -> Vec<i32> {
        let is_there = |tid: i32| self.ending.iter().any(|t| t.tid == tid);
        self.threads
            .iter()
            .copied()
            .filter(|&tid| !is_there(tid))
            .collect()
    }

    /// Returns the wait status once all threads are stopped at their exit. Threads that take too long or have
    /// disappeared without a report are ignored.
    fn comes_to_its_end(&mut self, pid: i32) -> Option<i32> {
        let missing = self.missing();
        let end = self.end.as_mut().filter(|end| !end.is_told)?;
        let now = Instant::now();
        if missing.is_empty() || now - end.begun > ENDING_LIMIT {
            end.is_told = true;
            return Some(end.status);
        }
        if now < end.next_look {
            return None;
        }
        end.next_look = now + LOOK_PAUSE;
        for tid in missing {
            match thread_state(pid, tid) {
                None | Some('Z' | 'X') => drop(self.threads.remove(&tid)),
                // This is only an execve, which ends the other threads of its process.
                Some(_) if is_executing(pid, tid) => {
                    for ended in std::mem::take(&mut self.ending) {
                        self.threads.remove(&ended.tid);
                        let _ = ptrace::resume(ended.tid, 0);
                    }
                    self.end = None;
                    return None;
                }
                Some(_) => {}
            }
        }
        None
    }
}

/// Blocks until a tracee of this thread has something to report (`of`: a thread id, or -1 for any).
pub(super) fn wait(of: i32) -> io::Result<(i32, Status)> {
    loop {
        if let Some(found) = look(of, 0)? {
            return Ok(found);
        }
    }
}

fn look(of: i32, flags: i32) -> io::Result<Option<(i32, Status)>> {
    let mut status = 0;
    // Other parts of this process may have their own children, so this waits only for the children of this thread.
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
        libc::PTRACE_EVENT_EXEC => Status::Executed,
        libc::PTRACE_EVENT_EXIT => Status::AtEnd,
        libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
            Status::Cloned
        }
        libc::PTRACE_EVENT_STOP => Status::Stop(signal),
        // PTRACE_O_TRACESYSGOOD
        _ if signal == libc::SIGTRAP | 0x80 => Status::Syscall,
        _ => Status::Signal(signal),
    }
}

impl Child {
    /// Lets a process run from its start point.
    pub fn set_off(&mut self, pid: i32) -> Result<(), Error> {
        let failed = |request| move |cause| Error::ptrace(pid, pid, request, cause);
        ptrace::follow_threads(pid, self.follows_forks).map_err(failed("SETOPTIONS"))?;
        ptrace::resume(pid, 0).map_err(failed("CONT"))
    }

    /// Waits for the next event, until `deadline` if there is one. Handles other stops meanwhile.
    pub fn next_event(&mut self, deadline: Option<Instant>) -> Result<Option<(i32, Event)>, Error> {
        if let Some(known) = self.known.pop_front() {
            return Ok(Some(known));
        }
        self.set_alarm(deadline)?;
        loop {
            let ending = |p: &Process| p.end.as_ref().is_some_and(|end| !end.is_told);
            let is_waiting = self.processes.values().any(ending);
            let flags = if is_waiting { libc::WNOHANG } else { 0 };
            let found = match look(-1, flags) {
                // Another part of the process has collected the children.
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                    self.processes.clear();
                    return Ok(None);
                }
                found => found.map_err(|e| Error::ptrace(self.pid, self.pid, "WAIT", e))?,
            };
            match found {
                Some((tid, status)) => {
                    if let Some(event) = self.take(tid, status) {
                        return Ok(Some(event));
                    }
                }
                None if is_waiting => std::thread::sleep(Duration::from_micros(50)),
                None => {}
            }
            for (&pid, process) in &mut self.processes {
                if let Some(status) = process.comes_to_its_end(pid) {
                    return Ok(Some((pid, Event::Ending(status))));
                }
            }
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                return Ok(None);
            }
        }
    }

    fn set_alarm(&mut self, deadline: Option<Instant>) -> Result<(), Error> {
        if self.alarm.as_ref().map(|alarm| alarm.at) == deadline {
            return Ok(());
        }
        self.alarm = match deadline {
            Some(at) => {
                let failed = |e: nix::Error| Error::ptrace(self.pid, self.pid, "WAIT", e.into());
                Some(Alarm::at(at).map_err(failed)?)
            }
            None => None,
        };
        Ok(())
    }

    /// Answers one stop.
    fn take(&mut self, tid: i32, status: Status) -> Option<(i32, Event)> {
        let of_thread = self
            .processes
            .iter()
            .find(|(_, p)| p.threads.contains(&tid));
        let known = of_thread.map(|(&pid, _)| pid);
        if let Status::Ended(status) = status {
            if self.processes.remove(&tid).is_some() {
                if tid == self.pid {
                    super::forward::stop_forwarding();
                }
                return Some((tid, Event::Ended(status)));
            }
            let process = known.and_then(|pid| self.processes.get_mut(&pid))?;
            process.threads.remove(&tid);
            return None;
        }
        if status == Status::Executed {
            // The thread that called execve now has the leader's id, and no other thread remains.
            self.processes.insert(tid, Process::new(tid));
            return Some((tid, Event::Executed));
        }
        let Some(pid) = known.or_else(|| process_of(tid)) else {
            let _ = ptrace::detach(tid);
            return None;
        };
        let mut event = None;
        if !self.processes.contains_key(&pid) {
            // For PTRACE_O_TRACECLONE, a process that was cloned without SIGCHLD counts as a thread.
            if !self.follows_forks {
                let _ = ptrace::detach(tid);
                return None;
            }
            self.processes.insert(pid, Process::new(pid));
            event = Some((pid, Event::Forked));
        }
        if status == Status::Cloned
            && let Ok(new) = ptrace::event_message(tid).map(|id| id as i32)
            && let Some(of) = process_of(new)
            // All events of the process may have been reported before.
            && !matches!(thread_state(of, new), None | Some('Z' | 'X'))
        {
            // The child's own first stop may come after its creator has ended.
            if of == pid {
                self.processes.get_mut(&pid)?.threads.insert(new);
            } else if of == new && self.follows_forks && !self.processes.contains_key(&new) {
                self.processes.insert(new, Process::new(new));
                event = Some((new, Event::Forked));
            }
        }
        let process = self.processes.get_mut(&pid)?;
        process.threads.insert(tid);
        match status {
            Status::AtEnd => thread_ends(process, tid),
            Status::Cloned | Status::Syscall | Status::Stop(libc::SIGTRAP) => {
                let _ = ptrace::resume(tid, 0);
            }
            // Job control has stopped the process, and it stays stopped until SIGCONT.
            Status::Stop(signal) => {
                let _ = ptrace::listen(tid);
                if tid == self.pid {
                    super::forward::stop_too(signal);
                }
            }
            Status::Signal(signal) => {
                // A signal that is ignored would not have woken an untraced thread (kernel/signal.c, sig_ignored). So
                // the kernel repeats the call unless a handler must run.
                restart::repeat_at_once(tid);
                let _ = ptrace::resume(tid, signal);
            }
            Status::Ended(_) | Status::Executed => {}
        }
        event
    }

    /// Returns the threads of a process that is stopped at its exit; empty before that.
    pub fn ending_threads(&self, pid: i32) -> &[EndingThread] {
        self.processes.get(&pid).map_or(&[], |p| &p.ending)
    }

    /// Lets a process that is stopped at its exit end; [`Event::Ended`] follows.
    pub fn let_end(&mut self, pid: i32) {
        let process = self.processes.get_mut(&pid);
        for thread in process.map_or(Vec::new(), |p| std::mem::take(&mut p.ending)) {
            let _ = ptrace::resume(thread.tid, 0);
        }
    }
}

fn thread_ends(process: &mut Process, tid: i32) {
    let Ok(registers) = regs::read(tid) else {
        process.threads.remove(&tid);
        return;
    };
    let others_live = process.threads.iter().any(|&t| t != tid);
    let is_told = process.end.as_ref().is_some_and(|end| end.is_told);
    let is_alone = registers.orig_rax as i64 == libc::SYS_exit && others_live;
    if is_told || is_alone && process.end.is_none() {
        process.threads.remove(&tid);
        let _ = ptrace::resume(tid, 0);
        return;
    }
    // exit_group, a fatal signal, or the last thread's exit: the process ends.
    let now = Instant::now();
    let status = || ptrace::event_message(tid).unwrap_or(0) as i32;
    process.end.get_or_insert_with(|| End {
        begun: now,
        next_look: now + LOOK_PAUSE,
        status: status(),
        is_told: false,
    });
    process.add_ending(tid, registers);
}

fn is_executing(pid: i32, tid: i32) -> bool {
    let calls = [libc::SYS_execve, libc::SYS_execveat];
    matches!(Activity::of(pid, tid), Activity::Blocked(nr) if calls.contains(&nr))
}
