//! Choosing a thread, seizing and stopping it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::time::{Duration, Instant};

use crate::guard::Guard;
use crate::held::Held;
use crate::restart;
use crate::safe_point::{self, Judge};
use crate::slept::{Clocks, Sleep, Sleeper};
use crate::survey::Survey;
use crate::timing::Timing;
use crate::wait::{self, Stop};
use crate::{Error, late, processor, ptrace, starvation, synchronous, watchdog};
use memhook_process::{Activity, still_chosen, thread_ids, thread_state, tracer, waits_in};
use tracing::debug;

/// Options by which [`hold`] chooses a thread.
#[derive(Clone)]
pub struct HoldOptions<'a> {
    /// Judges the place where a thread is stopped. `None` accepts any place.
    pub judge: Option<Judge<'a>>,
    /// The only thread to try; `None`: any.
    pub thread: Option<i32>,
    /// Time limit of all attempts.
    pub deadline: Duration,
}

impl HoldOptions<'_> {
    /// Selects any thread, stopped at any point: for system calls, and functions that take no lock.
    pub fn anywhere(deadline: Duration) -> Self {
        HoldOptions {
            judge: None,
            thread: None,
            deadline,
        }
    }
}

/// Time limit for stopping a thread. A thread that takes longer is in uninterruptible sleep.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// Seizes and stops one thread of `pid`.
///
/// Tries threads in restartable calls and running ones first, and threads that a stop would disturb (`epoll_wait`, ...)
/// last. Releases a thread that is at an unsafe point and tries the next one, until the deadline.
pub fn hold(pid: i32, options: &HoldOptions<'_>) -> Result<Held, Error> {
    hold_with(pid, options, Timing::USUAL)
}

