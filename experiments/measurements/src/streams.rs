//! Event streams that each model one typical behaviour of programs.

use fastrand::Rng;
use memhook_abi::{Op, RawEvent};

const HEAP: u64 = 0x5555_5560_0000;
/// Number of sequence words, the same as in the shared region, so that sequence numbers are spaced
/// realistically.
const WORDS: usize = 16_384;

/// Source of events.
pub trait Stream {
    /// Replaces the contents of `events` by the next `count` events.
    fn next(&mut self, events: &mut Vec<RawEvent>, count: usize);
}

struct Words(Vec<u32>);

impl Words {
    fn at(&mut self, address: u64) -> &mut u32 {
        let page = address >> 12;
        &mut self.0[(page ^ (page >> 14)) as usize % WORDS]
    }

    fn allocation(&mut self, address: u64, size: u32, stack: u32) -> RawEvent {
        RawEvent::pack(Op::Allocation, address, *self.at(address), size, stack)
    }

    fn release(&mut self, address: u64) -> RawEvent {
        let word = self.at(address);
        *word = (*word + 1) & 0x3f_ffff;
        RawEvent::pack(Op::Release, address, *word, 0, 0)
    }
}

/// Short-lived blocks from many sites, at most 32 live at a time, with a warm free list.
pub struct Pairs {
    random: Rng,
    words: Words,
    sites: u64,
    held: Vec<u64>,
    free: Vec<u64>,
}

impl Pairs {
    /// Creates a stream with blocks from `sites` sites.
    pub fn new(sites: u64) -> Self {
        Pairs {
            random: Rng::with_seed(1),
            words: Words(vec![0; WORDS]),
            sites,
            held: Vec::new(),
            free: (0..32).map(|i| HEAP + i * 96).collect(),
        }
    }
}

impl Stream for Pairs {
    fn next(&mut self, events: &mut Vec<RawEvent>, count: usize) {
        events.clear();
        while events.len() < count {
            let take = self.held.is_empty() || (!self.free.is_empty() && self.random.u64(..2) == 0);
            if take {
                let address = self.free.pop().unwrap_or(HEAP);
                let stack = 1 + 4 * self.random.u64(..self.sites) as u32;
                events.push(self.words.allocation(address, 64, stack));
                self.held.push(address);
            } else {
                let at = self.random.usize(..self.held.len());
                let address = self.held.swap_remove(at);
                events.push(self.words.release(address));
                self.free.push(address);
            }
        }
    }
}

/// Random replacements among `live` blocks. The first events allocate these blocks.
pub struct Churn {
    random: Rng,
    words: Words,
    sites: u64,
    live: Vec<u64>,
    free: Vec<u64>,
    wanted: usize,
}

impl Churn {
    /// Creates a stream with `live` blocks from `sites` sites.
    pub fn new(live: usize, sites: u64) -> Self {
        Churn {
            random: Rng::with_seed(2),
            words: Words(vec![0; WORDS]),
            sites,
            live: Vec::with_capacity(live),
            // The allocator's free list is as random as the blocks, and somewhat longer.
            free: Vec::with_capacity(4096),
            wanted: live,
        }
    }
}

impl Stream for Churn {
    fn next(&mut self, events: &mut Vec<RawEvent>, count: usize) {
        events.clear();
        for _ in 0..count {
            if self.live.len() < self.wanted {
                let address = HEAP + self.live.len() as u64 * 80;
                let stack = 1 + 4 * self.random.u64(..self.sites) as u32;
                events.push(self.words.allocation(address, 64, stack));
                self.live.push(address);
                continue;
            }
            if self.free.len() < 4096 && (self.free.is_empty() || self.random.u64(..2) == 0) {
                let at = self.random.usize(..self.live.len());
                let address = self.live.swap_remove(at);
                events.push(self.words.release(address));
                self.free.push(address);
                self.wanted -= 1;
            } else {
                let at = self.random.usize(..self.free.len());
                let address = self.free.swap_remove(at);
                let stack = 1 + 4 * self.random.u64(..self.sites) as u32;
                events.push(self.words.allocation(address, 64, stack));
                self.live.push(address);
                self.wanted += 1;
            }
        }
    }
}
