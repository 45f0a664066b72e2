//! Model of a program with the hook, in steps as small as the hook's own, and of the consumer of its rings.
//!
//! | here | hook-cxx |
//! |---|---|
//! | `ReadSequence`, `PublishAllocation` | `record_allocation`: after the real call, load the word, commit |
//! | the increment in `begin`, `PublishRelease`, `RealFree` | `record_release`, then the real call |
//! | `InRealloc`, `PublishFailure` | `reallocate`: announced before the call, new block or failure after |
//! | `Resized` | `Xallocx`: release and allocation after a call in which the block keeps its owner |
//! | `fold` in `begin` | `fold` (folding.hpp); the claims make it a single step for the consumer |
//! | `Ended` | a thread is gone; its ring is freed once it is empty, and claimed by the next |
//!
//! All addresses share one sequence word, like the blocks of a page. Between any two steps of a thread, other threads
//! and the consumer may do anything. The consumer reads one head per step. When it has read the last head, the contents
//! of the pass are fixed, regardless of what is published after that.

use memhook_abi::{Op, RawEvent};
use memhook_ledger::{BlockOf, Ledger, Observer, ReleaseBy};
use std::collections::BTreeMap;

const BASE: u64 = 0x7f00_0000_0000;
/// Distance between addresses, large enough that a ledger in shards distributes them.
const APART: u64 = 1 << 16;
/// First stack of releases, higher than all stacks of allocations.
const FIRST_RELEASE: u32 = 1000;
const SEQUENCE_MASK: u32 = 0x3f_ffff;

/// A recorded block: its size in bytes, and the ring that records it. Unrecorded blocks are from before the attach.
type Block = Option<(u64, usize)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Address {
    Free,
    Owned(Block),
    /// The address is used in a call of some thread.
    Busy,
}

/// Next action of a thread; one step each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Todo {
    Idle,
    ReadSequence(usize, u64),
    PublishAllocation(usize, u64, u32),
    PublishRelease(usize, Block, u32, Then),
    RealFree(usize),
    InRealloc(usize, Block),
    PublishFailure(usize, Block),
    Ended,
}

/// Continuation after a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Then {
    RealFree,
    InRealloc,
    Resized,
}

/// Call that a thread may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Release the address if it is owned, otherwise allocate it.
    Toggle,
    Realloc,
    /// A resize in place.
    Resize,
    /// A release that the hook does not see.
    Unhooked,
    /// The thread ends.
    End,
}

/// End of a `realloc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Fails,
    /// `realloc(p, 0)`, or a new size that the filter excludes.
    Unrecorded,
    /// The new block is at this address, or at the old address if this one is not free.
    NewBlock(usize),
}

/// An event, as its two words and the true size.
pub type Published = (u64, u64, u64);

/// Events of one ring within one pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Batch {
    pub ring: usize,
    pub tid: u32,
    pub events: Vec<Published>,
}

/// The true sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sums {
    allocations: u64,
    allocated: u64,
    releases: u64,
    pub released: u64,
    unknown: u64,
    unhooked: u64,
}

/// Collects matches: stacks of releases by the sizes of blocks. No two blocks have the same size.
#[derive(Default)]
pub struct Told(BTreeMap<u64, u32>);

impl Observer for Told {
    fn released(&mut self, block: &BlockOf, by: Option<ReleaseBy>) {
        if let Some(by) = by {
            assert_eq!(self.0.insert(block.size, by.stack), None, "released twice");
        }
    }
    fn corrected(&mut self, block: &BlockOf, from: Option<ReleaseBy>, to: Option<ReleaseBy>) {
        let before = match to {
            Some(by) => self.0.insert(block.size, by.stack),
            None => self.0.remove(&block.size),
        };
        assert_eq!(
            before,
            from.map(|by| by.stack),
            "said something else before"
        );
    }
    fn reinstated(&mut self, block: &BlockOf, _by: ReleaseBy) {
        self.0.remove(&block.size);
    }
}

