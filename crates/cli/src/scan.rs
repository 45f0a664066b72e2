//! `scan`: what is unreachable in a live process, with no tracing.

use anyhow::bail;
use memhook_heap::{MarkOptions, Method, Pointers, Types, capture, dissect, leaks, mark};
use std::io::Write;
use std::process::ExitCode;

#[derive(Clone, Copy, clap::ValueEnum)]
enum SnapshotMethod {
    Precopy,
    Stop,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum PointerRule {
    Start,
    Interior,
}

/// Options of `scan`.
#[derive(clap::Args)]
pub struct Args {
    /// Process id
    pid: i32,
    /// How memory is copied: while the process runs, or with all threads held
    #[arg(long, value_enum, default_value = "precopy")]
    snapshot: SnapshotMethod,
    /// Which addresses of a block keep it alive
    #[arg(long, value_enum, default_value = "interior")]
    pointers: PointerRule,
    /// Look for pointers at every byte, not only at multiples of eight
    #[arg(long)]
    unaligned: bool,
    /// Groups to show
    #[arg(short = 'T', long, default_value_t = 20)]
    top: usize,
    /// JSON output
    #[arg(short, long)]
    json: bool,
}

impl Args {
    fn mark_options(&self) -> MarkOptions {
        MarkOptions {
            pointers: match self.pointers {
                PointerRule::Start => Pointers::Start,
                PointerRule::Interior => Pointers::Interior,
            },
            unaligned: self.unaligned,
        }
    }

    fn method(&self) -> Method {
        match self.snapshot {
            SnapshotMethod::Precopy => Method::Precopy,
            SnapshotMethod::Stop => Method::Stop,
        }
    }
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(why) = memhook_process::first_failure(&memhook_process::preflight(args.pid)) {
        bail!("{why}");
    }
    let captured = capture(args.pid, args.method())?;
    let snapshot = &captured.snapshot;
    let heap = dissect(snapshot)?;
    let options = args.mark_options();
    let marked = mark(snapshot, &heap, options);
    let leaked = leaks(snapshot, &heap.blocks, &marked, options);
    let mut types = Types::new(snapshot, &captured.images);
    let report = memhook_heap::report(snapshot, &heap, &marked, &leaked, &mut types, args.top);
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        write!(out, "{}", memhook_heap::text(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}
