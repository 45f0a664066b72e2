//! The shared region. A target may write anything into it, between passes and during them.

use crate::Input;
use memhook_abi::{
    ARENA_OFFSET, Event, RING_PREFIX_BYTES, RINGS_OFFSET, RingHeader, SLOT_STATES_OFFSET,
    TALLY_OFFSET, Tally, region_bytes, ring_stride,
};
use memhook_ledger::{Ledger, LedgerOptions, MappingLedger};
use memhook_stream::{Admission, Config, Drain, Region, Sink, TickTime};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;

/// Size of the smallest ring.
const RING_BYTES: usize = 4096;
const RING_EVENTS: u64 = RING_BYTES as u64 / 16;
/// Number of rings that receive data. The control block may also claim that other rings are in use.
const RINGS: usize = 3;

pub(crate) struct Shared {
    pub file: File,
    pub region: Region,
}

impl Shared {
    pub fn new() -> Shared {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create("memhook-fuzz", flags).expect("a memory file"));
        file.set_len(region_bytes(RING_BYTES) as u64)
            .expect("sized");
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).expect("sealed");
        let region = Region::map(&file).expect("a region");
        Shared { file, region }
    }

    pub fn start(&self, choice: u16) {
        let config = Config {
            epoch: 1,
            ring_bytes: RING_BYTES as u64,
            depth: 8,
            flags: flags_of(choice),
            // Requests rings that are nearly full.
            sample_bytes: 64 << 10,
            max_size: u64::MAX,
            ..Config::default()
        };
        self.region.initialize(&config).expect("a fresh region");
    }

    fn write(&self, (at, bytes): (usize, &[u8])) {
        self.file.write_all_at(bytes, at as u64).expect("written");
    }
}

/// Returns the flags of an attach. The counters of the live filter take 256 pages and most of the
/// time of an execution, so few inputs enable them.
fn flags_of(choice: u16) -> u32 {
    let flags = u32::from(choice) & !memhook_abi::flags::SAMPLE;
    if choice >> 12 == 0xf {
        flags
    } else {
        flags & !(memhook_abi::flags::LIVE_FILTER | memhook_abi::flags::BUDGET)
    }
}

thread_local! {
    pub(crate) static SHARED: Shared = Shared::new();
}

/// Decodes one write of the target from the input: its offset and bytes.
pub(crate) fn a_write<'a>(input: &mut Input<'a>) -> (usize, Vec<u8>) {
    let ring = |ring: u8| RINGS_OFFSET + usize::from(ring) % RINGS * ring_stride(RING_BYTES);
    let word = |input: &mut Input| input.size().to_le_bytes().to_vec();
    match input.byte() % 8 {
        0 => {
            const FIELDS: [usize; 6] = [
                offset_of!(Tally, loader_count_now),
                offset_of!(Tally, rings_used),
                offset_of!(Tally, module_requests),
                offset_of!(Tally, index_mask),
                offset_of!(Tally, recorders_asked),
                offset_of!(Tally, arena_next),
            ];
            let choice = input.byte();
            let field = FIELDS[usize::from(choice) % FIELDS.len()];
            // Only rarely selects all rings and slots, because reading a ring or a slot allocates a
            // page of memory.
            let most = if choice < 240 { 8 } else { u64::MAX };
            let bytes = ((input.size() % most) as u32).to_le_bytes().to_vec();
            (TALLY_OFFSET + field, bytes)
        }
        1 => {
            let field = usize::from(input.u16()) % (size_of::<Tally>() / 8) * 8;
            (TALLY_OFFSET + field, word(input))
        }
        2 | 3 => {
            const FIELDS: [usize; 6] = [
                offset_of!(RingHeader, head),
                offset_of!(RingHeader, tail),
                offset_of!(RingHeader, claimed),
                offset_of!(RingHeader, folding),
                offset_of!(RingHeader, outer),
                offset_of!(RingHeader, state),
            ];
            let header = ring(input.byte());
            let field = FIELDS[usize::from(input.byte()) % FIELDS.len()];
            (header + field, word(input))
        }
        4 => {
            let header = ring(input.byte());
            let field = usize::from(input.byte()) * 8 % size_of::<RingHeader>();
            (header + field, word(input))
        }
        5 => {
            let events = ring(input.byte()) + RING_PREFIX_BYTES;
            let place = usize::from(input.byte()) * 16;
            let count = usize::from(input.byte() % 16) + 1;
            let bytes = input.take((count * 16).min(RING_BYTES - place));
            (events + place, bytes.to_vec())
        }
        6 => {
            let place = ARENA_OFFSET + usize::from(input.byte()) * 8;
            (place, input.take(16).to_vec())
        }
        _ => {
            let state = SLOT_STATES_OFFSET + usize::from(input.byte()) * 4;
            (state, input.take(4).to_vec())
        }
    }
}

