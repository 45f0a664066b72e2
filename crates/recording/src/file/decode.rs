//! Decodes the columns of a frame to events.

use crate::Error;
use crate::file::accesses::AccessReader;
use crate::file::columns::*;
use crate::file::encode::sequence_difference;
use crate::file::model::{CLASS_BIASES, GRANULE_MASK, Model, SEQUENCE_MASK};
use crate::file::reader::MAX_TOTAL_BYTES;
use crate::file::varint::{Cursor, RUNS_PAST_THE_END, Short};
use memhook_abi::{Accesses, Event, MAX_RINGS, Op, RawEvent, sequence_before};

/// Largest count of a pair event.
const MAX_PAIRS: u32 = 0xffff;
/// Upper bound on sizes. No allocation can be larger than the user half of the address space.
const MAX_SIZE: u64 = 1 << 47;

/// Receives events in the order in which they were recorded, like [`memhook_stream::Sink`].
pub trait Visitor {
    /// Begins the events of this ring, which were published by thread `tid` (in the target's pid
    /// namespace).
    fn begin_ring(&mut self, ring: usize, tid: u32);
    /// Reports the reads and writes of the block that the next event releases.
    fn access(&mut self, _accesses: &Accesses) {}
    /// Reports the reads and writes of a block that is live at the end.
    fn live_access(&mut self, _accesses: &Accesses) {}
    /// Takes one event. `size` is the requested size in bytes, or 0 for a release. `time_ns` is the
    /// time in nanoseconds since the attach.
    fn event(&mut self, event: Event, size: u64, time_ns: u64);
    /// Ends a pass at `now_ns`, nanoseconds since the attach. `passes` is above 1 for several
    /// consecutive passes without events.
    fn end_pass(&mut self, now_ns: u64, passes: u64);
}

/// Description of damage. It is smaller than an [`Error`], which the innermost loop would have to
/// write to memory and read back for every event.
struct Damage(&'static str);

impl From<Short> for Damage {
    fn from(_: Short) -> Self {
        Damage(RUNS_PAST_THE_END)
    }
}

impl From<Damage> for Error {
    fn from(Damage(what): Damage) -> Self {
        Error::damaged(what)
    }
}

/// Decodes frames. Reuses its memory for the next frame.
pub(crate) struct Decoder {
    model: Model,
    /// Ring and thread of the events at the end of the last frame.
    ring: Option<(u64, u32)>,
}

struct Columns<'a>([Cursor<'a>; COLUMNS.len()]);

impl Columns<'_> {
    #[inline]
    fn varint(&mut self, column: usize) -> Result<u64, Short> {
        self.0[column].varint()
    }
    #[inline]
    fn signed(&mut self, column: usize) -> Result<i64, Short> {
        self.0[column].signed()
    }
}

impl Decoder {
    pub fn new() -> Self {
        Self {
            model: Model::new(),
            ring: None,
        }
    }

    /// Decodes a frame. Returns the sum of the bytes that its allocations requested.
    ///
    /// Fails at the first contradiction. The visitor has already received everything before it.
    pub fn frame(&mut self, payload: &[u8], visitor: &mut impl Visitor) -> Result<u64, Error> {
        let mut head = Cursor::new(payload);
        let events = usize::try_from(head.varint()?).unwrap_or(usize::MAX);
        let bias = usize::try_from(head.varint()?).unwrap_or(usize::MAX);
        let Some(&bias) = CLASS_BIASES.get(bias) else {
            return Err(Error::damaged("unknown kind of size classes"));
        };
        if events > MAX_FRAME_EVENTS {
            return Err(Error::damaged("too many events in one frame"));
        }
        self.model.reset(bias, head.varint()?);
        match head.varint()? {
            0 => {}
            1 => {
                let (ring, tid) = (head.varint()?, head.u32()?);
                self.model.tids.insert(ring, tid);
                if self.ring != Some((ring, tid)) {
                    self.begin_ring(ring, tid, visitor)?;
                }
            }
            _ => return Err(Error::damaged("unknown beginning of a frame")),
        }
        let mut columns = Columns(Default::default());
        let mut lengths = [0; COLUMNS.len()];
        for length in &mut lengths {
            *length = usize::try_from(head.varint()?).unwrap_or(usize::MAX);
        }
        for (column, length) in columns.0.iter_mut().zip(lengths) {
            *column = Cursor::new(head.take(length)?);
        }
        let mut accesses = AccessReader::of(head)?;
        let bytes = self.body(columns, events, &mut accesses, visitor)?;
        accesses.live(visitor)?;
        Ok(bytes)
    }

