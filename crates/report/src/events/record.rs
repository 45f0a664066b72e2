//! Lines of an event stream (schema: `docs/schemas/events-1.json`).

use crate::StackFrame;
use serde::Serialize;

/// Name and version of the schema.
const SCHEMA: &str = "memhook-rs/events/1";

/// One line of the stream.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Record<'a> {
    Begin(&'a EventsBegin),
    Stack {
        id: u32,
        called: Option<String>,
        frames: Vec<StackFrame>,
        is_cut: bool,
    },
    Thread {
        id: u16,
        tid: u32,
        name: String,
    },
    Alloc {
        address: u64,
        size: u64,
        thread: u16,
        time_ns: u64,
        stack: u32,
    },
    Free {
        address: u64,
        size: u64,
        thread: Option<u16>,
        time_ns: u64,
        stack: Option<u32>,
    },
    Realloc {
        old_address: u64,
        old_size: u64,
        address: u64,
        size: u64,
        thread: u16,
        time_ns: u64,
        stack: u32,
    },
    Pairs {
        count: u64,
        address: u64,
        size: u64,
        thread: u16,
        time_ns: u64,
        stack: u32,
    },
    Lost(Lost),
    Gap {
        from_ns: u64,
        until_ns: u64,
    },
    End(&'a EventsEnd),
}

/// Reason why events are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The reader was too slow.
    Reader,
    /// The ledger's memory was full, so it does not follow all live blocks.
    Memory,
    /// The program produced events faster than the attacher could consume them, or had more threads
    /// than can be recorded.
    Recording,
}

/// Count of missing events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// Reason.
    pub why: Why,
    /// Number of records, each of which may represent many calls.
    pub records: u64,
    /// Known number of missing allocations.
    pub allocations: u64,
    /// Bytes of these allocations.
    pub allocated_bytes: u64,
    /// Known number of missing releases.
    pub frees: u64,
}

impl Lost {
    /// No loss.
    pub(super) fn none(why: Why) -> Lost {
        Lost {
            why,
            records: 0,
            allocations: 0,
            allocated_bytes: 0,
            frees: 0,
        }
    }

    pub(super) fn is_none(&self) -> bool {
        *self == Lost::none(self.why)
    }

    pub(super) fn add(&mut self, other: &Lost) {
        self.records += other.records;
        self.allocations += other.allocations;
        self.allocated_bytes = self.allocated_bytes.saturating_add(other.allocated_bytes);
        self.frees += other.frees;
    }
}

/// The first line.
#[derive(Clone, Debug, Serialize)]
pub struct EventsBegin {
    /// Name and version of the schema.
    pub schema: &'static str,
    /// The process.
    pub pid: i32,
    /// Name of the process.
    pub process: String,
    /// Mean bytes between samples; null if every allocation is reported.
    pub sample_bytes: Option<u64>,
    /// Maximum number of frames of a call stack.
    pub depth: u32,
}

impl EventsBegin {
    /// Returns the record for the beginning of a trace.
    pub fn new(pid: i32, process: String, sample_bytes: Option<u64>, depth: u32) -> EventsBegin {
        EventsBegin {
            schema: SCHEMA,
            pid,
            process,
            sample_bytes,
            depth,
        }
    }
}

/// The last line: the sums of the trace, as in its report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EventsEnd {
    /// True if the process continues after the trace.
    pub is_detached: bool,
    /// Length of the trace.
    pub time_ns: u64,
    /// Allocations.
    pub allocations: u64,
    /// Bytes of these allocations.
    pub allocated_bytes: u64,
    /// Releases, including releases of blocks from before the attach.
    pub frees: u64,
    /// Bytes of known blocks that were released.
    pub freed_bytes: u64,
    /// Number of live blocks.
    pub live_blocks: u64,
    /// Bytes of these blocks.
    pub live_bytes: u64,
    /// Records that are missing from this stream because the reader was too slow.
    pub lost_records: u64,
}
