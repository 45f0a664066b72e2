//! `scan`: unreachable blocks in a live process, without tracing.

mod declared;
mod reclaim;
mod retained;
mod verdict;

use super::copy_limits::CopyLimits;
use super::read_only::ReadOnly;
use crate::exit_code;
use crate::output::Json;
use crate::target::Target;
use anyhow::{Context, bail};
use memhook_foreign::OutputFile;
use memhook_foreign::units;
use memhook_heap::{
    Captured, Limits, MarkOptions, Method, Pointers, Request, Scan, Types, account_of,
    capture_core, capture_settled, dissect,
};
use memhook_process::{Check, CoreFile};
use memhook_report::{
    CensusReport, Progress, RssReport, RssView, not_searched, scan_report, write_blocks,
};
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Clone, Copy, clap::ValueEnum)]
enum SnapshotMethod {
    /// While the process runs; its threads are held only to copy what was written last
    Precopy,
    /// From a child that the process is made to fork; its threads are held during the fork
    Fork,
    /// With all threads held from beginning to end
    Stop,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum PointerRule {
    /// Pointers to its start, or to where C++ points: behind an array cookie, at a secondary base
    Start,
    /// Pointers to anywhere in it, and to just past its end
    Interior,
}

/// Options of `scan`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Number of groups to show
    #[arg(
        short = 'T',
        long,
        value_name = "N",
        default_value_t = 20,
        allow_negative_numbers = true
    )]
    top: usize,
    #[command(flatten)]
    json: Json,
    /// Scan twice, with this time in between
    ///
    /// Reports only blocks that both scans found, with the same contents.
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with_all = ["from", "save", "census", "why"])]
    twice: Option<Duration>,
    /// Also list what is possibly lost
    ///
    /// Possibly lost blocks are reached only by pointers to their interior (memcheck calls them "possibly lost").
    #[arg(long, conflicts_with_all = ["save", "census", "why", "reclaim", "list"])]
    show_possible: bool,
    /// Count the whole heap by type, size and arena
    #[arg(long, conflicts_with_all = ["save", "why"])]
    census: bool,
    /// Show what holders, types and blocks retain
    ///
    /// A holder retains the memory that would be unreachable without it: a global variable, a thread, or all blocks of
    /// a type. With -o FILE.html, a page also has a map of that.
    #[arg(long, conflicts_with_all = ["save", "why", "census", "twice", "show_possible", "reclaim", "verdict", "list"])]
    retained: bool,
    /// Write a page of --retained: FILE.html
    #[arg(
        short,
        long,
        value_name = "FILE.html",
        requires = "retained",
        conflicts_with = "json"
    )]
    output: Option<PathBuf>,
    /// Show what keeps the block at this address alive
    #[arg(long, value_name = "ADDRESS", value_parser = address, conflicts_with = "save")]
    why: Option<u64>,
    /// Pointers that count: start or interior
    #[arg(long, value_enum, value_name = "RULE", default_value = "interior")]
    pointers: PointerRule,
    /// Look for pointers at every byte
    ///
    /// Without it, only multiples of eight are searched.
    #[arg(long)]
    unaligned: bool,
    /// Save the snapshot (- is standard output)
    ///
    /// The snapshot is then not searched.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "from",
        help_heading = "Snapshots"
    )]
    save: Option<String>,
    /// Search a saved snapshot (- is standard input)
    #[arg(
        long = "load",
        alias = "from",
        value_name = "FILE",
        conflicts_with_all = ["process", "pid", "cgroup", "max_hold", "read_only"],
        help_heading = "Snapshots"
    )]
    from: Option<String>,
    /// Search a core dump
    ///
    /// memhook-rs opens the files of the modules by their recorded names, and uses a file only if its build-id shows
    /// that it is the file that ran. Without these files, names and classes are missing.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["process", "pid", "cgroup", "from", "twice", "snapshot", "max_hold", "read_only", "reclaim"],
        help_heading = "Snapshots"
    )]
    core: Option<PathBuf>,
    /// Overwrite the file of --save, --verdict or --output if it exists
    #[arg(long, help_heading = "Snapshots")]
    force: bool,
    /// How to copy the memory: precopy, fork or stop
    ///
    /// If a method does not work, the next one is used. The default is precopy, or stop if the process has a seccomp
    /// filter that memhook-rs cannot bypass.
    #[arg(
        long,
        value_enum,
        value_name = "METHOD",
        conflicts_with = "read_only",
        help_heading = "Snapshots"
    )]
    snapshot: Option<SnapshotMethod>,
    #[command(flatten, next_help_heading = "Snapshots")]
    limits: CopyLimits,
    #[command(flatten, next_help_heading = "Snapshots")]
    read_only: ReadOnly,
    /// Free what two scans found unreachable
    ///
    /// The process frees the blocks itself, by calls of its own free(), and only blocks whose contents were the same
    /// in both scans. memhook-rs asks first; without a terminal it only reports what it would free, unless --yes is
    /// given.
    #[arg(long, conflicts_with_all = ["from", "save", "census", "why", "read_only"], help_heading = "Reclaiming")]
    reclaim: bool,
    /// Do not ask before anything is freed
    #[arg(long, requires = "reclaim", help_heading = "Reclaiming")]
    yes: bool,
    /// Reclaim repeatedly at this interval
    ///
    /// Rounds continue until Ctrl-C, or until the process ends.
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "reclaim", conflicts_with = "twice", help_heading = "Reclaiming")]
    every: Option<Duration>,
    /// List what may be freed; with --reclaim, free it
    ///
    /// This allows searching a snapshot on another machine: --load FILE --verdict FILE lists the leaked blocks in it.
    /// The file "-" is standard output. With --reclaim, the file replaces the first scan: memhook-rs scans the process once, and
    /// frees only blocks that are in the file and still leaked, with the same size and contents.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "census", "why", "twice", "every", "list", "core", "read_only"], help_heading = "Reclaiming")]
    verdict: Option<PathBuf>,
    /// List every block instead: address, usable bytes, leaked or live
    #[arg(long, hide = true)]
    list: bool,
}

