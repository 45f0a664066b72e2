//! What the watchdog process does.
//!
//! It shares our memory, and with it the thread-local variables of the thread that made it, so it may not call
//! libc (`errno` is such a variable), allocate, or panic. It makes system calls directly, and for the same
//! reason reads its two files of /proc itself, although otherwise only `memhook-process` does that.

use std::arch::{asm, naked_asm};
use std::ffi::CStr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use super::super::continued::OF_WATCHDOG;
use super::{CONTINUED, Shared};
use memhook_process::cgroup_root;

/// The time between two looks.
const PERIOD_NS: i64 = 50_000_000;
/// After so many looks without progress the holder is killed. They are counted rather than timed, because nobody is
/// late after a pause of the whole machine.
const LOOKS: u32 = 10;
/// Where more threads want to run than there are processors, whoever the holder waits for gets its turn that much more
/// rarely, and a look counts for that much less: for this share of a look at least.
const LEAST_SHARE: u32 = 12;
/// What a look counts for on a machine that is not busy.
const WHOLE_LOOK: u32 = 1 << 16;

/// clone3(2); the libc crate has it as an `int`, which it does not fit into.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Starts the watchdog and returns its id.
///
/// # Safety
/// `stack_end` is the aligned end of a stack for it alone; the stack and `shared` live as long as it does.
pub(super) unsafe fn spawn(shared: &Shared, stack_end: *mut u8) -> Option<i32> {
    let all = u64::MAX;
    let mut before = 0u64;
    // No handler may run in the child, because it would see the variables of this thread.
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

/// rt_sigprocmask(2) with all 64 signals, of which libc keeps two to itself.
fn mask(how: i32, set: &u64, before: Option<&mut u64>) {
    let before = before.map_or(0, |before| (&raw mut *before).addr());
    let set = (&raw const *set).addr();
    let arguments = [how as usize, set, before, size_of::<u64>(), 0, 0];
    // SAFETY: the kernel reads one set, and writes one if asked to.
    unsafe { call(libc::SYS_rt_sigprocmask, arguments) };
}

/// The same as `libc::clone`, into a cgroup.
///
/// # Safety
/// The same as for [`spawn`].
unsafe fn clone_into(cgroup: i32, shared: *const Shared, stack_end: *mut u8) -> i64 {
    const STACK_BYTES: usize = 4096;
    // SAFETY: clone_args is integers; all-zero is valid.
    let none: libc::clone_args = unsafe { std::mem::zeroed() };
    let arguments = libc::clone_args {
        flags: libc::CLONE_VM as u64 | CLONE_INTO_CGROUP,
        // The kernel adds both up, and does not mind how far down the stack goes.
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
            shared,
        )
    }
}

/// clone3(2), which no libc wraps: the child calls [`watch`] with `shared`.
#[unsafe(naked)]
unsafe extern "C" fn clone3(arguments: *const u8, bytes: usize, shared: *const Shared) -> i64 {
    naked_asm!(
        "mov r8, rdx",
        "mov eax, {clone3}",
        "syscall",
        "test rax, rax",
        "jz 1f",
        "ret",
        "1: xor ebp, ebp",
        "mov rdi, r8",
        "call {watch}",
        "ud2",
        clone3 = const libc::SYS_clone3,
        watch = sym watch,
    )
}

extern "C" fn run(shared: *mut libc::c_void) -> i32 {
    watch(shared.cast_const().cast())
}

