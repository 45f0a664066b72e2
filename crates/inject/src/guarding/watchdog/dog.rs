//! Code of the watchdog process.
//!
//! The watchdog shares our memory, including the thread-local variables of the thread that created it. So it must not
//! call libc (`errno` is such a variable), allocate, or panic, and makes system calls directly. For the same reason, it
//! reads files in /proc itself, which otherwise only `memhook-process` does.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use super::course::{Course, PERIOD_NS, Seen, Verdict, Way, share};
use super::look::{Look, Wanting, running};
use super::raw::{call, decimal, now_ns, plain};
use super::{CONTINUED, LATE, Shared, let_go};
use crate::continued::OF_WATCHDOG;
use crate::precedence::{SHORTEST_NS, set_turn};
use crate::raw_calls::clone3;
use memhook_process::cgroup_root;

/// Flag of clone3(2). In the libc crate, it is a `c_int`, which is too small.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Starts the watchdog and returns its id.
///
/// # Safety
/// `stack_end` is the aligned end of a stack that only the watchdog uses. The stack and `shared` live as long as the
/// watchdog.
pub(super) unsafe fn spawn(shared: &Shared, stack_end: *mut u8) -> Option<i32> {
    let all = u64::MAX;
    let mut before = 0u64;
    // No handler may run in the child, because the handler would see this thread's variables.
    mask(libc::SIG_SETMASK, &all, Some(&mut before));
    let root = cgroup_root();
    let shared: *const Shared = shared;
    let mut child = -1;
    if let Some(root) = &root {
        // SAFETY: the same as for this function.
        child = unsafe { clone_into(root.as_raw_fd(), shared, stack_end) };
    }
    if child < 0 {
        let argument = shared.cast_mut().cast();
        // SAFETY: the same as for this function. There is no exit signal, and the child has its own copy of the
        // handlers.
        child = unsafe { libc::clone(run, stack_end.cast(), libc::CLONE_VM, argument).into() };
    }
    mask(libc::SIG_SETMASK, &before, None);
    (child > 0).then_some(child as i32)
}

/// rt_sigprocmask(2) with all 64 signals, including the two that libc reserves.
fn mask(how: i32, set: &u64, before: Option<&mut u64>) {
    let before = before.map_or(0, |before| (&raw mut *before).addr());
    let set = (&raw const *set).addr();
    let arguments = [how as usize, set, before, size_of::<u64>(), 0, 0];
    // SAFETY: the kernel reads one set, and writes one if asked to.
    unsafe { call(libc::SYS_rt_sigprocmask, arguments) };
}

/// Like `libc::clone`, but into a cgroup.
///
/// # Safety
/// The same as for [`spawn`].
unsafe fn clone_into(cgroup: i32, shared: *const Shared, stack_end: *mut u8) -> i64 {
    const STACK_BYTES: usize = 4096;
    // SAFETY: clone_args is integers; all-zero is valid.
    let none: libc::clone_args = unsafe { std::mem::zeroed() };
    let arguments = libc::clone_args {
        flags: libc::CLONE_VM as u64 | CLONE_INTO_CGROUP,
        // The kernel merely adds start and size, so the assumed size of the stack does not matter.
        stack: stack_end.addr().wrapping_sub(STACK_BYTES) as u64,
        stack_size: STACK_BYTES as u64,
        cgroup: cgroup as u64,
        ..none
    };
    // SAFETY: the kernel reads the arguments; the rest is the same as for this function.
    unsafe {
        clone3(
            (&raw const arguments).cast(),
            size_of::<libc::clone_args>(),
            shared.cast(),
            watch,
        )
    }
}

extern "C" fn run(shared: *mut libc::c_void) -> i32 {
    watch(shared.cast_const().cast())
}

fn exit() -> ! {
    loop {
        plain(libc::SYS_exit_group, 0, 0, 0);
    }
}

extern "C" fn watch(shared: *const u8) -> ! {
    // SAFETY: the thread that created this process keeps it until the process has ended.
    let shared = unsafe { &*shared.cast::<Shared>() };
    let kill = libc::SIGKILL as usize;
    plain(libc::SYS_prctl, libc::PR_SET_PDEATHSIG as usize, kill, 0);
    if plain(libc::SYS_getppid, 0, 0, 0) != i64::from(shared.pid) {
        exit();
    }
    plain(libc::SYS_setsid, 0, 0, 0);
    let name = c"memhook-watch".as_ptr().addr();
    plain(libc::SYS_prctl, libc::PR_SET_NAME as usize, name, 0);
    close_descriptors();
    // Each check is short, so a short time slice suffices. The kernel also schedules a thread with a short slice
    // sooner: on a busy machine, the target has to wait until the watchdog runs.
    set_turn(SHORTEST_NS);
    shared.ready.store(1, SeqCst);

    let mut course = Course::default();
    let mut wanting = Wanting::none();
    let (mut hold, mut looked_at) = (0, 0);
    loop {
        let armed = shared.armed.load(SeqCst);
        if armed != hold {
            (course, wanting) = (Course::default(), Wanting::none());
            (hold, looked_at) = (armed, now_ns());
        }
        if armed == 0 {
            sleep(&shared.armed);
            continue;
        }
        nap();
        if armed == LATE {
            // The holder may sleep, because nothing more is expected of it.
            if Look::at(&shared.stat, &shared.schedstat).state == b'T'
                && shared.armed.load(SeqCst) == LATE
            {
                CONTINUED.store(1, SeqCst);
                continue_holder(shared.pid);
            }
            continue;
        }
        let now = now_ns();
        let seen = Seen {
            holder: Look::at(&shared.stat, &shared.schedstat),
            steps: shared.steps.load(SeqCst),
            elapsed_ns: now.wrapping_sub(looked_at),
            way: way(shared, hold),
        };
        looked_at = now;
        let target = shared.target.load(SeqCst);
        let elapsed_ns = seen.elapsed_ns;
        let verdict = course.judge(
            &seen,
            || share(running(), shared.processors),
            || wanting.look([shared.pid, target], elapsed_ns),
        );
        if shared.armed.load(SeqCst) != hold {
            continue;
        }
        if seen.holder.state == b'T' {
            CONTINUED.store(1, SeqCst);
            continue_holder(shared.pid);
        }
        match verdict {
            Verdict::GoOn => {}
            Verdict::LetGo => {
                shared.asked.store(hold, SeqCst);
                let_go::tell(shared);
            }
            Verdict::EndStill => end(shared, STOOD_STILL),
            Verdict::EndRunning => end(shared, RAN),
        }
    }
}

