//! Calls from a recording in the replayer's format, 16 bytes each.
//!
//! A call names its block by a slot in a table. Slots are reused, so the table is only as long as
//! the largest number of blocks live at one time.

use crate::threads::{Calls, Lives, Threads};
use memhook_ledger::{BlockOf, Blocks, ReleaseBy};
use rustc_hash::FxHashMap;

/// Largest requested alignment, as a power of two. The recording contains only the address of a
/// block, not the alignment that the program requested.
const LARGEST_ALIGNMENT: u8 = 12;
/// Recorded time between two steps of the replay's clock; the same for all allocators.
const CLOCK_STEP_NS: u64 = 5_000_000;
/// Maximum number of slots in the table. Blocks beyond this number are left out.
const MOST_SLOTS: u32 = u32::MAX - 1;

/// Operation of the replayer, as in `replayer.cc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Allocate = 1,
    Zeroed = 2,
    Aligned = 3,
    Release = 4,
    Reallocate = 5,
    /// `slot` blocks, each released immediately.
    Pairs = 6,
    /// Measure resident memory. `value` is the time.
    Sample = 7,
    /// Sets the time to `value`, for allocators that do some of their work only after some time.
    Clock = 8,
    /// The thread ends. Later calls with its number belong to a new thread.
    End = 9,
}

/// One step of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub kind: Kind,
    pub align_log2: u8,
    pub thread: u16,
    pub slot: u32,
    pub value: u64,
}

impl Operation {
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[0] = self.kind as u8;
        bytes[1] = self.align_log2;
        bytes[2..4].copy_from_slice(&self.thread.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.slot.to_le_bytes());
        bytes[8..].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }
}

/// How a block is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Zeroed,
    Aligned,
}

/// Moments at which the replay measures itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moments {
    /// Times at which the recorded process was measured, in nanoseconds since the attach, sorted.
    pub times: Vec<u64>,
    /// Number of operations between additional measurements; 0 for none.
    pub every: u64,
}

/// Actions of a replay in addition to the recorded calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Moments at which the replay measures itself.
    pub moments: Moments,
    /// Lives of the replay's threads.
    pub lives: Lives,
}

/// Turns the reports of the ledger into operations.
pub(crate) struct Encoder<W> {
    write: W,
    /// Allocation function, for stacks that call a function other than malloc.
    asked: FxHashMap<u32, Asked>,
    moments: Moments,
    next_moment: usize,
    until_sample: u64,
    now_ns: u64,
    /// Last time passed to the replay.
    clock_ns: u64,
    threads: Threads,
    /// Live blocks by address.
    live: FxHashMap<u64, (BlockOf, u32)>,
    /// Blocks whose address already belongs to a newer block, because their release has not been
    /// seen yet.
    covered: Vec<(BlockOf, u32)>,
    free: Vec<u32>,
    pub sums: Sums,
}

/// Sums over the operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub operations: u64,
    /// Number of slots in the table.
    pub slots: u32,
    pub threads: u16,
    pub live_bytes: u64,
    pub peak_live_bytes: u64,
    /// Number of releases of blocks whose allocation is not in the recording.
    pub unknown_releases: u64,
    /// Number of all releases, including releases known only from later events.
    pub releases: u64,
    /// Number of releases whose own event is not in the recording.
    pub unseen_releases: u64,
    pub allocations: u64,
    pub end_ns: u64,
}

impl<W: FnMut(Operation)> Encoder<W> {
    pub fn new(write: W, asked: FxHashMap<u32, Asked>, plan: Plan) -> Self {
        let Plan { moments, lives } = plan;
        Encoder {
            write,
            asked,
            until_sample: moments.every,
            moments,
            next_moment: 0,
            now_ns: 0,
            clock_ns: 0,
            threads: Threads::new(lives),
            live: FxHashMap::default(),
            covered: Vec::new(),
            free: Vec::new(),
            sums: Sums::default(),
        }
    }

    /// Ends the recording with a final measurement.
    pub fn finish(&mut self) {
        self.sample(self.now_ns);
    }

    /// Returns the calls that each thread has made.
    pub fn calls(&self) -> &Calls {
        &self.threads.calls
    }

    fn call(&mut self, kind: Kind, index: u16, slot: u32, value: u64) {
        self.call_aligned(kind, index, slot, value, 0);
    }

    /// Emits a call of a thread, which is given by its number in the ledger.
    fn call_aligned(&mut self, kind: Kind, index: u16, slot: u32, value: u64, align_log2: u8) {
        let (thread, ends) = self.threads.call(index);
        self.sums.threads = self.threads.most();
        self.emit(Operation {
            kind,
            align_log2,
            thread,
            slot,
            value,
        });
        if ends {
            self.emit_simple(Kind::End, thread, 0);
        }
        if self.until_sample > 0 {
            self.until_sample -= 1;
            if self.until_sample == 0 {
                self.until_sample = self.moments.every;
                self.sample(self.now_ns);
            }
        }
    }

