//! `advise --what-if`: replays a recorded run with other allocators.

use crate::report::open;
use anyhow::Context;
use memhook_foreign::units;
use memhook_report::Progress;
use memhook_whatif::{Comparison, WhatIf, what_if};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Options of a replay.
#[derive(clap::Args)]
#[command(next_help_heading = "Other allocators")]
pub struct WhatIfArgs {
    /// Replay a recording under other allocators and settings
    ///
    /// A separate process repeats every recorded call, with one thread for each recorded thread.
    #[arg(long, conflicts_with = "read_only")]
    what_if: bool,
    /// Also replay with the allocator of this library
    #[arg(long, value_name = "FILE.so", requires = "what_if")]
    allocator: Vec<PathBuf>,
    /// End a replay that takes longer than this
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "2min", requires = "what_if")]
    at_most: Duration,
    /// Memory limit of a replay
    ///
    /// Never more than 80% of what is available, which is the default.
    #[arg(long, value_name = "SIZE", value_parser = units::size, requires = "what_if")]
    max_memory: Option<u64>,
}

impl WhatIfArgs {
    /// Returns true if a replay is requested.
    pub fn is_wanted(&self) -> bool {
        self.what_if
    }
}

/// Replays a recording. Without a recording, records a process now and replays that.
pub fn run(args: &super::Args) -> anyhow::Result<ExitCode> {
    let output = &args.output;
    if let Some(path) = args.target.recording() {
        let comparison = compared(&args.what_if, path);
        let comparison = comparison.with_context(|| path.display().to_string())?;
        output.write(&comparison, || comparison.page())?;
        return Ok(ExitCode::SUCCESS);
    }
    let pid = args.target.pid()?;
    let examined = super::examined(pid, args, args.duration, None, "recording the process")?;
    let code = super::judged(&examined, pid);
    let comparison = compared(&args.what_if, &examined.path)?;
    output.write(&comparison, || comparison.page())?;
    Ok(ExitCode::from(code))
}

fn compared(args: &WhatIfArgs, path: &Path) -> anyhow::Result<Comparison> {
    let libraries = args.allocator.iter().map(|library| {
        let full = std::fs::canonicalize(library);
        full.with_context(|| format!("--allocator: cannot open {}", library.display()))
    });
    let wanted = WhatIf {
        libraries: libraries.collect::<Result<_, _>>()?,
        at_most: args.at_most,
        max_memory: args.max_memory,
    };
    let recording = open(path)?;
    let replay = || what_if(&recording, &wanted);
    let what = "replaying the run under several allocators";
    Ok(Progress::during(what, replay)?)
}