/// Program, rings and consumer. Feed `passes` to a ledger, and compare the results.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    addresses: Vec<Address>,
    threads: Vec<Todo>,
    tids: Vec<u32>,
    sequence: u32,
    next_size: u64,
    rings: Vec<Vec<Published>>,
    /// Number of events that the consumer claimed in the last pass, by ring, if pairs are folded.
    claimed: Option<Vec<usize>>,
    taken: Vec<usize>,
    heads: Vec<usize>,
    pub passes: Vec<Vec<Batch>>,
    /// Recorded blocks whose release the hook did not see, until the address is reused.
    ghosts: BTreeMap<usize, (u64, usize)>,
    pub sums: Sums,
    /// Stacks of releases by the sizes of their blocks, and the last such stack.
    released_by: BTreeMap<u64, u32>,
    last_release: u32,
    has_unhooked: bool,
}

impl World {
    /// With `old_block`, address 0 holds a block from before the attach.
    pub fn new(addresses: usize, threads: usize, sequence: u32, old_block: bool) -> Self {
        let mut states = vec![Address::Free; addresses];
        if old_block {
            states[0] = Address::Owned(None);
        }
        World {
            addresses: states,
            threads: vec![Todo::Idle; threads],
            tids: (1..=threads as u32).collect(),
            sequence,
            next_size: 1,
            rings: vec![Vec::new(); threads],
            claimed: None,
            taken: vec![0; threads],
            heads: Vec::new(),
            passes: Vec::new(),
            ghosts: BTreeMap::new(),
            sums: Sums::default(),
            released_by: BTreeMap::new(),
            last_release: FIRST_RELEASE,
            has_unhooked: false,
        }
    }

    /// Makes the hook fold pairs. This excludes unhooked releases, because another thread's pair does not always reveal
    /// them.
    pub fn with_folding(mut self) -> Self {
        self.claimed = Some(vec![0; self.rings.len()]);
        self
    }

    /// Makes a pair of the block's allocation, if that is the last event of this thread.
    fn fold(&mut self, thread: usize, address: usize) -> bool {
        let Some(claimed) = &self.claimed else {
            return false;
        };
        let ring = &mut self.rings[thread];
        let last = ring.len().wrapping_sub(1);
        if ring.len() <= claimed[thread] {
            return false;
        }
        let (word0, word1, size) = ring[last];
        let event = RawEvent { word0, word1 }.unpack().unwrap();
        let is_of_block =
            event.op == Op::Allocation && event.address == BASE + APART * address as u64;
        if !is_of_block || event.sequence != self.sequence {
            return false;
        }
        let raw = RawEvent::pack(Op::Pair, event.address, 1, event.size, event.stack);
        ring[last] = (raw.word0, raw.word1, size);
        true
    }

    pub fn is_idle(&self, thread: usize) -> bool {
        self.threads[thread] == Todo::Idle
    }

    pub fn is_in_realloc(&self, thread: usize) -> bool {
        matches!(self.threads[thread], Todo::InRealloc(..))
    }

    pub fn is_free(&self, address: usize) -> bool {
        self.addresses[address] == Address::Free
    }

    /// Advances the sequence word, like releases elsewhere in the page group.
    pub fn advance_sequence(&mut self, by: u32) -> u32 {
        self.sequence = self.sequence.wrapping_add(by) & SEQUENCE_MASK;
        self.sequence
    }

    fn take(&mut self, address: usize) -> Todo {
        self.addresses[address] = Address::Busy;
        self.next_size += 1;
        Todo::ReadSequence(address, self.next_size - 1)
    }

    fn publish(&mut self, thread: usize, op: Op, address: usize, sequence: u32, size: u64) {
        let stack = match op {
            Op::Allocation => thread as u32 + 1,
            _ => self.last_release,
        };
        let avma = BASE + APART * address as u64;
        let raw = RawEvent::pack(op, avma, sequence, size as u32, stack);
        self.rings[thread].push((raw.word0, raw.word1, size));
    }

    fn count_release(&mut self, block: Block, sign: i64) {
        let add = |x: &mut u64, by: u64| *x = x.wrapping_add_signed(sign * by as i64);
        add(&mut self.sums.releases, 1);
        match block {
            Some((size, _)) if sign < 0 => {
                add(&mut self.sums.released, size);
                self.released_by.remove(&size);
            }
            Some((size, _)) => {
                add(&mut self.sums.released, size);
                self.released_by.insert(size, self.last_release);
            }
            None => add(&mut self.sums.unknown, 1),
        }
    }

