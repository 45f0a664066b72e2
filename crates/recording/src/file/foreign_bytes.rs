//! Payloads with correct checksums and wrong contents. Anyone who can write a file can compute
//! checksums.

use crate::file::checkpoint::Checkpoint;
use crate::file::decode::{Decoder, Visitor};
use crate::file::encode::{Encoder, Frame};
use crate::file::records::{Meta, ModuleChange, RecordingEnd, read_losses};
use crate::file::summary::Interval;
use crate::file::varint::Cursor;
use crate::replay::restore::Restored;
use crate::{Stacks, replay::recent::LastPasses};
use memhook_abi::{Event, Op, RawEvent};
use memhook_ledger::{Ledger, LedgerOptions};
use proptest::prelude::*;

struct ToLedger(Ledger);

impl Visitor for ToLedger {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.0.begin_ring(ring, tid);
    }
    fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        self.0.event(event, size, time_ns);
    }
    fn end_pass(&mut self, now_ns: u64, passes: u64) {
        for _ in 0..passes.min(4) {
            self.0.end_pass(now_ns);
        }
    }
}

fn ledger() -> Ledger {
    Ledger::new(LedgerOptions {
        track_release_stacks: true,
        ignore_unknown_releases: false,
        ..LedgerOptions::default()
    })
}

fn take_all(payload: &[u8]) {
    let mut consumer = ToLedger(ledger());
    let _ = Decoder::new().frame(payload, &mut consumer);
    consumer.0.finish();
    consumer.0.sites();
    let mut passes = LastPasses::default();
    let _ = Decoder::new().frame(payload, &mut passes);
    let recent = passes.evaluate();
    let mut checkpoint = Checkpoint::default();
    if checkpoint.read(payload, 0).is_ok() {
        let mut ledger = ledger();
        if let Ok(restored) = Restored::feed(checkpoint, recent, &mut ledger) {
            ledger.finish();
            restored.totals(&ledger.totals(), false);
            restored.sites(&ledger.sites());
            restored.release_sites(&ledger.release_sites());
        }
    }
    let _ = Stacks::default().read(payload);
    let _ = Interval::read(payload);
    let mut cursor = Cursor::new(payload);
    let _ = Meta::read(&mut cursor);
    let _ = RecordingEnd::read(&mut Cursor::new(payload));
    let _ = ModuleChange::read(&mut Cursor::new(payload));
    let _ = read_losses(&mut Cursor::new(payload));
}

fn a_frame() -> Vec<u8> {
    let mut encoder = Encoder::new();
    for pass in 0..6u64 {
        encoder.begin_ring(pass % 2, 9, pass);
        for i in 0..20u64 {
            let ops = [Op::Allocation, Op::Release, Op::ReallocRelease, Op::Pair];
            let op = ops[(i % 4) as usize];
            let event = RawEvent::pack(op, 0x1000 + i / 2 * 16, i as u32, 40, (i % 4) as u32);
            encoder.event(event.unpack().unwrap(), 40 + i % 2, pass * 1000);
        }
        encoder.end_pass(pass * 1000, false);
        encoder.end_pass(pass * 1000 + 1, true);
    }
    let mut payload = Vec::new();
    encoder.finish(Frame::default()).write(&mut payload);
    payload
}

fn a_checkpoint() -> Vec<u8> {
    let mut consumer = ToLedger(ledger());
    Decoder::new().frame(&a_frame(), &mut consumer).unwrap();
    let mut all = Vec::new();
    Checkpoint::take(&consumer.0, 5).write(|payload, _| all.push(payload));
    all.remove(0)
}

#[test]
fn every_changed_byte_of_a_frame_or_checkpoint_is_survived() {
    for payload in [a_frame(), a_checkpoint()] {
        take_all(&payload);
        for at in 0..payload.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff, payload[at] ^ 1, payload[at] ^ 0x20] {
                let mut changed = payload.clone();
                changed[at] = value;
                take_all(&changed);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        take_all(&bytes);
    }

    #[test]
    fn several_changes_are_survived(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        checkpoint in any::<bool>(),
    ) {
        let mut payload = if checkpoint { a_checkpoint() } else { a_frame() };
        for (at, value) in changes {
            let at = at.index(payload.len());
            payload[at] = value;
        }
        take_all(&payload);
    }
}
