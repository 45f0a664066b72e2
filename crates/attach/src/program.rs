//! Program that memhook-rs starts and traces from its first instruction to its end, and optionally the processes that
//! it forks.

pub(crate) mod leaving;
mod started;

use crate::config::TraceConfig;
use crate::error::Error;
use crate::hold::reach::Reach;
use crate::job::{End, Job};
use crate::recording::Recording;
use crate::session::Session;
use crate::survey::known_files::KnownFiles;
use crate::survey::limits::refuse;
use leaving::{Left, Outcome};
use memhook_inject::{Child, Event, StartPoint, forward_signals, launch};
use memhook_process::{ModuleImage, is_static};
use started::Started;
use std::{
    collections::HashMap,
    ffi::{CString, OsString},
    os::unix::ffi::OsStringExt,
    time::{Duration, Instant},
};

/// Longest wait for the other processes after the started process has ended.
const LINGER: Duration = Duration::from_secs(2);

/// A started program.
pub struct Program {
    child: Child,
    config: TraceConfig,
    /// Files that its processes have mapped.
    known: KnownFiles,
    /// Traced processes.
    running: HashMap<i32, Started>,
    /// Traces of ended processes whose jobs may still be working.
    ended: Vec<Started>,
}

/// How one process is traced.
pub struct Work {
    /// Its job.
    pub job: Box<dyn Job + Send>,
    /// File of the recording, if there is one.
    pub recording: Option<Recording>,
}

/// Assigns work to each traced process.
pub trait Observer {
    /// A trace of a process begins.
    fn begins(&mut self, session: &Session, point: StartPoint) -> Result<Work, Error>;
    /// A process has stopped while exiting. `modules`: its modules if it is traced.
    fn at_end(&mut self, _child: &Child, _pid: i32, _modules: Option<Vec<ModuleImage>>) {}
    /// A process executes another program, which is traced in its place if possible.
    fn executes(&mut self, _pid: i32) {}
    /// Returns true if a program that a process begins to execute should be traced. The first process is always traced.
    fn wants(&mut self, _pid: i32) -> bool {
        true
    }
    /// A process is not traced, or no longer.
    fn is_not_traced(&mut self, pid: i32, why: &Error);
    /// A process has ended (with its status), or is left alone while it still runs (without a status).
    fn ends(&mut self, _pid: i32, _status: Option<i32>) {}
}

/// Result of an attempt to trace a process that executes a program.
enum Attached {
    /// The process is traced and is stopped at this point.
    Traced(Box<Session>, StartPoint),
    /// The process ended before.
    Ended,
}

