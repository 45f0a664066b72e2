//! Resending of signals that were taken from a thread during remote work.

use std::io;
use std::time::{Duration, Instant};

/// Longest wait for room in the signal queue, which the resumed thread empties.
const ROOM_LIMIT: Duration = Duration::from_secs(1);

/// Resends a signal to the thread, or to the process if the thread has ended.
///
/// The siginfo is preserved if the kernel permits that. For another process, the kernel permits it only if si_code is
/// negative, as sigqueue(3) sets it (rt_sigqueueinfo(2)). If the queue is full (RLIMIT_SIGPENDING), a real-time signal
/// waits for room, because kill(2) would send it without its value.
pub(crate) fn send_again(pid: i32, tid: i32, signal: i32, info: &libc::siginfo_t) {
    let has_details = info.si_code < 0 && info.si_code != libc::SI_TKILL;
    let until = Instant::now() + ROOM_LIMIT;
    loop {
        let sent = if has_details {
            let info: *const libc::siginfo_t = info;
            // SAFETY: the kernel reads one siginfo_t, which is live.
            unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info) }
        } else {
            // SAFETY: no pointers.
            unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) }
        };
        if sent == 0 {
            return;
        }
        let is_full = io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN);
        if !is_full || Instant::now() >= until {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: no pointers.
    unsafe { libc::kill(pid, signal) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{Program, limit_queued_signals, send, state};

    #[test]
    fn a_full_queue_is_waited_for() {
        let mut program = Program::start("signals", &[]);
        program.addresses();
        let pid = program.pid();
        limit_queued_signals(pid, 4);
        send(pid, libc::SIGSTOP);
        while state(pid, pid) != 'T' {
            std::thread::sleep(Duration::from_millis(1));
        }
        let value = libc::sigval {
            sival_ptr: std::ptr::without_provenance_mut(1),
        };
        let mut count = 0;
        // SAFETY: the value is never used as a pointer.
        while unsafe { libc::sigqueue(pid, libc::SIGRTMIN(), value) } == 0 {
            count += 1;
        }
        // SAFETY: siginfo_t is plain integers and padding; all-zero is valid.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        info.si_code = libc::SI_QUEUE;
        let place = (&raw mut info).cast::<u8>().wrapping_add(24).cast::<i32>();
        // SAFETY: si_value is at this offset (struct siginfo, _rt), inside of `info`.
        unsafe { place.write(1000) };
        let waker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            send(pid, libc::SIGCONT);
        });
        send_again(pid, pid, libc::SIGRTMIN(), &info);
        waker.join().unwrap();
        send(pid, libc::SIGTERM);
        assert_eq!(program.line(), format!("{} {}", count + 1, count + 1000));
        program.ends_well();
    }
}