    fn begin_ring(&mut self, ring: u64, tid: u32, visitor: &mut impl Visitor) -> Result<(), Error> {
        if ring >= MAX_RINGS as u64 {
            return Err(Error::damaged("a ring number that no target has"));
        }
        self.ring = Some((ring, tid));
        visitor.begin_ring(ring as usize, tid);
        Ok(())
    }

    fn body(
        &mut self,
        mut columns: Columns<'_>,
        events: usize,
        accesses: &mut AccessReader<'_>,
        visitor: &mut impl Visitor,
    ) -> Result<u64, Error> {
        let mut failed_realloc = false;
        let mut pairs = 0;
        let mut seen = 0;
        let mut bytes = 0u64;
        while let Ok(tag) = columns.0[TAGS].byte() {
            let is_allocation = match tag & 3 {
                kind::ALLOCATION => true,
                kind::RELEASE | kind::REALLOC_RELEASE => false,
                _ if tag >> 2 == control::REALLOC_FAILED => {
                    failed_realloc = true;
                    continue;
                }
                _ if tag >> 2 == control::PAIRS => {
                    pairs = columns.0[CONTROL].u32()?;
                    if pairs == 0 || pairs > MAX_PAIRS {
                        return Err(Error::damaged("a number of pairs that no hook writes"));
                    }
                    continue;
                }
                _ => {
                    self.control(tag >> 2, &mut columns, visitor)?;
                    continue;
                }
            };
            seen += 1;
            if seen > events {
                return Err(Error::damaged("more events than the frame announces"));
            }
            let (event, size) = if is_allocation {
                let (mut event, size) = self.allocation(tag, &mut columns)?;
                if pairs != 0 {
                    event.op = Op::Pair;
                    event.sequence = pairs;
                    self.model.released_last();
                }
                (event, size)
            } else {
                let op = match (std::mem::take(&mut failed_realloc), tag & 3) {
                    (true, _) => Op::ReallocFailed,
                    (false, kind::RELEASE) => Op::Release,
                    (false, _) => Op::ReallocRelease,
                };
                let event = self.release(tag, op, &mut columns)?;
                if op != Op::ReallocFailed {
                    accesses.release(event.address, visitor)?;
                }
                (event, 0)
            };
            if size > MAX_SIZE {
                return Err(Error::damaged("a size that no allocator grants"));
            }
            bytes += size * u64::from(std::mem::take(&mut pairs).max(1));
            if bytes > MAX_TOTAL_BYTES {
                return Err(Error::damaged("more bytes than any run allocates"));
            }
            visitor.event(event, size, self.model.time_ns);
        }
        if seen < events {
            return Err(Error::damaged("fewer events than the frame announces"));
        }
        Ok(bytes)
    }

    #[cold]
    fn control(
        &mut self,
        code: u8,
        columns: &mut Columns<'_>,
        visitor: &mut impl Visitor,
    ) -> Result<(), Error> {
        match code {
            control::RING => {
                let ring = columns.varint(CONTROL)?;
                let tid = columns.0[CONTROL].u32()?;
                self.model.tids.insert(ring, tid);
                self.begin_ring(ring, tid, visitor)
            }
            control::RING_AGAIN => {
                let ring = columns.varint(CONTROL)?;
                let tid = self.model.tids.get(&ring).copied();
                let tid = tid.ok_or(Error::damaged("a ring that was not named before"))?;
                self.begin_ring(ring, tid, visitor)
            }
            control::PASS | control::EMPTY_PASSES => {
                let delta = columns.signed(CONTROL)?;
                self.model.pass_ns = self.model.pass_ns.wrapping_add(delta as u64);
                let passes = match code {
                    control::PASS => 1,
                    _ => columns.varint(CONTROL)?,
                };
                self.ring = None;
                visitor.end_pass(self.model.pass_ns, passes);
                Ok(())
            }
            control::TIME => {
                let delta = columns.signed(CONTROL)?;
                self.model.time_ns = self.model.time_ns.wrapping_add(delta as u64);
                Ok(())
            }
            _ => Err(Error::damaged("an unknown control tag")),
        }
    }

