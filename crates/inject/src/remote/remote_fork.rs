//! A frozen copy of the target's memory: a grandchild that never runs an instruction of the target.
//!
//! One thread forks while all other threads are held: the kernel copies page tables one by one, so the copy might
//! contain only some of the changes that a running thread makes during the fork. The child forks again and exits
//! immediately, and the forking thread waits for it before it continues, so the target has no child afterwards. The
//! grandchild is reparented to the init process (or a subreaper), which reaps it. It is traced from its creation and
//! does not run. When it is released, or when this process is killed, its next instructions are `exit_group(0)`.
//!
//! The children end without a signal (exit signal 0), and share the descriptor table with the target, so that a file
//! that the target closes does not stay open.

use std::time::{Duration, Instant};

use crate::all_threads::AllHeld;
use crate::audit::{Act, note};
use crate::guard::Guard;
use crate::held::{Held, STEP_DEADLINE};
use crate::remote_call::Outcome;
use crate::stop::{HoldOptions, usable};
use crate::survey::Survey;
use crate::timing::Timing;
use crate::wait::{self, Pace, Stop};
use crate::{Error, ptrace};
use memhook_process::{inner_tid, waits_in};

/// Longest time for a frozen child to exit.
const EXIT_LIMIT: Duration = Duration::from_secs(2);

/// Facts that a fork needs before any thread is held.
pub struct ForkPlan {
    pub(crate) survey: Survey,
}

impl ForkPlan {
    /// Examines the process. Fails if the process would notice the fork.
    pub fn of(pid: i32) -> Result<ForkPlan, Error> {
        if inner_tid(pid, pid) == Some(1) {
            return Err(Error::NoFork {
                pid,
                reason: "it is the init process of its namespace, so the copy would become its child",
            });
        }
        Ok(ForkPlan {
            survey: Survey::of(pid, Timing::USUAL)?,
        })
    }
}

/// Frozen copy of a process. Dropping it ends it.
pub struct FrozenChild {
    tid: i32,
}

impl FrozenChild {
    /// Returns its process id, for reading its memory.
    pub fn pid(&self) -> i32 {
        self.tid
    }
}

impl Drop for FrozenChild {
    fn drop(&mut self) {
        let until = Instant::now() + EXIT_LIMIT;
        while ptrace::resume(self.tid, 0).is_ok() {
            match wait::wait_for_stop(self.tid, self.tid, until) {
                Some(Stop::Gone) => return,
                Some(_) => {}
                None => break,
            }
        }
        wait::reap(self.tid, self.tid);
    }
}

/// The two processes that are being created.
#[derive(Default)]
struct Children {
    /// True if the thread has begun the fork, and is not known to have returned.
    under_way: bool,
    /// True if the first process must end before it creates the second one.
    are_unwanted: bool,
    child: Option<i32>,
    child_ended: bool,
    grandchild: Option<FrozenChild>,
    frozen: bool,
}

impl Children {
    /// Returns true if no further events of the two processes are expected.
    fn are_done(&self) -> bool {
        self.child_ended && (self.frozen || self.grandchild.is_none())
    }

    /// Takes the next stop of each process. A request fails only if its process was killed, which the next stop shows.
    fn follow(&mut self) {
        if let (Some(tid), false) = (self.child, self.child_ended) {
            if self.are_unwanted {
                // SAFETY: plain integers. The end of the process has not been collected, so the id is its own.
                unsafe { libc::kill(tid, libc::SIGKILL) };
            }
            match wait::poll_stop(tid, tid) {
                Some(Stop::Gone) => self.child_ended = true,
                Some(stop) => {
                    if stop == Stop::Clone {
                        let grandchild = ptrace::event_message(tid).ok();
                        self.grandchild = grandchild.map(|id| FrozenChild { tid: id as i32 });
                    }
                    let _ = ptrace::resume(tid, 0);
                }
                None => {}
            }
        }
        if let (Some(grandchild), false) = (&self.grandchild, self.frozen) {
            match wait::poll_stop(grandchild.tid, grandchild.tid) {
                Some(Stop::Event(_)) => self.frozen = true,
                Some(Stop::Gone) => self.grandchild = None,
                Some(_) => drop(ptrace::resume(grandchild.tid, 0)),
                None => {}
            }
        }
    }
}

