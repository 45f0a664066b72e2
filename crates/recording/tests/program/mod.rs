//! A program with several threads, as the drain reports it: allocations, releases in other threads,
//! reallocations that move, stay and fail, unknown and unseen releases, rings that are drained
//! late, and passes without events.

#![allow(dead_code)]

use fastrand::Rng;
use memhook_abi::{Event, Op, RawEvent};
use memhook_ledger::{Ledger, LedgerOptions};
use memhook_recording::{Visitor, Writer};
use memhook_stream::Stack;

/// One call of the sink.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Call {
    Ring(usize, u32),
    Event(Event, u64, u64),
    Pass(u64),
}

pub fn find_stack(id: u32) -> Option<Stack> {
    (id != 0 && id != 13).then(|| Stack {
        function: (id % 7) as u8,
        truncated: id.is_multiple_of(5),
        frames: (0..1 + u64::from(id % 9))
            .map(|i| 0x5555_0000_0000 + u64::from(id) * (8 - i.min(7)) * 16)
            .collect(),
    })
}

pub struct Program {
    random: Rng,
    live: Vec<(u64, usize)>,
    free: Vec<Vec<u64>>,
    next: u64,
    sequences: Vec<u32>,
    rings: Vec<Vec<(Event, u64, u64)>>,
    pub now_ns: u64,
    pub tsc: bool,
}

impl Program {
    pub fn new(seed: u64, threads: usize) -> Self {
        Self {
            random: Rng::with_seed(seed),
            live: Vec::new(),
            free: vec![Vec::new(); 16],
            next: 0x7f00_0000_0000,
            sequences: vec![0; 64],
            rings: vec![Vec::new(); threads],
            now_ns: 1,
            tsc: false,
        }
    }

    fn publish(&mut self, ring: usize, op: Op, address: u64, size: u64, stack: u32) {
        let word = (address >> 12) as usize % self.sequences.len();
        if matches!(op, Op::Release | Op::ReallocRelease) {
            self.sequences[word] = (self.sequences[word] + 1) & 0x3f_ffff;
        }
        let size32 = size.min(u64::from(u32::MAX)) as u32;
        let event = RawEvent::pack(op, address, self.sequences[word], size32, stack);
        let step = if self.tsc { 100_000 } else { 1_000_000 };
        let time = self.now_ns / step * step;
        self.rings[ring].push((event.unpack().unwrap(), size, time));
    }

    /// Allocates and releases a block several times.
    fn pairs(&mut self, ring: usize) {
        let class = self.random.usize(..16);
        let Some(&address) = self.free[class].last() else {
            return;
        };
        let (size, count) = (class as u64 * 16 + 1, 1 + self.random.u32(..300));
        let event = RawEvent::pack(Op::Pair, address, count, size as u32, class as u32 * 3);
        let time = self.now_ns / 1_000_000 * 1_000_000;
        self.rings[ring].push((event.unpack().unwrap(), size, time));
    }

    fn allocate(&mut self, ring: usize) {
        let class = self.random.usize(..16);
        let size = match self.random.u64(..200) {
            0 => 5 << 32,
            1 => self.random.u64(..1 << 20),
            _ => class as u64 * 16 + self.random.u64(..16),
        };
        let address = self.free[class].pop().unwrap_or_else(|| {
            self.next += 16 * (class as u64 + 2);
            self.next
        });
        let stack = (class as u64 * 3 + self.random.u64(..3)) as u32;
        self.publish(ring, Op::Allocation, address, size, stack);
        self.live.push((address, class));
    }

    fn take(&mut self) -> Option<(u64, usize)> {
        if self.live.is_empty() {
            return None;
        }
        let back = self.random.usize(..self.live.len().min(40));
        let far = self.random.u64(..10) == 0;
        let at = if far {
            back
        } else {
            self.live.len() - 1 - back
        };
        Some(self.live.swap_remove(at))
    }

    fn step(&mut self) {
        let ring = self.random.usize(..self.rings.len());
        match self.random.u64(..100) {
            0 => {
                let address = 0x1000 + self.random.u64(..1 << 20) * 16;
                self.publish(ring, Op::Release, address, 0, 0);
            }
            1 => {
                // An unhooked call releases the block.
                if let Some((address, class)) = self.take() {
                    self.free[class].push(address);
                }
            }
            2..5 => {
                if let Some((address, class)) = self.take() {
                    self.publish(ring, Op::ReallocRelease, address, 0, 3);
                    match self.random.u64(..3) {
                        0 => {
                            self.publish(ring, Op::ReallocFailed, address, 0, 0);
                            self.live.push((address, class));
                        }
                        1 => {
                            self.publish(ring, Op::Allocation, address, 33, 9);
                            self.live.push((address, class));
                        }
                        _ => {
                            self.free[class].push(address);
                            self.allocate(ring);
                        }
                    }
                }
            }
            5..8 => self.pairs(ring),
            8..50 => {
                if let Some((address, class)) = self.take() {
                    let stack = (self.random.u64(..20) == 0) as u32 * 13;
                    self.publish(ring, Op::Release, address, 0, stack);
                    self.free[class].push(address);
                }
            }
            _ => self.allocate(ring),
        }
        self.now_ns += self.random.u64(..20_000);
    }

