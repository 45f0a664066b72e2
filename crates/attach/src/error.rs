//! Reasons why an attach fails or a trace ends abnormally.

use crate::config::ConfigError;

/// Failure of an attach, a detach or a start. Unless its description says otherwise, the process has been restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A check before the attach failed. The text has the reason and the remedy. The process was not touched.
    #[error("{0}")]
    Refused(String),
    /// Another memhook-rs traces the process.
    #[error("process {pid} is already traced by memhook-rs {attacher}: stop that first")]
    AlreadyTraced {
        /// The process.
        pid: i32,
        /// Process id of the other attacher.
        attacher: u32,
    },
    /// Another process has taken the id.
    #[error(transparent)]
    Replaced(#[from] memhook_process::Replaced),
    /// Another memhook-rs is attaching to the process or detaching from it.
    #[error("another memhook-rs is working on process {pid}: try again when it has ended")]
    Busy {
        /// The process.
        pid: i32,
    },
    /// No memhook-rs traces the process.
    #[error(
        "process {pid} is not being traced by memhook-rs: a mark belongs to a trace, so attach first"
    )]
    NotTraced {
        /// The process.
        pid: i32,
    },
    /// The attacher does not answer.
    #[error("the memhook-rs that traces process {pid} has not seen the mark: is it stopped?")]
    MarkNotSeen {
        /// The process.
        pid: i32,
    },
    /// No slot leads to an allocator.
    #[error("process {pid} calls no allocator through a GOT slot: nothing to hook")]
    NothingToHook {
        /// The process.
        pid: i32,
    },
    /// The trace needs reported reads and writes, and the program does not report them.
    #[error(
        "process {pid} does not report its reads and writes: build it with clang -fsanitize-coverage=func,trace-loads,trace-stores (or gcc's outlined callbacks) and the object of 'memhook-rs sdk -o DIR'"
    )]
    NoAccessRuntime {
        /// The process.
        pid: i32,
    },
    /// The C library that earlier checks had found is missing.
    #[error("process {pid} is ending, or executes another program: its C library is gone")]
    NoCLibrary {
        /// The process.
        pid: i32,
    },
    /// The C library of the process lacks a function that the hook needs.
    #[error("the libc of process {pid} has no {name}")]
    NoFunction {
        /// The process.
        pid: i32,
        /// The function.
        name: &'static str,
    },
    /// The loader of the process has not finished.
    #[error("process {pid} is still being loaded: try again")]
    StillLoaded {
        /// The process.
        pid: i32,
    },
    /// The kernel does not permit the comparison that shows which processes share their memory.
    #[error(
        "child processes cannot be followed here: that needs kcmp(2), which is not permitted; attach to each of them by its PID"
    )]
    NoKcmp,
    /// The hook could not tell threads apart.
    #[error(
        "process {pid} cannot be traced: memhook-rs cannot find the thread id in its C library; it supports glibc, and musl 1.1.25 or later"
    )]
    NoThreadNumber {
        /// The process.
        pid: i32,
    },
    /// The hook would be mapped without the loader, so listeners would not find its probes.
    #[error(
        "process {pid} cannot emit: its loader cannot load the hook (the program is static, runs on musl, or has no /proc), and listeners find probes only in loaded objects; attach can trace it"
    )]
    NoPlaceToListen {
        /// The process.
        pid: i32,
    },
    /// The hook's state could not be hidden from the process's children.
    #[error(
        "process {pid} cannot be traced: the kernel cannot hide the hook's state from forked children (MADV_WIPEONFORK, since Linux 4.14)"
    )]
    NoWipeOnFork {
        /// The process.
        pid: i32,
    },
    /// The hook refused to start.
    #[error("the hook refused to start in process {pid} (code {code})")]
    HookRefused {
        /// The process.
        pid: i32,
        /// Its answer.
        code: i64,
    },
    /// The process has called execve(2) since it was chosen.
    #[error("process {pid} has executed another program: nothing of memhook-rs is left in it")]
    OtherProgram {
        /// The process.
        pid: i32,
    },
    /// Slots of the process may still hold wrappers, which now only call the originals.
    #[error("cannot restore the slots of process {pid}")]
    Restore {
        /// The process.
        pid: i32,
        /// Reason.
        #[source]
        source: Box<Error>,
    },
    /// The end of a started program was missed.
    #[error("process {pid} ended, but memhook-rs did not see how")]
    EndMissed {
        /// The process.
        pid: i32,
    },
    /// An argument contains a zero byte.
    #[error("an argument of the program contains a zero byte")]
    ZeroByte,
    /// The embedded hook is damaged.
    #[error("the embedded hook does not export {0}")]
    HookObject(&'static str),
    /// A file could not be opened.
    #[error("cannot open {path}")]
    Open {
        /// Its path.
        path: String,
        /// Error from the kernel.
        #[source]
        source: std::io::Error,
    },
    /// A thread of the attacher could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// No probe was placed.
    #[error(transparent)]
    Probe(#[from] crate::probes::error::ProbeError),
    /// The process could not be examined.
    #[error(transparent)]
    Process(#[from] memhook_process::Error),
    /// A thread of the process could not be held, or its remote call failed.
    #[error(transparent)]
    Inject(#[from] memhook_inject::Error),
    /// The shared memory cannot be used.
    #[error(transparent)]
    Region(#[from] memhook_stream::Error),
    /// The output of a recording cannot be created.
    #[error(transparent)]
    Output(#[from] memhook_foreign::OutputError),
    /// A recording cannot be written.
    #[error("the recording cannot begin")]
    Recording(#[source] memhook_recording::Error),
}
