//! A program that is started here and traced from its first instruction to its end; with the processes that it
//! makes, if they are to be followed.

use crate::attach::Tracing;
use crate::reach::Reach;
use crate::started::{End, Job, Started};
use crate::{limits, plan, session::Session};
use anyhow::{Context, bail};
use memhook_inject::{Child, Event, StartPoint, forward_signals, launch};
use memhook_process::ModuleImage;
use memhook_stream::Config;
use std::{
    collections::{HashMap, HashSet},
    ffi::{CString, OsString},
    os::unix::ffi::OsStringExt,
    process::ExitCode,
    time::{Duration, Instant},
};

/// How long processes are waited for that still run when the one that was started has ended.
const LINGER: Duration = Duration::from_secs(2);

/// Options of the commands that start a program.
#[derive(clap::Args)]
pub struct StartOptions {
    /// Trace the processes that it makes too, each for itself
    #[arg(long)]
    pub follow_fork: bool,
}

/// A started program.
pub struct Program {
    child: Child,
    config: Config,
    functions: HashSet<usize>,
    tracing: Tracing,
    /// Traced processes.
    running: HashMap<i32, Started>,
    /// Threads that write their last.
    ended: Vec<Started>,
}

/// What is done with each traced process.
pub trait Observer {
    /// One begins to be traced.
    fn begins(&mut self, session: &Session, point: StartPoint) -> anyhow::Result<Box<dyn Job>>;
    /// One stands still at its end. `modules`: of a traced one.
    fn at_end(&mut self, _child: &Child, _pid: i32, _modules: Option<Vec<ModuleImage>>) {}
    /// It executes another program that is traced in its place, or not.
    fn executes(&mut self, _pid: i32) {}
    /// One is not traced (any more).
    fn is_not_traced(&mut self, pid: i32, why: &anyhow::Error);
    /// One has ended, or is left alone although it has not (no status).
    fn ends(&mut self, _pid: i32, _status: Option<i32>) {}
}

/// What came of the attempt to trace what a process executes.
enum Attached {
    /// It is traced, and stands at this point.
    Traced(Box<Session>, StartPoint),
    /// It ended before that.
    Ended,
}

impl Program {
    /// Starts it; it stands before its first instruction.
    pub fn start(
        command: &[OsString],
        options: &StartOptions,
        tracing: &Tracing,
    ) -> anyhow::Result<Program> {
        let config = tracing.config()?;
        let functions = plan::selected_functions(&tracing.functions)?;
        let arguments: Result<Vec<CString>, _> = command
            .iter()
            .map(|a| CString::new(a.clone().into_vec()))
            .collect();
        let arguments = arguments.context("an argument holds a zero byte")?;
        let child = launch(&arguments, options.follow_fork)?;
        forward_signals(child.pid());
        Ok(Program {
            child,
            config,
            functions,
            tracing: tracing.clone(),
            running: HashMap::new(),
            ended: Vec::new(),
        })
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Ends it.
    pub fn kill(self) {
        self.child.kill();
    }

    /// Lets it run to its end; returns the wait status. If what was started cannot be traced it is killed, and the
    /// error is returned.
    pub fn run(mut self, observer: &mut dyn Observer) -> anyhow::Result<i32> {
        let first = self.child.pid();
        if let Err(error) = self.begin(first, observer) {
            self.child.kill();
            return Err(error);
        }
        let mut status = None;
        let mut deadline = None;
        while self.child.processes().next().is_some() || status.is_none() {
            let Some((pid, event)) = self.child.next_event(deadline)? else {
                break;
            };
            match event {
                Event::Forked => {}
                Event::Executed => self.executed(pid, observer)?,
                Event::Ending(_) => {
                    let modules = self.running.get_mut(&pid).map(Started::stop);
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
        // Those that are left go on: the kernel lets go of them when we end, and their hooks pass through.
        let left: Vec<i32> = self.child.processes().collect();
        for pid in left {
            self.ended(pid, None, observer);
        }
        for started in self.ended {
            started.join();
        }
        status.context("the program's end was missed")
    }

    fn executed(&mut self, pid: i32, observer: &mut dyn Observer) -> anyhow::Result<()> {
        if let Some(mut before) = self.running.remove(&pid) {
            before.end(End::Executed);
            // The claim on the process is free again only then.
            before.join();
        }
        observer.executes(pid);
        if let Err(error) = self.begin(pid, observer) {
            observer.is_not_traced(pid, &error);
            self.child.set_off(pid)?;
        }
        Ok(())
    }

    fn ended(&mut self, pid: i32, status: Option<i32>, observer: &mut dyn Observer) {
        observer.ends(pid, status);
        if let Some(mut started) = self.running.remove(&pid) {
            started.end(match status {
                Some(status) => End::Ended(status),
                None => End::LetGo,
            });
            self.ended.push(started);
        }
    }

    /// Begins to trace what a process executes now, and lets it run.
    fn begin(&mut self, pid: i32, observer: &mut dyn Observer) -> anyhow::Result<()> {
        let Attached::Traced(session, point) = self.attach(pid)? else {
            return Ok(());
        };
        let job = observer.begins(&session, point)?;
        let started = Started::new(*session, &self.tracing, job)?;
        self.running.insert(pid, started);
        Ok(self.child.set_off(pid)?)
    }

    fn attach(&mut self, pid: i32) -> anyhow::Result<Attached> {
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

    fn start_session(&mut self, pid: i32) -> anyhow::Result<Session> {
        let mut checks = memhook_process::preflight(pid);
        let region_bytes = memhook_abi::region_bytes(self.config.ring_bytes as usize) as u64;
        checks.extend(limits::checks(pid, region_bytes));
        if let Some(why) = memhook_process::first_failure(&checks) {
            bail!("{why}");
        }
        let mut reach = Reach::AtStart(&mut self.child);
        Session::start_by(&mut reach, pid, self.config.clone(), self.functions.clone())
    }
}

/// What remains of us when all is written: the program's own status. A shell script ends by Ctrl-C only if what it
/// runs dies of it.
pub fn end_as(status: i32) -> ExitCode {
    if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGINT {
        memhook_inject::end_by(libc::SIGINT);
    }
    ExitCode::from(exit_code(status))
}

/// What a shell would say: the exit status, or 128 and the signal.
pub fn exit_code(status: i32) -> u8 {
    match libc::WIFSIGNALED(status) {
        true => 128 | libc::WTERMSIG(status) as u8,
        false => libc::WEXITSTATUS(status) as u8,
    }
}

/// The command line of a process, as the kernel has it.
pub fn command_line(pid: i32) -> String {
    /// Longer ones tell nobody more.
    const MOST_BYTES: u64 = 64 << 10;
    let path = format!("/proc/{pid}/cmdline");
    let bytes = memhook_foreign::read_start(path, MOST_BYTES).unwrap_or_default();
    let words = String::from_utf8_lossy(&bytes);
    words.trim_end_matches('\0').replace('\0', " ")
}
