//! `scan`: what is unreachable in a live process, with no tracing.

mod budget;
mod reclaim;
mod release;
mod round;

use anyhow::{Context, bail};
use memhook_foreign::{OutputFile, visible, visible_json, visible_lines};
use memhook_heap::{
    Captured, Heap, Leak, Limits, MarkOptions, Marked, Method, Pointers, Snapshot, Types,
    capture_within, dissect, leaks, mark,
};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Clone, Copy, clap::ValueEnum)]
enum SnapshotMethod {
    /// While it runs; all threads are held for what was written last
    Precopy,
    /// By a child that it forks, with all threads held
    Fork,
    /// With all threads held
    Stop,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum PointerRule {
    /// Its start, or what C++ makes of it: behind an array cookie, a secondary base
    Start,
    /// Any in it, and the one just past its end
    Interior,
}

/// Options of `scan`.
#[derive(clap::Args)]
pub struct Args {
    /// Process id
    #[arg(required_unless_present = "from", conflicts_with = "from")]
    pid: Option<i32>,
    /// Look at a saved snapshot (`-`: standard input) instead of a process
    #[arg(long, value_name = "FILE")]
    from: Option<String>,
    /// Save the snapshot (`-`: standard output) instead of looking at it
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    save: Option<String>,
    /// Overwrite the file of --save
    #[arg(long, requires = "save")]
    force: bool,
    /// How memory is copied; what does not work falls back to the next [default: precopy, or stop where a
    /// seccomp filter is active that cannot be passed by]
    #[arg(long, value_enum)]
    snapshot: Option<SnapshotMethod>,
    /// For how long all threads may be held at a time; what would take longer is done in another way, or
    /// refused [default: 50ms, and no limit for --snapshot stop]
    #[arg(long, value_name = "DURATION", value_parser = crate::options::duration, conflicts_with = "from")]
    max_hold: Option<Duration>,
    /// Memory that the copy may take; a larger one is refused [default: what is available here]
    #[arg(long, value_name = "SIZE", value_parser = crate::options::size)]
    max_memory: Option<u64>,
    /// Which addresses of a block keep it alive
    #[arg(long, value_enum, default_value = "interior")]
    pointers: PointerRule,
    /// Look for pointers at every byte, not only at multiples of eight
    #[arg(long)]
    unaligned: bool,
    /// Scan again after this time; report what was leaked both times, unchanged
    #[arg(long, value_name = "DURATION", value_parser = crate::options::duration, conflicts_with_all = ["from", "save", "census", "why"])]
    twice: Option<Duration>,
    /// Count the whole heap by type, size and arena
    #[arg(long, conflicts_with_all = ["save", "why"])]
    census: bool,
    /// Say what keeps the block at this address alive
    #[arg(long, value_name = "ADDRESS", value_parser = address, conflicts_with = "save")]
    why: Option<u64>,
    /// Release what two scans find unreachable with the same contents, by calls of the process's own
    /// free(). Asks on a terminal; without one only says what it would do, unless there is --yes
    #[arg(long, conflicts_with_all = ["from", "save", "census", "why"])]
    reclaim: bool,
    /// With --reclaim: do not ask
    #[arg(long, requires = "reclaim")]
    yes: bool,
    /// With --reclaim: again and again, after each such time, until Ctrl-C or the end of the process
    #[arg(long, value_name = "DURATION", value_parser = crate::options::duration, requires = "reclaim", conflicts_with = "twice")]
    every: Option<Duration>,
    /// Groups to show
    #[arg(short = 'T', long, default_value_t = 20)]
    top: usize,
    /// JSON output
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
        let is_stop = matches!(self.snapshot, Some(SnapshotMethod::Stop));
        let usual = Limits::default().hold.filter(|_| !is_stop);
        Limits {
            hold: self.max_hold.or(usual),
            memory: self.max_memory,
        }
    }

    fn capture(&self) -> anyhow::Result<Captured> {
        if let Some(file) = &self.from {
            let snapshot = if file == "-" {
                memhook_heap::load("standard input", std::io::stdin().lock(), self.max_memory)?
            } else {
                let open = File::open(file).with_context(|| file.clone())?;
                memhook_heap::load(file, std::io::BufReader::new(open), self.max_memory)?
            };
            return Ok(Captured {
                snapshot,
                images: Vec::new(),
            });
        }
        let pid = self.pid.unwrap_or(0);
        if let Some(why) = memhook_process::first_failure(&memhook_process::preflight(pid)) {
            bail!("{why}");
        }
        Ok(capture_within(pid, self.method(), self.limits())?)
    }
}

/// A snapshot, searched.
struct Scan {
    heap: Heap,
    marked: Marked,
    leaks: Vec<Leak>,
}

