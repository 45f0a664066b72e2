//! Fills the rings of a region from Rust, without a target.

use memhook_abi::{
    Event, RING_PREFIX_BYTES, RINGS_OFFSET, RawEvent, RingHeader, TALLY_OFFSET, Tally,
    region_bytes, ring_state, ring_stride,
};
use memhook_ledger::Ledger;
use memhook_stream::{Config, Plan, Region, Sink, sealed_file};
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;

/// Sink that passes the events of a drain to a ledger.
pub struct ToLedger<'a>(pub &'a mut Ledger);

impl Sink for ToLedger<'_> {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.0.begin_ring(ring, tid);
    }
    #[inline(always)]
    fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        self.0.event(event, size, time_ns);
    }
    fn end_pass(&mut self) {
        self.0.end_pass(0);
    }
}

/// Producer that fills rings. It writes to the file of the region, so it needs no mapping.
pub struct Feeder {
    file: File,
    /// Region as the consumer sees it.
    pub region: Region,
    ring_bytes: usize,
    /// Head of each ring.
    heads: Vec<u64>,
    /// Thread in the header of each ring.
    tids: Vec<u32>,
    bytes: Vec<u8>,
}

impl Feeder {
    /// Creates a region with one ring of `ring_bytes` bytes.
    pub fn new(ring_bytes: usize) -> Self {
        Self::with_rings(1, ring_bytes)
    }

    /// Creates a region with `rings` rings of `ring_bytes` bytes.
    pub fn with_rings(rings: usize, ring_bytes: usize) -> Self {
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
        let mut feeder = Feeder {
            file,
            region,
            ring_bytes,
            heads: vec![0; rings],
            tids: vec![0; rings],
            bytes: Vec::new(),
        };
        let used = rings as u32;
        feeder.write(
            TALLY_OFFSET + offset_of!(Tally, rings_used),
            &used.to_ne_bytes(),
        );
        let mask = feeder.capacity() as u64 - 1;
        for ring in 0..rings {
            feeder.set_tid(ring, ring as u32 + 1);
            feeder.write_header(ring, offset_of!(RingHeader, mask), &mask.to_ne_bytes());
            let state = ring_state::CLAIMED.to_ne_bytes();
            feeder.write_header(ring, offset_of!(RingHeader, state), &state);
        }
        feeder
    }

    /// Maps the region again, for a consumer on another thread.
    pub fn second_view(&self) -> Region {
        Region::map(&self.file).expect("a mapping")
    }

    /// Returns the number of events that fit into a ring.
    pub fn capacity(&self) -> usize {
        self.ring_bytes / size_of::<RawEvent>()
    }

    /// Publishes events in the first ring. The ring must be empty and large enough.
    pub fn publish(&mut self, events: &[RawEvent]) {
        self.publish_to(0, events);
    }

    /// Publishes events in a ring. The ring must be empty and large enough.
    pub fn publish_to(&mut self, ring: usize, events: &[RawEvent]) {
        assert!(events.len() <= self.capacity());
        let start = self.heads[ring] as usize % self.capacity();
        let (first, second) = events.split_at(events.len().min(self.capacity() - start));
        for (at, part) in [(start, first), (0, second)] {
            self.bytes.clear();
            for event in part {
                self.bytes.extend(event.word0.to_ne_bytes());
                self.bytes.extend(event.word1.to_ne_bytes());
            }
            let offset = RING_PREFIX_BYTES + at * size_of::<RawEvent>();
            self.write_header(ring, offset, &self.bytes);
        }
        self.heads[ring] += events.len() as u64;
        let head = self.heads[ring].to_ne_bytes();
        self.write_header(ring, offset_of!(RingHeader, head), &head);
    }

    /// Sets the thread that publishes in a ring from now on.
    pub fn set_tid(&mut self, ring: usize, tid: u32) {
        if self.tids[ring] != tid {
            self.tids[ring] = tid;
            self.write_header(ring, offset_of!(RingHeader, tid), &tid.to_ne_bytes());
        }
    }

    fn write_header(&self, ring: usize, field: usize, bytes: &[u8]) {
        const { assert!(ring_stride(0) >= size_of::<RingHeader>()) };
        self.write(
            RINGS_OFFSET + ring * ring_stride(self.ring_bytes) + field,
            bytes,
        );
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.file
            .write_all_at(bytes, offset as u64)
            .expect("a write to shared memory");
    }
}
