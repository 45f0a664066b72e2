//! A program that is started here and traced from its first instruction to its end.

use crate::consumer::Consumer;
use crate::reach::Reach;
use crate::ring_owners::RingOwners;
use crate::{limits, session::Session};
use anyhow::{Context, bail};
use memhook_inject::{Child, Event, StartPoint, forward_signals, launch};
use memhook_stream::Config;
use std::{
    collections::HashSet,
    ffi::{CString, OsString},
    os::unix::ffi::OsStringExt,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

/// How often its follower looks around when nobody wakes it.
const TURN: Duration = Duration::from_millis(10);

/// A started program.
pub struct Program {
    /// The process.
    pub child: Child,
}

/// What came of the attempt to trace what a process executes.
pub enum Attached {
    /// It is traced, and stands at this point.
    Traced(Box<Session>, StartPoint),
    /// It ended before that, with this wait status.
    Ended(i32),
}

impl Program {
    /// Starts it; it stands before its first instruction.
    pub fn start(command: &[OsString]) -> anyhow::Result<Program> {
        let arguments: Result<Vec<CString>, _> = command
            .iter()
            .map(|a| CString::new(a.clone().into_vec()))
            .collect();
        let child = launch(&arguments.context("an argument holds a zero byte")?)?;
        forward_signals(child.pid());
        Ok(Program { child })
    }

    /// Begins to trace what the process executes now.
    pub fn attach(
        &mut self,
        config: &Config,
        functions: &HashSet<usize>,
    ) -> anyhow::Result<Attached> {
        let mut point = self.child.run_to_start(true)?;
        loop {
            if let StartPoint::Ended(status) = point {
                return Ok(Attached::Ended(status));
            }
            let started = self.start_session(config, functions);
            match started {
                Err(_) if point == StartPoint::BeforeConstructors => {
                    point = self.child.run_to_start(false)?;
                }
                Err(error) => return Err(error),
                Ok(session) => return Ok(Attached::Traced(Box::new(session), point)),
            }
        }
    }

    fn start_session(
        &mut self,
        config: &Config,
        functions: &HashSet<usize>,
    ) -> anyhow::Result<Session> {
        let pid = self.child.pid();
        let mut checks = memhook_process::preflight(pid);
        let region_bytes = memhook_abi::region_bytes(config.ring_bytes as usize) as u64;
        checks.extend(limits::checks(pid, region_bytes));
        if let Some(why) = memhook_process::first_failure(&checks) {
            bail!("{why}");
        }
        let mut reach = Reach::AtStart(&mut self.child);
        Session::start_by(&mut reach, pid, config.clone(), functions.clone())
    }

    /// Lets it run until it executes another program or ends; `turn` is called about every 10 ms.
    pub fn run(
        &mut self,
        session: &mut Session,
        consumer: &Consumer<'_>,
        turn: &mut (dyn FnMut(&Session) + Send),
    ) -> anyhow::Result<Event> {
        let over = AtomicBool::new(false);
        let pid = self.child.pid();
        std::thread::scope(|scope| {
            // ptrace requests must come from this thread, so the others do everything else.
            let follower = scope.spawn(|| follow(pid, session, consumer, turn, &over));
            let to_wake = follower.thread().clone();
            let drain = scope.spawn(move || consumer.drain(&to_wake));
            let watchdog = scope.spawn(|| consumer.watch());
            let event = self.child.set_off().and_then(|()| self.child.next_event());
            over.store(true, Relaxed);
            follower.thread().unpark();
            let _ = follower.join();
            consumer.finish();
            let _ = drain.join();
            watchdog.thread().unpark();
            Ok(event?)
        })
    }

    /// Lets it run untraced to its end; returns the wait status.
    pub fn finish(&mut self) -> anyhow::Result<i32> {
        loop {
            self.child.let_end();
            if let Event::Ended(status) = self.child.next_event()? {
                return Ok(status);
            }
            // A program that cannot be traced executes another one.
            self.child.set_off()?;
        }
    }
}

fn follow(
    pid: i32,
    session: &mut Session,
    consumer: &Consumer<'_>,
    turn: &mut (dyn FnMut(&Session) + Send),
    over: &AtomicBool,
) {
    let mut owners = RingOwners::new(pid);
    while !over.load(Relaxed) {
        let mut answered = consumer.answered.load(Relaxed);
        // Fails only when the process is gone, which its tracer learns too.
        let _ = session.follow_modules(&mut answered);
        consumer.answered.store(answered, Relaxed);
        owners.care(session.region());
        turn(session);
        std::thread::park_timeout(TURN);
    }
    // The last modules explain the last backtraces.
    let mut answered = consumer.answered.load(Relaxed);
    let _ = session.follow_modules(&mut answered);
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