    /// Takes the first step of a call by an idle thread. Returns false if the call is not possible now.
    pub fn begin(&mut self, thread: usize, call: Call, address: usize) -> bool {
        assert!(self.is_idle(thread));
        let next = match (self.addresses[address], call) {
            (_, Call::End) => Todo::Ended,
            (Address::Free, Call::Toggle) => self.take(address),
            (Address::Free, _) | (Address::Busy, _) => return false,
            (_, Call::Unhooked) if self.claimed.is_some() => return false,
            (Address::Owned(block), Call::Toggle | Call::Resize) if self.fold(thread, address) => {
                self.addresses[address] = Address::Busy;
                self.count_release(block, 1);
                match call {
                    Call::Resize => self.take(address),
                    _ => Todo::RealFree(address),
                }
            }
            (Address::Owned(block), Call::Unhooked) => {
                // Another block of the page is released too, because allocations with the same number have no order.
                self.advance_sequence(1);
                self.has_unhooked = true;
                self.addresses[address] = Address::Free;
                if let Some(block) = block {
                    self.ghosts.insert(address, block);
                }
                Todo::Idle
            }
            (Address::Owned(block), _) => {
                self.addresses[address] = Address::Busy;
                let then = match call {
                    Call::Toggle => Then::RealFree,
                    Call::Realloc => Then::InRealloc,
                    _ => Then::Resized,
                };
                Todo::PublishRelease(address, block, self.advance_sequence(1), then)
            }
        };
        self.threads[thread] = next;
        true
    }

    /// Ends the allocator's part of the `realloc` of this thread.
    pub fn return_from_realloc(&mut self, thread: usize, outcome: Outcome) {
        let Todo::InRealloc(address, block) = self.threads[thread] else {
            panic!("not in a realloc");
        };
        self.threads[thread] = match outcome {
            Outcome::Fails => {
                self.count_release(block, -1);
                Todo::PublishFailure(address, block)
            }
            Outcome::Unrecorded => {
                self.addresses[address] = Address::Free;
                Todo::Idle
            }
            Outcome::NewBlock(target) => {
                self.addresses[address] = Address::Free;
                let free = self.is_free(target);
                self.take(if free { target } else { address })
            }
        };
    }

    /// Takes the next step of a call whose next step is determined.
    pub fn step(&mut self, thread: usize) {
        use Todo::*;
        self.threads[thread] = match self.threads[thread] {
            now @ (Idle | InRealloc(..) | Ended) => now,
            ReadSequence(address, size) => PublishAllocation(address, size, self.sequence),
            PublishAllocation(address, size, v) => {
                self.publish(thread, Op::Allocation, address, v, size);
                self.sums.allocations += 1;
                self.sums.allocated += size;
                if let Some((old, _)) = self.ghosts.remove(&address) {
                    self.sums.unhooked += 1;
                    self.sums.released += old;
                }
                self.addresses[address] = Address::Owned(Some((size, thread)));
                Idle
            }
            PublishRelease(address, block, n, then) => {
                self.last_release += 1;
                self.count_release(block, 1);
                let op = match then {
                    Then::InRealloc => Op::ReallocRelease,
                    Then::RealFree | Then::Resized => Op::Release,
                };
                self.publish(thread, op, address, n, 0);
                match then {
                    Then::RealFree => RealFree(address),
                    Then::InRealloc => InRealloc(address, block),
                    Then::Resized => self.take(address),
                }
            }
            RealFree(address) => {
                self.addresses[address] = Address::Free;
                Idle
            }
            PublishFailure(address, block) => {
                self.publish(thread, Op::ReallocFailed, address, 0, 0);
                self.addresses[address] = Address::Owned(block);
                Idle
            }
        };
    }