/// Returns how the holder can release the target now.
fn way(shared: &Shared, hold: u32) -> Way {
    if shared.let_go.load(SeqCst) == hold {
        Way::Done
    } else if shared.signal == 0 || shared.kept.load(SeqCst) != 0 {
        Way::None
    } else {
        Way::Signal
    }
}

/// Sends SIGCONT with the value by which the holder's handler recognizes the watchdog. The signal goes to one thread.
/// If it went to the process, another process's SIGCONT could be lost before the handler has run, because a second
/// pending signal of the same number is dropped (signal(7)). Even so, the signal continues all threads.
pub(crate) fn continue_holder(pid: i32) {
    // SAFETY: siginfo_t is plain integers and padding; all-zero is valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    info.si_code = libc::SI_QUEUE;
    let value = (&raw mut info)
        .cast::<u8>()
        .wrapping_add(24)
        .cast::<usize>();
    // SAFETY: si_value is at this offset (struct siginfo, _rt), inside of `info`, and aligned.
    unsafe { value.write(OF_WATCHDOG) };
    let info = (&raw const info).addr();
    let (pid, signal) = (pid as usize, libc::SIGCONT as usize);
    let to_thread = [pid, pid, signal, info, 0, 0];
    // SAFETY: the kernel reads one siginfo_t.
    if unsafe { call(libc::SYS_rt_tgsigqueueinfo, to_thread) } < 0 {
        // The initial thread has ended.
        plain(libc::SYS_rt_sigqueueinfo, pid, signal, info);
    }
}

/// Closes all descriptors except standard error, because our pipes and file locks must not outlive us.
fn close_descriptors() {
    let last = u32::MAX as usize;
    plain(libc::SYS_close_range, 0, 1, 0);
    if plain(libc::SYS_close_range, 3, last, 0) < 0 {
        // This is for kernels before Linux 5.9.
        for descriptor in (0..65_536).filter(|&descriptor| descriptor != 2) {
            plain(libc::SYS_close, descriptor, 0, 0);
        }
    }
}

/// Waits while a word is zero (futex).
fn sleep(word: &AtomicU32) {
    let operation = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    let arguments = [word.as_ptr().addr(), operation, 0, 0, 0, 0];
    // SAFETY: the kernel reads the word; there is no time limit.
    unsafe { call(libc::SYS_futex, arguments) };
}

/// Wakes the thread that waits in `sleep`.
pub(super) fn wake(word: &AtomicU32) {
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    plain(libc::SYS_futex, word.as_ptr().addr(), operation, 1);
}

fn nap() {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: PERIOD_NS as i64,
    };
    plain(libc::SYS_nanosleep, (&raw const time).addr(), 0, 0);
}

const KILLED: &[u8] = b"memhook-rs: killed by its watchdog: it ";
const STOOD_STILL: &[u8] = b"stood still (stopped, frozen or blocked)";
const RAN: &[u8] = b"ran for ten seconds without progress";
const BEFORE_PID: &[u8] = b" while it held threads of process ";
const BEHIND_PID: &[u8] = b", which continues\n";

/// Kills the attacher, reports this, and exits.
fn end(shared: &Shared, why: &[u8]) -> ! {
    // The death signal is cleared, because otherwise this process would end together with the attacher, before it could
    // report the reason.
    plain(libc::SYS_prctl, libc::PR_SET_PDEATHSIG as usize, 0, 0);
    if plain(libc::SYS_getppid, 0, 0, 0) != i64::from(shared.pid) {
        exit();
    }
    let kill = libc::SIGKILL as usize;
    plain(libc::SYS_kill, shared.pid as usize, kill, 0);
    let mut error = libc::pollfd {
        fd: 2,
        events: libc::POLLOUT,
        revents: 0,
    };
    let mut no_time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let no_time = (&raw mut no_time).addr();
    // The write must not wait for a terminal that was stopped by Ctrl-S, or for a full pipe. SAFETY: the kernel writes
    // the two structures.
    unsafe {
        call(
            libc::SYS_ppoll,
            [(&raw mut error).addr(), 1, no_time, 0, 0, 0],
        )
    };
    if error.revents & libc::POLLOUT != 0 {
        let mut room = [0; 20];
        let number = decimal(shared.target.load(SeqCst), &mut room);
        for text in [KILLED, why, BEFORE_PID, number, BEHIND_PID] {
            plain(libc::SYS_write, 2, text.as_ptr().addr(), text.len());
        }
    }
    exit()
}
