//! Kinds of targets of a storm, and the operations that are possible with each.

use clap::ValueEnum;

/// Kind of target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Threads that constantly allocate and check every block
    Hammer,
    /// One thread that waits for input
    Idle,
    /// Stopped by SIGSTOP
    Stopped,
    /// Forks constantly
    Forking,
    /// A timer whose handler allocates
    Signals,
    /// Vector registers and control words that are checked constantly
    Registers,
    /// Is killed at a random moment of the attach
    Dying,
    /// Ends by itself at such a moment: by exit, by a signal, or by executing another program
    Ending,
    /// A server that forks its workers in advance; the server or a worker is attached to
    Prefork,
    /// Opens and closes system libraries
    Plugins,
    /// Under a seccomp filter that kills
    Sandboxed,
    /// In a cgroup with little memory
    Limited,
    /// Runs out of memory: new-handlers, bad_alloc
    Handler,
    /// Threads that are cancelled
    Cancelled,
    /// Threads in various waits with a timeout
    Waits,
    /// Threads that fill their stacks and are constantly joined
    Joining,
    /// Thousands of threads a second
    Detached,
    /// Constantly sets its effective user id
    Setxid,
    /// Its memory is locked (mlockall)
    Locked,
    /// Its address space has a limit
    Bounded,
    /// Its first thread has ended
    Leaderless,
    /// Coroutines on local arrays of main
    Coroutines,
    /// Children of vfork that live for a while
    Vforks,
    /// Closes unknown descriptors
    Closing,
    /// Children with fewer rights that write to all memory that they share with it
    Intruding,
    /// Threads inside restartable sequences
    Sequences,
    /// Gets one synchronous signal after another: from a filter, from breakpoints, from itself
    Trapping,
    /// Handles its own system calls (syscall user dispatch)
    Dispatching,
    /// An allocator in the executable, with a mutex
    Mutexed,
    /// The same allocator with a spin lock
    Spinning,
    /// The same allocator with a cache for each thread
    Cached,
    /// jemalloc, linked into the executable
    Linked,
    /// An allocator in the executable, whose hook takes a lock that a thread holds while it sleeps
    Lent,
    /// The same allocator, preloaded
    Preloaded,
    /// An auditor that takes such a lock
    Audited,
    /// Python whose greenlets switch the C stack
    Greenlets,
    /// The heap profiler of gperftools, preloaded; a thread constantly writes a profile
    Profiled,
    /// gperftools' allocator, preloaded, with hooks that take a lock that a thread holds while it sleeps
    Hooked,
    /// Handles its own page faults (userfaultfd), and is notified of its forks
    Faulting,
    /// Huge pages that it writes to, and must keep
    Huge,
    /// Packed rows of pointers, across the border of two mappings
    Packed,
    /// Children with fewer rights that attack what their parent calls, reads and writes
    Haunted,
}

impl Kind {
    /// Returns true if a program of this kind answers a request to use the locks of its C library. The sandbox forbids
    /// it.
    pub fn answers(self) -> bool {
        let is_silent = [
            Kind::Hammer,
            Kind::Dying,
            Kind::Ending,
            Kind::Limited,
            Kind::Idle,
            Kind::Stopped,
            Kind::Forking,
            Kind::Signals,
            Kind::Registers,
            Kind::Sandboxed,
        ];
        !is_silent.contains(&self)
    }

    /// Returns true if each attach must be the first one to its process: only the first one loads the hook.
    pub fn is_renewed(self) -> bool {
        let kinds = [
            Kind::Dying,
            Kind::Ending,
            Kind::Joining,
            Kind::Detached,
            Kind::Setxid,
            Kind::Coroutines,
            Kind::Mutexed,
            Kind::Spinning,
            Kind::Cached,
            Kind::Linked,
            Kind::Lent,
            Kind::Preloaded,
            Kind::Audited,
            Kind::Profiled,
            Kind::Hooked,
        ];
        kinds.contains(&self)
    }

    /// Returns true if it ends during a cycle.
    pub fn ends(self) -> bool {
        matches!(self, Kind::Dying | Kind::Ending)
    }

    /// Returns true if an attach to it may be refused.
    pub fn may_refuse(self) -> bool {
        let kinds = [
            Kind::Stopped,
            Kind::Bounded,
            Kind::Closing,
            Kind::Dispatching,
        ];
        kinds.contains(&self)
    }

    /// Returns true if its children may overwrite its counts. Such a child may have the region while the last numbers
    /// are read.
    pub fn spoils_numbers(self) -> bool {
        matches!(self, Kind::Intruding | Kind::Haunted)
    }

    /// Returns true if it loses blocks that a search should find.
    pub fn loses_blocks(self) -> bool {
        matches!(self, Kind::Hooked | Kind::Packed)
    }

    /// Returns the ways in which its memory may be copied for a search. A write to a huge page that a forked process
    /// shares splits the page.
    pub fn snapshots(self) -> &'static [&'static str] {
        match self {
            Kind::Huge => &["precopy", "stop"],
            _ => &["precopy", "fork", "stop"],
        }
    }

    /// Returns true if gdb leaves it unchanged. gdb mistakes the signals of breakpoints for its own, continues a
    /// stopped process, and refuses a process without its first thread.
    pub fn may_be_debugged(self) -> bool {
        let kinds = [
            Kind::Stopped,
            Kind::Leaderless,
            Kind::Trapping,
            Kind::Dispatching,
        ];
        !self.ends() && !kinds.contains(&self)
    }
}