    /// Reads one more head. After the last one, the pass is complete. `order` selects the order of the rings in the
    /// pass: rotations, forwards or backwards.
    pub fn consumer_step(&mut self, order: usize) {
        let ring = self.heads.len();
        let mut end = self.rings[ring].len();
        if let Some(claimed) = &mut self.claimed {
            end = std::mem::replace(&mut claimed[ring], end);
        }
        self.heads.push(end);
        let count = self.rings.len();
        if self.heads.len() < count {
            return;
        }
        let mut pass = Vec::new();
        for i in 0..count {
            let ring = if order.is_multiple_of(2) {
                (i + order / 2) % count
            } else {
                (2 * count - 1 - i + order / 2 % count) % count
            };
            let span = self.taken[ring]..self.heads[ring];
            if !span.is_empty() {
                pass.push(Batch {
                    ring,
                    tid: self.tids[ring],
                    events: self.rings[ring][span].to_vec(),
                });
            }
            self.taken[ring] = self.heads[ring];
            if self.threads[ring] == Todo::Ended && self.taken[ring] == self.rings[ring].len() {
                self.threads[ring] = Todo::Idle;
                self.tids[ring] += count as u32;
            }
        }
        self.heads.clear();
        self.passes.push(pass);
    }

    /// Ends every call in progress, except reallocs, which may take forever, and lets the consumer read everything.
    pub fn come_to_rest(&mut self) {
        for thread in 0..self.threads.len() {
            for _ in 0..4 {
                self.step(thread);
            }
        }
        for pass in 0..6 {
            self.consumer_step(pass);
            while !self.heads.is_empty() {
                self.consumer_step(pass);
            }
        }
    }

    /// Returns the live blocks: address, size, stack.
    fn live(&self) -> Vec<(u64, u64, u32)> {
        let block = |(a, state): (usize, &Address)| {
            let block = match state {
                Address::Owned(Some(block)) => Some(*block),
                _ => self.ghosts.get(&a).copied(),
            };
            block.map(|(size, ring)| (BASE + APART * a as u64, size, ring as u32 + 1))
        };
        self.addresses
            .iter()
            .enumerate()
            .filter_map(block)
            .collect()
    }

    /// Compares the model with a ledger that was given all passes. Only reallocs may be in progress.
    pub fn check(&self, ledger: &Ledger<Told>) -> Result<(), String> {
        self.check_sums(ledger)?;
        // Releases of folded pairs are unknown. If a release was not seen, another may be mistaken for it.
        let is_exact = self.claimed.is_none() && !self.has_unhooked;
        if is_exact && ledger.observer().0 != self.released_by {
            return Err(format!(
                "releases: the ledger says {:?}, the truth is {:?}",
                ledger.observer().0,
                self.released_by
            ));
        }
        Ok(())
    }

    /// Compares everything but the matching of releases and blocks.
    pub fn check_sums<O: Observer>(&self, ledger: &Ledger<O>) -> Result<(), String> {
        let live = self.live();
        let mut found: Vec<_> = ledger
            .live_blocks()
            .map(|b| (b.address, b.size, b.stack))
            .collect();
        found.sort_unstable();
        let equal = |what: &str, found: u64, truth: u64| {
            let text = || format!("{what}: the ledger says {found}, the truth is {truth}");
            if found == truth { Ok(()) } else { Err(text()) }
        };
        if found != live {
            return Err(format!(
                "live: the ledger says {found:?}, the truth is {live:?}"
            ));
        }
        let t = ledger.totals();
        equal("allocations", t.allocations, self.sums.allocations)?;
        equal("allocated", t.allocated_bytes, self.sums.allocated)?;
        equal("releases", t.releases, self.sums.releases)?;
        equal("released", t.released_bytes, self.sums.released)?;
        equal("live blocks", t.live_blocks, live.len() as u64)?;
        equal("live bytes", t.live_bytes, live.iter().map(|b| b.1).sum())?;
        equal("unknown", t.unknown_releases, self.sums.unknown)?;
        equal("unhooked", t.unhooked_releases, self.sums.unhooked)?;
        for site in ledger.sites() {
            let mine = || live.iter().filter(|b| b.2 == site.stack);
            equal("blocks of a site", site.blocks, mine().count() as u64)?;
            equal("bytes of a site", site.bytes, mine().map(|b| b.1).sum())?;
        }
        Ok(())
    }
}

/// Gives passes to a ledger.
pub fn feed<O: Observer>(ledger: &mut Ledger<O>, passes: &[Vec<Batch>]) {
    for pass in passes {
        for batch in pass {
            ledger.begin_ring(batch.ring, batch.tid);
            for &(word0, word1, size) in &batch.events {
                let raw = RawEvent { word0, word1 };
                ledger.event(raw.unpack().unwrap(), size, 0);
            }
        }
        ledger.end_pass(0);
    }
}
