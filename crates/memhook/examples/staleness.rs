//! Finds memory that is never accessed: `staleness PID SECONDS IDLE`.
//!
//! Lets the process allocate for `SECONDS` seconds, and then watches a word of each block. A block is stale if no
//! thread accesses that word for `IDLE` seconds. The result is the share of stale bytes, and the call stacks that
//! allocated them.

use memhook::{Access, Attached, BacktraceId, Block, Error, Next, Options, Profiler, Touch, Watch};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

/// Known use of a block.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Use {
    /// The block has not been watched long enough.
    #[default]
    Unknown,
    /// The block was accessed while it was watched.
    Used,
    /// The block was not accessed.
    Stale,
}

/// Profiler that records for each block whether it was accessed.
pub struct Staleness;

impl Profiler for Staleness {
    type Data = Use;

    fn on_access(&mut self, _access: &Access, block: Option<(&Block, &mut Use)>) -> Next {
        if let Some((_, state)) = block {
            *state = Use::Used;
        }
        Next::Done
    }
}

/// A watched block, and the end of the watch.
struct Look {
    block: Block,
    watch: Watch,
    until: Duration,
}

/// Watches each live block until it is accessed or the time `idle` has passed, and reports the stale blocks.
pub fn look(
    attached: &Attached<Staleness>,
    idle: Duration,
    out: &mut impl Write,
) -> Result<(), Error> {
    attached.catch_up();
    let mut waiting: Vec<Block> =
        attached.with(|heap| heap.blocks().map(|(block, _)| *block).collect());
    let mut looks: Vec<Look> = Vec::new();
    while !(waiting.is_empty() && looks.is_empty()) && attached.ending().is_none() {
        while let Some(block) = waiting.pop() {
            // Watches one word per block, so that four blocks are watched at a time.
            let word = block.address..block.address + block.size.clamp(1, 8);
            match attached.watch(word, Touch::Any) {
                Ok(watch) => looks.push(Look {
                    block,
                    watch,
                    until: attached.elapsed() + idle,
                }),
                Err(Error::WatchpointsInUse { .. }) if !looks.is_empty() => {
                    waiting.push(block);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        std::thread::sleep(Duration::from_millis(1));
        looks.retain(|look| !is_over(attached, look));
    }
    report(attached, out)
}

/// Returns true, and records the result, if the watch on a block is over.
fn is_over(attached: &Attached<Staleness>, look: &Look) -> bool {
    let is_unknown = |found: &Block, state: Use| *found == look.block && state == Use::Unknown;
    let still = attached.with(|heap| {
        let found = heap.block(look.block.address);
        found.is_some_and(|(found, state)| is_unknown(found, *state))
    });
    if still && attached.elapsed() < look.until {
        return false;
    }
    if attached.unwatch(look.watch.id) && still {
        attached.with(|heap| {
            let mut blocks = heap.blocks_mut();
            if let Some((_, state)) = blocks.find(|(found, state)| is_unknown(found, **state)) {
                *state = Use::Stale;
            }
        });
    }
    true
}

/// Writes the share of stale bytes, and their call stacks.
fn report(attached: &Attached<Staleness>, out: &mut impl Write) -> Result<(), Error> {
    let (mut known, mut stale) = (0, 0);
    let mut by_stack: BTreeMap<BacktraceId, (u64, u64)> = BTreeMap::new();
    attached.with(|heap| {
        for (block, state) in heap.blocks().filter(|(_, state)| **state != Use::Unknown) {
            known += block.size;
            if *state == Use::Stale {
                stale += block.size;
                let sum = by_stack.entry(block.backtrace).or_default();
                *sum = (sum.0 + 1, sum.1 + block.size);
            }
        }
    });
    let share = 100.0 * stale as f64 / f64::max(known as f64, 1.0);
    // A reader that has gone away is not an error.
    let _ = writeln!(out, "{stale} of {known} bytes are stale: {share:.0} %");
    for (id, (blocks, bytes)) in by_stack {
        let frames = attached.backtrace(id)?.frames.into_iter();
        let functions: Vec<String> = frames.filter_map(|frame| frame.function).take(3).collect();
        let _ = writeln!(
            out,
            "{blocks} blocks, {bytes} bytes: {}",
            functions.join(" < ")
        );
    }
    Ok(())
}

#[allow(dead_code)] // the tests call `look`
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pid, seconds, idle] = arguments.as_slice() else {
        return Err("usage: staleness PID SECONDS IDLE".into());
    };
    let attached = memhook::attach(pid.parse()?, &Options::new(), Staleness)?;
    attached.wait(Duration::from_secs(seconds.parse()?));
    let idle = Duration::from_secs_f64(idle.parse()?);
    look(&attached, idle, &mut std::io::stdout())?;
    attached.detach()?;
    Ok(())
}
