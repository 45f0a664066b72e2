//! Untrusted snapshots, and heaps in arbitrary states.

use crate::Input;
use crate::scratch_file::with_file;
use lz4_flex::frame::FrameEncoder;
use memhook_heap::{
    BlockTable, CopiedRegion, MarkOptions, Pointers, Scan, Snapshot, Types, capture_core, census,
    dissect, load, why,
};
use memhook_process::CoreFile;
use memhook_report::{CensusReport, Document, Style, scan_report};
use std::cell::Cell;
use std::io::Write;
use std::ops::Range;
use std::sync::OnceLock;

/// Memory limit for a core dump, larger than any core dump in the corpus.
const MOST_CORE_BYTES: u64 = 16 << 20;

/// Reads the bytes as a snapshot. If the first byte does not start a frame, reads the rest as the
/// contents of a complete frame, because a mutated frame would fail its checksums.
pub fn snapshot(bytes: &[u8]) {
    let packed;
    let file = match bytes.split_first() {
        Some((0, contents)) => {
            let mut frame = FrameEncoder::new(Vec::new());
            frame.write_all(contents).expect("in memory");
            packed = frame.finish().expect("in memory");
            &packed
        }
        _ => bytes,
    };
    if let Ok(snapshot) = load("x", file, None) {
        search(&snapshot, MarkOptions::default());
    }
}

/// Searches a snapshot as `scan` does.
fn search(snapshot: &Snapshot, options: MarkOptions) {
    let Ok(mut scan) = Scan::of(snapshot, options) else {
        return;
    };
    check(&scan.heap.blocks);
    let mut types = Types::new(snapshot, &[]);
    let report = scan_report(snapshot, &scan, &scan.leaks, &mut types, 10);
    report.text(Style::default());
    let census = census(snapshot, &scan.heap, &mut types, 10);
    CensusReport { census, rss: None }.text(Style::default());
    if let Some((_, block)) = scan.heap.blocks.iter().next()
        && let Ok(why) = why(snapshot, &scan.heap, options, &mut types, block.address)
    {
        why.text(Style::default());
    }
    let before = scan.fingerprints(snapshot);
    let all = scan.leaks.len();
    scan.keep_still_leaked(&before, snapshot);
    assert!(scan.leaks.len() <= all);
}

/// Checks that the blocks are in order and do not overlap, and that each block is found by its
/// address.
fn check(blocks: &BlockTable) {
    let mut end = 0;
    for (number, block) in blocks.iter().take(2000) {
        assert!(block.address >= end, "{block:x?} begins before {end:#x}");
        end = block.address.checked_add(block.bytes).expect("ends");
        let found = blocks.find(block.address).map(|(number, _)| number);
        assert_eq!(found, Some(number), "{block:x?}");
    }
}

/// Returns a snapshot with only the heap and malloc's own data; everything else takes long to
/// search.
fn only_heap(snapshot: &Snapshot) -> Snapshot {
    let whole = dissect(snapshot).expect("it has a heap");
    // `main_arena` is smaller than this, and `mp_` is nearby.
    const ARENA_BYTES: u64 = 2304;
    let main = whole.arenas.first().expect("the main arena").address;
    let around = |bytes: u64| {
        let data = main - bytes..main + ARENA_BYTES + bytes;
        with_data(snapshot, &whole.ranges, data)
    };
    let found = |part: &Snapshot| {
        let heap = dissect(part).ok()?;
        Some((heap.parameters, heap.blocks.len()))
    };
    let most = around(4096);
    let expected = found(&most);
    let smaller = [256, 512, 1024, 2048].map(around).into_iter();
    let mut as_good = smaller.filter(|part| found(part) == expected);
    as_good.next().unwrap_or(most)
}

/// Returns the part of a snapshot with the heap (`ranges`) and a piece of libc's data.
fn with_data(snapshot: &Snapshot, ranges: &[Range<u64>], data: Range<u64>) -> Snapshot {
    let mut part = copy(snapshot);
    let in_heap = |start: u64, end: u64| ranges.iter().any(|r| r.start < end && start < r.end);
    part.meta.modules.retain(|m| m.glibc_minor.is_some());
    part.meta.modules[0].data = std::iter::once(data.clone()).collect();
    part.regions
        .retain(|r| in_heap(r.start, r.end()) || r.start <= data.start && data.start < r.end());
    for region in &mut part.regions {
        if region.start <= data.start && data.start < region.end() {
            let (low, high) = (data.start, data.end.min(region.end()));
            let bytes = (low - region.start) as usize..(high - region.start) as usize;
            region.bytes = region.bytes[bytes].to_vec().into();
            region.start = low;
            region.runs = std::iter::once(low..high).collect();
        }
    }
    let regions = &part.regions;
    let is_left = |start: u64, end: u64| regions.iter().any(|r| r.start < end && start < r.end());
    part.meta.areas.retain(|area| is_left(area.start, area.end));
    part
}

/// A snapshot, and the positions of all its nonzero words as pairs of region and offset.
type Template = (Snapshot, Vec<(usize, usize)>);

/// Snapshots of `templates/heap.cc` on glibc 2.36 and on 2.43, whose heaps have different layouts.
const FILES: [&[u8]; 2] = [
    include_bytes!("../templates/heap.snapshot"),
    include_bytes!("../templates/heap-2.43.snapshot"),
];