impl Drop for Children {
    /// After a failure, the first child may still be running, or wait forever for an event that never happens. If this
    /// child has created a process, that process ends by itself.
    fn drop(&mut self) {
        self.are_unwanted = true;
        let until = Instant::now() + EXIT_LIMIT;
        let mut pace = Pace::start();
        while self.child.is_some() && !self.are_done() && Instant::now() < until {
            self.follow();
            pace.pause();
        }
    }
}

impl AllHeld {
    /// Makes a frozen copy of the process in its current state. The forking thread is released when it is done; the
    /// other threads stay held.
    pub fn fork(&mut self, plan: &ForkPlan) -> Result<FrozenChild, Error> {
        let pid = self.pid;
        let options = HoldOptions::anywhere(Duration::ZERO);
        let mut reason = "no thread is held".to_owned();
        for tid in self.threads.keys().copied().collect::<Vec<_>>() {
            let Some(stopped) = self.threads.remove(&tid) else {
                continue;
            };
            let guard = Guard::begin(pid, false);
            let mut held = match Held::adopt(pid, tid, stopped.sleep, &plan.survey, guard) {
                Ok(held) => held,
                // The thread was killed, so it no longer changes anything, but other threads may be alive.
                Err(Error::TargetGone { .. }) => {
                    wait::reap(pid, tid);
                    continue;
                }
                // The thread runs again, so the memory no longer has a consistent state.
                Err(error) => return Err(error),
            };
            match usable(&held, &options) {
                Ok(()) => {
                    let mut children = Children::default();
                    let copy = held.fork(&mut children);
                    if copy.is_err() {
                        // The thread may wait for an action of another thread.
                        self.let_stopped_go();
                        held.end_fork(&mut children);
                    }
                    let released = held.release();
                    let copy = copy?;
                    return released.map(|_| copy);
                }
                Err(why) => {
                    reason = why;
                    // The thread was not used, so it stays held as before.
                    held.finished = true;
                    self.threads.insert(tid, stopped);
                }
            }
        }
        if self.threads.is_empty() {
            return Err(Error::TargetGone { pid });
        }
        Err(Error::NoSafeThread {
            pid,
            waited: self.held_for(),
            reason,
        })
    }
}

impl Held {
    /// Forks twice, as described at the beginning of this file. After an error the fork may still be in progress.
    fn fork(&mut self, children: &mut Children) -> Result<FrozenChild, Error> {
        let follow = ptrace::follow_children(self.tid);
        self.check("SETOPTIONS", follow)?;
        let calls = [libc::SYS_clone, libc::SYS_wait4, libc::SYS_exit_group];
        if calls.iter().any(|&nr| self.may_be_ended_for(nr, [0; 6])) {
            return Err(self.no_fork("a seccomp filter may kill it for clone(2) or wait4(2)"));
        }
        self.refuse_subreaper()?;
        let scratch = self.scratch()?;
        let flags = (libc::CLONE_FILES | libc::CLONE_FS) as u64;
        let (entry, stack) = (scratch.fork_entry(), scratch.stack_top());
        self.set_out(&self.syscall_registers(entry, stack, libc::SYS_clone, &[flags]))?;
        children.under_way = true;
        self.resume()?;
        match self.run_fork(children)? {
            Outcome::Done(result) => self.checked("clone", result as i64)?,
            Outcome::Unfinished(_) => return Err(self.does_not_stop()),
        };
        children.under_way = false;
        let copy = children.grandchild.take().filter(|_| children.frozen);
        let failed = "the second of two forks failed, perhaps because of a limit on processes";
        let copy = copy.ok_or_else(|| self.no_fork(failed))?;
        note(self.pid, Act::Fork(copy.pid()));
        Ok(copy)
    }

