//! All threads of a process, held for a moment to look at it: nothing runs in them.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::restart::Sleep;
use crate::wait::{self, Stop};
use crate::{Error, Registers, procfs, ptrace, regs, restart};

/// A stop that takes longer means uninterruptible sleep.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// One stopped thread.
struct Stopped {
    registers: Registers,
    extended: Vec<u8>,
    sleep: Sleep,
}

/// Every thread of a process, seized and stopped. Dropping it lets all of them go, with their
/// interrupted system calls restarted.
pub struct AllHeld {
    pid: i32,
    stopped_at: Instant,
    threads: BTreeMap<i32, Stopped>,
    /// Seized, but not (yet) stopped.
    seized: Vec<i32>,
    /// ptrace requests must come from the thread that seized.
    _not_send: PhantomData<*const ()>,
}

/// Seizes and stops every thread of `pid`. A process that job control has stopped stays so
/// afterwards.
///
/// Lists the threads again until no new one shows up: once all known threads stand still, nobody
/// is left to start another.
pub fn hold_all(pid: i32) -> Result<AllHeld, Error> {
    // Where each thread sleeps must be known before it is disturbed; slow, so before any stops.
    let mut sleeps: BTreeMap<i32, Sleep> = BTreeMap::new();
    for tid in procfs::threads(pid) {
        sleeps.insert(tid, Sleep::of(pid, tid));
    }
    let mut held = AllHeld {
        pid,
        stopped_at: Instant::now(),
        threads: BTreeMap::new(),
        seized: Vec::new(),
        _not_send: PhantomData,
    };
    loop {
        let new: Vec<i32> = procfs::threads(pid)
            .into_iter()
            .filter(|tid| !held.threads.contains_key(tid))
            .collect();
        let before = held.threads.len();
        for &tid in &new {
            held.seize(tid)?;
        }
        // All are told before the first is waited for, so that they stop side by side.
        for tid in held.seized.clone() {
            if held.wait(tid)? {
                let sleep = sleeps.get(&tid).copied().unwrap_or_default();
                held.adopt(tid, sleep);
            } else {
                held.seized.retain(|&other| other != tid);
            }
        }
        if held.threads.len() == before {
            break;
        }
    }
    if held.threads.is_empty() {
        return Err(Error::TargetGone { pid });
    }
    Ok(held)
}

impl AllHeld {
    /// The threads: id, general registers, and the whole extended state (vector registers).
    pub fn threads(&self) -> impl Iterator<Item = (i32, &Registers, &[u8])> {
        self.threads
            .iter()
            .map(|(&tid, t)| (tid, &t.registers, t.extended.as_slice()))
    }

    /// Time since the first thread was told to stop.
    pub fn held_for(&self) -> Duration {
        self.stopped_at.elapsed()
    }

    /// Lets all threads go. Returns how long they were held.
    pub fn release(mut self) -> Duration {
        self.let_go();
        self.stopped_at.elapsed()
    }

    fn seize(&mut self, tid: i32) -> Result<(), Error> {
        if let Err(source) = ptrace::seize(tid) {
            // Ended, or about to: it touches no memory any more.
            if matches!(procfs::state(self.pid, tid), None | Some('Z' | 'X')) {
                return Ok(());
            }
            return match source.raw_os_error() {
                Some(libc::ESRCH) => Ok(()),
                Some(libc::EPERM) => match procfs::tracer(self.pid, tid) {
                    0 => Err(Error::Permission {
                        pid: self.pid,
                        source,
                    }),
                    tracer => Err(Error::AlreadyTraced {
                        pid: self.pid,
                        tracer,
                    }),
                },
                _ => Err(Error::ptrace(self.pid, tid, "SEIZE", source)),
            };
        }
        if ptrace::interrupt(tid).is_err() {
            wait::reap(tid);
            return Ok(());
        }
        self.seized.push(tid);
        Ok(())
    }

    /// Waits for the stop of a thread; `false` if it ended instead. A signal that comes first is
    /// handed on: its handler starts, and the thread stops at the handler's first instruction.
    fn wait(&self, tid: i32) -> Result<bool, Error> {
        let until = Instant::now() + STOP_LIMIT;
        loop {
            let signal = match wait::wait_for_stop(self.pid, tid, until) {
                Some(Stop::Event(_)) => return Ok(true),
                Some(Stop::Signal(signal)) => signal,
                Some(Stop::Syscall) => 0,
                Some(Stop::Gone) => return Ok(false),
                None => return Err(Error::DoesNotStop { pid: self.pid, tid }),
            };
            if ptrace::resume(tid, signal).is_err() {
                wait::reap(tid);
                return Ok(false);
            }
        }
    }

    /// Reads the registers of a thread that has stopped; one that was killed meanwhile is left out.
    fn adopt(&mut self, tid: i32, sleep: Sleep) {
        let state = regs::read(tid).and_then(|r| Ok((r, regs::read_extended(tid)?)));
        self.seized.retain(|&other| other != tid);
        match state {
            Ok((registers, extended)) => {
                let stopped = Stopped {
                    registers,
                    extended,
                    sleep,
                };
                self.threads.insert(tid, stopped);
            }
            Err(_) if ptrace::detach(tid).is_err() => wait::reap(tid),
            Err(_) => {}
        }
    }

    fn let_go(&mut self) {
        let held = self.held_for();
        for (&tid, thread) in &self.threads {
            if restart::must_be_repeated(&thread.registers) {
                let again = restart::repeat(&thread.registers, &thread.sleep, held);
                let _ = regs::write(tid, &again);
            }
        }
        for (tid, _) in std::mem::take(&mut self.threads) {
            if ptrace::detach(tid).is_err() {
                wait::reap(tid);
            }
        }
        for tid in std::mem::take(&mut self.seized) {
            // Only a stopped thread can be let go.
            if self.wait(tid).unwrap_or(false) && ptrace::detach(tid).is_err() {
                wait::reap(tid);
            }
        }
    }
}

impl Drop for AllHeld {
    fn drop(&mut self) {
        self.let_go();
    }
}
