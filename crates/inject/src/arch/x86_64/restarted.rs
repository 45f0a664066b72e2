//! Finds the original system call behind a restart_syscall(2).
//!
//! When a stop has interrupted poll, futex, nanosleep or clock_nanosleep, the kernel resumes the call through
//! restart_syscall, which takes the remaining timeout from a block in the kernel. If we are killed while holding a
//! thread in one of these calls, the thread returns through rt_sigreturn, which empties the block (restore_sigcontext
//! in arch/x86/kernel/signal_64.c). restart_syscall would then return EINTR, which futex(2) and nanosleep(2) never do
//! in a program without signal handlers. So the thread repeats the original call. The arguments are still in the
//! registers, so only the number has to be found. The wait starts over, so it ends later than it should.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::Registers;
use crate::restart::{RESTART_BY_BLOCK, SYSCALL_BYTES};

/// The calls that use restart_syscall(2).
const CALLS: [i64; 4] = [
    libc::SYS_poll,
    libc::SYS_nanosleep,
    libc::SYS_futex,
    libc::SYS_clock_nanosleep,
];

/// Length of the code before the `syscall` instruction that is searched for the call's number.
const CODE_BYTES: usize = 32;
/// `mov $number, %eax`
const LOAD_NUMBER: u8 = 0xb8;
/// Upper bound of clock ids, and lower bound of object addresses.
const CLOCKS: u64 = 64;

/// Maximum number of remembered threads. If there are more, some were remembered so long ago that their calls have
/// ended.
const MOST_THREADS: usize = 4096;

/// Calls in which threads were stopped before the kernel restarted them, by thread. The kernel does not report where a
/// thread waits if the thread is running at that moment, for example between two stops in quick succession.
static SEEN: LazyLock<Mutex<HashMap<i32, (Call, i64)>>> = LazyLock::new(Mutex::default);

/// Identity of a call that survives a restart: its address and arguments.
type Call = [u64; 8];

fn call(saved: &Registers) -> Call {
    let (rip, rsp) = (saved.rip, saved.rsp);
    let (rdi, rsi, rdx) = (saved.rdi, saved.rsi, saved.rdx);
    [rip, rsp, rdi, rsi, rdx, saved.r10, saved.r8, saved.r9]
}

/// Remembers the call in which a thread has been stopped, if restart_syscall will restart it.
pub(crate) fn remember(tid: i32, saved: &Registers) {
    let number = saved.orig_rax as i64;
    if !CALLS.contains(&number) || saved.rax as i64 != RESTART_BY_BLOCK {
        return;
    }
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if seen.len() >= MOST_THREADS {
        seen.clear();
    }
    seen.insert(tid, (call(saved), number));
}

/// Forgets threads that have ended. Another thread that stores a call in the meantime does not wait for long.
pub(crate) fn forget_ended() {
    let lock = || SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let before: Vec<_> = lock().iter().map(|(&tid, &seen)| (tid, seen)).collect();
    let has_ended = |tid: &i32| !Path::new(&format!("/proc/{tid}")).exists();
    let ended: Vec<_> = before
        .into_iter()
        .filter(|(tid, _)| has_ended(tid))
        .collect();
    let mut seen = lock();
    for (tid, of) in ended {
        // A new thread may have reused the id by now.
        if seen.get(&tid) == Some(&of) {
            seen.remove(&tid);
        }
    }
    seen.shrink_to_fit();
}

fn remembered(tid: i32, saved: &Registers) -> Option<i64> {
    let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let (before, number) = seen.get(&tid)?;
    (*before == call(saved)).then_some(*number)
}

/// Returns the number of the call that restart_syscall continues, if it is certain. The sources are, in this order: an
/// earlier stop of the thread in the call, the code before the call, and, if that code makes any call, the place in the
/// kernel where the thread waits. `orig_rax`: the value at the stop, which is the number itself while the thread is on
/// its way to restart_syscall.
pub(crate) fn original(
    tid: i32,
    orig_rax: i64,
    saved: &Registers,
    waits_in: &str,
    read: impl FnOnce(u64, &mut [u8]) -> bool,
) -> Option<i64> {
    let mut code = [0; CODE_BYTES];
    let at = saved.rip.wrapping_sub(SYSCALL_BYTES + CODE_BYTES as u64);
    let loaded = read(at, &mut code).then(|| loaded_number(&code)).flatten();
    let waited = match waits_in {
        place if place.contains("futex") => Some(libc::SYS_futex),
        place if place.contains("poll") => Some(libc::SYS_poll),
        _ => None,
    };
    let seen = CALLS.contains(&orig_rax).then_some(orig_rax);
    let known = seen.or_else(|| remembered(tid, saved));
    let number = known.or(loaded).or(waited)?;
    let agrees = waited.is_none_or(|waited| waited == number);
    (agrees && has_arguments_of(saved, number)).then_some(number)
}

