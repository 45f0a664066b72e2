//! Checks whether an attach would find a thread at a safe point, with no other thread in its way.
//!
//! For a blocked thread, the kernel reports the position (proc_pid_syscall(5)), and the stack can be read while the
//! thread sleeps. If no blocked thread settles the question, a thread is held, as an attach would do, and is released
//! immediately. No blocked thread settles it if all threads are running, if none can be unwound without a frame
//! pointer, or if none is at a safe point.

use crate::claim::claim;
use crate::error::Error;
use crate::hold::reach::Reach;
use crate::hold::safe_point::{SAFE_POINT_PATIENCE, SafePoints};
use memhook_process::{Check, ModuleImage, blocked_at, sleeps, thread_ids};
use std::time::{Duration, Instant};

const NAME: &str = "safe point";
const REMEDY: &str = "an attach is possible once it has left the loader and the allocator; a thread that never \
     leaves them holds their locks, and no attach is possible";
const OTHER_PROCESS: &str = "memhook-rs cannot call functions in such a process; scan and rss copy its memory without a call";
/// Time between two checks of a thread that sleeps inside the loader.
const PAUSE: Duration = Duration::from_millis(50);

/// Checks the threads of a process with these modules, which include the loader. With `only_looks`, no thread is held.
pub fn safe_thread(pid: i32, modules: Vec<ModuleImage>, only_looks: bool) -> Check {
    if !only_looks && let Err(error) = refuse_own_answers(pid) {
        return Check::bad(NAME, error.to_string(), OTHER_PROCESS);
    }
    let points = match SafePoints::of_process(pid, modules) {
        Ok(points) => points,
        Err(error) => return Check::bad(NAME, error.to_string(), "try again"),
    };
    if let Some(tid) = sleeps_in_the_loader(pid, &points) {
        return Check::bad(
            NAME,
            format!(
                "thread {tid} of process {pid} sleeps inside the loader, or in fork or dl_iterate_phdr"
            ),
            REMEDY,
        );
    }
    let tids = thread_ids(pid).unwrap_or_default();
    let is_safe =
        |&tid: &i32| blocked_at(pid, tid).is_some_and(|at| points.is_safe_asleep(pid, at));
    if let Some(tid) = tids.into_iter().find(is_safe) {
        return Check::good(NAME, format!("thread {tid} waits at one"));
    }
    if only_looks {
        return Check::note(
            NAME,
            "unknown: no sleeping thread is at one, and no other thread was stopped to look",
            "an attach holds a thread to find one, and refuses if there is none",
        );
    }
    match hold(pid, &points) {
        Ok(tid) => Check::good(
            NAME,
            format!("thread {tid} was stopped outside the loader, and continued"),
        ),
        Err(error) => Check::bad(NAME, error.to_string(), REMEDY),
    }
}

/// Refuses a process that intercepts the system calls of its own threads, because it would also intercept ours and the
/// hook's.
pub(crate) fn refuse_own_answers(pid: i32) -> Result<(), Error> {
    match memhook_inject::thread_with_own_answers(pid) {
        Some(tid) => Err(memhook_inject::Error::CallsDispatched { pid, tid }.into()),
        None => Ok(()),
    }
}

/// Returns a thread that is stuck inside the loader: `dlopen` in any other thread would wait for its lock.
fn sleeps_in_the_loader(pid: i32, points: &SafePoints) -> Option<i32> {
    let now = |tid| Some((blocked_at(pid, tid)?, sleeps(pid, tid)?));
    let tids = thread_ids(pid).unwrap_or_default().into_iter();
    let asleep = tids.filter_map(|tid| Some((tid, now(tid)?)));
    let mut stuck: Vec<_> = asleep
        .filter(|(_, (at, _))| points.sleeps_in_the_loader(pid, *at))
        .collect();
    let until = Instant::now() + SAFE_POINT_PATIENCE;
    while !stuck.is_empty() && Instant::now() < until {
        std::thread::sleep(PAUSE);
        stuck.retain(|&(tid, then)| now(tid) == Some(then));
    }
    stuck.first().map(|&(tid, _)| tid)
}

/// Holds a thread at a safe point for a moment, and returns its id.
fn hold(pid: i32, points: &SafePoints) -> Result<i32, Error> {
    let _claim = claim(pid)?;
    let running = &mut Reach::Running;
    let held = points.hold_outside_of_the_loader(running, pid, SAFE_POINT_PATIENCE)?;
    let tid = held.tid();
    held.release()?;
    Ok(tid)
}
