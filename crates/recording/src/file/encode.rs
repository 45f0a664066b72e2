//! Encodes events as the columns of a frame.

use crate::file::accesses::AccessWriter;
use crate::file::columns::*;
use crate::file::model::{Block, CLASS_BIASES, CLASS_RANKS, GRANULE_MASK, Model, SEQUENCE_MASK};
use crate::file::varint::{put, zigzag};
use memhook_abi::{Accesses, Event, Op, SEQUENCE_BITS, sequence_before};
use rustc_hash::FxHashMap;

/// Number of places in the table of recent blocks, a power of two.
const RECENT: usize = 1 << 17;

/// Returns the difference of two sequence numbers, signed.
#[inline]
pub(crate) fn sequence_difference(a: u32, b: u32) -> i64 {
    let shift = 32 - SEQUENCE_BITS;
    i64::from((a.wrapping_sub(b) << shift) as i32 >> shift)
}

/// One frame, as uncompressed columns.
#[derive(Default)]
pub(crate) struct Frame {
    pub columns: [Vec<u8>; COLUMNS.len()],
    pub events: usize,
    /// Number of passes that end in the frame.
    pub passes: u64,
    /// Index of the class bias.
    pub bias: usize,
    /// Time of the first event or pass, in nanoseconds since the attach.
    pub from_ns: u64,
    /// Latest time in the frame.
    pub to_ns: u64,
    /// Ring and thread, if the frame begins in the middle of a ring's events.
    pub continued: Option<(u64, u32)>,
    /// Reads and writes of the blocks.
    pub accesses: AccessWriter,
}

impl Frame {
    /// Returns the bytes of all columns.
    pub fn len(&self) -> usize {
        let columns: usize = self.columns.iter().map(Vec::len).sum();
        columns + self.accesses.len()
    }

    /// Appends the payload of an events chunk to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        put(out, self.events as u64);
        put(out, self.bias as u64);
        put(out, self.from_ns);
        match self.continued {
            None => put(out, 0),
            Some((ring, tid)) => {
                put(out, 1);
                put(out, ring);
                put(out, u64::from(tid));
            }
        }
        for column in &self.columns {
            put(out, column.len() as u64);
        }
        for column in &self.columns {
            out.extend_from_slice(column);
        }
        // Readers that do not support accesses stop after the columns.
        self.accesses.write(out);
    }
}

pub(crate) struct Encoder {
    model: Model,
    /// Block number plus 1, by a hash of the block's address.
    recent: Box<[u32]>,
    /// Local number by stack id.
    local: FxHashMap<u32, u32>,
    last_local: (u32, u32),
    frame: Frame,
    started: bool,
    /// Number of explicit addresses in the last frames, by class bias.
    misses: [usize; 2],
    frames: usize,
    ring: Option<(u64, u32)>,
    empty_passes: u64,
    empty_until_ns: u64,
    /// Accesses to the block that the next release concerns.
    pending: Option<Accesses>,
}

impl Encoder {
    pub fn new() -> Self {
        Self {
            model: Model::new(),
            recent: vec![0; RECENT].into_boxed_slice(),
            local: FxHashMap::default(),
            last_local: (0, 0),
            frame: Frame::default(),
            started: false,
            misses: [0; 2],
            frames: 0,
            ring: None,
            empty_passes: 0,
            empty_until_ns: 0,
            pending: None,
        }
    }

    /// Returns the number of events in the current frame.
    pub fn events(&self) -> usize {
        self.frame.events
    }

    /// Returns true if there is nothing to write, not even passes.
    pub fn is_empty(&self) -> bool {
        !self.started && self.empty_passes == 0
    }

    /// Returns the first time in the current frame.
    pub fn began_ns(&self) -> Option<u64> {
        self.started.then_some(self.frame.from_ns)
    }

    fn start(&mut self, time_ns: u64) {
        // The first two frames try both ways of forming size classes.
        let bias = match self.frames {
            0 | 1 => self.frames,
            _ => usize::from(self.misses[1] < self.misses[0]),
        };
        self.frame.bias = bias;
        self.frame.from_ns = time_ns;
        self.frame.to_ns = time_ns;
        self.model.reset(CLASS_BIASES[bias], time_ns);
        self.recent.fill(0);
        self.local.clear();
        self.local.insert(0, 0);
        self.last_local = (0, 0);
        self.started = true;
        self.frame.continued = self.ring;
        if let Some((ring, tid)) = self.ring {
            self.model.tids.insert(ring, tid);
        }
    }

    fn control(&mut self, code: u8) {
        self.frame.columns[TAGS].push(kind::CONTROL | code << 2);
    }

    fn put(&mut self, column: usize, value: u64) {
        put(&mut self.frame.columns[column], value);
    }

