//! A histogram of block sizes: how many blocks were allocated, and how many are left:
//! `size_histogram PID SECONDS`.

use memhook_attach::{Block, Error, Profiler, Profiling, ReleaseBy, Trace, TraceConfig};
use std::{collections::BTreeMap, io::Write, time::Duration};

/// What is counted of the sizes up to a power of two.
#[derive(Default)]
struct Class {
    allocated: u64,
    live: u64,
}

/// The classes by their largest size.
#[derive(Default)]
struct Histogram(BTreeMap<u64, Class>);

impl Profiler for Histogram {
    /// The largest size of the block's class.
    type Data = u64;

    fn allocated(&mut self, block: &Block) -> u64 {
        let largest = block.size.checked_next_power_of_two().unwrap_or(u64::MAX);
        let class = self.0.entry(largest).or_default();
        class.allocated += 1;
        class.live += 1;
        largest
    }

    fn released(&mut self, _block: &Block, largest: u64, _by: Option<ReleaseBy>) {
        if let Some(class) = self.0.get_mut(&largest) {
            class.live -= 1;
        }
    }
}

/// Traces a process for a time.
pub fn run(pid: i32, duration: Duration, out: &mut impl Write) -> Result<(), Error> {
    let mut trace = Trace::profile(pid, TraceConfig::default(), Histogram::default())?;
    trace.run(Some(duration), &mut ());
    trace.with_profiler(|all: &mut Profiling<Histogram>| {
        for (largest, class) in &all.profiler().0 {
            let (allocated, live) = (class.allocated, class.live);
            let line = writeln!(out, "up to {largest}: {allocated} allocated, {live} live");
            if line.is_err() {
                break;
            }
        }
    });
    Ok(())
}

#[allow(dead_code)] // the test calls `run`
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pid, seconds] = arguments.as_slice() else {
        return Err("usage: size_histogram PID SECONDS".into());
    };
    let duration = Duration::from_secs(seconds.parse()?);
    Ok(run(pid.parse()?, duration, &mut std::io::stdout())?)
}
