//! Reads and decodes in one thread while another thread consumes the events.
//!
//! Every byte that is passed on moves from one core's cache to another's, and the consumer waits
//! for it. So events are packed as they are in a ring: 16 bytes each, with times and sizes above 32
//! bits as separate events.

use crate::Error;
use crate::file::chunk_file::{ChunkFile, ChunkRef};
use crate::file::decode::{Decoder, Visitor};
use crate::file::reader::MAX_TOTAL_BYTES;
use crossbeam_channel::{Receiver, Sender, bounded};
use memhook_abi::{Accesses, Event, Op, RawEvent};
use std::ops::ControlFlow;

/// Number of events passed on together: few enough to stay in a core's cache.
const BATCH_EVENTS: usize = 4096;
/// Number of batches in transit.
const BATCHES: usize = 8;
/// Distance of prefetching, in events. The processor's own prefetching ends at each page.
const AHEAD: usize = 32;

/// A call of a [`Visitor`] that does not concern an event.
#[derive(Clone, Copy)]
enum Mark {
    Ring(usize, u32),
    Pass(u64, u64),
    Access(Accesses),
    LiveAccess(Accesses),
}

/// Calls of a [`Visitor`].
#[derive(Default)]
struct Batch {
    events: Vec<RawEvent>,
    /// Marks, each with the number of events before it.
    marks: Vec<(usize, Mark)>,
}

/// A visitor that can end the replay early: `wants_more` is called after each pass.
pub(crate) trait Consumer: Visitor {
    fn wants_more(&self) -> bool;
}

struct Batcher {
    batch: Batch,
    full: Sender<Batch>,
    spare: Receiver<Batch>,
    /// Time of the last event.
    time_ns: u64,
    is_over: bool,
}

impl Batcher {
    #[inline]
    fn push(&mut self, event: RawEvent) {
        self.batch.events.push(event);
        if self.batch.events.len() >= BATCH_EVENTS {
            self.flush();
        }
    }

    fn mark(&mut self, mark: Mark) {
        self.batch.marks.push((self.batch.events.len(), mark));
        if self.batch.marks.len() >= BATCH_EVENTS {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let next = self.spare.try_recv().unwrap_or_default();
        let batch = std::mem::replace(&mut self.batch, next);
        self.is_over |= self.full.send(batch).is_err();
    }
}

impl Visitor for Batcher {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.mark(Mark::Ring(ring, tid));
    }
    #[inline]
    fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        if time_ns != self.time_ns {
            self.time_ns = time_ns;
            self.push(RawEvent::pack_value(Op::Tick, time_ns));
        }
        if event.size == u32::MAX {
            self.push(RawEvent::pack_value(Op::SizeExtension, size));
        }
        self.push(RawEvent::pack(
            event.op,
            event.address,
            event.sequence,
            event.size,
            event.stack,
        ));
    }
    fn access(&mut self, accesses: &Accesses) {
        self.mark(Mark::Access(*accesses));
    }
    fn live_access(&mut self, accesses: &Accesses) {
        self.mark(Mark::LiveAccess(*accesses));
    }
    fn end_pass(&mut self, now_ns: u64, passes: u64) {
        self.mark(Mark::Pass(now_ns, passes));
    }
}

/// Decodes `chunks` into `consumer` until it has enough.
pub(crate) fn run(
    file: &ChunkFile,
    chunks: &[ChunkRef],
    consumer: &mut impl Consumer,
) -> Result<(), Error> {
    std::thread::scope(|scope| {
        let (full, batches) = bounded::<Batch>(BATCHES);
        let (back, spare) = bounded::<Batch>(BATCHES);
        let decoding = scope.spawn(move || {
            let mut batcher = Batcher {
                batch: Batch::default(),
                full,
                spare,
                time_ns: 0,
                is_over: false,
            };
            let mut decoder = Decoder::new();
            let mut bytes = 0;
            for chunk in chunks {
                let payload = file.payload(chunk)?;
                let result = decoder.frame(&payload, &mut batcher);
                bytes += result.map_err(|error| error.in_chunk_at(chunk.offset))?;
                if bytes > MAX_TOTAL_BYTES {
                    return Err(Error::damaged("more bytes than any run allocates"));
                }
                if batcher.is_over {
                    break;
                }
            }
            batcher.flush();
            Ok(())
        });
        let mut unpacker = Unpacker::default();
        for mut batch in batches {
            if unpacker.consume(&batch, consumer).is_break() {
                // Dropping the receiver ends the other thread.
                return Ok(());
            }
            batch.events.clear();
            batch.marks.clear();
            let _ = back.try_send(batch);
        }
        let damaged = Error::damaged("the decoding thread failed");
        decoding.join().unwrap_or(Err(damaged))
    })
}

/// Facts from earlier events that the next one needs.
#[derive(Default)]
struct Unpacker {
    time_ns: u64,
    size: Option<u64>,
}

impl Unpacker {
    #[inline]
    fn consume(&mut self, batch: &Batch, consumer: &mut impl Consumer) -> ControlFlow<()> {
        let mut done = 0;
        for &(at, mark) in &batch.marks {
            self.events(&batch.events[done..at], consumer);
            done = at;
            match mark {
                Mark::Ring(ring, tid) => consumer.begin_ring(ring, tid),
                Mark::Access(accesses) => consumer.access(&accesses),
                Mark::LiveAccess(accesses) => consumer.live_access(&accesses),
                Mark::Pass(now_ns, passes) => {
                    consumer.end_pass(now_ns, passes);
                    if !consumer.wants_more() {
                        return ControlFlow::Break(());
                    }
                }
            }
        }
        self.events(&batch.events[done..], consumer);
        ControlFlow::Continue(())
    }

    #[inline]
    fn events(&mut self, events: &[RawEvent], consumer: &mut impl Consumer) {
        for (index, raw) in events.iter().enumerate() {
            if let Some(later) = events.get(index + AHEAD) {
                memhook_abi::prefetch(later);
            }
            // As in the drain, nearly all events are of these two kinds. Each kind has a separate
            // call, in which the compiler knows the kind.
            if raw.is(Op::Release) {
                let event = raw.unpack_as(Op::Release);
                consumer.event(event, self.size_of(event), self.time_ns);
                continue;
            }
            if raw.is(Op::Allocation) {
                let event = raw.unpack_as(Op::Allocation);
                consumer.event(event, self.size_of(event), self.time_ns);
                continue;
            }
            let Some(event) = raw.unpack() else { continue };
            match event.op {
                Op::Tick => self.time_ns = event.value,
                Op::SizeExtension => self.size = Some(event.value),
                _ => consumer.event(event, self.size_of(event), self.time_ns),
            }
        }
    }

    #[inline(always)]
    fn size_of(&mut self, event: Event) -> u64 {
        self.size.take().unwrap_or(event.size.into())
    }
}