    pub fn begin_ring(&mut self, ring: u64, tid: u32, now_ns: u64) {
        self.flush_empty_passes();
        if !self.started {
            self.ring = None;
            self.start(now_ns);
        }
        self.ring = Some((ring, tid));
        if self.model.tids.insert(ring, tid) == Some(tid) {
            self.control(control::RING_AGAIN);
            self.put(CONTROL, ring);
        } else {
            self.control(control::RING);
            self.put(CONTROL, ring);
            self.put(CONTROL, u64::from(tid));
        }
    }

    /// Ends a pass. `was_empty` is true if no ring had events.
    pub fn end_pass(&mut self, now_ns: u64, was_empty: bool) {
        if was_empty {
            self.empty_passes += 1;
            self.empty_until_ns = now_ns;
            return;
        }
        if !self.started {
            self.start(now_ns);
        }
        self.ring = None;
        self.frame.passes += 1;
        self.control(control::PASS);
        self.put_pass_time(now_ns);
    }

    fn flush_empty_passes(&mut self) {
        if self.empty_passes == 0 {
            return;
        }
        if !self.started {
            self.start(self.empty_until_ns);
        }
        self.control(control::EMPTY_PASSES);
        self.put_pass_time(self.empty_until_ns);
        let passes = std::mem::take(&mut self.empty_passes);
        self.frame.passes += passes;
        self.put(CONTROL, passes);
    }

    fn put_pass_time(&mut self, now_ns: u64) {
        let delta = now_ns.wrapping_sub(self.model.pass_ns) as i64;
        self.put(CONTROL, zigzag(delta));
        self.model.pass_ns = now_ns;
        self.frame.to_ns = self.frame.to_ns.max(now_ns);
    }

    /// Ends the frame and returns it. Reuses `spare` for the next frame.
    pub fn finish(&mut self, spare: Frame) -> Frame {
        self.flush_empty_passes();
        let tried = self.frame.bias;
        if self.frames < 2 {
            self.misses[tried] = self.frame.columns[ADDRESSES].len();
        }
        self.frames += 1;
        self.started = false;
        let mut next = spare;
        for column in &mut next.columns {
            column.clear();
        }
        next.events = 0;
        next.passes = 0;
        next.accesses.clear();
        std::mem::replace(&mut self.frame, next)
    }

    /// Records the reads and writes of the block that the next release concerns.
    pub fn access(&mut self, accesses: &Accesses) {
        self.pending = Some(*accesses);
    }

    /// Records the reads and writes of a block that is live at the end.
    pub fn live_access(&mut self, accesses: &Accesses, now_ns: u64) {
        self.flush_empty_passes();
        if !self.started {
            self.start(now_ns);
        }
        self.frame.accesses.live(accesses);
    }

