//! A process that ends a hold whose holder hangs.
//!
//! As long as its tracer does not run, a stopped thread stays stopped: SIGSTOP to this process, a
//! frozen cgroup, a debugger, a file that never answers, or a machine on which we get no processor would stop the target
//! with us. So each thread that holds has a watchdog, which sleeps between holds. It sends SIGCONT to a holder that has
//! been stopped, and a signal to one that has lost too much of a hold's time, for whatever reason: in its handler, the
//! holder lets the target go (`let_go.rs`), and its work fails.
//!
//! A holder that does not answer, or that may not let go, is killed: then the kernel lets the held thread go,
//! and its registers lead it home (`way_home.rs`). But starved is not stuck, and for want of a processor nobody is
//! killed. A holder that waits for one is runnable in the eyes of the kernel; where it sleeps, one of the threads that it
//! may wait for wants to run and hardly gets a turn (`course.rs`, `look.rs`). One that runs and does no step of its work
//! for seconds is stuck as well.
//!
//! It is made by clone(2) with our memory, so that nothing is copied, and lives in a session of its
//! own, where no terminal stops it. It dies with the thread that made it. Where the kernel lets us,
//! it is born in the root of the cgroup hierarchy, so that a freezer of version 2 does not stop it
//! together with us. Version 1 cannot be helped: a task that it has frozen does not even die before
//! it is thawed (cgroup-v1/freezer-subsystem.rst).

mod course;
mod dog;
mod let_go;
mod look;
mod raw;

#[cfg(test)]
pub(super) use dog::continue_holder;
pub(crate) use raw::call;

use std::alloc::{self, Layout};
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::fs::File;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{
    AtomicI32, AtomicU32,
    Ordering::{Relaxed, SeqCst},
};
use std::time::{Duration, Instant};

use super::continued;

/// State that both sides know.
struct Shared {
    /// The attacher, and its thread that holds.
    pid: i32,
    tid: i32,
    /// By which the holder is told to let go; 0: none is free.
    signal: i32,
    /// The status and the scheduling figures of its thread that holds.
    stat: CString,
    schedstat: CString,
    /// Number of processors of the machine.
    processors: u32,
    /// True if the watchdog is on duty: in its own session, and without our descriptors.
    ready: AtomicU32,
    /// The number of the hold; [`LATE`]: there is none, but a thread may stop late; 0: neither, and then the watchdog
    /// sleeps on this word (futex(2)).
    armed: AtomicU32,
    /// The hold whose target is to be let go, and that whose target has been.
    asked: AtomicU32,
    let_go: AtomicU32,
    /// For how many reasons the holder may not let go just now.
    kept: AtomicU32,
    /// Counts what the holder does.
    steps: AtomicU32,
    /// The target.
    target: AtomicI32,
    /// The descriptor of its list of threads: when the holder has to let go, none may be free to open that by. -1: it
    /// could not be opened.
    threads: AtomicI32,
}

/// In the place of a hold's number: between holds, a seized thread may stop at any moment, and only the holder can let it
/// go (`late.rs`). Somebody who stops the holder then would stop that thread with it.
const LATE: u32 = u32::MAX;

/// Set if a watchdog has continued this process after somebody had stopped it.
static CONTINUED: AtomicU32 = AtomicU32::new(0);

/// Somebody has continued this process, so it does not stop after the hold.
pub(super) fn take_back_stops() {
    CONTINUED.store(0, SeqCst);
}

/// Returns true if it has, and nobody else since.
#[cfg(test)]
pub(super) fn has_continued() -> bool {
    CONTINUED.load(SeqCst) != 0
}

/// The time that the watchdog has to go on duty, which takes a dozen system calls.
const READY_LIMIT: Duration = Duration::from_secs(2);

