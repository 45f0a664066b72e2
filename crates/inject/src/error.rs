//! Errors with the process, the thread and the address.

use std::io;
use std::time::Duration;

use memhook_process::{Mapping, RemoteAddress};

/// Failure of an operation on the target. Unless the variant says otherwise, the target has been restored.
///
/// The text includes the `cause`, so the cause is not also the [`std::error::Error::source`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program could not be started.
    #[error("cannot start {program}")]
    Start {
        /// Name of the program as it was given.
        program: String,
        /// Error from the kernel.
        #[source]
        cause: io::Error,
    },
    /// A program that was started cannot be stopped before its own code runs.
    #[error(
        "process {pid} cannot be traced from its start: its loader is neither glibc's nor musl's, and its entry point is unknown. Start it without memhook-rs; doctor then says whether an attach is possible"
    )]
    NoStartPoint {
        /// Process id.
        pid: i32,
    },
    /// The target has exited, was killed, or has replaced itself by `execve`.
    #[error("process {pid} is gone (exited, was killed, or called execve)")]
    TargetGone {
        /// Process id.
        pid: i32,
    },
    /// Another process now has the id.
    #[error(transparent)]
    Replaced(#[from] memhook_process::Replaced),
    /// Changing a process is not written for this processor.
    #[error(
        "process {pid} can only be looked at on {}: stops that change something in a process are written for x86-64 only",
        std::env::consts::ARCH
    )]
    NotPorted {
        /// Process id.
        pid: i32,
    },
    /// We may not trace the target.
    #[error(
        "no permission to trace process {pid}: {cause} (run as the same user with CAP_SYS_PTRACE, or check kernel.yama.ptrace_scope)"
    )]
    Permission {
        /// Process id.
        pid: i32,
        /// Error from the kernel.
        cause: io::Error,
    },
    /// Another process already traces the target.
    #[error(
        "process {pid} is already traced by process {tracer}: end that debugger or tracer first"
    )]
    AlreadyTraced {
        /// Process id.
        pid: i32,
        /// Process id of the tracer.
        tracer: i32,
    },
    /// The target is stopped by job control. If one of its threads holds a lock, the lock is not released while we call
    /// a function in the target.
    #[error(
        "process {pid} is stopped (SIGSTOP or Ctrl-Z): continue it with kill -CONT {pid} first"
    )]
    TargetStopped {
        /// Process id.
        pid: i32,
    },
    /// No thread could be stopped at a point where calls are safe.
    #[error("no thread of process {pid} reached a safe point within {} ms: {reason}", waited.as_millis())]
    NoSafeThread {
        /// Process id.
        pid: i32,
        /// Time spent on attempts.
        waited: Duration,
        /// Reason for refusing the last tried thread.
        reason: String,
    },
    /// A seized thread did not stop: it sleeps uninterruptibly, or gets no processor time. It is released as soon as it
    /// stops.
    #[error(
        "thread {tid} of process {pid} does not stop (uninterruptible sleep, or no processor); it will be released as soon as it stops"
    )]
    DoesNotStop {
        /// Process id.
        pid: i32,
        /// Thread id.
        tid: i32,
    },
    /// After all attempts, some threads still did not stop within the limit on how long each thread is held.
    #[error(
        "thread {tid} of process {pid} did not stop within {limit:?} (uninterruptible sleep, as during vfork, or no processor); the other threads were released after each of {attempts} attempts: try again, or allow a longer hold"
    )]
    StopsTooLate {
        /// Process id.
        pid: i32,
        /// Thread id.
        tid: i32,
        /// Time limit of a hold.
        limit: Duration,
        /// Number of abandoned holds.
        attempts: u32,
    },
    /// This process gets processor time too rarely to hold a thread of the target: the thread would stay stopped for
    /// too long. No thread was held.
    #[error(
        "process {pid} was left alone: memhook-rs waited {wait:?} for each turn on a processor, and a held thread would wait as long. Give memhook-rs more processor time (its control group may have a quota), or try again when the machine is less busy"
    )]
    Starved {
        /// Process id.
        pid: i32,
        /// Length of the wait for a turn.
        wait: Duration,
    },
    /// The target redirects the system calls of this thread to its own handler, which would receive our calls too
    /// (prctl(2), PR_SET_SYSCALL_USER_DISPATCH).
    #[error(
        "thread {tid} of process {pid} handles its own system calls (PR_SET_SYSCALL_USER_DISPATCH, as Wine does), so memhook-rs cannot make any in it: attach before it starts to"
    )]
    CallsDispatched {
        /// Process id.
        pid: i32,
        /// Thread id.
        tid: i32,
    },
    /// The target itself uses userfaultfd(2).
    #[error(
        "process {pid} uses userfaultfd(2) itself, so memhook-rs cannot watch which of its pages are written"
    )]
    OwnUserfaultfd {
        /// Process id.
        pid: i32,
    },
    /// A running thread of the target has closed the descriptor that a held thread had opened for us.
    #[error(
        "another thread of process {pid} closed a descriptor that memhook-rs had just opened there (closefrom, close_range): try again"
    )]
    DescriptorLost {
        /// Process id.
        pid: i32,
    },
    /// A ptrace request failed.
    #[error("ptrace {request} on thread {tid} of process {pid}: {cause}")]
    Ptrace {
        /// Name of the request.
        request: &'static str,
        /// Process id.
        pid: i32,
        /// Thread id.
        tid: i32,
        /// Error from the kernel.
        cause: io::Error,
    },
    /// Memory of the target could not be read or written.
    #[error("cannot {action} {bytes} bytes at {address} of process {pid}: {cause}")]
    Memory {
        /// "read" or "write".
        action: &'static str,
        /// Process id.
        pid: i32,
        /// Address in the target.
        address: RemoteAddress,
        /// Number of requested bytes.
        bytes: usize,
        /// Error from the kernel.
        cause: io::Error,
    },
    /// A file of /proc could not be used.
    #[error("{path}: {cause}")]
    File {
        /// Path of the file.
        path: String,
        /// Error from the kernel.
        cause: io::Error,
    },
    /// The code that remote work needs was not found in executable memory of the target.
    #[error(
        "process {pid} lacks code that memhook-rs needs for system calls: a syscall instruction followed by a return, or a return from a signal"
    )]
    NoSyscallInstruction {
        /// Process id.
        pid: i32,
    },
    /// The thread is not permitted to read the time stamp counter, which our code in the target reads. The kernel would
    /// kill it (PR_SET_TSC, prctl(2)).
    #[error(
        "thread {tid} of process {pid} has disabled the time-stamp counter (prctl PR_SET_TSC), which tracing needs"
    )]
    NoTimeStampCounter {
        /// Process id.
        pid: i32,
        /// Thread id.
        tid: i32,
    },
    /// The thread runs with a shadow stack (CET), which prevents the prepared return.
    #[error(
        "thread {tid} of process {pid} runs with a shadow stack: start the process without GLIBC_TUNABLES=glibc.cpu.hwcaps=SHSTK"
    )]
    ShadowStack {
        /// Process id.
        pid: i32,
        /// Thread id.
        tid: i32,
    },
    /// Another process shares the target's memory, and its threads are not held together with the target's.
    #[error(
        "process {other} shares the memory of process {pid} (vfork): try again when it has called execve"
    )]
    SharesMemory {
        /// Process id.
        pid: i32,
        /// Process id of the other process.
        other: i32,
    },
    /// A thread does not have the thread pointer that the ABI requires. Pads use it to tell threads apart.
    #[error(
        "thread {tid} of process {pid} has no thread pointer of its own, which probes need to tell threads apart"
    )]
    ThreadPointer {
        /// Process id.
        pid: i32,
        /// Thread id.
        tid: i32,
    },
    /// The thread resumed its own work without us, because this process was stopped or got no processor time between
    /// two steps. Earlier calls have completed.
    #[error(
        "thread {tid} of process {pid} resumed its own work before memhook-rs was finished, because memhook-rs was stopped or delayed: try again"
    )]
    WentHome {
        /// Process id.
        pid: i32,
        /// Thread id.
        tid: i32,
    },
    /// A system call made in the target failed.
    #[error("{name} in process {pid} failed: {cause} (a seccomp filter may refuse it)")]
    RemoteSyscall {
        /// Name of the system call.
        name: &'static str,
        /// Process id.
        pid: i32,
        /// Its errno.
        cause: io::Error,
    },
    /// Code called in the target raised a fatal signal, which was suppressed.
    #[error(
        "code called in process {pid} raised signal {signal} at {address:#x}; the thread was restored"
    )]
    RemoteFault {
        /// Process id.
        pid: i32,
        /// Faulting address if the kernel reports one, otherwise the program counter.
        address: u64,
        /// Signal number.
        signal: i32,
    },
    /// A function called in the target has not returned. It holds locks, so the thread completes it without us and then
    /// resumes its own work.
    #[error(
        "function {function} called in process {pid} has not returned within {} ms; its thread finishes the call \
         and then resumes its own work",
        waited.as_millis()
    )]
    CallGoesOn {
        /// Process id.
        pid: i32,
        /// Address of the function.
        function: RemoteAddress,
        /// Length of the wait.
        waited: Duration,
    },
    /// A function called in the target did not return, because it waited for a lock. The thread was restored although
    /// the function had not finished.
    #[error(
        "function {function} called in process {pid} did not return within {} ms: a lock it needs is held by another thread",
        waited.as_millis()
    )]
    CallTimeout {
        /// Process id.
        pid: i32,
        /// Address of the function.
        function: RemoteAddress,
        /// Length of the wait.
        waited: Duration,
    },
    /// There were more arguments than integer registers (six).
    #[error("a remote call takes at most 6 arguments, not {count}")]
    TooManyArguments {
        /// Number of arguments given.
        count: usize,
    },
    /// A seccomp filter may kill the process for a system call that we have to make in it.
    #[error(
        "a seccomp filter may kill process {pid} for {call}, which memhook-rs has to make in it; the filter is suspended during the call, but not if memhook-rs is killed at that moment"
    )]
    CallIsFiltered {
        /// Process id.
        pid: i32,
        /// Name of the call, or of a function that makes it.
        call: &'static str,
    },
    /// The process cannot be copied by fork.
    #[error("process {pid} cannot be copied by fork: {reason}")]
    NoFork {
        /// Process id.
        pid: i32,
        /// Reason.
        reason: &'static str,
    },
    /// `dlopen` in the target returned NULL.
    #[error("dlopen({path}) in process {pid} failed: {reason}")]
    LoadFailed {
        /// Process id.
        pid: i32,
        /// Path given to dlopen.
        path: String,
        /// Message of the target's loader.
        reason: String,
    },
}