    #[inline(always)]
    fn allocation(&mut self, tag: u8, columns: &mut Columns<'_>) -> Result<(Event, u64), Damage> {
        let model = &mut self.model;
        let stack = if tag & STACK_HIT != 0 {
            model.stacks[model.last_stack as usize].next
        } else {
            let stack = columns.0[STACKS].u32()?;
            let known = model.stacks.len();
            if stack as usize == known {
                model.learn_stack(columns.0[STACK_IDS].u32()?);
            } else if stack as usize > known {
                return Err(Damage("a stack that was not named before"));
            }
            stack
        };
        let size = if tag & SIZE_HIT != 0 {
            model.stacks[stack as usize].size
        } else {
            columns.varint(SIZES)?
        };
        let class = model.class_of(size);
        let known = &mut model.classes[class as usize];
        let granule = match tag >> 2 & 7 {
            place::STRANGER => model.strangers.remove(0),
            place::LAST_RELEASED => model.last_released,
            place::BEHIND => model.bump,
            place::EXPLICIT => {
                let delta = columns.0[ADDRESSES].signed()?;
                known.last.wrapping_add(delta as u64) & GRANULE_MASK
            }
            rank => known.released.remove(rank as usize),
        };
        model.allocated(granule, size, stack, class);
        let sequence = self.sequence(tag, granule, false, columns)?;
        let id = self.model.stacks[stack as usize].id;
        let size32 = size.min(u64::from(u32::MAX)) as u32;
        Ok((event(Op::Allocation, granule, sequence, size32, id), size))
    }

    #[inline(always)]
    fn release(&mut self, tag: u8, op: Op, columns: &mut Columns<'_>) -> Result<Event, Damage> {
        let model = &mut self.model;
        let place = tag >> 2 & 15;
        let (granule, stack, class) = if place == age::STRANGER {
            let delta = columns.signed(STRANGERS)?;
            let granule = model.last_stranger.wrapping_add(delta as u64) & GRANULE_MASK;
            (granule, 0, None)
        } else {
            let age = match place {
                age::EXPLICIT => columns.varint(AGES)?,
                age => u64::from(age),
            };
            let block = usize::try_from(age)
                .ok()
                .and_then(|age| model.blocks.len().checked_sub(1)?.checked_sub(age))
                .map(|index| model.blocks[index]);
            let block = block.ok_or(Damage("a release of a block before the first"))?;
            (block.granule, block.stack, Some(block.class))
        };
        model.released(granule, class);
        let known = &mut model.stacks[stack as usize];
        if tag & RELEASE_STACK_HIT == 0 {
            known.release = columns.0[RELEASE_STACKS].u32()?;
        }
        let release_stack = known.release;
        let sequence = self.sequence(tag, granule, true, columns)?;
        Ok(event(op, granule, sequence, 0, release_stack))
    }

    #[inline(always)]
    fn sequence(
        &mut self,
        tag: u8,
        granule: u64,
        is_release: bool,
        columns: &mut Columns<'_>,
    ) -> Result<u32, Damage> {
        let word = Model::word_of(granule);
        let expected = self.model.expected_sequence(word, is_release);
        if tag & SEQUENCE_HIT != 0 {
            self.model.sequences[word] = expected;
            return Ok(expected);
        }
        let difference = columns.signed(SEQUENCES)?;
        let sequence = expected.wrapping_add(difference as u32) & SEQUENCE_MASK;
        debug_assert_eq!(
            sequence_difference(sequence, expected) as u32 & SEQUENCE_MASK,
            difference as u32 & SEQUENCE_MASK
        );
        if self.model.sequences[word] == 0 || sequence_before(self.model.sequences[word], sequence)
        {
            self.model.sequences[word] = sequence;
        }
        Ok(sequence)
    }
}

#[inline]
fn event(op: Op, granule: u64, sequence: u32, size: u32, stack: u32) -> Event {
    let stack = stack & 0x03ff_ffff;
    Event {
        op,
        address: granule << 3,
        sequence,
        size,
        stack,
        value: RawEvent::pack(op, granule << 3, sequence, size, stack).word1,
    }
}