    fn emit(&mut self, operation: Operation) {
        (self.write)(operation);
        self.sums.operations += 1;
    }

    /// Emits an operation that is not a call.
    fn emit_simple(&mut self, kind: Kind, thread: u16, value: u64) {
        self.emit(Operation {
            kind,
            align_log2: 0,
            thread,
            slot: 0,
            value,
        });
    }

    fn sample(&mut self, time_ns: u64) {
        self.emit_simple(Kind::Sample, 0, time_ns);
    }

    /// Returns a slot for a block; `None` if there are too many.
    fn enter(&mut self, block: &BlockOf) -> Option<u32> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.sums.slots >= MOST_SLOTS => return None,
            None => {
                self.sums.slots += 1;
                self.sums.slots - 1
            }
        };
        self.hold(*block, slot);
        Some(slot)
    }

    fn hold(&mut self, block: BlockOf, slot: u32) {
        if let Some(other) = self.live.insert(block.address, (block, slot)) {
            self.covered.push(other);
        }
        self.sums.live_bytes = self.sums.live_bytes.saturating_add(block.size);
        self.sums.peak_live_bytes = self.sums.peak_live_bytes.max(self.sums.live_bytes);
    }

    /// Removes a block from the table, and returns its slot.
    fn leave(&mut self, block: &BlockOf) -> Option<u32> {
        let found = self.live.get(&block.address);
        let slot = match found {
            Some((known, slot)) if known == block => {
                let slot = *slot;
                self.live.remove(&block.address);
                let mut covered = self.covered.iter();
                let below = covered.rposition(|(known, _)| known.address == block.address);
                if let Some(below) = below {
                    let below = self.covered.remove(below);
                    self.live.insert(block.address, below);
                }
                slot
            }
            _ => {
                let at = self.covered.iter().position(|(known, _)| known == block)?;
                self.covered.remove(at).1
            }
        };
        self.sums.live_bytes = self.sums.live_bytes.saturating_sub(block.size);
        Some(slot)
    }
}

impl<W: FnMut(Operation)> Blocks for Encoder<W> {
    fn allocated(&mut self, block: &BlockOf, stack: u32) {
        self.sums.allocations += 1;
        let thread = block.thread;
        let Some(slot) = self.enter(block) else {
            return;
        };
        match self.asked.get(&stack) {
            None => self.call(Kind::Allocate, thread, slot, block.size),
            Some(Asked::Zeroed) => self.call(Kind::Zeroed, thread, slot, block.size),
            Some(Asked::Aligned) => {
                let zeros = block.address.trailing_zeros().max(4) as u8;
                let align = zeros.min(LARGEST_ALIGNMENT);
                self.call_aligned(Kind::Aligned, thread, slot, block.size, align);
            }
        }
    }

    fn released(&mut self, block: &BlockOf, _stack: u32, by: Option<ReleaseBy>) {
        self.sums.releases += 1;
        let thread = by.map_or(block.thread, |by| by.thread);
        if let Some(slot) = self.leave(block) {
            self.free.push(slot);
            self.call(Kind::Release, thread, slot, 0);
        }
    }

    fn reallocated(&mut self, old: (&BlockOf, u32), by: ReleaseBy, new: (&BlockOf, u32)) {
        let Some(slot) = self.leave(old.0) else {
            return self.allocated(new.0, new.1);
        };
        self.sums.allocations += 1;
        self.sums.releases += 1;
        self.hold(*new.0, slot);
        self.call(Kind::Reallocate, by.thread, slot, new.0.size);
    }

    fn pairs(&mut self, block: &BlockOf, _stack: u32, by: ReleaseBy, count: u64) {
        self.sums.allocations += count;
        self.sums.releases += count;
        let most = u64::from(u32::MAX);
        let (whole, rest) = (count / most, count % most);
        for _ in 0..whole {
            self.call(Kind::Pairs, by.thread, u32::MAX, block.size);
        }
        self.call(Kind::Pairs, by.thread, rest as u32, block.size);
    }

    fn unknown_released(&mut self, _address: u64, _by: ReleaseBy) {
        self.sums.unknown_releases += 1;
    }

    fn end_pass(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.sums.end_ns = self.now_ns;
        if self.now_ns - self.clock_ns >= CLOCK_STEP_NS {
            self.clock_ns = self.now_ns;
            self.emit_simple(Kind::Clock, 0, self.now_ns);
        }
        while let Some(&time) = self.moments.times.get(self.next_moment) {
            if time > now_ns {
                break;
            }
            self.next_moment += 1;
            self.sample(time);
        }
    }
}

#[cfg(test)]
#[path = "operations_tests.rs"]
mod tests;
