//! Search of a process's heap for unreachable blocks, on heaps of several shapes: measures the processor time to find
//! the blocks in a snapshot and to mark them.
//!
//! `cargo measure search`; needs two minutes, 3 GB of memory, and one processor.

use memhook_heap::{MarkOptions, Request, capture, dissect, leaks, mark};
use memhook_measurements::{build, timed};
use memhook_tests::Target;
use std::process::Command;

/// Shape and millions of blocks.
const HEAPS: [(&str, &str); 4] = [
    ("nodes", "10"),
    ("map", "5"),
    ("strings", "10"),
    ("buffers", "16"),
];
const ROUNDS: usize = 3;

fn main() {
    let program = build("heaps", &[]);
    println!(
        "{:<10} {:>11} {:>9} {:>11} {:>9} {:>9} {:>12}",
        "", "blocks", "copied MB", "searched MB", "found s", "marked s", "searched/s"
    );
    for (shape, millions) in HEAPS {
        let target = Target::run(Command::new(&program).args([shape, millions]));
        let captured = capture(target.pid() as i32, Request::default()).expect("a snapshot");
        assert!(target.finish().success());
        let snapshot = &captured.snapshot;
        let options = MarkOptions::default();
        let rounds = (0..ROUNDS).map(|_| {
            let (finding, heap) = timed(|| dissect(snapshot).expect("a heap of glibc's"));
            let (marking, marked) = timed(|| mark(snapshot, &heap, options));
            assert!(leaks(snapshot, &heap.blocks, &marked, options).is_empty());
            (marking, finding, heap.blocks.len(), marked.scanned_bytes)
        });
        let (marking, finding, blocks, searched) = rounds.min().expect("a round");
        println!(
            "{shape:<10} {blocks:>11} {:>9} {:>11} {:>9.2} {:>9.2} {:>9.0} MB",
            snapshot.copied_bytes() / 1_000_000,
            searched / 1_000_000,
            finding.as_secs_f64(),
            marking.as_secs_f64(),
            searched as f64 / 1e6 / marking.as_secs_f64(),
        );
    }
}
