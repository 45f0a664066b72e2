//! Starts a program that is traced from its first instruction to its last.
//!
//! A [`Child`] is our own child, and stays seized for its whole life. It can be stopped directly before its
//! constructors ([`Child::run_to_start`]) and directly after its last instruction, when no thread runs any more but the
//! memory still exists ([`Event::Ending`]). In between it runs freely: only signals, new threads and execve stop it,
//! and each stop is answered immediately.

mod alarm;
mod forward;
#[cfg(test)]
mod kill_tests;
mod start_point;
mod static_start;
mod watch;

pub use forward::{end_by, forward_signals, wait_for_program};
pub use start_point::StartPoint;
pub use watch::{EndingThread, Event};

use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;
use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::os::fd::AsRawFd;

use crate::guard::Guard;
use crate::held::Held;
use crate::slept::Sleep;
use crate::survey::Survey;
use crate::timing::Timing;
use crate::{Error, ptrace};
use alarm::Alarm;
use watch::{Process, Status};

/// Exit status of a child that could not execute its program; nothing reads it.
const NOT_EXECUTED: i32 = 127;

/// Program that memhook-rs started, and, if forks are followed, the processes that it forks.
///
/// If this value is dropped before the program ends, or if this process is killed, the program continues untraced.
pub struct Child {
    /// Process that was started.
    pid: i32,
    follows_forks: bool,
    processes: BTreeMap<i32, Process>,
    /// Events that were detected earlier and not yet returned.
    known: VecDeque<(i32, Event)>,
    timing: Timing,
    /// Set while a wait for events has a time limit.
    alarm: Option<Alarm>,
    /// ptrace requests must come from the thread that seized.
    _not_send: PhantomData<*const ()>,
}

/// Starts a program, which is looked up in `PATH` as by execvp(3), and stops it before its first instruction. The
/// program gets our standard streams, terminal, process group and environment.
///
/// If `follow_forks` is true, all its descendants are traced too.
pub fn launch(arguments: &[CString], follow_forks: bool) -> Result<Child, Error> {
    let name = || {
        arguments
            .first()
            .map_or(String::new(), |a| a.to_string_lossy().into_owned())
    };
    let failed = |cause| Error::Start {
        program: name(),
        cause,
    };
    let mut pointers: Vec<*const libc::c_char> = arguments.iter().map(|a| a.as_ptr()).collect();
    pointers.push(std::ptr::null());
    let (go, mut say_go) = io::pipe().map_err(failed)?;
    let (mut errors, report) = io::pipe().map_err(failed)?;
    // SAFETY: the child calls only what `execute` calls; see there.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    if pid == 0 {
        let (go, say_go) = (go.as_raw_fd(), say_go.as_raw_fd());
        execute(go, say_go, report.as_raw_fd(), &pointers);
    }
    drop((go, report));
    let child = Child {
        pid,
        follows_forks: follow_forks,
        processes: BTreeMap::from([(pid, Process::new(pid))]),
        known: VecDeque::new(),
        timing: Timing::USUAL,
        alarm: None,
        _not_send: PhantomData,
    };
    // If seizing is refused, the child finds its pipe closed and exits.
    ptrace::seize(pid).map_err(|cause| Error::Permission { pid, cause })?;
    say_go.write_all(&[1]).map_err(failed)?;
    loop {
        match watch::wait(pid).map_err(failed)? {
            (_, Status::Executed) => return Ok(child),
            (_, Status::Ended(_)) => {
                let mut number = [0; 4];
                let _ = errors.read_exact(&mut number);
                return Err(failed(io::Error::from_raw_os_error(i32::from_le_bytes(
                    number,
                ))));
            }
            (tid, Status::Signal(signal)) => drop(ptrace::resume(tid, signal)),
            (tid, _) => drop(ptrace::resume(tid, 0)),
        }
    }
}

/// Runs in the child: waits until it is seized, then executes the program.
fn execute(go: i32, say_go: i32, report: i32, arguments: &[*const libc::c_char]) -> ! {
    let mut byte = 0u8;
    // SAFETY: these are system calls on memory and descriptors of ours, and execvp, which does not allocate in glibc.
    // SIGPIPE is restored to its default, because the program would inherit that the Rust runtime ignores it.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        // Otherwise the pipe would not end with the launcher.
        libc::close(say_go);
        if libc::read(go, (&raw mut byte).cast(), 1) == 1 {
            libc::execvp(arguments[0], arguments.as_ptr());
            let error = (*libc::__errno_location()).to_le_bytes();
            libc::write(report, error.as_ptr().cast(), error.len());
        }
        libc::_exit(NOT_EXECUTED)
    }
}

impl Child {
    /// Id of the process that was started.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Processes that have not ended.
    pub fn processes(&self) -> impl Iterator<Item = i32> + '_ {
        self.processes.keys().copied()
    }

    /// Holds the initial thread of a process at its start point, where the thread stays stopped after the release.
    pub fn hold(&mut self, pid: i32) -> Result<Held, Error> {
        let process = self
            .processes
            .get_mut(&pid)
            .ok_or(Error::TargetGone { pid })?;
        if process.survey.is_none() {
            process.survey = Some(Survey::of(pid, self.timing)?);
        }
        let thread_number_at = process.thread_number_at;
        let Some(survey) = process.survey.as_mut() else {
            return Err(Error::TargetGone { pid });
        };
        survey.refresh(pid)?;
        let mut held = Held::adopt(pid, pid, Sleep::default(), survey, Guard::begin(pid, false))?;
        held.stays_traced = true;
        held.thread_number_at = thread_number_at;
        held.saved
            .room
            .clone()
            .map_err(|reason| Error::NoSafeThread {
                pid,
                waited: held.held_for(),
                reason,
            })?;
        Ok(held)
    }

    /// Ends the program with SIGKILL and collects it.
    pub fn kill(mut self) {
        let pid = self.pid;
        // SAFETY: plain integers; the process is our child and has not been waited for.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        loop {
            self.let_end(pid);
            match self.next_event(None) {
                Ok(Some((of, Event::Ended(_)))) if of == pid => return,
                Err(_) => return,
                _ => {}
            }
        }
    }
}
