//! `symbols pack`: looks up the names of a recording's addresses, on the machine that has the
//! binaries.

use crate::report::{self, sources};
use memhook_foreign::check_output;
use memhook_report::Progress;
use std::{collections::BTreeSet, path::PathBuf, process::ExitCode, time::Duration};

/// `symbols`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Write the names of all addresses in recordings to a file
    #[command(after_long_help = include_str!("help/symbols-pack.txt"))]
    Pack(Args),
}

/// Options of `symbols pack`.
#[derive(clap::Args)]
pub struct Args {
    /// The recordings
    #[arg(required = true)]
    recordings: Vec<PathBuf>,
    /// Write the bundle to this file (for report --symbols)
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Overwrite the output file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    sources: sources::Args,
}

/// Runs the command.
pub fn run(command: &Command) -> anyhow::Result<ExitCode> {
    let Command::Pack(args) = command;
    check_output(Some(&args.output), args.force, &args.recordings)?;
    let mut bundles = Vec::new();
    let progress = Progress::start("looking up names");
    for path in &args.recordings {
        let recording = report::open(path)?;
        let mut symbols = sources::symbolizer(&recording, &args.sources)?;
        let stacks = recording.stacks();
        let stacks = stacks.ids().filter_map(|id| stacks.get(id));
        let addresses: BTreeSet<u64> = stacks.flat_map(|s| s.frames.iter().copied()).collect();
        symbols.request(addresses);
        while !symbols.is_ready(Duration::from_secs(1)) {}
        sources::tell_refused(&symbols);
        bundles.push(symbols.to_bundle());
    }
    drop(progress);
    let bundle = memhook_symbols::Bundle::merged(bundles);
    bundle.write(&args.output, args.force)?;
    let (named, all) = bundle.counts();
    let size = std::fs::metadata(&args.output).map_or(0, |metadata| metadata.len());
    eprintln!(
        "{named} of {all} addresses have names: {} in {}",
        memhook_report::bytes(size),
        args.output.display()
    );
    Ok(ExitCode::SUCCESS)
}
