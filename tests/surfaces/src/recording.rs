//! Untrusted recordings.

use crate::Input;
use crate::scratch_file::with_file;
use memhook_abi::Event;
use memhook_ledger::LedgerOptions;
use memhook_recording::{Error, Recording, ScoreOptions, Visitor};
use std::path::Path;

struct Count(u64);

impl Visitor for Count {
    fn begin_ring(&mut self, _: usize, _: u32) {}
    fn event(&mut self, _: Event, _: u64, _: u64) {
        self.0 += 1;
    }
    fn end_pass(&mut self, _: u64, _: u64) {}
}

fn read(path: &Path) -> Result<(), Error> {
    let recording = Recording::open(path)?;
    let (start, end) = recording.span_ns();
    recording.module_at(0x1000, start);
    for id in recording.stacks().ids() {
        assert!(recording.stacks().get(id).is_some());
    }
    for interval in recording.intervals() {
        interval?;
    }
    // Every method that reads the file must detect the damage independently.
    let _ = recording.activity(None, None, 100);
    let scores = ScoreOptions {
        max_chunks: 50,
        ..ScoreOptions::default()
    };
    let _ = recording.scored_activity(None, None, 10, Some(&scores));
    let middle = start + end.saturating_sub(start) / 2;
    let _ = recording.activity(Some(middle), Some(end), 10);
    let _ = recording.window(middle, u64::MAX, LedgerOptions::default());
    if let Ok(replay) = recording.replay(recording.ledger_options()) {
        replay.totals();
        replay.sites();
        replay.release_sites();
    }
    let mut events = Count(0);
    recording.visit(&mut events)
}

/// Reads the bytes as a file.
pub fn file(bytes: &[u8]) {
    let _ = with_file(bytes, |path| read(&path));
}

/// Reads chunks of complete files, because an attacker can compute checksums. A chunk consists of a
/// kind, two times, a number of items, and a length-prefixed payload.
pub fn chunks(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut file = b"\x89MHK\r\n\x1a\n".to_vec();
    file.extend(2u32.to_le_bytes());
    file.extend(u32::from(input.byte() & 1).to_le_bytes());
    file.extend(0u32.to_le_bytes());
    let checksum = crc32fast::hash(&file);
    file.extend(checksum.to_le_bytes());
    while !input.is_empty() {
        let kind = input.byte();
        let (from, to) = (input.size(), input.size());
        let items = input.u16();
        let payload = input.part();
        chunk(&mut file, kind, (from, to), items.into(), payload);
    }
    let _ = with_file(&file, |path| read(&path));
}

fn chunk(file: &mut Vec<u8>, kind: u8, (from, to): (u64, u64), items: u32, payload: &[u8]) {
    let stored = zstd::bulk::compress(payload, -5).expect("packed");
    let mut header = b"MHKc".to_vec();
    header.extend([kind, 0, 0, 0]);
    header.extend((stored.len() as u32).to_le_bytes());
    header.extend((payload.len() as u32).to_le_bytes());
    header.extend(from.to_le_bytes());
    header.extend(to.to_le_bytes());
    header.extend(items.to_le_bytes());
    header.extend(crc32fast::hash(&stored).to_le_bytes());
    header.extend(crc32fast::hash(&header).to_le_bytes());
    file.extend(header);
    file.extend(stored);
}
