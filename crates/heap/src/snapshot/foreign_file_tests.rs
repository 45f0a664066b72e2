//! Snapshots from untrusted files. For any contents of such a file, reading and searching it ends
//! with a result or an error, and uses no more than the available memory.

use crate::graph::census::census;
use crate::graph::finder::{MarkOptions, Pointers};
use crate::graph::leaks::leaks;
use crate::graph::mark::mark;
use crate::graph::twice::fingerprints;
use crate::graph::types::Types;
use crate::graph::why::why;
use crate::reclaim::choose::reclaimable;
use crate::reclaim::refusal;
use crate::snapshot::{load, save};
use crate::testing::captured;
use crate::{Error, Method, Request, Snapshot, dissect};
use lz4_flex::frame::{FrameDecoder, FrameEncoder};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const FORMAT: &[u8] = b"memhook-rs snapshot 1\n";

/// Returns a snapshot of a small program of this system: its header, and the rest of the file.
fn real() -> &'static (Value, Vec<u8>) {
    static REAL: OnceLock<(Value, Vec<u8>)> = OnceLock::new();
    REAL.get_or_init(|| {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The program answers, so its start is over.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        let mut answer = [0];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut answer)
            .unwrap();
        let captured = captured(
            child.id() as i32,
            Request {
                method: Some(Method::Stop),
                ..Request::default()
            },
        );
        child.kill().unwrap();
        child.wait().unwrap();
        let mut file = Vec::new();
        save(&captured.snapshot, &mut file).unwrap();
        let mut plain = Vec::new();
        FrameDecoder::new(file.as_slice())
            .read_to_end(&mut plain)
            .unwrap();
        let rest = &plain[FORMAT.len()..];
        let (length, rest) = rest.split_first_chunk().unwrap();
        let (header, memory) = rest.split_at(u64::from_le_bytes(*length) as usize);
        (serde_json::from_slice(header).unwrap(), memory.to_vec())
    })
}

fn file(header: &Value, memory: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    let mut frame = FrameEncoder::new(Vec::new());
    frame.write_all(FORMAT).unwrap();
    frame
        .write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    frame.write_all(header.as_bytes()).unwrap();
    frame.write_all(memory).unwrap();
    frame.finish().unwrap()
}

/// Performs everything that a command may do with a snapshot.
fn use_it(snapshot: &Snapshot) {
    let Ok(heap) = dissect(snapshot) else {
        return;
    };
    let mut types = Types::new(snapshot, &[]);
    for (pointers, unaligned) in [(Pointers::Interior, true), (Pointers::Start, false)] {
        let options = MarkOptions {
            pointers,
            unaligned,
            ..MarkOptions::default()
        };
        let marked = mark(snapshot, &heap, options);
        let leaked = leaks(snapshot, &heap.blocks, &marked, options);
        for leak in &leaked {
            types.describe(&heap.blocks, leak.block);
        }
        let before = fingerprints(snapshot, &heap.blocks, &leaked);
        refusal(snapshot, &heap);
        reclaimable(snapshot, &heap, options, &leaked, &before, &[]);
        let some = heap.blocks.iter().nth(3).map_or(0, |(_, b)| b.address);
        let _ = why(snapshot, &heap, options, &mut types, some);
    }
    census(snapshot, &heap, &mut types, 5);
}

/// Returns all numbers in a JSON value, always in the same order.
fn numbers<'a>(value: &'a mut Value, found: &mut Vec<&'a mut Value>) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|v| numbers(v, found)),
        Value::Object(fields) => fields.values_mut().for_each(|v| numbers(v, found)),
        Value::Number(_) => found.push(value),
        _ => {}
    }
}

/// Returns a number that replaces another one.
fn other(was: u64, choice: u64, random: u64) -> u64 {
    match choice {
        0 => 0,
        1 => u64::MAX,
        2 => was.wrapping_add(8),
        3 => was.wrapping_sub(8),
        4 => was.wrapping_add(random % 0x10000),
        5 => was.wrapping_sub(random % 0x10000),
        6 => (1 << 56) - 8,
        7 => was ^ 1 << (random % 64),
        _ => random,
    }
}

