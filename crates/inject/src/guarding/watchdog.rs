//! The watchdog: a process that ends a hold whose holder hangs.
//!
//! A stopped thread stays stopped as long as its tracer does not run. SIGSTOP to this process, a frozen cgroup, a
//! debugger, a file that never answers, or a machine that gives us no processor would stop the target along with us. So
//! each thread that holds has a watchdog, which sleeps between holds. The watchdog sends SIGCONT to a holder that has
//! been stopped. If a holder has lost too much of a hold's time for any reason, the watchdog sends it a signal whose
//! handler releases the target (`let_go.rs`); the holder's work then fails.
//!
//! A holder that does not react, or must not release the target, is killed. The kernel then releases the held thread,
//! whose registers are set to lead it home (`way_home.rs`). But a starved holder is not stuck, and the watchdog never
//! kills for lack of CPU time. The kernel reports a holder that waits for a processor as runnable. A sleeping holder
//! counts as starved if a thread that it may be waiting for is runnable but hardly ever scheduled (`course.rs`,
//! `look.rs`). A holder that runs for seconds without completing a step of its work counts as stuck.
//!
//! The watchdog is created by clone(2) with our memory, so that nothing is copied. It lives in its own session, where
//! no terminal stops it, and dies with the thread that created it. If the kernel permits, it is created in the root of
//! the cgroup hierarchy, so that the cgroup v2 freezer does not stop it together with us. There is no remedy for the v1
//! freezer: a task frozen by it does not even die until it is thawed (cgroup-v1/freezer-subsystem.rst).

mod course;
mod dog;
mod let_go;
mod look;
mod raw;

#[cfg(test)]
pub(super) use dog::continue_holder;

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

/// State shared by holder and watchdog.
struct Shared {
    /// Process id of the attacher, and the id of its holding thread.
    pid: i32,
    tid: i32,
    /// Signal that tells the holder to release its target; 0 if no signal is free.
    signal: i32,
    /// Paths of the files with the status and the scheduling figures of the holding thread.
    stat: CString,
    schedstat: CString,
    /// Number of processors of the machine.
    processors: u32,
    /// True if the watchdog is on duty: in its own session, and without our descriptors.
    ready: AtomicU32,
    /// Number of the current hold; [`LATE`] if there is none but a thread may stop late; 0 otherwise. The watchdog
    /// sleeps on this word (futex(2)).
    armed: AtomicU32,
    /// Numbers of the hold whose target must be released, and of the hold whose target has been released.
    asked: AtomicU32,
    let_go: AtomicU32,
    /// Number of reasons why the holder must not release its target now.
    kept: AtomicU32,
    /// Counter of the holder's steps.
    steps: AtomicU32,
    /// The target.
    target: AtomicI32,
    /// Descriptor of the holder's list of threads, opened in advance because no descriptor may be free when the holder
    /// has to release its target; -1 if the list could not be opened.
    threads: AtomicI32,
}

/// Value that replaces a hold's number. Between holds, a seized thread may stop at any moment, and only the holder can
/// release it (`late.rs`). If the holder itself were stopped at that moment, the thread would stay stopped.
const LATE: u32 = u32::MAX;

/// Set if a watchdog has continued this process after another process had stopped it.
static CONTINUED: AtomicU32 = AtomicU32::new(0);

/// Cancels the stop after the hold, because another process has continued this process.
pub(super) fn take_back_stops() {
    CONTINUED.store(0, SeqCst);
}

/// Returns true if a watchdog has continued this process, and no other process has continued it since.
#[cfg(test)]
pub(crate) fn has_continued() -> bool {
    CONTINUED.load(SeqCst) != 0
}

/// Time limit for the start of the watchdog, which takes a dozen system calls.
const READY_LIMIT: Duration = Duration::from_secs(2);

