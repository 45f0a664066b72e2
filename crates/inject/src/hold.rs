//! Choose a thread, stop it, let it go.

use crate::{
    error::Error,
    memory,
    regs::{self, Registers},
    remote::Scratch,
    restart,
};
use std::{
    fs,
    time::{Duration, Instant},
};

/// How a thread is chosen.
#[derive(Clone, Debug)]
pub struct HoldOptions {
    /// The call will load a module: the thread must hold neither the allocator's nor the loader's
    /// locks.
    pub need_safe_point: bool,
    /// Give up after this time.
    pub deadline: Duration,
    /// Code (avma ranges) in which a thread may hold such a lock.
    pub unsafe_ranges: Vec<(u64, u64)>,
}

impl Default for HoldOptions {
    fn default() -> Self {
        HoldOptions {
            need_safe_point: false,
            deadline: Duration::from_secs(2),
            unsafe_ranges: Vec::new(),
        }
    }
}

/// One thread, seized and stopped. Dropping it restores the thread and lets it go.
pub struct Held {
    pub(crate) pid: i32,
    pub(crate) tid: i32,
    pub(crate) saved: Registers,
    pub(crate) scratch: Option<Scratch>,
    pub(crate) syscall_instruction: u64,
    extended: Vec<u8>,
    mask: u64,
    since: Instant,
    attached: bool,
    /// The thread runs a call of ours that did not come back: it must not be touched.
    pub(crate) gone: bool,
}

/// What `/proc/PID/task/TID/syscall` says.
struct Doing {
    nr: Option<i64>,
    args: [u64; 6],
}

fn doing(pid: i32, tid: i32) -> Option<Doing> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    let mut words = text.split_ascii_whitespace();
    let nr = words.next()?.parse().ok();
    let mut args = [0; 6];
    for arg in &mut args {
        *arg = words
            .next()
            .and_then(|w| u64::from_str_radix(w.trim_start_matches("0x"), 16).ok())
            .unwrap_or(0);
    }
    Some(Doing { nr, args })
}

fn thread_ids(pid: i32) -> Result<Vec<i32>, Error> {
    let path = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&path).map_err(|_| Error::TargetGone { pid })?;
    Ok(entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .collect())
}

/// Threads, those first that a stop disturbs least.
fn candidates(pid: i32) -> Result<Vec<i32>, Error> {
    let mut ranked: Vec<(u32, i32)> = thread_ids(pid)?
        .into_iter()
        .map(|tid| {
            let rank = match doing(pid, tid) {
                Some(d) => match d.nr {
                    Some(nr) if nr >= 0 && restart::has_finite_timeout(nr, &d.args) => 3,
                    Some(nr) if nr >= 0 && restart::never_restarted(nr) => 2,
                    Some(_) => 0,
                    None => 1, // running
                },
                None => 4,
            };
            (rank, tid)
        })
        .collect();
    ranked.sort_unstable();
    Ok(ranked.into_iter().map(|(_, tid)| tid).collect())
}

/// Waits for the next stop of the thread; `None`: it ended.
pub(crate) fn wait_stop(tid: i32) -> Option<i32> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is valid for the kernel to write.
        let result = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) };
        if result == tid {
            return libc::WIFSTOPPED(status).then_some(status);
        }
        if result == -1 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return None;
        }
    }
}

/// Whether a status is the stop that PTRACE_INTERRUPT (or a group stop) makes.
pub(crate) fn is_event_stop(status: i32) -> bool {
    status >> 16 == libc::PTRACE_EVENT_STOP
}

