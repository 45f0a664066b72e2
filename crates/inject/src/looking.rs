//! Stops all threads of a process for a moment to read their registers, and releases them unchanged.
//!
//! A read-only command does nothing else to threads. [`Request`] lists the ptrace requests of this module. None of them
//! writes a register, a signal mask or memory. So a stopped thread needs no restoring, and the end of our thread has
//! the same effect as a release (`exit_ptrace` of kernel/ptrace.c). The holds that change something are in `hold`. They
//! share with this module only the guard that prevents stops of this process in the meantime.
//!
//! Some calls end with EINTR after a stop (signal(7) lists them; they include calls on sockets for which the program
//! has set a timeout), and they cannot be made to restart without a write. So threads that sleep in one of these calls
//! are not stopped. /proc shows where they sleep, and later that they are still asleep. The same applies to threads
//! that were in one shortly before.

use crate::guard::Guard;
use crate::regs::{self, Registers};
use crate::{Error, restart, starvation};
use memhook_process::{proc_text, sleeps, still_chosen, thread_ids, thread_state, tracer};
use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

/// All ptrace requests of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Request {
    Seize = libc::PTRACE_SEIZE,
    Interrupt = libc::PTRACE_INTERRUPT,
    /// Reads registers.
    GetRegisters = libc::PTRACE_GETREGSET,
    /// Resumes a thread that has stopped for a signal before our stop, and delivers that signal.
    Continue = libc::PTRACE_CONT,
    Detach = libc::PTRACE_DETACH,
}

/// Number of times that a thread's call is examined before any thread is stopped, and the time between two
/// examinations.
const LOOKS: usize = 24;
const LOOK_PAUSE: Duration = Duration::from_millis(1);
/// Maximum total number of examinations. With many threads, each is examined less often.
const MOST_LOOKS: usize = 6000;
/// Time limit of a stop. A thread that takes longer is in uninterruptible sleep, or gets no processor.
const STOP_LIMIT: Duration = Duration::from_millis(500);
/// Longest time that this process waits for a moment when it is scheduled promptly.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest wait for a running thread that must not be stopped to fall asleep.
const SLEEP_LIMIT: Duration = Duration::from_millis(20);

/// State of one thread.
pub struct SeenThread {
    /// Thread id.
    pub tid: i32,
    /// Registers of the thread. If it was not stopped: number and arguments of its call, stack pointer and program counter.
    pub registers: Registers,
    /// Whole extended state (vector registers); empty for a thread that was not stopped.
    pub extended: Vec<u8>,
    /// True if it was stopped, so that all of its registers are known.
    pub is_stopped: bool,
}

/// A thread that was not stopped: its id, and the values that change when it runs.
struct Sleeping {
    tid: i32,
    /// Line of /proc/PID/task/TID/syscall, and the number of times that the thread has gone to sleep. `None`: the
    /// thread is running.
    seen: Option<(String, u64)>,
}

/// All threads of a process, while the threads that may be stopped are stopped.
pub struct ThreadsSeen {
    pid: i32,
    stopped_at: Instant,
    /// Threads that are stopped, or asleep.
    pub threads: Vec<SeenThread>,
    not_stopped: Vec<Sleeping>,
}

/// Result of a look.
pub struct Seen<R> {
    /// Result of the work while the threads were stopped.
    pub result: R,
    /// Time for which they were stopped.
    pub held: Duration,
    /// Threads that were stopped in a call that now ends with EINTR, because they had only just begun the call.
    pub cut_short: Vec<i32>,
}

impl ThreadsSeen {
    /// Returns the time since the first thread was told to stop.
    pub fn held_for(&self) -> Duration {
        self.stopped_at.elapsed()
    }

    /// Returns the threads that were not stopped.
    pub fn not_stopped(&self) -> impl Iterator<Item = i32> {
        self.not_stopped.iter().map(|thread| thread.tid)
    }