/// Its stack.
const STACK: Layout = match Layout::from_size_align(64 * 1024, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// Watchdog of one thread of ours.
struct Watchdog {
    /// `None` if the watchdog could not be started, for example because the process limit was reached. Holds then run
    /// without a watchdog.
    child: Option<i32>,
    shared: Box<Shared>,
    stack: *mut u8,
    holds: u32,
    /// True if threads may stop late.
    has_late: bool,
    /// Number of the last hold.
    last: u32,
    /// File of the descriptor `Shared::threads`.
    threads: Option<File>,
}

thread_local! {
    /// Watchdog of this thread. It ends with the thread.
    static OWN: RefCell<Option<Watchdog>> = const { RefCell::new(None) };
    /// Memory shared with the watchdog. The signal handler uses this variable, because it may interrupt code that has
    /// borrowed the other variable.
    static SHARED: Cell<*const Shared> = const { Cell::new(ptr::null()) };
}

/// Returns the memory that this thread shares with its watchdog, if it has one.
fn own() -> Option<&'static Shared> {
    // SAFETY: this thread resets the variable before it frees the memory, and no caller keeps the reference.
    unsafe { SHARED.get().as_ref() }
}

/// Counts a step of the holder's work.
pub(crate) fn step() {
    if let Some(shared) = own() {
        shared.steps.fetch_add(1, Relaxed);
    }
}

/// Returns true if this thread has released the target of its current hold because the thread's work made no progress.
pub(crate) fn has_let_go() -> bool {
    own().is_some_and(|shared| {
        let hold = shared.armed.load(SeqCst);
        hold != 0 && shared.let_go.load(SeqCst) == hold
    })
}

/// Guard that keeps this thread from releasing its target early.
pub(crate) struct Kept {
    /// Marker: the contents belong to this thread.
    _not_send: PhantomData<*const ()>,
}

/// Keeps the target held for work that must not be interrupted. Returns `None` if the target has already been released.
/// The work must be short, because the watchdog kills a holder that makes no progress.
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

/// Starts the watchdog of this thread if there is none yet. Call this well before the thread's first hold, because on a
/// busy machine the watchdog may take some time to start.
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

/// Ends the watchdog of this thread, if it has one and is not holding a target. Use this for a thread that will not
/// hold for a long time. Its next hold starts a new watchdog before it stops any thread.
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

/// Sets whether threads that this thread has seized may still stop after the hold. As long as this is set, the watchdog
/// keeps this process from staying stopped.
pub(crate) fn expect_late(has_late: bool) {
    if has_late && !holds() {
        start();
    }
    OWN.with_borrow_mut(|own| own.as_mut().map(|dog| dog.expect_late(has_late)));
}

/// Returns true while this thread holds another thread. The watchdog, which counts the current holds, must not be
/// replaced during that time, even if it has died.
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
            // SAFETY: both live until `drop` has collected the child, or as long as this address space, because the
            // child dies with this thread. No other code uses the stack.
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

    /// Returns true if the watchdog is alive. Reaps it if another process has killed it.
    fn lives(&mut self) -> bool {
        let flags = libc::__WALL | libc::WNOHANG;
        self.child = self.child.filter(|&child| {
            // SAFETY: waitpid writes no status.
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

    /// Stops this process if the watchdog has ended an earlier stop.
    fn stop_if_asked(&self) {
        continued::let_handler_run(&CONTINUED);
        if CONTINUED.swap(0, SeqCst) != 0 {
            // The stop was requested, and no target would now be stopped with us. SAFETY: no pointers.
            unsafe { libc::kill(self.shared.pid, libc::SIGSTOP) };
        }
    }
}

/// Guard for the time in which the watchdog checks that this thread makes progress.
pub(crate) struct Armed {
    /// Dropped before the watchdog is disarmed.
    kept: Option<Kept>,
    /// The watchdog belongs to this thread.
    _not_send: PhantomData<*const ()>,
}

impl Armed {
    /// `may_let_go`: true if the target may be released early.
    pub(crate) fn begin(target: i32, may_let_go: bool) -> Armed {
        if !holds() {
            start();
        }
        // The guard is created first, so that the hold is protected from the start.
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
            // SAFETY: waitpid writes no status. __WALL is needed because no signal announces the end of the child.
            while unsafe { libc::waitpid(child, ptr::null_mut(), libc::__WALL) } < 0
                && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
            {}
        }
        if !self.stack.is_null() {
            // SAFETY: the memory was allocated with this layout, and no process runs on it any more.
            unsafe { alloc::dealloc(self.stack, STACK) };
        }
    }
}
