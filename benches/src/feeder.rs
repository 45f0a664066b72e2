//! A region whose rings are filled from Rust, without a target.

use memhook_abi::{
    Control, Event, RING_PREFIX_BYTES, RINGS_OFFSET, RawEvent, RingHeader, region_bytes,
    ring_state, ring_stride,
};
use memhook_ledger::Ledger;
use memhook_stream::{Config, Plan, Region, Sink, sealed_file};
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;

/// Hands the events of a drain to a ledger.
pub struct ToLedger<'a>(pub &'a mut Ledger);

impl Sink for ToLedger<'_> {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.0.begin_ring(ring, tid);
    }
    #[inline]
    fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        self.0.event(event, size, time_ns);
    }
    fn end_pass(&mut self) {
        self.0.end_pass(0);
    }
}

/// Plays the producer of one ring. It writes through the file of the mapping, so it needs none.
pub struct Feeder {
    file: File,
    /// The consumer's view.
    pub region: Region,
    ring_bytes: usize,
    head: u64,
    bytes: Vec<u8>,
}

impl Feeder {
    /// A region of its own with rings of `ring_bytes`.
    pub fn new(ring_bytes: usize) -> Self {
        let file = sealed_file(region_bytes(ring_bytes) as u64).expect("a sparse file");
        let file = File::from(file);
        let region = Region::map(&file).expect("a mapping");
        region
            .initialize(&Config {
                epoch: 1,
                ring_bytes: ring_bytes as u64,
                depth: 1,
                max_size: u64::MAX,
                plan: Plan {
                    first_ring: ring_bytes as u64,
                    ..Plan::default()
                },
                ..Config::default()
            })
            .expect("a region");
        let feeder = Feeder {
            file,
            region,
            ring_bytes,
            head: 0,
            bytes: Vec::new(),
        };
        feeder.write(offset_of!(Control, rings_used), &1u32.to_ne_bytes());
        feeder.write_header(offset_of!(RingHeader, tid), &1u32.to_ne_bytes());
        let mask = feeder.capacity() as u64 - 1;
        feeder.write_header(offset_of!(RingHeader, mask), &mask.to_ne_bytes());
        feeder.write_header(
            offset_of!(RingHeader, state),
            &ring_state::CLAIMED.to_ne_bytes(),
        );
        feeder
    }

    /// Events that fit into the ring.
    pub fn capacity(&self) -> usize {
        self.ring_bytes / size_of::<RawEvent>()
    }

    /// Publishes events; the ring must be empty and large enough.
    pub fn publish(&mut self, events: &[RawEvent]) {
        assert!(events.len() <= self.capacity());
        let start = self.head as usize % self.capacity();
        let (first, second) = events.split_at(events.len().min(self.capacity() - start));
        for (at, part) in [(start, first), (0, second)] {
            self.bytes.clear();
            for event in part {
                self.bytes.extend(event.word0.to_ne_bytes());
                self.bytes.extend(event.word1.to_ne_bytes());
            }
            let offset = RINGS_OFFSET + RING_PREFIX_BYTES + at * size_of::<RawEvent>();
            self.write(offset, &self.bytes);
        }
        self.head += events.len() as u64;
        self.write_header(offset_of!(RingHeader, head), &self.head.to_ne_bytes());
    }

    fn write_header(&self, field: usize, bytes: &[u8]) {
        const { assert!(ring_stride(0) >= size_of::<RingHeader>()) };
        self.write(RINGS_OFFSET + field, bytes);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.file
            .write_all_at(bytes, offset as u64)
            .expect("a write to shared memory");
    }
}