/// Seizes and stops one thread of `pid`, chosen by `options`.
///
/// # Errors
/// [`Error::TargetGone`], [`Error::NoSafePoint`] at the deadline, or what ptrace refused.
pub fn hold(pid: i32, options: &HoldOptions) -> Result<Held, Error> {
    let start = Instant::now();
    let syscall_instruction = find_syscall_instruction(pid)?;
    let mut last_error = None;
    loop {
        for tid in candidates(pid)? {
            match try_hold(pid, tid, syscall_instruction, options, start) {
                Ok(Some(held)) => return Ok(held),
                Ok(None) => {}
                Err(Error::TargetGone { .. }) => {} // that thread ended; others may live
                Err(e) => last_error = Some(e),
            }
        }
        if let Some(e) = last_error {
            return Err(e);
        }
        if start.elapsed() > options.deadline {
            return Err(Error::NoSafePoint {
                pid,
                waited_ms: start.elapsed().as_millis(),
            });
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}

fn try_hold(
    pid: i32,
    tid: i32,
    syscall_instruction: u64,
    options: &HoldOptions,
    start: Instant,
) -> Result<Option<Held>, Error> {
    let before = doing(pid, tid);
    let asleep = restart::asleep_for(pid, tid);
    regs::ptrace(libc::PTRACE_SEIZE, "PTRACE_SEIZE", tid, 0, 0)?;
    let since = Instant::now();
    // SAFETY: user_regs_struct is plain integers.
    let zero: Registers = unsafe { std::mem::zeroed() };
    let mut held = Held {
        pid,
        tid,
        saved: zero,
        scratch: None,
        syscall_instruction,
        extended: Vec::new(),
        mask: 0,
        since,
        attached: true,
        gone: true, // until its state is saved, there is nothing to restore
    };
    regs::ptrace(libc::PTRACE_INTERRUPT, "PTRACE_INTERRUPT", tid, 0, 0)?;
    loop {
        let Some(status) = wait_stop(tid) else {
            held.attached = false;
            return Err(Error::TargetGone { pid });
        };
        if is_event_stop(status) {
            break;
        }
        // A signal that was already on its way: hand it on, the interrupt stays pending.
        let signal = libc::WSTOPSIG(status) as usize;
        regs::ptrace(libc::PTRACE_CONT, "PTRACE_CONT", tid, 0, signal)?;
    }
    held.saved = regs::general(tid)?;
    held.extended = regs::extended(tid)?;
    held.mask = regs::signal_mask(tid)?;
    if in_rseq_section(&held)
        || (options.need_safe_point && !is_safe_point(&held, before.as_ref(), options))
    {
        // It may not be stopped in vain: begin its call again before letting it run on.
        restart::begin_again(&mut held.saved, asleep);
        held.gone = false;
        drop(held);
        if start.elapsed() > options.deadline {
            return Err(Error::NoSafePoint {
                pid,
                waited_ms: start.elapsed().as_millis(),
            });
        }
        return Ok(None);
    }
    restart::begin_again(&mut held.saved, asleep);
    held.gone = false;
    regs::set_signal_mask(tid, u64::MAX)?;
    Ok(Some(held))
}

/// A restartable sequence loses its protection when we move the thread's rip out of it (rseq(2)).
fn in_rseq_section(held: &Held) -> bool {
    const PTRACE_GET_RSEQ_CONFIGURATION: u32 = 0x420f;
    #[repr(C)]
    #[derive(Default)]
    struct Configuration {
        pointer: u64,
        size: u32,
        signature: u32,
        flags: u32,
        pad: u32,
    }
    let mut configuration = Configuration::default();
    // An old kernel without the request: no way to know, and glibc itself has no such sections.
    if regs::ptrace(
        PTRACE_GET_RSEQ_CONFIGURATION,
        "PTRACE_GET_RSEQ_CONFIGURATION",
        held.tid,
        size_of::<Configuration>(),
        (&raw mut configuration) as usize,
    )
    .is_err()
        || configuration.pointer == 0
    {
        return false;
    }
    let mut critical_section = [0; 8]; // struct rseq: cpu_id_start, cpu_id, rseq_cs
    memory::read_bytes(held.pid, configuration.pointer + 8, &mut critical_section).is_ok()
        && critical_section != [0; 8]
}

/// Waits that neither an allocator nor the loader makes: a thread in one of them holds no lock of
/// theirs. (`futex`, `mmap`, `read` and the like are missing here on purpose.)
fn waits_outside_libc_locks(nr: i64) -> bool {
    matches!(
        nr,
        libc::SYS_epoll_wait
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
            | libc::SYS_poll
            | libc::SYS_ppoll
            | libc::SYS_select
            | libc::SYS_pselect6
            | libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_clock_nanosleep
            | libc::SYS_pause
            | libc::SYS_wait4
            | libc::SYS_waitid
            | libc::SYS_rt_sigsuspend
            | libc::SYS_rt_sigtimedwait
    )
}

/// Neither the pc nor a return address on the stack lies in code that may hold a lock `dlopen`
/// needs. Without an unwinder every word that follows a call instruction counts as a return
/// address: too careful, never too bold.
fn is_safe_point(held: &Held, before: Option<&Doing>, options: &HoldOptions) -> bool {
    let inside = |address: u64| {
        options
            .unsafe_ranges
            .iter()
            .any(|&(low, high)| address >= low && address < high)
    };
    if inside(held.saved.rip) {
        return false;
    }
    let nr = held.saved.orig_rax as i64;
    if nr >= 0 && waits_outside_libc_locks(nr) && before.is_some_and(|d| d.nr == Some(nr)) {
        return true;
    }
    let mut stack = vec![0u8; 16 * 1024];
    while memory::read_bytes(held.pid, held.saved.rsp, &mut stack).is_err() {
        if stack.len() <= 64 {
            return false;
        }
        let shorter = stack.len() / 2;
        stack.truncate(shorter);
    }
    !stack.chunks_exact(8).any(|word| {
        let address = u64::from_le_bytes(word.try_into().unwrap_or_default());
        inside(address) && follows_call(held.pid, address)
    })
}

/// Whether the instruction before `address` can be a call: e8 rel32, or ff /2 in one of its
/// lengths (Intel SDM, CALL).
fn follows_call(pid: i32, address: u64) -> bool {
    let mut code = [0u8; 7];
    if memory::read_bytes(pid, address.wrapping_sub(7), &mut code).is_err() {
        return true;
    }
    code[2] == 0xe8
        || (2..=7).any(|length| {
            let at = 7 - length;
            code[at] == 0xff && (code[at + 1] >> 3) & 7 == 2
        })
}

fn find_syscall_instruction(pid: i32) -> Result<u64, Error> {
    let path = format!("/proc/{pid}/maps");
    let maps = fs::read_to_string(&path).map_err(|source| Error::Proc { path, source })?;
    for line in maps.lines().filter(|l| l.ends_with("[vdso]")) {
        let Some((low, high)) = line
            .split(' ')
            .next()
            .and_then(|range| range.split_once('-'))
            .and_then(|(l, h)| {
                Some((
                    u64::from_str_radix(l, 16).ok()?,
                    u64::from_str_radix(h, 16).ok()?,
                ))
            })
        else {
            continue;
        };
        let mut code = vec![0; (high - low) as usize];
        memory::read_bytes(pid, low, &mut code)?;
        if let Some(at) = code.windows(2).position(|w| w == [0x0f, 0x05]) {
            return Ok(low + at as u64);
        }
    }
    Err(Error::NoSyscallInstruction { pid })
}

impl Held {
    /// The thread.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Time since the stop was asked for.
    pub fn held_for(&self) -> Duration {
        self.since.elapsed()
    }

    /// Puts everything back and lets the thread run on; returns how long it was held.
    pub fn release(mut self) -> Result<Duration, Error> {
        self.restore()?;
        Ok(self.since.elapsed())
    }

    fn restore(&mut self) -> Result<(), Error> {
        if !self.attached {
            return Ok(());
        }
        if !self.gone {
            self.free_scratch();
            self.attached = false;
            regs::set_extended(self.tid, &self.extended)?;
            regs::set_general(self.tid, &self.saved)?;
            regs::set_signal_mask(self.tid, self.mask)?;
        }
        self.attached = false;
        regs::ptrace(libc::PTRACE_DETACH, "PTRACE_DETACH", self.tid, 0, 0)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A thread that ended meanwhile needs nothing restored.
        let _ = self.restore();
    }
}