fn template(number: usize) -> &'static Template {
    static TEMPLATES: [OnceLock<Template>; 2] = [const { OnceLock::new() }; 2];
    TEMPLATES[number].get_or_init(|| {
        let snapshot = load("template", FILES[number], None).expect("it is whole");
        let snapshot = only_heap(&snapshot);
        let mut places = Vec::new();
        for (number, region) in snapshot.regions.iter().enumerate() {
            let (words, _) = region.bytes.as_chunks::<8>();
            let used = words
                .iter()
                .enumerate()
                .filter(|(_, word)| **word != [0; 8]);
            places.extend(used.map(|(i, _)| (number, i * 8)));
        }
        (snapshot, places)
    })
}

fn copy(snapshot: &Snapshot) -> Snapshot {
    let region = |region: &CopiedRegion| CopiedRegion {
        start: region.start,
        bytes: region.bytes.to_vec().into(),
        runs: region.runs.clone(),
    };
    Snapshot {
        meta: snapshot.meta.clone(),
        regions: snapshot.regions.iter().map(region).collect(),
    }
}

thread_local! {
    /// An unmodified copy of each template; empty after an execution that panicked.
    static UNCHANGED: [Cell<Option<Snapshot>>; 2] = const { [const { Cell::new(None) }; 2] };
}

/// Changes words of a real heap.
pub fn made_up(bytes: &[u8]) {
    let mut input = Input(bytes);
    let how = input.byte();
    let number = usize::from(how >> 7);
    let (template, places) = template(number);
    let unchanged = UNCHANGED.with(|all| all[number].take());
    let mut snapshot = unchanged.unwrap_or_else(|| copy(template));
    let mut changed = Vec::new();
    let options = MarkOptions {
        pointers: if how & 1 == 0 {
            Pointers::default()
        } else {
            Pointers::Start
        },
        unaligned: how & 2 != 0,
        ignore_round: how & 4 != 0,
        counts_ends: how & 2 != 0,
        ignores_upper_bits: how & 8 != 0,
    };
    if how & 4 != 0 {
        for module in &mut snapshot.meta.modules {
            module.glibc_minor = module.glibc_minor.map(|_| 26 + u32::from(how >> 3));
        }
    }
    while !input.is_empty() {
        let kind = input.byte();
        let (number, offset) = places[(input.u32() as usize) % places.len()];
        let region = &mut snapshot.regions[number];
        let Some(place) = region.bytes.get_mut(offset..offset + 8) else {
            continue;
        };
        let old = u64::from_le_bytes((&*place).try_into().expect("a word"));
        let new = match kind % 6 {
            0 => input.size(),
            1 => old.wrapping_add(input.size()),
            2 => old.wrapping_sub(input.size()),
            3 => old ^ 1 << (input.byte() % 64),
            // Copies a word from elsewhere in the heap, which makes lists cyclic and chunks
            // overlap.
            4 => {
                let (number, offset) = places[(input.u32() as usize) % places.len()];
                template.regions[number].start + offset as u64
            }
            _ => {
                let (number, offset) = places[(input.u32() as usize) % places.len()];
                let word = template.regions[number].bytes[offset..offset + 8].try_into();
                u64::from_le_bytes(word.expect("a word"))
            }
        };
        place.copy_from_slice(&new.to_le_bytes());
        changed.push((number, offset));
    }
    search(&snapshot, options);
    // A copy of half a megabyte would take longer than the search.
    for (number, offset) in changed {
        let word = &template.regions[number].bytes[offset..offset + 8];
        snapshot.regions[number].bytes[offset..offset + 8].copy_from_slice(word);
    }
    snapshot.meta = template.meta.clone();
    UNCHANGED.with(|all| all[number].set(Some(snapshot)));
}

/// Reads a core dump, with zeros in place of truncated data, so that an input need not contain the
/// contents of segments.
pub fn core_dump(bytes: &[u8]) {
    const LEAST_BYTES: usize = 64 << 10;
    let mut whole = bytes.to_vec();
    whole.resize(whole.len().max(LEAST_BYTES), 0);
    with_file(&whole, |path| {
        let Ok(core) = CoreFile::open(&path) else {
            return;
        };
        for pair in core.segments.windows(2) {
            assert!(pair[0].mapping.end <= pair[1].mapping.start);
        }
        for segment in &core.segments {
            let mapping = &segment.mapping;
            for stored in core.stored(segment) {
                assert!(stored.start >= mapping.start && stored.end <= mapping.end);
            }
            core.read(mapping.start, &mut [0; 64]);
        }
        if let Ok(captured) = capture_core(&core, Some(MOST_CORE_BYTES)) {
            search(&captured.snapshot, MarkOptions::default());
        }
    });
}

/// Reads an untrusted list of blocks to release. Checks that the list contains the data for
/// comparison, and that writing and reading it preserves the blocks.
pub fn verdict(bytes: &[u8]) {
    let Ok(compared) = memhook_heap::fuzzing::verdict(bytes) else {
        return;
    };
    let verdict = memhook_heap::Verdict::read("the fuzzer's", bytes).expect("read before");
    assert!(compared.len() <= verdict.blocks());
    let mut written = Vec::new();
    verdict.write(&mut written).expect("written to memory");
    let again = memhook_heap::fuzzing::verdict(&written).expect("our own");
    let sorted = |mut blocks: Vec<(u64, u64)>| {
        blocks.sort_unstable();
        blocks
    };
    assert_eq!(sorted(again), sorted(compared));
}