    /// Records an event. The function is inlined, so that a caller that knows the kind gets no code
    /// for other kinds, and the event stays in registers.
    #[inline(always)]
    pub fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        if !self.started || time_ns != self.model.time_ns {
            self.go_on_at(time_ns);
        }
        self.frame.events += 1;
        let granule = event.address >> 3 & GRANULE_MASK;
        if event.op == Op::Allocation {
            self.allocation(granule, event.sequence, event.stack, size);
        } else if event.op == Op::Release {
            self.accesses_of(event.address);
            self.release(kind::RELEASE, granule, event.sequence, event.stack);
        } else {
            self.rare_event(event, granule, size);
        }
    }

    /// Records an event that is neither an allocation nor a release.
    #[inline(never)]
    fn rare_event(&mut self, event: Event, granule: u64, size: u64) {
        let Event {
            sequence, stack, ..
        } = event;
        match event.op {
            Op::ReallocRelease => {
                self.accesses_of(event.address);
                self.release(kind::REALLOC_RELEASE, granule, sequence, stack);
            }
            Op::ReallocFailed => {
                self.control(control::REALLOC_FAILED);
                self.release(kind::RELEASE, granule, sequence, stack);
            }
            Op::Pair => self.pairs(&event, granule, size),
            // These events do not concern blocks.
            _ => self.frame.events -= 1,
        }
    }

    /// Sets the time of the next event.
    #[inline(never)]
    fn go_on_at(&mut self, time_ns: u64) {
        if !self.started {
            self.flush_empty_passes();
            if !self.started {
                self.start(time_ns);
            }
        }
        if time_ns != self.model.time_ns {
            self.time(time_ns);
        }
    }

    #[inline(always)]
    fn accesses_of(&mut self, address: u64) {
        if self.pending.is_some() {
            self.pending_of(address);
        } else {
            self.frame.accesses.release(None);
        }
    }

    #[inline(never)]
    fn pending_of(&mut self, address: u64) {
        let pending = self.pending.take();
        self.frame
            .accesses
            .release(pending.filter(|accesses| accesses.address == address));
    }

    fn time(&mut self, time_ns: u64) {
        self.control(control::TIME);
        let delta = time_ns.wrapping_sub(self.model.time_ns) as i64;
        self.put(CONTROL, zigzag(delta));
        self.model.time_ns = time_ns;
        self.frame.to_ns = self.frame.to_ns.max(time_ns);
    }

    #[inline]
    fn recent_of(granule: u64) -> usize {
        (granule.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 47) as usize
    }

    fn pairs(&mut self, event: &Event, granule: u64, size: u64) {
        self.control(control::PAIRS);
        self.put(CONTROL, u64::from(event.sequence));
        // These events have no sequence numbers, and the predicted number costs nothing.
        let word = Model::word_of(granule);
        let sequence = self.model.expected_sequence(word, false);
        self.allocation(granule, sequence, event.stack, size);
        self.model.released_last();
    }

    #[inline]
    fn allocation(&mut self, granule: u64, sequence: u32, stack: u32, size: u64) {
        let stack = self.local_of(stack);
        let model = &mut self.model;
        let mut tag = kind::ALLOCATION;
        let class = model.class_of(size);
        let known = &mut model.classes[class as usize];
        let rank = known.released.0.iter().position(|&r| r == granule);
        let place = if let Some(rank) = rank.filter(|_| granule != 0) {
            known.released.remove(rank);
            place::RELEASED + rank as u8
        } else if granule == model.strangers.0[0] {
            model.strangers.remove(0);
            place::STRANGER
        } else if granule == model.last_released {
            place::LAST_RELEASED
        } else if granule == model.bump {
            place::BEHIND
        } else {
            let delta = (granule as i64).wrapping_sub(known.last as i64);
            put(&mut self.frame.columns[ADDRESSES], zigzag(delta));
            place::EXPLICIT
        };
        const { assert!(place::STRANGER as usize == CLASS_RANKS) };
        tag |= place << 2;
        if model.stacks[model.last_stack as usize].next == stack {
            tag |= STACK_HIT;
        } else {
            put(&mut self.frame.columns[STACKS], u64::from(stack));
        }
        if model.stacks[stack as usize].size == size {
            tag |= SIZE_HIT;
        } else {
            put(&mut self.frame.columns[SIZES], size);
        }
        self.recent[Self::recent_of(granule)] = model.blocks.len() as u32 + 1;
        model.allocated(granule, size, stack, class);
        tag |= self.sequence(sequence, granule, false);
        self.frame.columns[TAGS].push(tag);
    }

    #[inline]
    fn release(&mut self, kind: u8, granule: u64, sequence: u32, release_stack: u32) {
        let model = &mut self.model;
        let number = self.recent[Self::recent_of(granule)];
        let block: Option<Block> = (number as usize)
            .checked_sub(1)
            .and_then(|index| model.blocks.get(index).copied())
            .filter(|block| block.granule == granule);
        let (place, stack) = match block {
            Some(block) => {
                let age = model.blocks.len() as u64 - u64::from(number);
                if age < u64::from(age::EXPLICIT) {
                    (age as u8, block.stack)
                } else {
                    put(&mut self.frame.columns[AGES], age);
                    (age::EXPLICIT, block.stack)
                }
            }
            None => {
                let delta = (granule as i64).wrapping_sub(model.last_stranger as i64);
                put(&mut self.frame.columns[STRANGERS], zigzag(delta));
                (age::STRANGER, 0)
            }
        };
        model.released(granule, block.map(|block| block.class));
        let mut tag = kind | place << 2;
        let known = &mut model.stacks[stack as usize];
        if known.release == release_stack {
            tag |= RELEASE_STACK_HIT;
        } else {
            known.release = release_stack;
            let column = &mut self.frame.columns[RELEASE_STACKS];
            put(column, u64::from(release_stack));
        }
        tag |= self.sequence(sequence, granule, true);
        self.frame.columns[TAGS].push(tag);
    }

    #[inline]
    fn sequence(&mut self, sequence: u32, granule: u64, is_release: bool) -> u8 {
        let word = Model::word_of(granule);
        let expected = self.model.expected_sequence(word, is_release);
        let sequence = sequence & SEQUENCE_MASK;
        if sequence == expected {
            self.model.sequences[word] = sequence;
            return SEQUENCE_HIT;
        }
        let difference = sequence_difference(sequence, expected);
        put(&mut self.frame.columns[SEQUENCES], zigzag(difference));
        if self.model.sequences[word] == 0 || sequence_before(self.model.sequences[word], sequence)
        {
            self.model.sequences[word] = sequence;
        }
        0
    }

    #[inline]
    fn local_of(&mut self, id: u32) -> u32 {
        if self.last_local.0 == id {
            return self.last_local.1;
        }
        let expected = self.model.stacks[self.model.last_stack as usize].next;
        let local = if self.model.stacks[expected as usize].id == id {
            expected
        } else if let Some(&local) = self.local.get(&id) {
            local
        } else {
            let local = self.model.learn_stack(id);
            self.local.insert(id, local);
            put(&mut self.frame.columns[STACK_IDS], u64::from(id));
            local
        };
        self.last_local = (id, local);
        local
    }
}
