//! Intact and damaged heaps of allocators other than glibc's. An intact heap is dissected exactly.
//! On a damaged heap, the search still ends, and its list of blocks is consistent.

use fastrand::Rng;
use memhook_heap::{MarkOptions, Scan, Snapshot, load};

/// Number of mutations of each heap.
const DAMAGES: u64 = 150;

/// Returns the positions of nonzero words, as region and offset, in the allocator's memory and in
/// the data of its modules.
fn places(snapshot: &Snapshot, scan: &Scan) -> Vec<(usize, usize)> {
    let data = snapshot.meta.modules.iter().flat_map(|m| &m.data);
    let ranges: Vec<_> = scan.heap.ranges.iter().chain(data).cloned().collect();
    let mut places = Vec::new();
    for (number, region) in snapshot.regions.iter().enumerate() {
        for range in &ranges {
            let start = range.start.max(region.start).next_multiple_of(8);
            let end = range.end.min(region.end());
            for at in (start..end.max(start)).step_by(8) {
                let offset = (at - region.start) as usize;
                let word = region.bytes.get(offset..offset + 8);
                if word.is_some_and(|word| word != [0; 8]) {
                    places.push((number, offset));
                }
            }
        }
    }
    places
}

/// Checks that blocks are in order, and that each block is found by its address.
fn check(scan: &Scan) {
    let mut end = 0;
    for (number, block) in scan.heap.blocks.iter() {
        assert!(block.address >= end, "{block:x?} begins before {end:#x}");
        end = block.address.checked_add(block.bytes).expect("ends");
        let found = scan.heap.blocks.find(block.address);
        assert_eq!(found.map(|found| found.0), Some(number), "{block:x?}");
    }
}

/// Searches a heap, first intact and then damaged. `leaks` contains the sizes of the leaked blocks.
fn whole_and_damaged(file: &[u8], allocator: &str, leaks: &[u64]) {
    let mut snapshot = load("template", file, None).expect("it is whole");
    let options = MarkOptions::default();
    let scan = Scan::of(&snapshot, options).expect("it has a heap");
    let names: Vec<&str> = scan.heap.others.iter().map(|heap| heap.allocator).collect();
    assert_eq!(names, [allocator]);
    assert_eq!(scan.heap.findings, []);
    for counted in &scan.heap.others[0].counted {
        assert_eq!(counted.allocator, counted.found, "{}", counted.what);
    }
    let blocks = scan
        .leaks
        .iter()
        .map(|leak| scan.heap.blocks.get(leak.block));
    let mut bytes: Vec<u64> = blocks.map(|block| block.bytes).collect();
    bytes.sort_unstable();
    assert_eq!(bytes, leaks, "{allocator}");
    check(&scan);
    let places = places(&snapshot, &scan);
    let mut dissected = 0;
    for seed in 1..=DAMAGES {
        let mut random = Rng::with_seed(seed);
        let mut changed = Vec::new();
        for _ in 0..=random.usize(..8) {
            let (number, offset) = places[random.usize(..places.len())];
            let (from, at) = places[random.usize(..places.len())];
            let other = snapshot.regions[from].start + at as u64;
            let Some(place) = snapshot.regions[number].bytes.get_mut(offset..offset + 8) else {
                continue;
            };
            let old: [u8; 8] = (&*place).try_into().expect("a word");
            let word = u64::from_le_bytes(old);
            let new = match random.usize(..6) {
                0 => word ^ 1 << random.usize(..64),
                1 => word.wrapping_add(random.u64(..4096)),
                2 => u64::MAX >> random.usize(..64),
                3 => word.rotate_left(8),
                // Copies a pointer, which makes a list cyclic or lead into other memory.
                4 => other,
                _ => 0,
            };
            place.copy_from_slice(&new.to_le_bytes());
            changed.push((number, offset, old));
        }
        if let Ok(scan) = Scan::of(&snapshot, options) {
            dissected += 1;
            check(&scan);
        }
        for (number, offset, old) in changed.into_iter().rev() {
            snapshot.regions[number].bytes[offset..offset + 8].copy_from_slice(&old);
        }
    }
    println!("{allocator}: {dissected} of {DAMAGES} damaged heaps were dissected");
    assert!(dissected > 0);
}

#[test]
fn of_mallocng() {
    let file = include_bytes!("../templates/heap-mallocng.snapshot");
    let leaks = [104, 144, 184, 224, 264, 304, 344, 384, 424];
    whole_and_damaged(file, "musl's malloc", &leaks);
}

#[test]
fn of_mimalloc() {
    let file = include_bytes!("../templates/heap-mimalloc.snapshot");
    let leaks = [112, 160, 192, 224, 320, 320, 384, 384, 448];
    whole_and_damaged(file, "mimalloc", &leaks);
}

#[test]
fn of_tcmalloc() {
    let file = include_bytes!("../templates/heap-tcmalloc.snapshot");
    // gperftools leaks the smallest block: its first MallocExtension, which is later replaced.
    let leaks = [8, 112, 144, 192, 224, 288, 320, 352, 384, 448];
    whole_and_damaged(file, "tcmalloc", &leaks);
}
