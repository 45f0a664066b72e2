//! `scan`: what is unreachable in a live process, with no tracing.

mod reclaim;

use anyhow::{Context, bail};
use memhook_foreign::{OutputFile, visible_json, visible_lines};
use memhook_heap::{
    Captured, Limits, MarkOptions, Method, Pointers, Scan, Types, capture_within, dissect,
};
use memhook_report::{Document, Style, document, scan_report, write_blocks};
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Clone, Copy, clap::ValueEnum)]
enum SnapshotMethod {
    /// While the process runs; all threads are held only to copy what was written last
    Precopy,
    /// From a child that the process is made to fork, with all threads held meanwhile
    Fork,
    /// With all threads held from beginning to end
    Stop,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum PointerRule {
    /// Pointers to its start, or to what C++ makes of it: behind an array cookie, a secondary base
    Start,
    /// Pointers to anywhere in it, and to just past its end
    Interior,
}

/// Options of `scan`.
#[derive(clap::Args)]
pub struct Args {
    /// Process id
    #[arg(required_unless_present = "from", conflicts_with = "from")]
    pid: Option<i32>,
    /// Read a saved snapshot (-: standard input) instead of a process
    #[arg(long, value_name = "FILE")]
    from: Option<String>,
    /// Save the snapshot (-: standard output) instead of searching it
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    save: Option<String>,
    /// Overwrite the file of --save if it exists
    #[arg(long, requires = "save")]
    force: bool,
    /// How to copy the memory; a way that does not work falls back to the next [default: precopy,
    /// or stop where an active seccomp filter cannot be passed by]
    #[arg(long, value_enum)]
    snapshot: Option<SnapshotMethod>,
    /// How long all threads may be held at a time; what would take longer is done in another way,
    /// or refused [default: 50ms, and no limit for --snapshot stop]
    #[arg(long, value_name = "DURATION", value_parser = crate::options::duration, conflicts_with = "from")]
    max_hold: Option<Duration>,
    /// How much memory the copy may take; a larger copy is refused [default: what is available
    /// here]
    #[arg(long, value_name = "SIZE", value_parser = crate::options::size)]
    max_memory: Option<u64>,
    /// Which pointers to a block keep it alive
    #[arg(long, value_enum, default_value = "interior")]
    pointers: PointerRule,
    /// Look for pointers at every byte, not only at multiples of eight
    #[arg(long)]
    unaligned: bool,
    /// Scan again after this time, and report only what was leaked and unchanged both times
    #[arg(long, value_name = "DURATION", value_parser = crate::options::duration, conflicts_with_all = ["from", "save", "census", "why"])]
    twice: Option<Duration>,
    /// List what is possibly lost, too: reachable blocks that only pointers into blocks reach
    #[arg(long, conflicts_with_all = ["save", "census", "why", "reclaim", "list"])]
    show_possible: bool,
    /// Count the whole heap by type, size and arena
    #[arg(long, conflicts_with_all = ["save", "why"])]
    census: bool,
    /// Show what keeps the block at this address alive
    #[arg(long, value_name = "ADDRESS", value_parser = address, conflicts_with = "save")]
    why: Option<u64>,
    /// Release what two scans find unreachable with the same contents, by calls of the process's
    /// own free(). It asks first; without a terminal it only says what it would do, unless --yes is
    /// given
    #[arg(long, conflicts_with_all = ["from", "save", "census", "why"])]
    reclaim: bool,
    /// With --reclaim: do not ask
    #[arg(long, requires = "reclaim")]
    yes: bool,
    /// With --reclaim: repeat it at this interval, until Ctrl-C or the end of the process
    #[arg(long, value_name = "DURATION", value_parser = crate::options::duration, requires = "reclaim", conflicts_with = "twice")]
    every: Option<Duration>,
    /// How many groups to show
    #[arg(short = 'T', long, default_value_t = 20)]
    top: usize,
    /// Write the output as JSON
    #[arg(short, long)]
    json: bool,
    /// List every block instead: address, usable bytes, leaked or live
    #[arg(long, hide = true)]
    list: bool,
}

fn address(text: &str) -> Result<u64, String> {
    let digits = text.trim_start_matches("0x");
    u64::from_str_radix(digits, 16).map_err(|_| "expected an address like 0x55d0c0ffee00".into())
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

    fn method(&self) -> Option<Method> {
        self.snapshot.map(|method| match method {
            SnapshotMethod::Precopy => Method::Precopy,
            SnapshotMethod::Fork => Method::Fork,
            SnapshotMethod::Stop => Method::Stop,
        })
    }

    fn limits(&self) -> Limits {
        let usual = match self.snapshot {
            Some(SnapshotMethod::Stop) => None,
            _ => Limits::default().hold,
        };
        Limits {
            hold: self.max_hold.or(usual),
            memory: self.max_memory,
        }
    }

    /// Of the process, or of the file that was named.
    fn capture(&self) -> anyhow::Result<Captured> {
        let Some(file) = &self.from else {
            let pid = preflight_to_read(self.pid)?;
            return Ok(capture_within(pid, self.method(), self.limits())?);
        };
        let snapshot = if file == "-" {
            memhook_heap::load("standard input", std::io::stdin().lock(), self.max_memory)?
        } else {
            let open = File::open(file).with_context(|| file.clone())?;
            memhook_heap::load(file, std::io::BufReader::new(open), self.max_memory)?
        };
        Ok(Captured {
            snapshot,
            images: Vec::new(),
        })
    }
}

/// The process, if its memory can be read.
fn preflight_to_read(pid: Option<i32>) -> anyhow::Result<i32> {
    let pid = pid.unwrap_or(0);
    match memhook_process::first_failure(&memhook_process::preflight_to_read(pid)) {
        Some(why) => bail!("{why}"),
        None => Ok(pid),
    }
}

/// The process, if it can be traced.
fn preflight(pid: Option<i32>) -> anyhow::Result<i32> {
    let pid = pid.unwrap_or(0);
    match memhook_process::first_failure(&memhook_process::preflight(pid)) {
        Some(why) => bail!("{why}"),
        None => Ok(pid),
    }
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.reclaim {
        reclaim::run(args)?;
    } else if let Some(file) = &args.save {
        save(args, file)?;
    } else {
        look(args)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Everything but `--save` and `--reclaim`.
fn look(args: &Args) -> anyhow::Result<()> {
    let options = args.mark_options();
    let mut captured = args.capture()?;
    let mut before = None;
    if let Some(pause) = args.twice {
        let scan = Scan::of(&captured.snapshot, options)?;
        before = Some(scan.fingerprints(&captured.snapshot));
        drop(scan);
        std::thread::sleep(pause);
        captured = args.capture()?;
    }
    let snapshot = &captured.snapshot;
    let mut types = Types::new(snapshot, &captured.images);
    // These two need no list of leaks.
    if let Some(address) = args.why {
        let heap = dissect(snapshot)?;
        let why = memhook_heap::why(snapshot, &heap, options, &mut types, address)?;
        return print(args, &why);
    }
    if args.census {
        let heap = dissect(snapshot)?;
        let census = memhook_heap::census(snapshot, &heap, &mut types, args.top);
        return print(args, &census);
    }
    let mut scan = Scan::of(snapshot, options)?;
    if let Some(before) = &before {
        scan.keep_still_leaked(before, snapshot);
    }
    if args.list {
        let mut out = BufWriter::new(std::io::stdout().lock());
        return Ok(write_blocks(&scan, &mut out).and_then(|()| out.flush())?);
    }
    let mut report = scan_report(snapshot, &scan, &scan.leaks, &mut types, args.top);
    if args.show_possible {
        let possible = scan.possibly_lost(snapshot, options);
        report.add_possible(snapshot, &scan, &possible, &mut types, args.top);
    }
    print(args, &report)
}

fn print(args: &Args, report: &impl Document) -> anyhow::Result<()> {
    let text = document(report, args.json, Style::default())?;
    let shown = if args.json {
        visible_json(&text)
    } else {
        visible_lines(&text)
    };
    // A reader that went away is no error of ours.
    let _ = std::io::stdout().lock().write_all(shown.as_bytes());
    Ok(())
}

/// Saves a snapshot.
fn save(args: &Args, file: &str) -> anyhow::Result<()> {
    // Before the process is touched: a file that cannot be written costs it nothing then.
    let output = match file {
        "-" if std::io::stdout().is_terminal() => {
            bail!("a snapshot is binary: redirect standard output, or name a file")
        }
        "-" => None,
        file => Some(OutputFile::create(file.as_ref(), args.force)?),
    };
    let mut captured = args.capture()?;
    captured.name_classes()?;
    let snapshot = &captured.snapshot;
    match output {
        None => memhook_heap::save(snapshot, std::io::stdout().lock()).context("standard output"),
        Some(output) => memhook_heap::save(snapshot, output.file())
            .and_then(|()| output.keep().map(drop))
            .context(file.to_owned()),
    }
}
