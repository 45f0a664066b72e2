//! Recordings of allocations that were sampled with changing mean distances. Each sample keeps its
//! weight, across checkpoints and in every part.

mod program;

use memhook_abi::Op;
use memhook_ledger::{Estimate, Ledger, SampledAllocations};
use memhook_recording::{Meta, Options, Recording, SAMPLES_NOTE, Writer, samples_text};
use program::*;
use std::collections::BTreeMap;
use std::path::Path;

/// Mean bytes between samples of level 1.
const FIRST: u64 = 64;

/// Results known without a file.
struct Expected {
    allocated: Estimate,
    live: Estimate,
    live_of_stack: BTreeMap<u32, f64>,
    samples: u64,
    allocations: u64,
}

/// Writes the calls, moving to the next sampling level on each turn of a ring, with a checkpoint
/// after every `every` passes.
fn write(path: &Path, calls: &[Call], options: &Options, every: usize, dies: bool) -> Expected {
    let mut counts = SampledAllocations::new(Some(FIRST), false);
    let mut ledger = Ledger::new(program::options(true));
    let mut meta = Meta::default();
    let note = |counts: &SampledAllocations| (SAMPLES_NOTE.to_owned(), samples_text(counts));
    meta.notes.push(note(&counts));
    let mut writer = Writer::create(path, &meta, options).unwrap();
    let (mut turn, mut level, mut passes) = (0, 0, 0);
    let mut allocated = Estimate::default();
    let (mut samples, mut allocations) = (0, 0);
    for call in calls {
        feed_ledger(std::slice::from_ref(call), &mut ledger);
        match *call {
            Call::Ring(ring, tid) => {
                writer.begin_ring(ring, tid);
                turn += 1;
                level = [0, 3, 0, 1, 9][turn % 5];
                if level != 0 {
                    counts.announce(level);
                    ledger.set_sampling(level);
                    writer.set_sampling(level);
                }
            }
            Call::Event(event, size, time) => {
                let count = match event.op {
                    Op::Allocation => 1,
                    Op::Pair => u64::from(event.sequence),
                    _ => 0,
                };
                allocations += count;
                samples += if level == 0 { 0 } else { count };
                (0..count).for_each(|_| allocated += counts.block(level, size));
                writer.event(event, size, time);
            }
            Call::Pass(now) => {
                writer.end_pass(now, find_stack);
                passes += 1;
                if every > 0 && passes % every == 0 {
                    writer.checkpoint(&ledger, find_stack);
                }
            }
        }
    }
    if !dies {
        meta.notes = vec![note(&counts)];
        writer.meta(&meta);
    }
    writer.finish();
    ledger.finish();
    let mut live_of_stack = BTreeMap::new();
    let mut live = Estimate::default();
    for block in ledger.live_blocks() {
        let amount = counts.block(block.sampling, block.size);
        live += amount;
        *live_of_stack.entry(block.stack).or_default() += amount.bytes;
    }
    Expected {
        allocated,
        live,
        live_of_stack,
        samples,
        allocations,
    }
}

fn is_near(found: Estimate, expected: Estimate) -> bool {
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs().max(1.0);
    near(found.blocks, expected.blocks)
        && near(found.bytes, expected.bytes)
        && near(found.variance, expected.variance)
}

#[test]
fn samples_keep_their_weights() {
    let dir = Dir::new("samples");
    for seed in 0..20 {
        let calls = Program::new(40 + seed, 1 + seed as usize % 3).run(60, 150);
        let path = dir.0.join(format!("{seed}.mhk"));
        let every = seed as usize % 7;
        let expected = write(&path, &calls, &Options::default(), every, seed % 2 == 0);
        let recording = Recording::open(&path).unwrap();
        assert_eq!(recording.sample_bytes(), Some(FIRST << 8), "seed {seed}");
        assert!(recording.check_scores().is_err());
        let whole = recording.activity(None, None, 50).unwrap();
        assert!(is_near(whole.sum.live, expected.live), "seed {seed}");
        assert!(
            is_near(whole.sum.allocated, expected.allocated),
            "seed {seed}"
        );
        assert_eq!(whole.sampled_allocations, expected.samples);
        assert_eq!(whole.window_totals().allocations, expected.allocations);
        let mut of_stack: BTreeMap<u32, f64> = BTreeMap::new();
        for site in &whole.sites {
            // These are the stacks of the program, and not the ids of samples.
            assert_eq!(recording.stacks().sampled(site.stack), (site.stack, 0));
            *of_stack.entry(site.stack).or_default() += site.live.bytes;
        }
        for (stack, bytes) in &expected.live_of_stack {
            assert!((of_stack[stack] - bytes).abs() <= 1e-6 * bytes.max(1.0));
        }
        // A window begins with the state of all earlier samples, as stored in a checkpoint.
        let end = recording.span_ns().1;
        let first = recording.activity(None, Some(end / 2), 50).unwrap();
        let second = recording.activity(Some(first.to_ns), None, 50).unwrap();
        assert!(is_near(second.sum.before, first.sum.live), "seed {seed}");
        assert!(is_near(second.sum.live, expected.live), "seed {seed}");
        let mut together = first.sum.allocated;
        together += second.sum.allocated;
        assert!(is_near(together, expected.allocated), "seed {seed}");
    }
}

/// Each part of a recording can be read alone.
#[test]
fn a_later_part_knows_the_samples_of_its_checkpoint() {
    let dir = Dir::new("samples-parts");
    let path = dir.0.join("run.mhk");
    let calls = Program::new(5, 3).run(400, 3000);
    let options = Options {
        max_file_bytes: Some(1 << 20),
        max_parts: 50,
        ..Options::default()
    };
    let expected = write(&path, &calls, &options, 40, false);
    let mut last = None;
    for part in 1.. {
        match Recording::open(dir.0.join(format!("run.{part}.mhk"))) {
            Ok(recording) => last = Some(recording),
            Err(_) => break,
        }
    }
    let last = last.expect("several parts");
    let live = last.activity(None, None, 50).unwrap().sum.live;
    assert!(
        is_near(live, expected.live),
        "{live:?}, not {:?}",
        expected.live
    );
}