    /// Returns the threads that have run since they were examined.
    pub fn have_run(&self) -> Vec<i32> {
        let has_run = |thread: &&Sleeping| thread.seen != asleep(self.pid, thread.tid);
        let running = self.not_stopped.iter();
        running
            .filter(|thread| thread.seen.is_none() || has_run(thread))
            .map(|thread| thread.tid)
            .collect()
    }
}

/// Stops the threads of `pid` that can be stopped unnoticed, calls `work`, and releases them. `limit`: longest time for
/// which threads may be held until all have stopped. From then on, `work` must observe the limit.
///
/// A separate thread of ours does the work. When that thread ends, the kernel releases any thread of `pid` that has not
/// stopped in time.
pub fn see_threads<R: Send>(
    pid: i32,
    limit: Option<Duration>,
    work: impl FnOnce(&ThreadsSeen) -> R + Send,
) -> Result<Seen<R>, Error> {
    std::thread::scope(|scope| {
        let seen = scope.spawn(|| see(pid, limit, work)).join();
        seen.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn see<R>(
    pid: i32,
    limit: Option<Duration>,
    work: impl FnOnce(&ThreadsSeen) -> R,
) -> Result<Seen<R>, Error> {
    starvation::observe();
    // The watchdog takes a moment to start.
    crate::watchdog::start();
    // A starved thread must not hold any.
    starvation::wait_for_a_processor(pid, Instant::now() + PATIENCE)?;
    let delicate = seen_in_delicate_calls(pid);
    let _guard = Guard::begin(pid, false);
    let mut stopping = Stopping {
        pid,
        delicate,
        seized: BTreeSet::new(),
        seen: ThreadsSeen {
            pid,
            stopped_at: Instant::now(),
            threads: Vec::new(),
            not_stopped: Vec::new(),
        },
    };
    stopping.stop_all(limit)?;
    if stopping.seen.threads.is_empty() && stopping.seen.not_stopped.is_empty() {
        return Err(Error::TargetGone { pid });
    }
    let result = work(&stopping.seen);
    let cut_short = stopping.cut_short();
    stopping.let_go();
    Ok(Seen {
        result,
        held: stopping.seen.held_for(),
        cut_short,
    })
}

/// Returns the threads that were in a call that a stop would end, at any of several moments.
fn seen_in_delicate_calls(pid: i32) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut left = MOST_LOOKS;
    for look in 0..LOOKS {
        let threads = thread_ids(pid).unwrap_or_default();
        if look > 0 && left < threads.len() {
            break;
        }
        left = left.saturating_sub(threads.len());
        found.extend(threads.into_iter().filter(|&tid| is_delicate(pid, tid)));
        std::thread::sleep(LOOK_PAUSE);
    }
    found
}

/// Returns true if a thread is blocked in a call that a stop would end.
fn is_delicate(pid: i32, tid: i32) -> bool {
    let line = proc_text(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
    let mut fields = line.split_whitespace();
    let Some(number) = fields.next().and_then(|field| field.parse::<i64>().ok()) else {
        return false;
    };
    let mut is_on_socket = || {
        let descriptor = fields.next().and_then(|field| field.strip_prefix("0x"));
        let number = descriptor.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        // A descriptor that cannot be examined may be a socket, so it counts as one.
        number
            .and_then(|number| std::fs::read_link(format!("/proc/{pid}/fd/{number}")).ok())
            .is_none_or(|link| link.as_os_str().as_encoded_bytes().starts_with(b"socket:"))
    };
    match number {
        libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_connect => true,
        libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_sendfile
        | libc::SYS_splice => is_on_socket(),
        number => restart::is_disturbed_by_a_stop(number),
    }
}

/// Returns the position of a sleeping thread (proc_pid_syscall(5)), and the number of times that it has gone to sleep;
/// `None` if it runs.
fn asleep(pid: i32, tid: i32) -> Option<(String, u64)> {
    // The count is read twice, because the thread may run between the two reads.
    let before = sleeps(pid, tid)?;
    let line = proc_text(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    let is_asleep = !line.starts_with("running") && sleeps(pid, tid) == Some(before);
    is_asleep.then_some((line, before))
}

/// Parses the number and the arguments of a sleeping thread's system call, its stack pointer and its program counter.
fn registers_of(line: &str) -> Option<Registers> {
    let mut fields = line.split_whitespace();
    let number: i64 = fields.next()?.parse().ok()?;
    let values: Option<Vec<u64>> = fields
        .map(|field| u64::from_str_radix(field.trim_start_matches("0x"), 16).ok())
        .collect();
    let values = values?;
    let &[.., sp, pc] = values.as_slice() else {
        return None;
    };
    // A thread that sleeps outside of a system call has no arguments.
    let arguments = match values.first_chunk() {
        Some(arguments) if values.len() == 8 => *arguments,
        _ => [0; 6],
    };
    Some(regs::in_call(number, arguments, sp, pc))
}

/// Threads that are being stopped.
struct Stopping {
    pid: i32,
    /// Threads that are never stopped.
    delicate: BTreeSet<i32>,
    /// Threads that were told to stop and whose stop has not been seen yet.
    seized: BTreeSet<i32>,
    seen: ThreadsSeen,
}

impl Stopping {
    /// Stops threads until no new thread appears: once all known threads are stopped, none is left to start another.
    fn stop_all(&mut self, limit: Option<Duration>) -> Result<(), Error> {
        let mut known = BTreeSet::new();
        loop {
            let threads = thread_ids(self.pid).unwrap_or_default();
            let new: Vec<i32> = threads.into_iter().filter(|&t| known.insert(t)).collect();
            if new.is_empty() {
                return Ok(());
            }
            for tid in new {
                if self.delicate.contains(&tid) || is_delicate(self.pid, tid) || self.is_stuck(tid)
                {
                    self.look_at_sleeping(tid);
                } else {
                    self.seize(tid)?;
                }
            }
            self.wait_for_all(limit)?;
        }
    }

    /// Returns true for uninterruptible sleep, which no signal ends.
    fn is_stuck(&self, tid: i32) -> bool {
        thread_state(self.pid, tid) == Some('D')
    }

    fn look_at_sleeping(&mut self, tid: i32) {
        let until = Instant::now() + SLEEP_LIMIT;
        let mut seen = asleep(self.pid, tid);
        // Threads that are already stopped must not be kept waiting for this thread.
        while seen.is_none() && self.seen.threads.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
            seen = asleep(self.pid, tid);
        }
        if let Some(registers) = seen.as_ref().and_then(|(line, _)| registers_of(line)) {
            self.seen.threads.push(SeenThread {
                tid,
                registers,
                extended: Vec::new(),
                is_stopped: false,
            });
        }
        if thread_state(self.pid, tid).is_some_and(|state| !matches!(state, 'Z' | 'X')) {
            self.seen.not_stopped.push(Sleeping { tid, seen });
        }
    }

    fn seize(&mut self, tid: i32) -> Result<(), Error> {
        let pid = self.pid;
        still_chosen(pid)?;
        if let Err(cause) = plain(Request::Seize, tid, 0) {
            return match (thread_state(pid, tid), cause.raw_os_error()) {
                (None | Some('Z' | 'X'), _) | (_, Some(libc::ESRCH)) => Ok(()),
                (_, Some(libc::EPERM)) => match tracer(pid, tid) {
                    0 => Err(Error::Permission { pid, cause }),
                    tracer => Err(Error::AlreadyTraced { pid, tracer }),
                },
                _ => Err(Error::ptrace(pid, tid, "SEIZE", cause)),
            };
        }
        self.seized.insert(tid);
        if plain(Request::Interrupt, tid, 0).is_err() {
            self.seized.remove(&tid);
        }
        // From here on the thread keeps its id, and so does its process.
        still_chosen(pid).map_err(Error::from)
    }

    fn wait_for_all(&mut self, limit: Option<Duration>) -> Result<(), Error> {
        let begin = Instant::now();
        let mut pause = Duration::from_micros(20);
        loop {
            for tid in self.seized.clone() {
                self.take_stop(tid);
            }
            let Some(&tid) = self.seized.first() else {
                return Ok(());
            };
            let pid = self.pid;
            if let Some(limit) = limit.filter(|&limit| self.seen.held_for() >= limit) {
                return Err(Error::StopsTooLate {
                    pid,
                    tid,
                    limit,
                    attempts: 1,
                });
            }
            if begin.elapsed() >= STOP_LIMIT {
                return Err(Error::DoesNotStop { pid, tid });
            }
            std::thread::sleep(pause);
            pause = (pause * 5 / 4).min(Duration::from_millis(1));
            self.seized
                .retain(|&tid| !matches!(thread_state(pid, tid), None | Some('Z' | 'X')));
        }
    }

    /// Takes over a thread that has stopped.
    fn take_stop(&mut self, tid: i32) {
        let mut status = 0;
        // SAFETY: waitpid writes one int.
        let waited = unsafe { libc::waitpid(tid, &raw mut status, libc::WNOHANG | libc::__WALL) };
        if waited == 0 {
            return;
        }
        if waited != tid || !libc::WIFSTOPPED(status) {
            // The thread has ended, or executes another program.
            self.seized.remove(&tid);
            return;
        }
        if status >> 16 != libc::PTRACE_EVENT_STOP {
            // The signal's handler starts, and the thread stops at the first instruction.
            let _ = plain(Request::Continue, tid, libc::WSTOPSIG(status));
            return;
        }
        self.seized.remove(&tid);
        let read_set = |set: usize, room: &mut [u8]| read_set(tid, set, room);
        let read = regs::read_by(read_set);
        let read = read.and_then(|r| Ok((r, regs::read_extended_by(read_set)?)));
        match read {
            Ok((registers, extended)) => self.seen.threads.push(SeenThread {
                tid,
                registers,
                extended,
                is_stopped: true,
            }),
            // Killed meanwhile.
            Err(_) => drop(plain(Request::Detach, tid, 0)),
        }
    }

    /// Returns the threads that, since they were examined, have begun a call that a stop ends.
    fn cut_short(&self) -> Vec<i32> {
        let stopped = self.seen.threads.iter().filter(|thread| thread.is_stopped);
        stopped
            .filter(|thread| restart::is_cut_short(&thread.registers))
            .map(|thread| thread.tid)
            .collect()
    }

    fn let_go(&mut self) {
        for thread in self.seen.threads.iter().filter(|thread| thread.is_stopped) {
            let _ = plain(Request::Detach, thread.tid, 0);
        }
    }
}

/// Makes a request without pointers.
fn plain(request: Request, tid: i32, data: i32) -> io::Result<()> {
    // SAFETY: the kernel follows no pointer for the requests that use this function.
    unsafe { ask(request, tid, 0, data as usize) }
}

/// Calls ptrace(2). No other function of this module calls it.
///
/// # Safety
/// `data` must be what the request requires; if it is a pointer, it must be valid for the kernel's access.
unsafe fn ask(request: Request, tid: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: the caller guarantees that the pointer is valid. The request affects only the tracee.
    let result = unsafe { libc::ptrace(request as libc::c_uint, tid, address, data) };
    crate::watchdog::step();
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Reads a register set into `room`; returns its size in bytes.
fn read_set(tid: i32, set: usize, room: &mut [u8]) -> io::Result<usize> {
    let mut vector = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    };
    let place = (&raw mut vector) as usize;
    // SAFETY: `vector` is live, and describes memory that the kernel may write.
    unsafe { ask(Request::GetRegisters, tid, set, place)? };
    Ok(vector.iov_len)
}