    /// Ends an abandoned fork: the thread stops waiting, because its child is killed.
    fn end_fork(&mut self, children: &mut Children) {
        if !children.under_way || self.gone {
            return;
        }
        children.are_unwanted = true;
        if !matches!(self.run_fork(children), Ok(Outcome::Done(_))) && !self.gone {
            // If this fails, the release that follows fails too.
            let until = Instant::now() + STEP_DEADLINE;
            let stopped = self.interrupt().and_then(|()| self.wait_settled(until));
            let _ = stopped.and_then(|()| self.back_out());
        }
    }

    fn no_fork(&self, reason: &'static str) -> Error {
        Error::NoFork {
            pid: self.pid,
            reason,
        }
    }

    /// Refuses a process that has a subreaper, which would become the parent of the copy.
    fn refuse_subreaper(&mut self) -> Result<(), Error> {
        let data = self.scratch()?.data();
        self.write(data, &[0; 4])?;
        let option = libc::PR_GET_CHILD_SUBREAPER as u64;
        self.checked_syscall("prctl", libc::SYS_prctl, &[option, data.0])?;
        let mut is_subreaper = [0; 4];
        self.read(data, &mut is_subreaper)?;
        if is_subreaper != [0; 4] {
            return Err(self.no_fork("it is a subreaper, so the copy would become its child"));
        }
        Ok(())
    }

    /// Waits for the result of the forking thread while it runs, and follows its child.
    fn run_fork(&mut self, children: &mut Children) -> Result<Outcome, Error> {
        let until = Instant::now() + STEP_DEADLINE;
        let mut pace = Pace::start();
        let mut result = None;
        loop {
            match wait::poll_stop(self.pid, self.tid) {
                Some(Stop::Gone) => return Err(self.is_gone()),
                Some(Stop::Signal(signal)) if self.is_bell(signal)? => result = self.result(),
                Some(stop) => {
                    if stop == Stop::Clone {
                        let child = ptrace::event_message(self.tid);
                        children.child = Some(self.check("GETEVENTMSG", child)? as i32);
                    } else if let Stop::Signal(signal) = stop {
                        self.take_signal(signal)?;
                    }
                    self.resume()?;
                }
                None => {}
            }
            children.follow();
            // Or the first fork has failed.
            if children.are_done() || (children.child.is_none() && self.result().is_some()) {
                break;
            }
            let is_late = Instant::now() >= until;
            if is_late || (pace.pause() && !children.are_unwanted && self.is_to_be_heard(children))
            {
                return Err(self.no_fork("the fork did not report back in time"));
            }
        }
        match result {
            Some(result) => Ok(Outcome::Done(result)),
            None => self.await_result(STEP_DEADLINE),
        }
    }

    /// Returns true if the thread or its child is blocked until its fork event is read from a userfaultfd, possibly by
    /// a thread that is held (userfaultfd(2), UFFD_FEATURE_EVENT_FORK).
    fn is_to_be_heard(&self, children: &Children) -> bool {
        let forking = children.child.map_or((self.pid, self.tid), |id| (id, id));
        waits_in(forking.0, forking.1).starts_with("userfaultfd")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{LONG, build, patiently, send, state};
    use crate::hold_all;
    use memhook_process::{thread_ids, thread_state};
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    /// The target must not be our child. Otherwise, the target would end even if a thread were never released, and the
    /// test would miss that.
    #[test]
    fn a_process_killed_before_the_fork_is_let_go() {
        let program = build("busy", &[]);
        let mut parent = Command::new("sh")
            .args(["-c", "\"$0\" & wait"])
            .arg(&program)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        let id = parent.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        let pid: i32 = children.trim().parse().unwrap();
        while thread_ids(pid).unwrap_or_default().len() < 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let plan = ForkPlan::of(pid).unwrap();
        let mut all = patiently(|| hold_all(pid));
        assert!(all.threads().count() > 1);
        send(pid, libc::SIGKILL);
        while thread_ids(pid)
            .unwrap_or_default()
            .iter()
            .any(|&tid| state(pid, tid) == 't')
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(matches!(all.fork(&plan), Err(Error::TargetGone { .. })));
        drop(all);
        let until = Instant::now() + LONG;
        while thread_state(pid, pid).is_some() {
            assert!(Instant::now() < until, "the process does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        parent.wait().unwrap();
        let _ = std::fs::remove_file(program);
    }
}