/// Its stack.
const STACK: Layout = match Layout::from_size_align(64 * 1024, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// The watchdog of one thread of ours.
struct Watchdog {
    /// `None` if it could not be started, for example because there are too many processes. A hold then does without.
    child: Option<i32>,
    shared: Box<Shared>,
    stack: *mut u8,
    holds: u32,
    /// True if threads may stop late.
    has_late: bool,
    /// The number of the last hold.
    last: u32,
    /// File that `Shared::threads` is the number of.
    threads: Option<File>,
}

thread_local! {
    /// Ends with the thread.
    static OWN: RefCell<Option<Watchdog>> = const { RefCell::new(None) };
    /// Memory shared with the watchdog, for the handler, which may interrupt a use of the other variable.
    static SHARED: Cell<*const Shared> = const { Cell::new(ptr::null()) };
}

/// Returns the memory that this thread shares with its watchdog, if it has one.
fn own() -> Option<&'static Shared> {
    // SAFETY: whoever takes it away, on this thread, resets the variable first; no caller keeps the reference.
    unsafe { SHARED.get().as_ref() }
}

/// Counts a step of the holder's work.
pub(crate) fn step() {
    if let Some(shared) = own() {
        shared.steps.fetch_add(1, Relaxed);
    }
}

/// Returns true if this thread has released the target of its present hold because its work made no progress.
pub(crate) fn has_let_go() -> bool {
    own().is_some_and(|shared| {
        let hold = shared.armed.load(SeqCst);
        hold != 0 && shared.let_go.load(SeqCst) == hold
    })
}

/// As long as it lives, this thread does not let go.
pub(crate) struct Kept {
    /// Marker: the contents belong to this thread.
    _not_send: PhantomData<*const ()>,
}

/// Keeps the target held for what must not be interrupted; `None` if it has been let go already. What is done must be
/// short, or the holder is killed if it stands still.
pub(crate) fn keep() -> Option<Kept> {
    let kept = Kept::begin();
    (!has_let_go()).then_some(kept)
}

impl Kept {
    fn begin() -> Kept {
        if let Some(shared) = own() {
            shared.kept.fetch_add(1, SeqCst);
        }
        Kept {
            _not_send: PhantomData,
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(shared) = own() {
            shared.kept.fetch_sub(1, SeqCst);
            let_go::let_go_if_asked(shared);
        }
    }
}

/// Starts the watchdog of this thread if there is none yet. It should be called some time before the thread first holds
/// one of a target, because on a busy machine it may take a while until the watchdog is on duty.
pub fn start() {
    OWN.with_borrow_mut(|own| {
        if !own.as_mut().is_some_and(Watchdog::lives) {
            let has_late = own.as_ref().is_some_and(|dog| dog.has_late);
            *own = None;
            let mut dog = Watchdog::start();
            SHARED.set(&raw const *dog.shared);
            dog.expect_late(has_late);
            *own = Some(dog);
        }
    });
}

/// Ends the watchdog of this thread, if it has one and holds nothing: for a thread that will hold none for a long time. The
/// next hold starts another one, before it stops anything.
pub fn dismiss() {
    OWN.with_borrow_mut(|own| {
        if own
            .as_ref()
            .is_some_and(|dog| dog.holds == 0 && !dog.has_late)
        {
            *own = None;
        }
    });
}

/// Says whether threads that this thread of ours has seized may stop late. As long as they may, nobody can stop this
/// process for long.
pub(super) fn expect_late(has_late: bool) {
    if has_late && !holds() {
        start();
    }
    OWN.with_borrow_mut(|own| own.as_mut().map(|dog| dog.expect_late(has_late)));
}

/// Returns true while this thread holds: its watchdog counts the hold, and must not be replaced, even if it has died.
fn holds() -> bool {
    OWN.with_borrow(|own| own.as_ref().is_some_and(|dog| dog.holds > 0))
}

/// Returns the number of processors that are online; 1 if libc does not know.
fn processors() -> u32 {
    // SAFETY: no pointers.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u32::try_from(count).unwrap_or(1).max(1)
}

impl Watchdog {
    fn start() -> Watchdog {
        continued::notice();
        let pid = std::process::id() as i32;
        // SAFETY: no pointers.
        let tid = unsafe { libc::gettid() };
        let path = |name| {
            CString::new(format!("/proc/{pid}/task/{tid}/{name}"))
                .expect("a number has no zero byte")
        };
        let shared = Box::new(Shared {
            pid,
            tid,
            signal: let_go::signal(),
            stat: path("stat"),
            schedstat: path("schedstat"),
            processors: processors(),
            ready: AtomicU32::new(0),
            armed: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            let_go: AtomicU32::new(0),
            kept: AtomicU32::new(0),
            steps: AtomicU32::new(0),
            target: AtomicI32::new(0),
            threads: AtomicI32::new(-1),
        });
        // SAFETY: the layout is not empty.
        let stack = unsafe { alloc::alloc(STACK) };
        let child = if stack.is_null() {
            None
        } else {
            // SAFETY: both live until `drop` has collected the child, or as long as this address
            // space does: the child dies with this thread. Nobody else uses the stack.
            unsafe { dog::spawn(&shared, stack.add(STACK.size())) }
        };
        Watchdog {
            child,
            shared,
            stack,
            holds: 0,
            has_late: false,
            last: 0,
            threads: None,
        }
    }

