//! Finds threads that write to different blocks in the same cache line, so that the line bounces between processors:
//! `false_sharing PID SECONDS`.
//!
//! Cycles through the cache lines that contain two blocks, and watches two words of each block for writes.

use memhook::{Access, Attached, Block, Error, Next, Options, Profiler, Touch};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::Range;
use std::time::Duration;

const LINE_BYTES: u64 = 64;
/// Number of watched words per block: a thread has four watchpoints.
const WORDS: u64 = 2;

/// Profiler that records, for each block, the threads that write to it, with a call stack for each thread.
pub struct FalseSharing;

impl Profiler for FalseSharing {
    type Data = BTreeMap<u32, Vec<u64>>;

    fn on_access(&mut self, access: &Access, block: Option<(&Block, &mut Self::Data)>) -> Next {
        if let Some((_, writers)) = block {
            writers
                .entry(access.tid)
                .or_insert_with(|| access.frames.clone());
        }
        // Other threads may write to it too.
        Next::OtherThreads
    }
}

/// Returns neighbouring blocks that share a line.
fn pairs(attached: &Attached<FalseSharing>) -> Vec<(u64, Block, Block)> {
    attached.catch_up();
    let mut blocks: Vec<Block> =
        attached.with(|heap| heap.blocks().map(|(block, _)| *block).collect());
    blocks.retain(|block| block.size > 0);
    blocks.sort_by_key(|block| block.address);
    let neighbours = blocks.windows(2).filter_map(|two| {
        let line = two[1].address / LINE_BYTES;
        let shares_it = (two[0].range().end - 1) / LINE_BYTES == line;
        shares_it.then_some((line * LINE_BYTES, two[0], two[1]))
    });
    neighbours.collect()
}

/// Returns the words of a block in a line to watch.
fn words(line: u64, block: &Block) -> Range<u64> {
    let start = block.address.max(line);
    let end = block.range().end.min(line + LINE_BYTES);
    start..end.min(start + WORDS * 8)
}

/// Examines lines with two blocks for the given time.
pub fn look(
    attached: &Attached<FalseSharing>,
    time: Duration,
    out: &mut impl Write,
) -> Result<(), Error> {
    let until = attached.elapsed() + time;
    while attached.elapsed() < until && attached.ending().is_none() {
        // Blocks come and go.
        let pairs = pairs(attached);
        for (line, one, other) in &pairs {
            let first = attached.watch(words(*line, one), Touch::Write)?;
            let second = attached.watch(words(*line, other), Touch::Write);
            std::thread::sleep(Duration::from_millis(20));
            attached.unwatch(first.id);
            attached.unwatch(second?.id);
        }
        if pairs.is_empty() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    report(attached, out)
}

/// Prints the pairs of blocks that different threads write to.
fn report(attached: &Attached<FalseSharing>, out: &mut impl Write) -> Result<(), Error> {
    let mut count = 0;
    for (line, one, other) in pairs(attached) {
        let writers = |block: &Block| {
            let found = attached.with(|heap| Some(heap.block(block.address)?.1.clone()));
            found.unwrap_or_default()
        };
        let (of_one, of_other) = (writers(&one), writers(&other));
        let threads: BTreeSet<&u32> = of_one.keys().chain(of_other.keys()).collect();
        if of_one.is_empty() || of_other.is_empty() || threads.len() < 2 {
            continue;
        }
        count += 1;
        // A reader that has gone away is not an error.
        let _ = writeln!(out, "line {line:#x} is shared:");
        for (block, writers) in [(one, of_one), (other, of_other)] {
            for (tid, frames) in writers {
                let frames = attached.names(&frames)?.into_iter();
                let functions: Vec<String> =
                    frames.filter_map(|frame| frame.function).take(2).collect();
                let by = functions.join(" < ");
                let (address, size) = (block.address, block.size);
                let _ = writeln!(
                    out,
                    "  thread {tid} writes {address:#x} ({size} bytes): {by}"
                );
            }
        }
    }
    let _ = writeln!(
        out,
        "{count} lines are shared by writers of different blocks"
    );
    Ok(())
}

#[allow(dead_code)] // the tests call `look`
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pid, seconds] = arguments.as_slice() else {
        return Err("usage: false_sharing PID SECONDS".into());
    };
    let attached = memhook::attach(pid.parse()?, &Options::new(), FalseSharing)?;
    let time = Duration::from_secs(seconds.parse()?);
    look(&attached, time, &mut std::io::stdout())?;
    attached.detach()?;
    Ok(())
}