struct ToLedger<'a> {
    ledger: &'a mut Ledger,
    mappings: &'a mut MappingLedger,
    events: u64,
}

impl Sink for ToLedger<'_> {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.ledger.begin_ring(ring, tid);
        self.mappings.begin_ring(tid);
    }
    fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        self.events += 1;
        self.ledger.event(event, size, time_ns);
    }
    fn mapping(&mut self, event: Event, bytes: u64, time_ns: u64) {
        self.events += 1;
        self.mappings.event(event, bytes, time_ns);
    }
    fn end_pass(&mut self) {
        self.ledger.end_pass(0);
        self.mappings.end_pass(0);
    }
}

/// An attacher that does not trust the region.
pub(crate) struct Attacher<'a> {
    region: &'a Region,
    /// True if the region does not change while the attacher acts.
    is_alone: bool,
    drain: Drain,
    ledger: Ledger,
    mappings: MappingLedger,
    admission: Admission,
}

impl<'a> Attacher<'a> {
    pub fn of(region: &'a Region, is_alone: bool) -> Attacher<'a> {
        Attacher {
            region,
            is_alone,
            drain: Drain::new(),
            ledger: Ledger::new(LedgerOptions {
                track_release_stacks: true,
                ..LedgerOptions::default()
            }),
            mappings: MappingLedger::default(),
            admission: Admission::default(),
        }
    }

    /// Performs one action of an attacher.
    pub fn act(&mut self, input: &mut Input) {
        let region = self.region;
        match input.byte() % 8 {
            0..=2 => self.pass(false),
            3 => {
                let _ = region.validate();
                self.admission.answer(region);
                region.answer_modules(region.module_requests());
            }
            4 => {
                region.losses();
                let waiting = region.rings().filter(|ring| ring.waiting > 0).count();
                assert!(waiting <= region.rings_used().max(waiting));
            }
            5 => {
                region.free_ring(usize::from(input.byte()) % RINGS);
            }
            6 => {
                for slot in region.slots() {
                    let again = region.slot(slot.index).map(|again| again.index);
                    // The target may remove the entry from the journal at any time.
                    let is_gone = again.is_none() && !self.is_alone;
                    assert!(is_gone || again == Some(slot.index), "{again:?}");
                }
            }
            _ => {
                for id in [u32::from(input.byte()), input.u32(), u32::MAX] {
                    let frames = region.stack(id).map_or(Vec::new(), |stack| stack.frames);
                    assert!(frames.len() <= memhook_abi::MAX_DEPTH);
                    for frame in frames {
                        region.python_location(frame);
                    }
                    region.python_location(u64::from(id) << 4 | memhook_abi::PYTHON_FRAME);
                }
                let mut next = u64::from(input.byte());
                for _ in 0..2 {
                    let (marks, _) = region.take_marks(&mut next, 1);
                    assert!(marks.len() <= memhook_abi::MARKS);
                }
            }
        }
    }

    fn pass(&mut self, is_last: bool) {
        let mut sink = ToLedger {
            ledger: &mut self.ledger,
            mappings: &mut self.mappings,
            events: 0,
        };
        let stats = if is_last {
            self.drain.last_pass(self.region, &mut sink)
        } else {
            self.drain.pass(self.region, &mut sink)
        };
        assert_eq!(stats.events, sink.events);
        assert!(stats.events + stats.damaged <= (RING_EVENTS + 1) * memhook_abi::MAX_RINGS as u64);
    }

    /// Detaches and reports.
    pub fn end(mut self) {
        self.drain.set_tick_time(TickTime::Fixed(7));
        self.pass(true);
        self.ledger.finish();
        self.ledger.totals();
        self.mappings.finish(0);
        self.mappings.totals();
        self.region.live_accesses(TickTime::Nanoseconds);
        for site in self.ledger.sites() {
            self.region.stack(site.stack);
        }
        self.ledger.live_by(None);
        self.ledger.release_sites();
    }
}

/// Alternates writes of the target and actions of the attacher.
pub fn changed(bytes: &[u8]) {
    let mut input = Input(bytes);
    SHARED.with(|shared| {
        shared.start(input.u16());
        let mut attacher = Attacher::of(&shared.region, true);
        while !input.is_empty() {
            match input.byte() % 4 {
                0 => attacher.act(&mut input),
                _ => {
                    let (at, bytes) = a_write(&mut input);
                    shared.write((at, &bytes));
                }
            }
        }
        attacher.end();
    });
}