fn address(text: &str) -> Result<u64, String> {
    let digits = text.trim_start_matches("0x");
    u64::from_str_radix(digits, 16).map_err(|_| "expected an address like 0x55d0c0ffee00".into())
}

impl Args {
    /// Returns true if the command scans a process and not a file.
    fn is_live(&self) -> bool {
        self.from.is_none() && self.core.is_none()
    }

    fn mark_options(&self) -> MarkOptions {
        MarkOptions {
            pointers: match self.pointers {
                PointerRule::Start => Pointers::Start,
                PointerRule::Interior => Pointers::Interior,
            },
            unaligned: self.unaligned,
            ..MarkOptions::to_report()
        }
    }

    fn request(&self) -> Request {
        let method = self.snapshot.map(|method| match method {
            SnapshotMethod::Precopy => Method::Precopy,
            SnapshotMethod::Fork => Method::Fork,
            SnapshotMethod::Stop => Method::Stop,
        });
        let usual = match method {
            Some(Method::Stop) => None,
            _ => Limits::default().hold,
        };
        Request {
            method,
            limits: self.read_only.of(Limits {
                hold: self.limits.hold.max_hold.or(usual),
                memory: self.limits.max_memory,
                ..Limits::NONE
            }),
            search: self.mark_options(),
            ..Request::to_search()
        }
    }

    /// Copies the process, or opens the given file.
    fn capture(&self, pid: i32) -> anyhow::Result<Captured> {
        if let Some(core) = &self.core {
            let core = CoreFile::open(core).map_err(memhook_heap::Error::from)?;
            let work = || capture_core(&core, self.limits.max_memory);
            return Ok(Progress::during("reading the core dump", work)?);
        }
        let Some(file) = &self.from else {
            check(memhook_process::preflight_of_search(pid))?;
            let work = || capture_settled(pid, self.request());
            return Ok(Progress::during("copying the memory", work)?);
        };
        let snapshot = if file == "-" {
            memhook_heap::load(
                "standard input",
                std::io::stdin().lock(),
                self.limits.max_memory,
            )?
        } else {
            let open = File::open(file).map_err(|error| {
                anyhow::anyhow!(
                    "cannot open the snapshot {file}: {error}; scan --save FILE writes one"
                )
            })?;
            memhook_heap::load(file, std::io::BufReader::new(open), self.limits.max_memory)?
        };
        Ok(Captured {
            snapshot,
            images: Vec::new(),
            residency: None,
        })
    }
}