pub(crate) fn hold_with(
    pid: i32,
    options: &HoldOptions<'_>,
    timing: Timing,
) -> Result<Held, Error> {
    late::let_late_threads_go();
    let begin = Instant::now();
    let until = begin + options.deadline;
    starvation::observe();
    watchdog::start();
    // These errors are clearer than the errors of the survey.
    Candidates::of(pid, options.thread).next()?;
    // The survey is slow, so it precedes the stop. It also precedes the choice, because threads may come and go
    // meanwhile.
    let mut survey = Survey::of(pid, timing)?;
    let mut candidates = Candidates::of(pid, options.thread);
    let mut next = candidates.next()?;
    let mut reason =
        "every thread sleeps uninterruptibly, or another thread of memhook-rs holds it".to_owned();
    let mut pause = Duration::from_micros(100);
    loop {
        while let Some(tid) = next {
            if starvation::wait_for_a_processor(pid, until)? {
                // Threads and mappings may have come and gone.
                survey.refresh(pid)?;
                candidates = Candidates::of(pid, options.thread);
                next = candidates.next()?;
                continue;
            }
            let attempt = match try_hold(pid, tid, options, &survey) {
                // A thread that stopped late is released as soon as it has stopped. No other thread is held before
                // that: it would stay stopped for just as long, perhaps while it holds a lock that the late thread
                // waits for.
                Err(error @ Error::DoesNotStop { .. }) if late::is_ours(tracer(pid, tid)) => {
                    let left = until.saturating_duration_since(Instant::now());
                    late::wait_for_late_threads(left.min(STOP_LIMIT));
                    if late::has_late_threads() {
                        return Err(error);
                    }
                    Attempt::Unsafe(format!("thread {tid} does not stop"))
                }
                attempt => attempt?,
            };
            match attempt {
                Attempt::Held(held) => {
                    debug!(pid, tid, "a thread is held");
                    return Ok(*held);
                }
                Attempt::Unsafe(why) => {
                    debug!(
                        pid,
                        tid, why, "a thread was let go: it is not at a safe point"
                    );
                    reason = why;
                }
                Attempt::Vanished => {}
            }
            if Instant::now() >= until {
                break;
            }
            next = candidates.next()?;
        }
        if Instant::now() >= until {
            return Err(Error::NoSafeThread {
                pid,
                waited: begin.elapsed(),
                reason,
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
        late::let_late_threads_go();
        candidates = Candidates::of(pid, options.thread);
        next = candidates.next()?;
        survey.refresh(pid)?;
    }
}

/// Thread that a hold would choose now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstChoice {
    /// Thread id.
    pub tid: i32,
    /// True if the thread is in a call that the kernel does not restart. In that case, every thread is in such a call.
    pub is_disturbed: bool,
}

/// Returns the thread of `pid` that a hold would choose now. Stops no thread.
pub fn first_choice(pid: i32) -> Result<Option<FirstChoice>, Error> {
    let tid = Candidates::of(pid, None).next()?;
    let choice = |tid| FirstChoice {
        tid,
        is_disturbed: matches!(rank(pid, tid, &mut true), Ok(Some(2))),
    };
    Ok(tid.map(choice))
}

/// Threads worth trying, best first. Threads are examined only until a good one is found: each look reads two files,
/// and the target may have many threads and few processors.
struct Candidates {
    pid: i32,
    unseen: std::vec::IntoIter<i32>,
    /// Threads that were skipped for a better thread, by rank.
    worse: BinaryHeap<Reverse<(u8, i32)>>,
    is_alive: bool,
}

impl Candidates {
    fn of(pid: i32, only: Option<i32>) -> Candidates {
        let threads = only.map_or_else(|| thread_ids(pid).unwrap_or_default(), |tid| vec![tid]);
        Candidates {
            pid,
            unseen: threads.into_iter(),
            worse: BinaryHeap::new(),
            is_alive: false,
        }
    }

    /// Returns the next thread; `None` if all were returned.
    fn next(&mut self) -> Result<Option<i32>, Error> {
        for tid in self.unseen.by_ref() {
            let Some(rank) = rank(self.pid, tid, &mut self.is_alive)? else {
                continue;
            };
            if rank == 0 {
                return Ok(Some(tid));
            }
            self.worse.push(Reverse((rank, tid)));
        }
        if !self.is_alive {
            return Err(Error::TargetGone { pid: self.pid });
        }
        Ok(self.worse.pop().map(|Reverse((_, tid))| tid))
    }
}

/// Returns the rank of a thread, 0 being the best; `None` if it is not worth trying.
fn rank(pid: i32, tid: i32, is_alive: &mut bool) -> Result<Option<u8>, Error> {
    let Some(state) = thread_state(pid, tid) else {
        return Ok(None);
    };
    *is_alive |= !matches!(state, 'Z' | 'X');
    match state {
        'T' => return Err(Error::TargetStopped { pid }),
        // Stopped by a tracer.
        't' => {
            let tracer = tracer(pid, tid);
            if late::is_ours(tracer) {
                return Ok(None);
            }
            if tracer != 0 {
                return Err(Error::AlreadyTraced { pid, tracer });
            }
        }
        // A thread in state D would not stop, and could not be released before it does.
        'Z' | 'X' | 'D' => return Ok(None),
        _ => {}
    }
    Ok(Some(match Activity::of(pid, tid) {
        Activity::Blocked(nr) if restart::is_disturbed_by_a_stop(nr) => 2,
        Activity::Blocked(nr) if nr >= 0 => 0,
        _ => 1,
    }))
}

/// Seizes and stops this thread; `None` if it has ended. Fails if the thread is at an unsafe point.
pub(crate) fn hold_thread(
    pid: i32,
    tid: i32,
    options: &HoldOptions<'_>,
    survey: &Survey,
) -> Result<Option<Held>, Error> {
    if thread_state(pid, tid) == Some('D') {
        // The thread would not stop, and could not be released before it does.
        return Err(Error::DoesNotStop { pid, tid });
    }
    match try_hold(pid, tid, options, survey)? {
        Attempt::Held(held) => Ok(Some(*held)),
        Attempt::Vanished => Ok(None),
        Attempt::Unsafe(reason) => Err(Error::NoSafeThread {
            pid,
            waited: Duration::ZERO,
            reason,
        }),
    }
}

pub(crate) enum Attempt {
    Held(Box<Held>),
    Unsafe(String),
    Vanished,
}

pub(crate) fn try_hold(
    pid: i32,
    tid: i32,
    options: &HoldOptions<'_>,
    survey: &Survey,
) -> Result<Attempt, Error> {
    let guard = Guard::begin(pid, true);
    let sleeper = Sleeper::of(pid, tid, &mut Clocks::default());
    let waits_in = match Activity::of(pid, tid) {
        Activity::Blocked(libc::SYS_restart_syscall) => waits_in(pid, tid),
        _ => String::new(),
    };
    let Some(sleep) = seize(pid, tid, sleeper.as_ref())? else {
        return Ok(Attempt::Vanished);
    };
    if !await_stop(pid, tid)? {
        return Ok(Attempt::Vanished);
    }
    let mut held = match Held::adopt(pid, tid, sleep, survey, guard) {
        Ok(held) => held,
        // All that is certain is that this thread is gone. The next round shows whether the process is alive.
        Err(Error::TargetGone { .. }) => {
            wait::reap(pid, tid);
            return Ok(Attempt::Vanished);
        }
        Err(error) => return Err(error),
    };
    held.saved.waits_in = waits_in;
    // The request fails only if the thread is gone. The next request would then report that too.
    held.work.filters_suspended = ptrace::suspend_filters(tid).unwrap_or(false);
    if let Err(why) = usable(&held, options) {
        return match held.release() {
            Ok(_) => Ok(Attempt::Unsafe(why)),
            Err(Error::TargetGone { .. }) => Ok(Attempt::Vanished),
            Err(error) => Err(error),
        };
    }
    Ok(Attempt::Held(Box::new(held)))
}

/// Returns `Err` with the reason if the thread cannot be used where it is stopped.
pub(crate) fn usable(held: &Held, options: &HoldOptions<'_>) -> Result<(), String> {
    let (pid, tid) = (held.pid, held.tid);
    held.saved.room.as_ref().map_err(String::clone)?;
    processor::check_keys(tid, &held.saved.extended)?;
    safe_point::check_sequence(pid, tid, &held.saved.registers)?;
    match options.judge {
        Some(judge) => safe_point::check(pid, tid, &held.saved.registers, judge),
        None => Ok(()),
    }
}

/// Seizes a thread and tells it to stop. Returns `None` if it has ended, or is about to end and no longer touches
/// memory.
pub(crate) fn seize(pid: i32, tid: i32, sleeper: Option<&Sleeper>) -> Result<Option<Sleep>, Error> {
    still_chosen(pid)?;
    if let Err(cause) = ptrace::seize(tid) {
        return match thread_state(pid, tid) {
            None | Some('Z' | 'X') => Ok(None),
            Some(_) => refused(pid, tid, cause),
        };
    }
    let interrupted = match sleeper {
        Some(sleeper) => sleeper.interrupt(tid),
        None => ptrace::interrupt(tid).map(|()| Sleep::default()),
    };
    if interrupted.is_err() {
        wait::reap(pid, tid);
    }
    // From here on the thread keeps its id, and so does its process.
    if let Err(replaced) = still_chosen(pid) {
        if interrupted.is_ok() {
            late::let_go_later(pid, tid);
        }
        return Err(replaced.into());
    }
    Ok(interrupted.ok())
}

/// Explains why a thread cannot be seized.
fn refused(pid: i32, tid: i32, cause: io::Error) -> Result<Option<Sleep>, Error> {
    match cause.raw_os_error() {
        Some(libc::ESRCH) => Ok(None),
        Some(libc::EPERM) => match tracer(pid, tid) {
            0 => Err(Error::Permission { pid, cause }),
            // The thread was told to stop earlier, and is released once it has stopped.
            tracer if late::is_ours(tracer) => Err(Error::DoesNotStop { pid, tid }),
            tracer => Err(Error::AlreadyTraced { pid, tracer }),
        },
        _ => Err(Error::ptrace(pid, tid, "SEIZE", cause)),
    }
}

/// Waits until a thread that was told to stop has stopped; `false` if it has exited instead. A signal that arrives
/// first, or must be delivered first (`synchronous.rs`), is delivered immediately: its handler starts, and the thread
/// stops at the handler's first instruction.
fn await_stop(pid: i32, tid: i32) -> Result<bool, Error> {
    let until = Instant::now() + STOP_LIMIT;
    loop {
        let signal = match wait::wait_for_stop(pid, tid, until) {
            Some(Stop::Event(libc::SIGTRAP)) => match synchronous::comes_first(pid, tid) {
                Ok(true) => 0,
                // An error means that the thread is gone. The next request would report that too.
                _ => return Ok(true),
            },
            // A group-stop: job control has just stopped the process. Detaching keeps it stopped.
            Some(Stop::Event(_)) => {
                let _ = ptrace::detach(tid);
                return Err(Error::TargetStopped { pid });
            }
            Some(Stop::Signal(signal)) => {
                if synchronous::take(tid, signal).is_err() {
                    wait::reap(pid, tid);
                    return Ok(false);
                }
                continue;
            }
            Some(Stop::Syscall | Stop::Clone) => 0,
            Some(Stop::Gone) => return Ok(false),
            None => {
                late::let_go_later(pid, tid);
                return Err(Error::DoesNotStop { pid, tid });
            }
        };
        if ptrace::resume(tid, signal).is_err() {
            wait::reap(pid, tid);
            return Ok(false);
        }
    }
}