/// Returns the mappings of the target.
pub(crate) fn mappings(pid: i32) -> Result<Vec<Mapping>, Error> {
    memhook_process::mappings(pid).map_err(|error| Error::of_process(pid, error))
}

impl Error {
    /// Converts an error of reading the target.
    pub(crate) fn of_process(pid: i32, error: memhook_process::Error) -> Error {
        match error {
            memhook_process::Error::Proc { path, cause } => Error::proc(pid, path, cause),
            memhook_process::Error::Replaced(replaced) => Error::Replaced(replaced),
        }
    }

    /// Creates the error for a file of the target in /proc.
    pub(crate) fn proc(pid: i32, path: String, cause: io::Error) -> Error {
        match cause.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => Error::TargetGone { pid },
            Some(libc::EACCES | libc::EPERM) => Error::Permission { pid, cause },
            _ => Error::File { path, cause },
        }
    }

    /// Wraps the error of a ptrace request. For a thread that we hold, ESRCH means that it was killed.
    pub(crate) fn ptrace(pid: i32, tid: i32, request: &'static str, cause: io::Error) -> Error {
        if cause.raw_os_error() == Some(libc::ESRCH) {
            Error::TargetGone { pid }
        } else {
            Error::Ptrace {
                request,
                pid,
                tid,
                cause,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error that is printed with its sources must not repeat itself.
    #[test]
    fn no_text_repeats_its_source() {
        let (pid, tid) = (7, 8);
        let cause = || io::Error::from_raw_os_error(libc::EIO);
        let program = "program".to_owned();
        let path = "/proc/7/mem".to_owned();
        let errors = [
            Error::Start {
                program,
                cause: cause(),
            },
            Error::Permission {
                pid,
                cause: cause(),
            },
            Error::Ptrace {
                request: "SEIZE",
                pid,
                tid,
                cause: cause(),
            },
            Error::Memory {
                action: "read",
                pid,
                address: RemoteAddress(9),
                bytes: 8,
                cause: cause(),
            },
            Error::File {
                path,
                cause: cause(),
            },
            Error::RemoteSyscall {
                name: "mmap",
                pid,
                cause: cause(),
            },
        ];
        for error in errors {
            let mut whole = error.to_string();
            let mut next = std::error::Error::source(&error);
            while let Some(source) = next {
                whole = format!("{whole}: {source}");
                next = source.source();
            }
            assert_eq!(whole.matches(&cause().to_string()).count(), 1, "{whole}");
        }
    }
}