#[test]
fn the_real_one_is_read() {
    let (header, memory) = real();
    let snapshot = load("x", file(header, memory).as_slice(), None).unwrap();
    assert!(!dissect(&snapshot).unwrap().blocks.is_empty());
    use_it(&snapshot);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Corrupts sizes, addresses, counts and orders of the header.
    #[test]
    fn headers_that_lie(
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0u64..9, any::<u64>()), 1..4),
        swapped in any::<Option<(prop::sample::Index, prop::sample::Index)>>(),
    ) {
        let (header, memory) = real();
        let mut header = header.clone();
        // Class names make up most of the header, and are harmless.
        let classes = header["meta"]["classes"].take();
        for (index, choice, random) in changes {
            let mut all = Vec::new();
            numbers(&mut header, &mut all);
            let place = index.get(&all);
            let was = place.as_u64().unwrap_or(0);
            let new = json!(other(was, choice, random));
            let at = index.index(all.len());
            *all[at] = new;
        }
        if let (Some((one, two)), Some(areas)) = (swapped, header["meta"]["areas"].as_array_mut()) {
            let (one, two) = (one.index(areas.len()), two.index(areas.len()));
            areas.swap(one, two);
        }
        header["meta"]["classes"] = classes;
        if let Ok(snapshot) = load("x", file(&header, memory).as_slice(), None) {
            use_it(&snapshot);
        }
    }

    /// Corrupts words of the memory, in arenas, caches or chunks.
    #[test]
    fn memory_that_lies(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0u64..10), 1..60),
    ) {
        let (header, memory) = real();
        let mut memory = memory.clone();
        // Most of the memory is zero, so changes there test nothing.
        let words = memory.as_chunks::<8>().0.iter().enumerate();
        let used: Vec<usize> = words.filter(|(_, w)| **w != [0; 8]).map(|(at, _)| at).collect();
        for (to, from, choice) in changes {
            // A pointer to a different valid address does more harm than a random value.
            let word = |at: usize| u64::from_le_bytes(*memory[at * 8..].first_chunk().unwrap());
            let (to, from) = (*to.get(&used), *from.get(&used));
            let new = if choice == 9 { word(from) } else { other(word(to), choice, word(from)) };
            memory[to * 8..to * 8 + 8].copy_from_slice(&new.to_le_bytes());
        }
        // The last line must stay intact.
        let end = b"end of snapshot\n";
        let at = memory.len() - end.len();
        memory[at..].copy_from_slice(end);
        use_it(&load("x", file(header, &memory).as_slice(), None).unwrap());
    }
}

fn refused(header: &Value, memory: &[u8], limit: Option<u64>) -> String {
    let loaded: Result<Snapshot, Error> = load("x", file(header, memory).as_slice(), limit);
    loaded.err().map_or(String::new(), |e| e.to_string())
}

/// A file of some kilobytes that expands to gigabytes is refused by its declared sizes, before it
/// is unpacked.
#[test]
fn what_would_not_fit() {
    let (header, memory) = real();
    let why = refused(header, memory, Some(4096));
    assert!(why.contains("it would take about"), "{why}");
    let mut bomb = header.clone();
    let start = 1u64 << 40;
    bomb["regions"] =
        json!([{"start": start, "bytes": 1u64 << 39, "runs": [[start, start + (1u64 << 39)]]}]);
    let why = refused(&bomb, &[0; 4096], Some(1 << 30));
    assert!(why.contains("it would take about 640.0 GiB"), "{why}");
    // Data follows the end.
    let long = [memory.as_slice(), &vec![0; 64 << 20]].concat();
    let why = refused(header, &long, None);
    assert!(why.contains("truncated"), "{why}");
}

#[test]
fn what_is_out_of_order() {
    let (header, memory) = real();
    let with = |path: &str, value: Value| {
        let mut header = header.clone();
        *header.pointer_mut(path).unwrap() = value;
        refused(&header, memory, None)
    };
    let area = &header["meta"]["areas"][0];
    for (path, value, what) in [
        ("/meta/areas/1", area.clone(), "mappings are out of order"),
        (
            "/meta/areas/0/end",
            json!(u64::MAX),
            "mappings are out of order",
        ),
        (
            "/regions/0/start",
            json!(u64::MAX - 8),
            "beyond all possible addresses",
        ),
        ("/regions/0/runs/0", json!([9, 8]), "pages are out of order"),
        (
            "/meta/modules/0/start",
            json!(u64::MAX),
            "one of its modules",
        ),
        (
            "/meta/modules/0/data",
            json!([[0, 1u64 << 50]]),
            "one of its modules",
        ),
    ] {
        let why = with(path, value);
        assert!(why.contains(what), "{path}: {why}");
    }
    assert!(with("/meta/areas", json!({"not": "a list"})).contains("another version"));
}