/// A system call that does not touch `errno`.
///
/// # Safety
/// That of the call itself.
unsafe fn call(nr: i64, arguments: [usize; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: the kernel changes rax, rcx and r11, and the memory that the caller vouches for.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

fn plain(nr: i64, a: usize, b: usize, c: usize) -> i64 {
    // SAFETY: this is used for calls that write no memory, and those that read some get its length too.
    unsafe { call(nr, [a, b, c, 0, 0, 0]) }
}

fn exit() -> ! {
    loop {
        plain(libc::SYS_exit_group, 0, 0, 0);
    }
}

/// What a look at the holder shows.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Look {
    /// The state letter of proc_pid_stat(5).
    state: u8,
    /// Time on a processor, time waiting for one, number of turns (Documentation/scheduler/sched-stats).
    turns: [u8; 64],
}

extern "C" fn watch(shared: *const Shared) -> ! {
    // SAFETY: the maker of this process keeps it until the process has ended.
    let shared = unsafe { &*shared };
    let kill = libc::SIGKILL as usize;
    plain(libc::SYS_prctl, libc::PR_SET_PDEATHSIG as usize, kill, 0);
    if plain(libc::SYS_getppid, 0, 0, 0) != i64::from(shared.pid) {
        exit();
    }
    plain(libc::SYS_setsid, 0, 0, 0);
    let name = c"memhook-watch".as_ptr().addr();
    plain(libc::SYS_prctl, libc::PR_SET_NAME as usize, name, 0);
    close_descriptors();
    shared.ready.store(1, SeqCst);

    let mut before = None;
    // In parts of a look.
    let mut still = 0u32;
    loop {
        if shared.armed.load(SeqCst) == 0 {
            (before, still) = (None, 0);
            sleep(&shared.armed);
            continue;
        }
        nap();
        let now = look(shared);
        let progressed = match now.state {
            // It runs, or waits for a processor, which it would need to be killed too.
            b'R' => true,
            // The kernel keeps no such figures.
            state if now.turns[0] == 0 => !matches!(state, b'T' | b't'),
            _ => before != Some(now.turns),
        };
        before = Some(now.turns);
        if progressed {
            still = 0;
        } else {
            still = still.wrapping_add(weight(running(), shared.processors));
        }
        if now.state == b'T' && shared.armed.load(SeqCst) != 0 {
            CONTINUED.store(1, SeqCst);
            continue_holder(shared.pid);
        }
        if still >= LOOKS * WHOLE_LOOK && shared.armed.load(SeqCst) != 0 {
            end(shared);
        }
    }
}

/// Sends SIGCONT with the value by which the holder's handler knows that nobody else wants it to go on. It goes to one
/// thread: a second signal of a number that is pending for the whole process is lost (signal(7)), and so would be the
/// SIGCONT of somebody else who sends it before the handler has run. It continues all threads nevertheless.
pub(in crate::hold) fn continue_holder(pid: i32) {
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

/// Closes all but standard error, because a pipe or a lock of ours must end with us.
fn close_descriptors() {
    let last = u32::MAX as usize;
    plain(libc::SYS_close_range, 0, 1, 0);
    if plain(libc::SYS_close_range, 3, last, 0) < 0 {
        // This is a kernel before Linux 5.9.
        for descriptor in (0..65_536).filter(|&descriptor| descriptor != 2) {
            plain(libc::SYS_close, descriptor, 0, 0);
        }
    }
}

/// Waits while a word is zero.
fn sleep(word: &AtomicU32) {
    let operation = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    let arguments = [word.as_ptr().addr(), operation, 0, 0, 0, 0];
    // SAFETY: the kernel reads the word; there is no time limit.
    unsafe { call(libc::SYS_futex, arguments) };
}

/// Ends that wait.
pub(super) fn wake(word: &AtomicU32) {
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    plain(libc::SYS_futex, word.as_ptr().addr(), operation, 1);
}

fn nap() {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: PERIOD_NS,
    };
    plain(libc::SYS_nanosleep, (&raw const time).addr(), 0, 0);
}

fn look(shared: &Shared) -> Look {
    let mut text = [0u8; 512];
    read(&shared.stat, &mut text);
    // The name in parentheses may hold anything, so the state is what follows the last parenthesis.
    let mut state = 0;
    let mut at = 0;
    while at + 2 < text.len() {
        if text[at] == b')' {
            state = text[at + 2];
        }
        at += 1;
    }
    let mut turns = [0u8; 64];
    read(&shared.schedstat, &mut turns);
    Look { state, turns }
}

/// What a look without progress counts for, where so many threads run or want to.
fn weight(running: u32, processors: u32) -> u32 {
    let least = WHOLE_LOOK / LEAST_SHARE;
    let (Some(share), true) = (
        WHOLE_LOOK.wrapping_mul(processors).checked_div(running),
        processors < WHOLE_LOOK / 16,
    ) else {
        return WHOLE_LOOK;
    };
    if share < least {
        least
    } else if share > WHOLE_LOOK {
        WHOLE_LOOK
    } else {
        share
    }
}

/// How many threads of the machine run or wait for a processor (proc_loadavg(5), the fourth field); 0 if the kernel does
/// not say.
fn running() -> u32 {
    let mut text = [0u8; 128];
    read(c"/proc/loadavg", &mut text);
    running_in(&text)
}

/// The number before the slash.
fn running_in(text: &[u8; 128]) -> u32 {
    let (mut number, mut at) = (0u32, 0);
    while at < text.len() {
        match text[at] {
            b'/' => return number,
            digit @ b'0'..=b'9' => {
                number = number.wrapping_mul(10).wrapping_add((digit - b'0') as u32);
            }
            _ => number = 0,
        }
        at += 1;
    }
    0
}

/// Fills the buffer from a file; if that fails, the buffer stays as it is.
fn read(path: &CStr, into: &mut [u8]) {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let (at, path) = (libc::AT_FDCWD as usize, path.as_ptr().addr());
    let file = plain(libc::SYS_openat, at, path, flags);
    if file < 0 {
        return;
    }
    let arguments = [file as usize, into.as_mut_ptr().addr(), into.len(), 0, 0, 0];
    // SAFETY: the kernel writes at most the length of the buffer.
    unsafe { call(libc::SYS_read, arguments) };
    plain(libc::SYS_close, file as usize, 0, 0);
}

const BEFORE_PID: &[u8] = b"memhook-rs: killed by its watchdog: it stood still (stopped, frozen or blocked) while it held threads of process ";
const BEHIND_PID: &[u8] = b", which goes on\n";

/// A positive number in digits.
fn decimal(number: i32, room: &mut [u8; 20]) -> &[u8] {
    let mut left = number.unsigned_abs();
    let mut at = room.len();
    while at > 10 {
        at -= 1;
        room[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    &room[at..]
}

/// Kills the attacher, says so, and ends.
fn end(shared: &Shared) -> ! {
    // Otherwise this process would end together with the attacher, before it has said why.
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
    // It does not wait for a terminal that was stopped by Ctrl-S, nor for a full pipe.
    // SAFETY: the kernel writes the one structure.
    unsafe { call(libc::SYS_poll, [(&raw mut error).addr(), 1, 0, 0, 0, 0]) };
    if error.revents & libc::POLLOUT != 0 {
        let mut room = [0; 20];
        let number = decimal(shared.target.load(SeqCst), &mut room);
        for text in [BEFORE_PID, number, BEHIND_PID] {
            plain(libc::SYS_write, 2, text.as_ptr().addr(), text.len());
        }
    }
    exit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_counts_for_less_on_a_busy_machine() {
        let running = |text: &str| {
            let mut bytes = [0; 128];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            running_in(&bytes)
        };
        assert_eq!(running("15.82 18.75 16.76 27/1071 9532\n"), 27);
        assert_eq!((running(""), running("0.1 0.2 0.3")), (0, 0));
        // Nobody else, as many as processors, unknown.
        for (threads, processors) in [(1, 2), (2, 2), (0, 2), (1, 1 << 14)] {
            assert_eq!(weight(threads, processors), WHOLE_LOOK);
        }
        assert_eq!(weight(8, 2), WHOLE_LOOK / 4);
        assert_eq!(weight(5000, 2), WHOLE_LOOK / LEAST_SHARE);
    }
}
