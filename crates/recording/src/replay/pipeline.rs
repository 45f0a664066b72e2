//! Reads and decodes on one thread while another one consumes.

use crate::Error;
use crate::file::chunk_file::{ChunkFile, ChunkRef};
use crate::file::decode::{Decoder, Visitor};
use crate::file::reader::MAX_TOTAL_BYTES;
use crossbeam_channel::{Receiver, Sender, bounded};
use memhook_abi::Event;
use std::ops::ControlFlow;

/// Items handed over at a time: few enough to stay in a core's cache.
const BATCH_ITEMS: usize = 4096;
/// Batches under way.
const BATCHES: usize = 8;

/// One call of a [`Visitor`].
#[derive(Clone, Copy)]
pub(crate) enum Item {
    Ring(usize, u32),
    Event(Event, u64, u64),
    Pass(u64, u64),
}

/// A visitor that can have enough. It is asked after each pass.
pub(crate) trait Consumer: Visitor {
    fn wants_more(&self) -> bool;
}

struct Batcher {
    batch: Vec<Item>,
    full: Sender<Vec<Item>>,
    spare: Receiver<Vec<Item>>,
    is_over: bool,
}

impl Batcher {
    #[inline]
    fn push(&mut self, item: Item) {
        self.batch.push(item);
        if self.batch.len() >= BATCH_ITEMS {
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
        self.push(Item::Ring(ring, tid));
    }
    #[inline]
    fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        self.push(Item::Event(event, size, time_ns));
    }
    fn end_pass(&mut self, now_ns: u64, passes: u64) {
        self.push(Item::Pass(now_ns, passes));
    }
}

/// Decodes `chunks` into `consumer` until it has enough.
pub(crate) fn run(
    file: &ChunkFile,
    chunks: &[ChunkRef],
    consumer: &mut impl Consumer,
) -> Result<(), Error> {
    std::thread::scope(|scope| {
        let (full, batches) = bounded::<Vec<Item>>(BATCHES);
        let (back, spare) = bounded::<Vec<Item>>(BATCHES);
        let decoding = scope.spawn(move || {
            let mut batcher = Batcher {
                batch: Vec::with_capacity(BATCH_ITEMS),
                full,
                spare,
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
        for mut batch in batches {
            if consume(&batch, consumer).is_break() {
                // Dropping the receiver ends the other thread.
                return Ok(());
            }
            batch.clear();
            let _ = back.try_send(batch);
        }
        let damaged = Error::damaged("the decoding thread failed");
        decoding.join().unwrap_or(Err(damaged))
    })
}

#[inline]
fn consume(batch: &[Item], consumer: &mut impl Consumer) -> ControlFlow<()> {
    for item in batch {
        match *item {
            Item::Event(event, size, time_ns) => consumer.event(event, size, time_ns),
            Item::Ring(ring, tid) => consumer.begin_ring(ring, tid),
            Item::Pass(now_ns, passes) => {
                consumer.end_pass(now_ns, passes);
                if !consumer.wants_more() {
                    return ControlFlow::Break(());
                }
            }
        }
    }
    ControlFlow::Continue(())
}
