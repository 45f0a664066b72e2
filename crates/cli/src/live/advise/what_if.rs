//! `advise --what-if`: a recorded run under other allocators.

use crate::output::Json;
use crate::report::open;
use anyhow::{Context, bail};
use memhook_foreign::units;
use memhook_report::Progress;
use memhook_whatif::{WhatIf, what_if};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Options of a replay.
#[derive(clap::Args)]
#[command(next_help_heading = "Other allocators")]
pub struct WhatIfArgs {
    /// Replay a recording under other allocators and settings
    ///
    /// Every recorded call is made again in a process of its own, by one thread for each recorded one.
    #[arg(long)]
    what_if: bool,
    /// Also replay with the allocator of this library
    #[arg(long, value_name = "FILE.so", requires = "what_if")]
    allocator: Vec<PathBuf>,
    /// End a replay that takes longer than this
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "2min", requires = "what_if")]
    at_most: Duration,
    /// The most memory that a replay may take
    ///
    /// Never more than 80% of what is available, which is the default.
    #[arg(long, value_name = "SIZE", value_parser = units::size, requires = "what_if")]
    max_memory: Option<u64>,
}

impl WhatIfArgs {
    /// Whether a replay is asked for.
    pub fn is_wanted(&self) -> bool {
        self.what_if
    }
}

/// Replays a recording.
pub fn run(args: &WhatIfArgs, file: Option<&Path>, json: Json) -> anyhow::Result<ExitCode> {
    let Some(path) = file else {
        bail!("--what-if replays a recording, not a process: memhook-rs advise FILE.mhk --what-if");
    };
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
    let comparison = Progress::during("replaying the run under several allocators", replay);
    let comparison = comparison.with_context(|| path.display().to_string())?;
    json.print(&comparison)?;
    Ok(ExitCode::SUCCESS)
}
