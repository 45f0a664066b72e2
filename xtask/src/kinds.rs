//! Kinds of targets of a storm, and the operations that are possible with each.

use clap::ValueEnum;

/// Kind of target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Threads that constantly allocate blocks and check their contents
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
    /// Is killed at a random time during the attach
    Dying,
    /// Ends at a random time during the attach: by exit, by a signal, or by executing another program
    Ending,
    /// A preforking server; the storm attaches to the server or to a worker
    Prefork,
    /// Opens and closes system libraries
    Plugins,
    /// Under a seccomp filter that kills the process
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
    /// Creates thousands of detached threads per second
    Detached,
    /// Constantly sets its effective user id
    Setxid,
    /// Locks its memory (mlockall)
    Locked,
    /// With a limited address space
    Bounded,
    /// Without its first thread, which has ended
    Leaderless,
    /// Coroutines whose stacks are local arrays of main
    Coroutines,
    /// Creates children with vfork that live for some time
    Vforks,
    /// Closes descriptors that it did not open
    Closing,
    /// Children with fewer privileges that overwrite all memory shared with their parent
    Intruding,
    /// Threads inside restartable sequences
    Sequences,
    /// Constantly receives synchronous signals: from a seccomp filter, from breakpoints, from itself
    Trapping,
    /// Handles its own system calls (syscall user dispatch)
    Dispatching,
    /// An allocator in the executable, with a mutex
    Mutexed,
    /// An allocator in the executable, with a spin lock
    Spinning,
    /// An allocator in the executable, with a cache for each thread
    Cached,
    /// jemalloc, linked into the executable
    Linked,
    /// An allocator in the executable, whose hook takes a lock that a thread holds while it sleeps
    Lent,
    /// A preloaded allocator, whose hook takes a lock that a thread holds while it sleeps
    Preloaded,
    /// An auditor that takes a lock that a thread holds while it sleeps
    Audited,
    /// Python whose greenlets switch the C stack
    Greenlets,
    /// The heap profiler of gperftools, preloaded; a thread constantly writes a profile
    Profiled,
    /// gperftools' allocator, preloaded, with hooks that take a lock that a thread holds while it sleeps
    Hooked,
    /// Handles its own page faults (userfaultfd), and is notified of its forks
    Faulting,
    /// Writes to huge pages, which must stay huge
    Huge,
    /// Packed arrays of pointers, across the boundary of two mappings
    Packed,
    /// Children with fewer privileges that attack the code and data of their parent
    Haunted,
}

impl Kind {
    /// Returns true if a program of this kind answers a request to use the locks of its C library. The sandbox forbids
    /// that.
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

    /// Returns true if each attach needs a new process. Only the first attach to a process loads the hook.
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

    /// Returns true if the target ends during a cycle.
    pub fn ends(self) -> bool {
        matches!(self, Kind::Dying | Kind::Ending)
    }

    /// Returns true if an attach may be refused.
    pub fn may_refuse(self) -> bool {
        let kinds = [
            Kind::Stopped,
            Kind::Bounded,
            Kind::Closing,
            Kind::Dispatching,
        ];
        kinds.contains(&self)
    }

    /// Returns true if children of the target may overwrite its counts. Such a child may have the region mapped while
    /// the last counts are read.
    pub fn spoils_numbers(self) -> bool {
        matches!(self, Kind::Intruding | Kind::Haunted)
    }

    /// Returns true if the target leaks blocks that a search should find.
    pub fn loses_blocks(self) -> bool {
        matches!(self, Kind::Hooked | Kind::Packed)
    }

    /// Returns the kinds of snapshots that a search may use. A fork is excluded for huge pages, because a write to a
    /// huge page that a forked process shares splits the page.
    pub fn snapshots(self) -> &'static [&'static str] {
        match self {
            Kind::Huge => &["precopy", "stop"],
            _ => &["precopy", "fork", "stop"],
        }
    }

    /// Returns true if gdb leaves the target unchanged. gdb mistakes the signals of breakpoints for its own, continues
    /// a stopped process, and refuses a process without its first thread.
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
