//! The kinds of targets of a storm, and what may be done with each.

use clap::ValueEnum;

/// A kind of target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Threads that allocate without pause and check every block
    Hammer,
    /// One thread that waits for input
    Idle,
    /// Stopped by SIGSTOP
    Stopped,
    /// Forks without pause
    Forking,
    /// A timer whose handler allocates
    Signals,
    /// Vector registers and control words that are looked at all the time
    Registers,
    /// Is killed at a random moment of the attach
    Dying,
    /// Ends by itself at such a moment: by exit, by a signal, or as it becomes another program
    Ending,
    /// A server that forks its workers beforehand; it or one of them is attached to
    Prefork,
    /// Opens and closes libraries of the system
    Plugins,
    /// Under a seccomp filter that kills
    Sandboxed,
    /// In a cgroup with little memory
    Limited,
    /// Runs out of memory: new-handlers, bad_alloc
    Handler,
    /// Threads that are cancelled
    Cancelled,
    /// Threads in all sorts of waits with a limit
    Waits,
    /// Threads that fill their stacks and are joined all the time
    Joining,
    /// Thousands of threads a second
    Detached,
    /// Sets its effective user id all the time
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
    /// Closes descriptors that it does not know
    Closing,
    /// Children with fewer rights that write into all memory that they share with it
    Intruding,
    /// Threads inside restartable sequences
    Sequences,
    /// Gets one synchronous signal after the other: of a filter, of breakpoints, of itself
    Trapping,
    /// Answers its system calls itself (syscall user dispatch)
    Dispatching,
    /// An allocator in the executable, with a mutex
    Mutexed,
    /// The same with a spin lock
    Spinning,
    /// The same with a cache for each thread
    Cached,
    /// jemalloc, linked into the executable
    Linked,
    /// An allocator in the executable, whose hook takes a lock that a thread keeps while it sleeps
    Lent,
    /// The same allocator, preloaded
    Preloaded,
    /// An auditor that takes such a lock
    Audited,
    /// Python whose greenlets exchange the C stack
    Greenlets,
    /// The heap profiler of gperftools, preloaded, of which a thread writes a profile all the time
    Profiled,
    /// gperftools' allocator, preloaded, with hooks that take a lock that a thread keeps while it sleeps
    Hooked,
    /// Handles its page faults itself (userfaultfd), and hears of its forks
    Faulting,
    /// Huge pages that it writes to, and that it needs to keep
    Huge,
    /// Packed rows of pointers, over the edge of what two mappings have
    Packed,
    /// Children with fewer rights that aim at what their parent calls, reads and writes
    Haunted,
}

impl Kind {
    /// Whether a program of this kind answers when it is asked to use the locks of its C library. The sandbox forbids it.
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

    /// Whether each attach is the first one to its process: only that has the hook loaded.
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

    /// Whether it ends in the middle of a cycle.
    pub fn ends(self) -> bool {
        matches!(self, Kind::Dying | Kind::Ending)
    }

    /// Whether an attach to it may be refused.
    pub fn may_refuse(self) -> bool {
        let kinds = [
            Kind::Stopped,
            Kind::Bounded,
            Kind::Closing,
            Kind::Dispatching,
        ];
        kinds.contains(&self)
    }

    /// Whether its children may overwrite what is counted of it. Such a child may have the region while its last numbers
    /// are read.
    pub fn spoils_numbers(self) -> bool {
        matches!(self, Kind::Intruding | Kind::Haunted)
    }

    /// Whether it loses blocks that a search should find.
    pub fn loses_blocks(self) -> bool {
        matches!(self, Kind::Hooked | Kind::Packed)
    }

    /// How its memory may be copied for a search. A write to a huge page that a forked process shares splits it.
    pub fn snapshots(self) -> &'static [&'static str] {
        match self {
            Kind::Huge => &["precopy", "stop"],
            _ => &["precopy", "fork", "stop"],
        }
    }

    /// Whether gdb leaves it as it was. gdb takes the signals of breakpoints for its own, has a stopped process continue,
    /// and refuses one without its first thread.
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