impl Scan {
    fn of(snapshot: &Snapshot, options: MarkOptions) -> anyhow::Result<Scan> {
        let heap = dissect(snapshot)?;
        let marked = mark(snapshot, &heap, options);
        let leaks = leaks(snapshot, &heap.blocks, &marked, options);
        Ok(Scan {
            heap,
            marked,
            leaks,
        })
    }
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.reclaim {
        return reclaim::run(args);
    }
    // Before the process is touched: a file that cannot be written costs nothing then.
    let output = match args.save.as_deref() {
        None | Some("-") => None,
        Some(file) => Some(OutputFile::create(file.as_ref(), args.force)?),
    };
    let mut captured = args.capture()?;
    if let Some(file) = &args.save {
        save(&mut captured, file, output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = args.mark_options();
    let mut before = None;
    if let Some(pause) = args.twice {
        let scan = Scan::of(&captured.snapshot, options)?;
        let blocks = &scan.heap.blocks;
        before = Some(memhook_heap::fingerprints(
            &captured.snapshot,
            blocks,
            &scan.leaks,
        ));
        drop(scan);
        std::thread::sleep(pause);
        captured = args.capture()?;
    }
    let snapshot = &captured.snapshot;
    let mut types = Types::new(snapshot, &captured.images);
    if args.census || args.why.is_some() {
        return look(args, snapshot, &mut types);
    }
    let mut scan = Scan::of(snapshot, options)?;
    if let Some(before) = &before {
        let blocks = &scan.heap.blocks;
        scan.leaks = memhook_heap::still_leaked(before, snapshot, blocks, &scan.leaks);
    }
    if args.list {
        return list(&scan);
    }
    let report = memhook_heap::report(
        snapshot,
        &scan.heap,
        &scan.marked,
        &scan.leaks,
        &mut types,
        args.top,
    );
    print(args, &report, memhook_heap::text)?;
    Ok(ExitCode::SUCCESS)
}

fn print<T: serde::Serialize>(
    args: &Args,
    report: &T,
    text: impl Fn(&T) -> String,
) -> anyhow::Result<()> {
    let out = if args.json {
        visible_json(&serde_json::to_string(report)?).into_owned() + "\n"
    } else {
        visible_lines(&text(report)).into_owned()
    };
    // A reader that went away is no error of ours.
    let _ = std::io::stdout().lock().write_all(out.as_bytes());
    Ok(())
}

/// `--census` and `--why`: these need no list of leaks.
fn look(args: &Args, snapshot: &Snapshot, types: &mut Types) -> anyhow::Result<ExitCode> {
    let heap = dissect(snapshot)?;
    let Some(address) = args.why else {
        let census = memhook_heap::census(snapshot, &heap, types, args.top);
        print(args, &census, memhook_heap::census_text)?;
        return Ok(ExitCode::SUCCESS);
    };
    let why = memhook_heap::why(snapshot, &heap, args.mark_options(), types, address)?;
    print(args, &why, |why| {
        let mut out = match &why.root {
            Some(root) => format!("Kept alive by {}\n", visible(root)),
            None => "Nothing reaches it: leaked\n".to_owned(),
        };
        for step in &why.path {
            let offset = step.offset.map(|o| format!(", at offset {o}:"));
            let offset = offset.unwrap_or_default();
            let line = format!(
                "  -> {} ({} B, {}){offset}\n",
                step.address,
                step.bytes,
                visible(&step.kind)
            );
            out.push_str(&line);
        }
        out
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Saves the snapshot with the names of the classes in it, which take the modules' files to find.
fn save(captured: &mut Captured, file: &str, output: Option<OutputFile>) -> anyhow::Result<()> {
    let heap = dissect(&captured.snapshot)?;
    let mut types = Types::new(&captured.snapshot, &captured.images);
    for (_, block) in heap.blocks.iter() {
        if let Some(word) = captured.snapshot.word(block.address) {
            types.class(word);
        }
    }
    let learnt: Vec<_> = types.learnt().collect();
    captured.snapshot.meta.classes.extend(learnt);
    if let Some(output) = output {
        let to = output.keep().with_context(|| file.to_owned())?;
        memhook_heap::save(&captured.snapshot, to).with_context(|| file.to_owned())?;
        return Ok(());
    }
    let out = std::io::stdout().lock();
    if out.is_terminal() {
        bail!("a snapshot is binary: redirect standard output, or name a file");
    }
    memhook_heap::save(&captured.snapshot, out).context("standard output")
}

fn list(scan: &Scan) -> anyhow::Result<ExitCode> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut leaks = scan.leaks.iter().peekable();
    for (number, block) in scan.heap.blocks.iter() {
        let leaked = leaks.next_if(|l| l.block == number).is_some();
        let word = if leaked { "leak" } else { "live" };
        writeln!(out, "{word} {:#x} {}", block.address, block.bytes)?;
    }
    for arena in &scan.heap.arenas {
        let c = &arena.counts;
        writeln!(
            out,
            "arena {:#x} system {} used {} cached {} fast {} free {} binned {} top {}",
            arena.address,
            arena.system_bytes,
            c.used_bytes,
            c.cached_bytes,
            c.fast_bytes,
            c.free_bytes,
            arena.binned_bytes,
            c.top_bytes
        )?;
    }
    let (chunks, bytes) = scan.heap.mmapped;
    writeln!(out, "mmapped {chunks} {bytes}")?;
    for finding in &scan.heap.findings {
        let what = visible(&finding.what);
        writeln!(out, "finding {:#x} {what}", finding.address)?;
    }
    Ok(ExitCode::SUCCESS)
}
