//! A full queue, and readers that disappear.

use super::queue::ROOM;
use super::{EventQueue, EventSource, EventTap, EventsBegin, EventsEnd, write_events};
use crate::Backtrace;
use memhook_ledger::{BlockOf, Blocks, CountedSite, ReleaseBy};
use memhook_symbols::{ModuleFile, Symbolizer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

struct Nameless;

impl EventSource for Nameless {
    fn backtrace(&mut self, _id: u32) -> Option<Backtrace> {
        None
    }
    fn thread(&mut self, index: u16) -> (u32, String) {
        (u32::from(index) + 100, "worker".into())
    }
    fn new_modules(&mut self) -> Option<Vec<ModuleFile>> {
        None
    }
}

fn allocate(tap: &mut EventTap, address: u64) {
    let site = CountedSite {
        index: 0,
        stack: 7,
        level: 0,
    };
    tap.counted(site, 10, 1);
    let block = BlockOf {
        site: 0,
        thread: 1,
        address,
        size: 10,
        time_ns: 0,
    };
    tap.allocated(&block, 7);
}

fn begin() -> EventsBegin {
    EventsBegin::new(1, "program".into(), None, 10)
}

fn written(queue: &EventQueue) -> Vec<Value> {
    let mut out = Vec::new();
    let nameless = Box::new(Nameless);
    let found = write_events(
        queue,
        &begin(),
        nameless,
        Symbolizer::without_files(),
        &mut out,
    );
    assert!(found.error.is_none());
    let text = String::from_utf8(out).expect("text");
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    lines.collect()
}

#[test]
fn what_finds_no_room_is_counted() {
    let queue = Arc::new(EventQueue::default());
    let mut tap = EventTap::new(&queue);
    // Without a reader, the queue and then the batch fill up.
    for pass in 0..4 {
        for i in 0..ROOM as u64 {
            allocate(&mut tap, (pass * ROOM as u64 + i) * 16);
        }
        tap.end_pass(pass);
    }
    tap.finish(EventsEnd::default());
    let lines = written(&queue);
    let of = |kind: &str| {
        lines
            .iter()
            .filter(|l| l["event"] == kind)
            .collect::<Vec<_>>()
    };
    let (allocated, lost) = (of("alloc").len() as u64, of("lost"));
    assert_eq!(lines[0]["schema"], "memhook-rs/events/1");
    assert_eq!((of("stack").len(), of("thread").len()), (1, 1));
    let missing: u64 = lost.iter().filter_map(|l| l["allocations"].as_u64()).sum();
    assert_eq!(allocated + missing, 4 * ROOM as u64);
    assert_eq!(allocated, 2 * ROOM as u64);
    assert!(lost.iter().all(|l| l["why"] == "reader"));
    let end = lines.last().expect("an end");
    assert_eq!(
        (&end["event"], &end["lost_records"]),
        (&"end".into(), &missing.into())
    );
}

#[test]
fn blocks_that_are_not_followed_are_counted() {
    let queue = Arc::new(EventQueue::default());
    let mut tap = EventTap::new(&queue);
    allocate(&mut tap, 16);
    let site = CountedSite {
        index: 0,
        stack: 7,
        level: 0,
    };
    tap.counted(site, 10, 5);
    tap.end_pass(0);
    tap.finish(EventsEnd::default());
    let lines = written(&queue);
    let lost = lines
        .iter()
        .find(|l| l["event"] == "lost")
        .expect("a record");
    assert_eq!(
        (&lost["why"], &lost["allocations"]),
        (&"memory".into(), &5.into())
    );
    assert_eq!(lost["allocated_bytes"], 50);
}

fn block(address: u64, time_ns: u64) -> BlockOf {
    BlockOf {
        site: 0,
        thread: 1,
        address,
        size: 10,
        time_ns,
    }
}

/// A reader that keeps one block for each address ends up with exactly the live blocks of the
/// ledger.
#[test]
fn an_address_has_one_block_at_a_time() {
    let by = ReleaseBy {
        stack: 0,
        thread: 1,
        by_realloc: true,
        accesses: 0,
    };
    let queue = Arc::new(EventQueue::default());
    let mut tap = EventTap::new(&queue);
    // The release of the first block was not seen.
    tap.allocated(&block(16, 1), 7);
    tap.allocated(&block(16, 2), 7);
    tap.released(&block(16, 1), 7, None);
    // The second of these events happened first.
    tap.allocated(&block(32, 4), 7);
    tap.allocated(&block(32, 3), 7);
    tap.released(&block(32, 3), 7, None);
    // This also holds for realloc.
    tap.allocated(&block(48, 5), 7);
    tap.reallocated((&block(48, 5), 7), by, (&block(16, 6), 7));
    tap.released(&block(16, 2), 7, None);
    tap.allocated(&block(64, 7), 7);
    tap.reallocated((&block(64, 7), 7), by, (&block(32, 8), 7));
    tap.released(&block(32, 8), 7, None);
    // The thread that released the first block is known.
    tap.allocated(&block(32, 2), 7);
    tap.released(&block(32, 2), 7, Some(by));
    tap.allocated(&block(80, 9), 7);
    tap.reallocated((&block(80, 9), 7), by, (&block(16, 3), 7));
    tap.released(&block(16, 3), 7, Some(by));
    tap.finish(EventsEnd::default());
    let mut live = BTreeMap::new();
    for line in written(&queue) {
        let number = |name: &str| line[name].as_u64().expect("a number");
        match line["event"].as_str().expect("a name") {
            "alloc" => assert_eq!(live.insert(number("address"), number("time_ns")), None),
            "free" => assert!(live.remove(&number("address")).is_some()),
            "realloc" => {
                assert!(live.remove(&number("old_address")).is_some());
                assert_eq!(live.insert(number("address"), number("time_ns")), None);
            }
            _ => {}
        }
    }
    assert_eq!(live, BTreeMap::from([(16, 6), (32, 4)]));
}

/// A pipe without a reader.
struct Closed;

impl Write for Closed {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_goes_away_costs_no_memory() {
    let queue = Arc::new(EventQueue::default());
    let mut tap = EventTap::new(&queue);
    let nameless = Box::new(Nameless);
    let found = write_events(
        &queue,
        &begin(),
        nameless,
        Symbolizer::without_files(),
        Closed,
    );
    assert!(found.error.is_none() && queue.is_closed());
    for i in 0..3 * ROOM as u64 {
        allocate(&mut tap, i * 16);
    }
    tap.end_pass(0);
    assert!(tap.batch.is_empty());
    tap.finish(EventsEnd::default());
}
