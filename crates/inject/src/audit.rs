//! Audit log of all changes to a target, if there is a reader.
//!
//! Every change to a target passes through this crate, so the crate itself records the changes, and its callers need
//! not. The queue takes no lock and never waits, and nothing is written to a file while a thread is held
//! ([`is_holding`]). Without a reader, nothing is queued.

use memhook_process::thread_start_time;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime};

/// A change to a process.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Threads were stopped for this time.
    Stop(Duration),
    /// A function was called this number of times: once with these arguments, or once for each of several blocks.
    Call {
        /// Address of the function.
        function: u64,
        /// Number of calls.
        calls: usize,
        /// Arguments of a single call, or the one argument of each of several calls.
        arguments: Vec<u64>,
    },
    /// A system call was made.
    SystemCall {
        /// Number of the system call.
        number: i64,
        /// Arguments of the system call.
        arguments: [u64; 6],
        /// Result from the kernel.
        result: i64,
    },
    /// Words or instructions at these addresses were exchanged.
    Exchange(Vec<u64>),
    /// The hook in the process replaced the contents of module slots at these addresses with pointers to wrappers.
    Slots(Vec<u64>),
    /// Slots at these addresses hold their original contents again.
    SlotsBack(Vec<u64>),
    /// Bytes in this range were written from outside.
    Write(Range<u64>),
    /// Pages in this range were protected, so that the kernel records writes to them.
    Protect(Range<u64>),
    /// The accessed marks were cleared.
    ClearMarks,
    /// The process was forked; the child never runs.
    Fork(i32),
}

/// One act.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Time at the end of the act.
    pub time: SystemTime,
    /// The process.
    pub pid: i32,
    /// Start time of the process, in clock ticks since boot. Together with the id, it identifies a process uniquely.
    pub started: Option<u64>,
    /// The act.
    pub act: Act,
}

/// Queue entry for a reader.
#[derive(Clone, Debug)]
pub enum Note {
    /// An act.
    Act(Entry),
    /// All earlier entries have been read.
    End(Sender<()>),
}

static QUEUE: OnceLock<Sender<Note>> = OnceLock::new();
static HOLDS: AtomicUsize = AtomicUsize::new(0);

/// Starts recording changes. Returns `None` if there is already a reader.
pub fn read_acts() -> Option<Receiver<Note>> {
    let (queue, acts) = channel();
    QUEUE.set(queue).is_ok().then_some(acts)
}

/// Waits until a reader has read all earlier entries.
pub fn wait_for_reader(limit: Duration) {
    if let Some(queue) = QUEUE.get() {
        let (end, has_ended) = channel();
        if queue.send(Note::End(end)).is_ok() {
            let _ = has_ended.recv_timeout(limit);
        }
    }
}

/// Returns true if a thread of a target is held or about to be held.
pub fn is_holding() -> bool {
    HOLDS.load(SeqCst) > 0
}

/// Records an act.
pub fn note(pid: i32, act: Act) {
    note_as(pid, || act);
}

/// Like [`note`], if describing the act has a cost.
pub(crate) fn note_as(pid: i32, act: impl FnOnce() -> Act) {
    if let Some(queue) = QUEUE.get() {
        // A reader that has ended needs no entries.
        let _ = queue.send(Note::Act(Entry {
            time: SystemTime::now(),
            pid,
            started: thread_start_time(pid, pid),
            act: act(),
        }));
    }
}

/// Guard for the time in which threads of a process may be held.
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
