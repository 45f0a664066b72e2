//! A process that ends a hold whose holder stands still.
//!
//! As long as its tracer does not run, a stopped thread stays stopped: SIGSTOP to this process, a
//! frozen cgroup, a debugger or a file that never answers would stop the target with us. So there is
//! a watchdog from before a hold to its end. It sends SIGCONT to a holder that has been stopped, and
//! kills one that makes no progress all the same: then the kernel lets the thread go, and its
//! registers lead it home (`way_home.rs`).
//!
//! It is made by clone(2) with our memory, so that nothing is copied, and lives in a session of its
//! own, where no terminal stops it. It dies with the thread that made it. Where the kernel lets us,
//! it is born in the root of the cgroup hierarchy, so that a freezer of version 2 does not stop it
//! together with us. Version 1 cannot be helped: a task that it has frozen does not even die before
//! it is thawed (cgroup-v1/freezer-subsystem.rst).

mod cgroup;
mod dog;

use std::alloc::{self, Layout};
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// What both sides know.
struct Shared {
    /// The attacher.
    pid: i32,
    /// Status and scheduling figures of its thread that holds.
    stat: CString,
    schedstat: CString,
    /// What is said when it is killed.
    message: String,
    /// Whether the watchdog is on duty: in its own session, and without our descriptors.
    ready: AtomicU32,
    /// Whether a thread of the target is held.
    armed: AtomicU32,
    /// Whether it has continued us.
    continued: AtomicU32,
}

/// The time that the watchdog has to go on duty; it is a dozen system calls.
const READY_LIMIT: Duration = Duration::from_secs(2);

/// Of its stack.
const STACK: Layout = match Layout::from_size_align(64 * 1024, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// The watchdog of this thread's holds of one process; it ends with the value.
pub(crate) struct Watchdog {
    target: i32,
    /// `None`: it could not be started, for want of processes, say. A hold goes on without.
    child: Option<i32>,
    shared: Box<Shared>,
    stack: *mut u8,
    holds: Cell<u32>,
}

thread_local! {
    static OF_THIS_THREAD: RefCell<Weak<Watchdog>> = const { RefCell::new(Weak::new()) };
}

/// The watchdog for holds of `target` by this thread, off duty until one is armed. To be kept as long as
/// there may be more of them: it takes some hundred microseconds to start.
pub(crate) fn start(target: i32) -> Rc<Watchdog> {
    let known = OF_THIS_THREAD.with_borrow(Weak::upgrade);
    if let Some(known) = known.filter(|known| known.target == target) {
        return known;
    }
    let new = Rc::new(Watchdog::start(target));
    OF_THIS_THREAD.set(Rc::downgrade(&new));
    new
}

impl Watchdog {
    fn start(target: i32) -> Watchdog {
        let pid = std::process::id() as i32;
        // SAFETY: no pointers.
        let tid = unsafe { libc::gettid() };
        let path = |name| {
            CString::new(format!("/proc/{pid}/task/{tid}/{name}"))
                .expect("a number has no zero byte")
        };
        let shared = Box::new(Shared {
            pid,
            stat: path("stat"),
            schedstat: path("schedstat"),
            message: format!(
                "memhook-rs: killed by its watchdog: it stood still (stopped, frozen or blocked) while it held threads of process {target}, which goes on\n"
            ),
            ready: AtomicU32::new(0),
            armed: AtomicU32::new(0),
            continued: AtomicU32::new(0),
        });
        // SAFETY: the layout is not empty.
        let stack = unsafe { alloc::alloc(STACK) };
        let child = match stack.is_null() {
            true => None,
            // SAFETY: both live until `drop` has collected the child, or as long as this address
            // space does: the child dies with this thread, the stack is no other's.
            false => unsafe { dog::spawn(&shared, stack.add(STACK.size())) },
        };
        let dog = Watchdog {
            target,
            child,
            shared,
            stack,
            holds: Cell::new(0),
        };
        let until = Instant::now() + READY_LIMIT;
        while dog.child.is_some() && dog.shared.ready.load(SeqCst) == 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(20));
        }
        dog
    }
}

/// While it lives, the watchdog looks whether this thread makes progress.
pub(crate) struct Armed(Rc<Watchdog>);

impl Armed {
    pub(crate) fn begin(target: i32) -> Armed {
        let dog = start(target);
        dog.holds.set(dog.holds.get() + 1);
        dog.shared.armed.store(1, SeqCst);
        Armed(dog)
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        let holds = self.0.holds.get() - 1;
        self.0.holds.set(holds);
        if holds > 0 {
            return;
        }
        self.0.shared.armed.store(0, SeqCst);
        if self.0.shared.continued.swap(0, SeqCst) != 0 {
            // Somebody wants us stopped, and now nothing stops with us.
            // SAFETY: no pointers.
            unsafe { libc::kill(self.0.shared.pid, libc::SIGSTOP) };
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(child) = self.child {
            // SAFETY: no pointers; the child has not been waited for, so the number is still its own.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: waitpid is not asked for a status. __WALL: it announces its end by no signal.
            while unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) } < 0
                && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
            {}
        }
        if !self.stack.is_null() {
            // SAFETY: allocated with this layout; nobody runs on it any more.
            unsafe { alloc::dealloc(self.stack, STACK) };
        }
    }
}