/// Refuses a process that cannot be read or traced.
fn check(checks: Vec<Check>) -> anyhow::Result<()> {
    match memhook_process::first_failure(&checks) {
        Some(why) => bail!("{why}"),
        None => Ok(()),
    }
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // The name is looked up only once, because it may belong to another process later.
    let pid = if args.is_live() {
        args.target.pid()?
    } else {
        0
    };
    let has_file = args.save.is_some() || args.verdict.is_some() && !args.reclaim;
    if args.force && !has_file && args.output.is_none() {
        bail!("--force overwrites a file of --save, --verdict or --output, and there is none");
    }
    let is_all = if args.reclaim {
        reclaim::run(args, pid).map(|()| true)
    } else if let Some(file) = &args.save {
        save(args, pid, file).map(|()| true)
    } else if let Some(file) = &args.verdict {
        verdict::write(args, pid, file)
    } else if args.retained {
        retained::run(args, pid)
    } else {
        look(args, pid)
    }?;
    Ok(ExitCode::from(if is_all {
        exit_code::DONE
    } else {
        exit_code::NOT_ALL_SEARCHED
    }))
}

/// Performs everything except `--save`, `--verdict`, `--retained` and `--reclaim`. Returns true if
/// all of the heap was searched.
fn look(args: &Args, pid: i32) -> anyhow::Result<bool> {
    const SEARCHING: &str = "searching the memory";
    let options = args.mark_options();
    let scan = |snapshot: &_| Progress::during(SEARCHING, || Scan::of(snapshot, options));
    let mut captured = args.capture(pid)?;
    let mut before = None;
    if let Some(pause) = args.twice {
        let scan = scan(&captured.snapshot)?;
        before = Some(scan.fingerprints(&captured.snapshot));
        drop(scan);
        std::thread::sleep(pause);
        captured = args.capture(pid)?;
    }
    let snapshot = &captured.snapshot;
    let mut types = Types::new(snapshot, &captured.images);
    // These two commands do not need the list of leaks.
    if let Some(address) = args.why {
        let heap = dissect(snapshot)?;
        let files = args.declared_files(pid, &captured);
        types.declare(&heap, &files, args.declared_limits());
        let work = || memhook_heap::why(snapshot, &heap, options, &mut types, address);
        return args
            .json
            .print(&Progress::during(SEARCHING, work)?)
            .map(|()| true);
    }
    if args.census {
        let heap = dissect(snapshot)?;
        let files = args.declared_files(pid, &captured);
        let work = || {
            types.declare(&heap, &files, args.declared_limits());
            memhook_heap::census(snapshot, &heap, &mut types, args.top)
        };
        let census = Progress::during(SEARCHING, work);
        // Resident memory is known only for a live process.
        let rss = args
            .is_live()
            .then(|| account_of(&captured, Some(&heap), false).ok())
            .flatten();
        let view = RssView {
            top: args.top,
            pins: false,
        };
        let rss = rss.map(|found| RssReport::new(pid, &found, Some(&snapshot.meta), view));
        args.json.print(&CensusReport { census, rss })?;
        return Ok(not_searched(snapshot, &heap).is_empty());
    }
    let mut scan = scan(snapshot)?;
    if let Some(before) = &before {
        scan.keep_still_leaked(before, snapshot);
    }
    if args.list {
        let mut out = BufWriter::new(std::io::stdout().lock());
        write_blocks(snapshot, &scan, &mut out).and_then(|()| out.flush())?;
        return Ok(true);
    }
    if !scan.leaks.is_empty() {
        let files = args.declared_files(pid, &captured);
        let work = || types.declare(&scan.heap, &files, args.declared_limits());
        Progress::during(SEARCHING, work);
    }
    let mut report = scan_report(snapshot, &scan, &scan.leaks, &mut types, args.top);
    if args.show_possible {
        let possible = scan.possibly_lost(snapshot, options);
        report.add_possible(snapshot, &scan, &possible, &mut types, args.top);
    }
    args.json.print(&report)?;
    Ok(report.not_searched.is_empty())
}

/// Saves a snapshot.
fn save(args: &Args, pid: i32, file: &str) -> anyhow::Result<()> {
    // The file is opened before the process is touched, so that an error does not affect the process.
    let output = match file {
        "-" if std::io::stdout().is_terminal() => {
            bail!("a snapshot is binary: redirect standard output, or name a file")
        }
        "-" => None,
        file => Some(OutputFile::create(file.as_ref(), args.force)?),
    };
    let mut captured = args.capture(pid)?;
    captured.add_names()?;
    let snapshot = &captured.snapshot;
    match output {
        None => memhook_heap::save(snapshot, std::io::stdout().lock()).context("standard output"),
        Some(output) => memhook_heap::save(snapshot, output.file())
            .and_then(|()| output.keep().map(drop))
            .context(file.to_owned()),
    }
}