    /// Returns the calls of `passes` passes with about `events` events each.
    pub fn run(&mut self, passes: usize, events: usize) -> Vec<Call> {
        let mut calls = Vec::new();
        for _ in 0..passes {
            for _ in 0..self.random.u64(..2 * events as u64 + 1) {
                self.step();
            }
            // The heads are read one after the other, so an event may be taken although an earlier
            // event is left for the next pass.
            for ring in 0..self.rings.len() {
                let late = self.random.u64(..8) == 0;
                let keep = if late { self.random.usize(..6) } else { 0 };
                let taken = self.rings[ring].len().saturating_sub(keep);
                if taken == 0 {
                    continue;
                }
                calls.push(Call::Ring(ring, 100 + ring as u32));
                let events = self.rings[ring].drain(..taken);
                calls.extend(events.map(|(event, size, time)| Call::Event(event, size, time)));
            }
            self.now_ns += 1000;
            calls.push(Call::Pass(self.now_ns));
            while self.random.u64(..10) == 0 {
                self.now_ns += 300_000;
                // Remaining events must come before a pass may be empty.
                if self.rings.iter().all(Vec::is_empty) {
                    calls.push(Call::Pass(self.now_ns));
                }
            }
        }
        calls
    }
}

/// Collects the calls of a reader. Runs of empty passes are split in the same way as by `calls`.
#[derive(Default)]
pub struct Collect(pub Vec<Call>);

impl Visitor for Collect {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.0.push(Call::Ring(ring, tid));
    }
    fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        self.0.push(Call::Event(event, size, time_ns));
    }
    fn end_pass(&mut self, now_ns: u64, passes: u64) {
        for _ in 0..passes {
            self.0.push(Call::Pass(now_ns));
        }
    }
}

/// Returns calls in a reader's form, in which consecutive passes without events all have the time
/// of the last pass.
pub fn normalized(calls: &[Call]) -> Vec<Call> {
    let mut calls = calls.to_vec();
    for at in (1..calls.len()).rev() {
        if let (Call::Pass(_), Call::Pass(_)) = (calls[at - 1], calls[at])
            && (at < 2 || matches!(calls[at - 2], Call::Pass(_)))
        {
            calls[at - 1] = calls[at];
        }
    }
    calls
}

pub fn feed_ledger(calls: &[Call], ledger: &mut Ledger) {
    for call in calls {
        match *call {
            Call::Ring(ring, tid) => ledger.begin_ring(ring, tid),
            Call::Event(event, size, time) => ledger.event(event, size, time),
            Call::Pass(now) => ledger.end_pass(now),
        }
    }
}

/// Feeds both the writer and the ledger. A checkpoint follows every pass whose number is a multiple
/// of `every`. If `every` is 0, there is a checkpoint only if the writer wants one. Returns the
/// times of the checkpoints.
pub fn record(calls: &[Call], writer: &mut Writer, ledger: &mut Ledger, every: usize) -> Vec<u64> {
    let mut passes = 0;
    let mut times = Vec::new();
    for call in calls {
        feed_ledger(std::slice::from_ref(call), ledger);
        match *call {
            Call::Ring(ring, tid) => writer.begin_ring(ring, tid),
            Call::Event(event, size, time) => writer.event(event, size, time),
            Call::Pass(now) => {
                writer.end_pass(now, find_stack);
                passes += 1;
                let due = every > 0 && passes % every == 0;
                if due || writer.wants_checkpoint(ledger.totals().live_blocks) {
                    writer.checkpoint(ledger, find_stack);
                    times.push(now);
                }
            }
        }
    }
    times
}

pub fn options(track_release_stacks: bool) -> LedgerOptions {
    LedgerOptions {
        track_release_stacks,
        ignore_unknown_releases: false,
        ..LedgerOptions::default()
    }
}

/// A directory that is removed at the end.
pub struct Dir(pub std::path::PathBuf);

impl Dir {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("memhook-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
