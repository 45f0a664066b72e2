//! A record of each act that touches a target, for whoever asked for one.
//!
//! Everything that changes something in a target passes through this crate, so it is noted here, where it is done, and not by
//! those who have it done. Notes go into a queue that takes no lock and never waits; nothing is written anywhere while a
//! thread is held ([`is_holding`]). Without a reader, nothing is queued.

use memhook_process::thread_start_time;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime};

/// Act that was done to a process.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Threads were stopped, for so long.
    Stop(Duration),
    /// A function was called so many times: once with these arguments, or once for each of several blocks.
    Call {
        /// Its address.
        function: u64,
        /// Number of calls.
        calls: usize,
        /// The arguments of a single call, or those of each.
        arguments: Vec<u64>,
    },
    /// A system call was made.
    SystemCall {
        /// Its number.
        number: i64,
        /// Its arguments.
        arguments: [u64; 6],
        /// Answer of the kernel.
        result: i64,
    },
    /// Words or instructions were exchanged, at these places.
    Exchange(Vec<u64>),
    /// Slots of modules were exchanged for wrappers by the hook in the process, at these places.
    Slots(Vec<u64>),
    /// Slots hold what they held before, at these places.
    SlotsBack(Vec<u64>),
    /// Bytes were written from outside.
    Write(Range<u64>),
    /// Pages are protected, so that the kernel notes writes to them.
    Protect(Range<u64>),
    /// The marks of what was accessed were cleared.
    ClearMarks,
    /// A child was made of it, which never runs.
    Fork(i32),
}

/// One act.
#[derive(Clone, Debug)]
pub struct Entry {
    /// When it was noted, at its end.
    pub time: SystemTime,
    /// The process.
    pub pid: i32,
    /// When the process started, in clock ticks since the machine has; with the id, it is one process for ever.
    pub started: Option<u64>,
    /// The act.
    pub act: Act,
}

/// Entry for a reader.
#[derive(Clone, Debug)]
pub enum Note {
    /// An act.
    Act(Entry),
    /// Everything before it has been read.
    End(Sender<()>),
}

static QUEUE: OnceLock<Sender<Note>> = OnceLock::new();
static HOLDS: AtomicUsize = AtomicUsize::new(0);

/// Begins to note acts. `None`: somebody reads them already.
pub fn read_acts() -> Option<Receiver<Note>> {
    let (queue, acts) = channel();
    QUEUE.set(queue).is_ok().then_some(acts)
}

/// Waits until a reader has read everything that was noted before.
pub fn wait_for_reader(limit: Duration) {
    if let Some(queue) = QUEUE.get() {
        let (end, has_ended) = channel();
        if queue.send(Note::End(end)).is_ok() {
            let _ = has_ended.recv_timeout(limit);
        }
    }
}

/// Returns true if a thread of a target is held, or is about to be.
pub fn is_holding() -> bool {
    HOLDS.load(SeqCst) > 0
}

/// Notes an act.
pub fn note(pid: i32, act: Act) {
    note_as(pid, || act);
}

/// Like [`note`], where it costs something to describe the act.
pub(crate) fn note_as(pid: i32, act: impl FnOnce() -> Act) {
    if let Some(queue) = QUEUE.get() {
        // A reader that has ended wants nothing.
        let _ = queue.send(Note::Act(Entry {
            time: SystemTime::now(),
            pid,
            started: thread_start_time(pid, pid),
            act: act(),
        }));
    }
}

/// Lives as long as threads of a process may be held.
pub(crate) struct Holding {
    pid: i32,
    since: std::time::Instant,
}

impl Holding {
    pub(crate) fn begin(pid: i32) -> Holding {
        HOLDS.fetch_add(1, SeqCst);
        Holding {
            pid,
            since: std::time::Instant::now(),
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        HOLDS.fetch_sub(1, SeqCst);
        note(self.pid, Act::Stop(self.since.elapsed()));
    }
}