impl Program {
    /// Starts the program and leaves it stopped before its first instruction. If `follow_forks` is true, the processes
    /// that it forks are traced too.
    pub fn start(
        command: &[OsString],
        follow_forks: bool,
        config: &TraceConfig,
    ) -> Result<Program, Error> {
        config.check()?;
        let arguments = command
            .iter()
            .map(|argument| CString::new(argument.clone().into_vec()))
            .collect::<Result<Vec<CString>, _>>()
            .map_err(|_| Error::ZeroByte)?;
        let child = launch(&arguments, follow_forks)?;
        forward_signals(child.pid());
        Ok(Program {
            child,
            config: TraceConfig {
                is_exact_first: true,
                ..config.clone()
            },
            known: KnownFiles::default(),
            running: HashMap::new(),
            ended: Vec::new(),
        })
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Kills it.
    pub fn kill(self) {
        self.child.kill();
    }

    /// Runs the program to its end and returns the wait status. Kills a program that cannot be traced.
    pub fn run(self, observer: &mut dyn Observer) -> Result<i32, Error> {
        let pid = self.pid();
        match self.run_for(None, observer)? {
            Outcome::Ended(status) => Ok(status),
            Outcome::TimeIsUp(_) => Err(Error::EndMissed { pid }),
        }
    }

    /// Runs the program to its end or for `duration`; the caller must run inside [`leaving`]. Kills a program that
    /// cannot be traced.
    pub fn run_for(
        mut self,
        duration: Option<Duration>,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, Error> {
        let first = self.child.pid();
        if let Err(error) = self.begin(first, observer) {
            self.child.kill();
            return Err(error);
        }
        let mut status = None;
        let mut deadline = duration.and_then(|duration| Instant::now().checked_add(duration));
        while self.child.processes().next().is_some() || status.is_none() {
            let Some((pid, event)) = self.child.next_event(deadline)? else {
                if status.is_none() && duration.is_some() {
                    return Ok(Outcome::TimeIsUp(Left::new(
                        first,
                        self.running,
                        self.ended,
                    )));
                }
                break;
            };
            match event {
                Event::Forked => {}
                Event::Executed => self.executed(pid, observer)?,
                Event::Ending(_) => {
                    let modules = self.running.get(&pid).map(Started::stop);
                    observer.at_end(&self.child, pid, modules);
                    self.child.let_end(pid);
                }
                Event::Ended(ended) => {
                    self.ended(pid, Some(ended), observer);
                    if pid == first {
                        status = Some(ended);
                        deadline = Some(Instant::now() + LINGER);
                    }
                }
            }
        }
        // Running processes continue: the kernel releases them when this thread ends, and their hooks pass calls
        // through.
        let left: Vec<i32> = self.child.processes().collect();
        for pid in left {
            self.ended(pid, None, observer);
        }
        for started in self.ended {
            started.join();
        }
        let status = status.ok_or(Error::EndMissed { pid: first })?;
        Ok(Outcome::Ended(status))
    }

    fn executed(&mut self, pid: i32, observer: &mut dyn Observer) -> Result<(), Error> {
        if let Some(before) = self.running.remove(&pid) {
            before.end(End::Executed);
            // The claim on the process is released only at the end of its trace.
            before.join();
        }
        observer.executes(pid);
        if pid != self.child.pid() && !observer.wants(pid) {
            return Ok(self.child.set_off(pid)?);
        }
        if let Err(error) = self.begin(pid, observer) {
            observer.is_not_traced(pid, &error);
            self.child.set_off(pid)?;
        }
        Ok(())
    }

    fn ended(&mut self, pid: i32, status: Option<i32>, observer: &mut dyn Observer) {
        observer.ends(pid, status);
        if let Some(started) = self.running.remove(&pid) {
            started.end(match status {
                Some(status) => End::Ended(status),
                None => End::LetGo,
            });
            self.ended.push(started);
        }
    }

    /// Begins to trace the program that a process now executes, and continues the process.
    fn begin(&mut self, pid: i32, observer: &mut dyn Observer) -> Result<(), Error> {
        let Attached::Traced(session, point) = self.attach(pid)? else {
            return Ok(());
        };
        let Work { job, recording } = observer.begins(&session, point)?;
        let started = Started::new(*session, &self.config, recording, job)?;
        self.running.insert(pid, started);
        Ok(self.child.set_off(pid)?)
    }

    fn attach(&mut self, pid: i32) -> Result<Attached, Error> {
        if is_static(pid) {
            // This comes before the program runs, because its symbols decide whether it can be traced.
            refuse(pid, &self.config)?;
        }
        let mut point = self.child.run_to_start(pid, true)?;
        loop {
            if let StartPoint::Ended(_) = point {
                return Ok(Attached::Ended);
            }
            match self.start_session(pid) {
                Err(_) if point == StartPoint::BeforeConstructors => {
                    point = self.child.run_to_start(pid, false)?;
                }
                Err(error) => return Err(error),
                Ok(session) => return Ok(Attached::Traced(Box::new(session), point)),
            }
        }
    }

    fn start_session(&mut self, pid: i32) -> Result<Session, Error> {
        let mut reach = Reach::AtStart(&mut self.child);
        Session::start_by(&mut reach, pid, &self.config, &mut self.known)
    }
}
