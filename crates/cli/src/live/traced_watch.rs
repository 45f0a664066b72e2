//! The part of `watch` that traces processes.

mod job;
mod several;

use super::signals;
use super::watching::Args;
use super::watching::watched::Watched;
use job::Watch;
use memhook_attach::{DEPTH_TO_ROOTS, Trace, TraceConfig, refuse};
use std::process::ExitCode;

/// Mean bytes between samples. A heap of 16 MiB has about a thousand samples.
const SAMPLE_BYTES: u64 = 16 << 10;

/// Watches a process, or the processes of a control group, while they are traced.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(selector) = args.target.whole_group()? {
        return several::run(args, selector);
    }
    let pid = args.target.pid()?;
    let config = args.config();
    refuse(pid, &config)?;
    // The directory is created before the process is touched, so that an error does not affect the
    // process.
    let watched = Watched::new(args, 0)?;
    let depth = config.depth;
    let mut job = Watch::new(pid, &watched, &args.view, depth);
    signals::catch_stops();
    let mut trace = Trace::start(pid, config)?;
    trace.run(args.duration, &mut job);
    Ok(ExitCode::from(watched.finish()))
}

impl Args {
    fn config(&self) -> TraceConfig {
        let mut tracing = self.tracing.with_depth(DEPTH_TO_ROOTS);
        if self.exact {
            tracing = tracing.for_running();
        } else {
            tracing.sample = tracing.sample.or(Some(SAMPLE_BYTES));
        }
        tracing.resolve()
    }
}