/// Returns the last number of one of the `CALLS` that the code loads.
fn loaded_number(code: &[u8; CODE_BYTES]) -> Option<i64> {
    let load = |window: &[u8]| {
        let (&opcode, number) = window.split_first()?;
        let number = i32::from_le_bytes(number.try_into().ok()?);
        (opcode == LOAD_NUMBER && CALLS.contains(&number.into())).then_some(number.into())
    };
    code.windows(5).rev().find_map(load)
}

/// Returns true if these registers could be those of a sleeping call with this number.
fn has_arguments_of(saved: &Registers, number: i64) -> bool {
    match number {
        libc::SYS_clock_nanosleep => saved.rdi < CLOCKS && saved.rdx != 0,
        libc::SYS_nanosleep => saved.rdi >= CLOCKS,
        // A call without a timeout is restarted in another way.
        libc::SYS_futex => saved.rdi >= CLOCKS && saved.r10 != 0,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers(arguments: [u64; 4]) -> Registers {
        let mut registers = crate::regs::zeroed();
        registers.rip = 0x1000;
        [registers.rdi, registers.rsi, registers.rdx, registers.r10] = arguments;
        registers
    }

    fn found(arguments: [u64; 4], code: &[u8], waits_in: &str) -> Option<i64> {
        let restarted = libc::SYS_restart_syscall;
        original(1, restarted, &registers(arguments), waits_in, |at, into| {
            assert_eq!(at, 0x1000 - 2 - CODE_BYTES as u64);
            let room = into.len() - code.len();
            into[room..].copy_from_slice(code);
            !code.is_empty()
        })
    }

    #[test]
    fn a_call_that_was_seen_is_remembered() {
        // An existing thread is never forgotten. SAFETY: no pointers.
        let own = unsafe { libc::gettid() };
        let mut stopped = registers([0x5000, 0x89, 0, 0x6000]);
        stopped.orig_rax = libc::SYS_futex as u64;
        let again = registers([0x5000, 0x89, 0, 0x6000]);
        let number = |tid, registers: &Registers| {
            original(tid, libc::SYS_restart_syscall, registers, "", |_, _| false)
        };
        remember(own, &stopped);
        assert_eq!(number(own, &again), None, "it was not to be restarted");
        stopped.rax = RESTART_BY_BLOCK as u64;
        remember(own, &stopped);
        assert_eq!(number(own, &again), Some(libc::SYS_futex));
        assert_eq!(number(own + 1, &again), None, "another thread");
        let other = registers([0x5008, 0x89, 0, 0x6000]);
        assert_eq!(number(own, &other), None, "another call");
        let on_its_way = original(own + 1, libc::SYS_futex, &again, "", |_, _| false);
        assert_eq!(on_its_way, Some(libc::SYS_futex));
    }

    /// An agent that traces short processes for weeks must not accumulate entries.
    #[test]
    fn threads_that_have_ended_are_forgotten() {
        let mut stopped = registers([0x7000, 0x89, 0, 0x8000]);
        stopped.orig_rax = libc::SYS_futex as u64;
        stopped.rax = RESTART_BY_BLOCK as u64;
        // SAFETY: no pointers.
        let own = unsafe { libc::gettid() };
        // Thread ids are always smaller than these numbers (proc_sys_kernel(5), pid_max).
        let ended = (0..1000).map(|n| i32::MAX - n);
        for tid in ended.clone().chain([own]) {
            remember(tid, &stopped);
        }
        forget_ended();
        let known = |tid| remembered(tid, &stopped).is_some();
        assert!(known(own), "it is still there");
        assert!(!ended.clone().any(known));
        let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(seen.capacity() < 1000, "{}", seen.capacity());
    }

    #[test]
    fn the_number_is_in_the_code_or_in_the_kernel() {
        let futex = [0x5000, 0x89, 0, 0x6000];
        // mov $0xca, %eax; xor %edx, %edx
        let code = [0xb8, 0xca, 0, 0, 0, 0x31, 0xd2];
        assert_eq!(found(futex, &code, "0"), Some(libc::SYS_futex));
        assert_eq!(found(futex, &code, "futex_do_wait"), Some(libc::SYS_futex));
        assert_eq!(found(futex, &code, "poll_schedule_timeout"), None);
        // mov %rdi, %rax: syscall(3)
        let any = [0x48, 0x89, 0xf8];
        assert_eq!(
            found(futex, &any, "futex_wait_queue"),
            Some(libc::SYS_futex)
        );
        assert_eq!(found(futex, &any, "hrtimer_nanosleep"), None);
        assert_eq!(found(futex, &[], "0"), None);
        assert_eq!(found([0x5000, 0, 0, 0], &code, "0"), None, "no timeout");
        // mov $0xe6, %eax
        let sleep = [0xb8, 0xe6, 0, 0, 0];
        let number = libc::SYS_clock_nanosleep;
        assert_eq!(
            found([1, 0, 0x7000, 0], &sleep, "do_syscall_64"),
            Some(number)
        );
        assert_eq!(found([0x5000, 0, 0, 0], &sleep, "do_syscall_64"), None);
    }
}
