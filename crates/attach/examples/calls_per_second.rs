//! Allocation calls per second, by thread: `calls_per_second PID SECONDS`.

use memhook_attach::{Block, Error, Job, Profiler, Profiling, Trace, TraceConfig, Turn};
use std::{collections::HashMap, io::Write, ops::ControlFlow, time::Duration};

/// Counts calls by the index of the thread.
#[derive(Default)]
struct Calls(HashMap<u16, u64>);

impl Profiler for Calls {
    type Data = ();

    fn allocated(&mut self, block: &Block) {
        self.pairs(block, 1);
    }

    fn pairs(&mut self, block: &Block, count: u64) {
        *self.0.entry(block.thread).or_default() += count;
    }
}

/// Prints the counts of each second.
struct EverySecond<'a, W> {
    out: &'a mut W,
    next: Duration,
}

impl<W: Write> Job<Profiling<Calls>> for EverySecond<'_, W> {
    fn turn(&mut self, trace: &Trace<Profiling<Calls>>, _turn: &Turn) -> ControlFlow<()> {
        if trace.consumer().elapsed() < self.next {
            return ControlFlow::Continue(());
        }
        self.next += Duration::from_secs(1);
        let counts = trace.with_profiler(|calls| std::mem::take(&mut calls.profiler().0));
        for (thread, calls) in counts {
            let (tid, name) = trace.thread(thread);
            if writeln!(self.out, "{tid} {name}: {calls} calls").is_err() {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

/// Traces a process for a time.
pub fn run(pid: i32, duration: Duration, out: &mut impl Write) -> Result<(), Error> {
    let mut trace = Trace::profile(pid, TraceConfig::default(), Calls::default())?;
    let next = Duration::from_secs(1);
    trace.run(Some(duration), &mut EverySecond { out, next });
    Ok(())
}

#[allow(dead_code)] // the test calls `run`
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pid, seconds] = arguments.as_slice() else {
        return Err("usage: calls_per_second PID SECONDS".into());
    };
    let duration = Duration::from_secs(seconds.parse()?);
    Ok(run(pid.parse()?, duration, &mut std::io::stdout())?)
}