    fn expect_late(&mut self, has_late: bool) {
        if std::mem::replace(&mut self.has_late, has_late) == has_late || self.holds > 0 {
            return;
        }
        if has_late {
            self.shared.armed.store(LATE, SeqCst);
            dog::wake(&self.shared.armed);
        } else {
            self.shared.armed.store(0, SeqCst);
            self.stop_if_asked();
        }
    }

    /// Returns true if it still lives. If somebody has ended it, it is collected.
    fn lives(&mut self) -> bool {
        let flags = libc::__WALL | libc::WNOHANG;
        self.child = self.child.filter(|&child| {
            // SAFETY: waitpid is not asked for a status.
            unsafe { libc::waitpid(child, ptr::null_mut(), flags) == 0 }
        });
        self.child.is_some()
    }

    fn arm(&mut self, target: i32) {
        self.holds += 1;
        if self.holds > 1 || self.child.is_none() {
            return;
        }
        let until = Instant::now() + READY_LIMIT;
        while self.shared.ready.load(SeqCst) == 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.shared.target.store(target, SeqCst);
        self.threads = File::open(format!("/proc/{target}/task")).ok();
        let threads = self.threads.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        self.shared.threads.store(threads, SeqCst);
        self.last = (self.last + 1) % LATE;
        self.last = self.last.max(1);
        self.shared.armed.store(self.last, SeqCst);
        dog::wake(&self.shared.armed);
    }

    fn disarm(&mut self) {
        self.holds -= 1;
        if self.holds > 0 {
            return;
        }
        let next = if self.has_late { LATE } else { 0 };
        self.shared.armed.store(next, SeqCst);
        // From here on the handler does nothing.
        self.shared.threads.store(-1, SeqCst);
        self.threads = None;
        if !self.has_late {
            self.stop_if_asked();
        }
    }

    /// Makes up for a stop that the watchdog has ended.
    fn stop_if_asked(&self) {
        continued::let_handler_run(&CONTINUED);
        if CONTINUED.swap(0, SeqCst) != 0 {
            // Somebody wants us to stop, and now nothing stops with us.
            // SAFETY: no pointers.
            unsafe { libc::kill(self.shared.pid, libc::SIGSTOP) };
        }
    }
}

/// While it lives, the watchdog checks that this thread makes progress.
pub(crate) struct Armed {
    /// Gone before the watchdog is off duty.
    kept: Option<Kept>,
    /// The watchdog belongs to this thread.
    _not_send: PhantomData<*const ()>,
}

impl Armed {
    /// `may_let_go`: whether the target may be let go in the middle.
    pub(crate) fn begin(target: i32, may_let_go: bool) -> Armed {
        if !holds() {
            start();
        }
        // First, so that there is no moment without it.
        let kept = (!may_let_go).then(Kept::begin);
        OWN.with_borrow_mut(|own| own.as_mut().map(|dog| dog.arm(target)));
        Armed {
            kept,
            _not_send: PhantomData,
        }
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        self.kept = None;
        OWN.with_borrow_mut(|own| own.as_mut().map(Watchdog::disarm));
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if ptr::eq(SHARED.get(), &raw const *self.shared) {
            SHARED.set(ptr::null());
        }
        if let Some(child) = self.child {
            // SAFETY: no pointers; the child has not been collected, so the number is its own.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: waitpid is not asked for a status. __WALL, because the end of the child is announced by no signal.
            while unsafe { libc::waitpid(child, ptr::null_mut(), libc::__WALL) } < 0
                && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
            {}
        }
        if !self.stack.is_null() {
            // SAFETY: it was allocated with this layout, and nobody runs on it any more.
            unsafe { alloc::dealloc(self.stack, STACK) };
        }
    }
}
