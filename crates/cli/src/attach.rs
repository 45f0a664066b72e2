//! `attach`: trace a running process, report, leave.

use crate::options::{
    Clock, Color, Format, GroupBy, OnFull, SortBy, Stacks, Unwind, duration, size,
};
use crate::output::{self, Output};
use crate::record::{self, Recording, Wish};
use crate::{limits, memory_budget, plan, session::Session, signals, trace};
use anyhow::bail;
use memhook_abi::{clock_mode, flags};
use memhook_stream::{Config, Plan};
use std::{path::PathBuf, process::ExitCode, time::Duration};

/// Options of `attach`.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// Process id
    #[arg(required_unless_present = "pid_option")]
    pid: Option<i32>,
    /// Process id
    #[arg(short = 'p', long = "pid", id = "pid_option", conflicts_with = "pid")]
    pid_option: Option<i32>,
    #[command(flatten)]
    pub tracing: Tracing,
    /// Detach after this time (500ms, 30s, 10m)
    #[arg(short, long, value_parser = duration)]
    pub duration: Option<Duration>,
    /// Report every so often
    #[arg(short, long, value_parser = duration, default_value = "5s")]
    pub interval: Duration,
    #[command(flatten)]
    pub view: View,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    format: Format,
    /// Same as --format json
    #[arg(short, long)]
    json: bool,
    /// Write the reports into this file, or record into it if its name ends in .mhk; %p: process id,
    /// %h: host
    #[arg(short, long)]
    output: Option<PathBuf>,
    #[command(flatten)]
    pub recording: record::Args,
    /// Overwrite the output file
    #[arg(long)]
    pub force: bool,
    /// At the end, copy the process's memory and report what nothing in it reaches, with call stacks
    #[arg(long)]
    pub leaks: bool,
    /// Show what would be hooked, and leave the process alone
    #[arg(long)]
    dry_run: bool,
    /// When to use colours
    #[arg(long, value_enum, default_value = "auto")]
    color: Color,
    /// No status lines; while recording, no reports either
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Say more about how the attach and the tracing went
    #[arg(short, long)]
    pub verbose: bool,
}

/// What is recorded, and how.
#[derive(clap::Args, Clone)]
pub struct Tracing {
    /// Frames to collect of each call stack
    #[arg(long, alias = "max-stack", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=128))]
    pub depth: u32,
    /// Hook only these (malloc,free,new,...)
    #[arg(long, value_delimiter = ',')]
    pub functions: Vec<String>,
    /// Record only blocks of at least this size (4K, 1M)
    #[arg(short = 'z', long, value_parser = size)]
    min_size: Option<u64>,
    /// Record only blocks of at most this size
    #[arg(short = 'Z', long, value_parser = size)]
    max_size: Option<u64>,
    /// Record only blocks of these sizes
    #[arg(long = "size", value_delimiter = ',', value_parser = size)]
    sizes: Vec<u64>,
    /// Record one allocation in so many bytes, at random; reports are estimates
    #[arg(long, value_name = "BYTES", value_parser = size)]
    sample: Option<u64>,
    /// Record call stacks of allocations, or of releases too
    #[arg(long, value_enum, default_value = "alloc")]
    pub stacks: Stacks,
    /// How call stacks are found
    #[arg(long, value_enum, default_value = "table")]
    unwind: Unwind,
    /// Unwind each remembered backtrace again and compare
    #[arg(long, hide = true)]
    pub check_memo: bool,
    /// Where time stamps come from
    #[arg(long, value_enum, default_value = "coarse")]
    pub clock: Clock,
    /// Bytes that a thread's ring can grow to
    #[arg(long, value_parser = size, default_value = "1M")]
    ring_size: u64,
    /// What a thread does when its ring is full
    #[arg(long, value_enum, default_value = "wait")]
    on_full: OnFull,
    /// Memory for live blocks and call stacks of each traced process, 4M or more (512M, 2G); by default a
    /// quarter of what is free for memhook-rs. When it is reached, allocations are still counted
    /// exactly, but only a sample of the live blocks is kept, the largest ones first: what is live
    /// becomes an estimate with a standard error, reports say so in their first lines, and a gate gives no
    /// verdict. Unlike an exact count that ends there, this still finds leaks
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    max_memory: Option<u64>,
}

/// A size that a ledger can do with.
fn memory(text: &str) -> Result<u64, String> {
    let least = memhook_ledger::LEAST_BYTES as u64;
    match size(text)? {
        bytes if bytes < least => Err(format!(
            "{bytes} bytes are too little: the table of live blocks needs {}M at least",
            least >> 20
        )),
        bytes => Ok(bytes),
    }
}

/// What reports show.
#[derive(clap::Args, Clone)]
pub struct View {
    /// Rows to show
    #[arg(short = 'T', long, default_value_t = 10)]
    pub top: usize,
    /// Show only blocks at least this old
    #[arg(long, value_parser = duration)]
    pub older: Option<Duration>,
    /// Order of the rows
    #[arg(long, value_enum, default_value = "bytes")]
    pub sort: SortBy,
    /// What the rows are
    #[arg(long, value_enum, default_value = "site")]
    pub by: GroupBy,
}

impl Tracing {
    /// Whether allocations are left out by size or by chance.
    pub fn is_selective(&self) -> bool {
        self.is_filtered() || self.sample.is_some()
    }

    /// Whether a release may be recorded together with its allocation: nothing of its own is wanted.
    fn folds_pairs(&self) -> bool {
        self.stacks != Stacks::All
            && self.clock == Clock::Coarse
            && self.unwind != Unwind::Glibc
            && !self.is_selective()
            && !self.check_memo
    }

    fn is_filtered(&self) -> bool {
        self.min_size.is_some() || self.max_size.is_some() || !self.sizes.is_empty()
    }

    /// Bytes that the ledger of one process may take.
    pub fn max_memory(&self) -> usize {
        let bytes = self.max_memory.unwrap_or_else(memory_budget::for_a_ledger);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Mean bytes between samples.
    pub fn sample_bytes(&self) -> Option<u64> {
        self.sample
    }

    /// The settings for the hook.
    pub fn config(&self) -> anyhow::Result<Config> {
        let (min, max) = (
            self.min_size.unwrap_or(0),
            self.max_size.unwrap_or(u64::MAX),
        );
        if min > max {
            bail!("--min-size {min} is above --max-size {max}: no block can pass; swap them");
        }
        if self.sizes.len() > memhook_abi::MAX_EXACT_SIZES {
            bail!(
                "--size takes at most {} sizes, {} were given: use --min-size and --max-size",
                memhook_abi::MAX_EXACT_SIZES,
                self.sizes.len()
            );
        }
        if !self.ring_size.is_power_of_two() || !(65_536..=1 << 26).contains(&self.ring_size) {
            bail!(
                "--ring-size {}: a power of two from 64K to 64M is needed",
                self.ring_size
            );
        }
        if let Some(mean) = self.sample
            && !(1..=1 << 30).contains(&mean)
        {
            bail!("--sample {mean}: from 1 byte to 1G between samples is possible; try 512K");
        }
        let on = |condition, flag| if condition { flag } else { 0 };
        Ok(Config {
            epoch: 1,
            ring_bytes: self.ring_size,
            depth: self.depth,
            clock_mode: match self.clock {
                Clock::Coarse => clock_mode::COARSE,
                Clock::Tsc => clock_mode::TSC,
                Clock::Monotonic => clock_mode::MONOTONIC,
                Clock::Attacher => clock_mode::ATTACHER,
            },
            flags: on(self.is_filtered(), flags::SIZE_FILTER)
                | on(self.sample.is_some(), flags::SAMPLE)
                | on(self.is_selective(), flags::LIVE_FILTER)
                | on(self.stacks == Stacks::All, flags::RELEASE_STACKS)
                | on(self.folds_pairs(), flags::FOLD_PAIRS)
                | on(self.unwind == Unwind::Fp, flags::FRAME_POINTERS)
                | on(self.unwind == Unwind::Glibc, flags::LIBC_BACKTRACE)
                | on(self.check_memo, flags::CHECK_MEMO)
                | on(self.on_full == OnFull::Drop, flags::DROP_WHEN_FULL),
            min_size: min,
            max_size: max,
            exact_sizes: self.sizes.clone(),
            vdso_clock: 0,
            libc_backtrace: 0,
            sample_bytes: self.sample.unwrap_or(0),
            attacher_pid: std::process::id(),
            // Found in the target.
            owner: 0,
            iterate_modules: 0,
            plan: Plan::default(),
        })
    }
}

/// The name that `ps` shows; the executable's may be another one, behind a symbolic link.
pub fn name_of(pid: i32) -> String {
    memhook_process::proc_text(format!("/proc/{pid}/comm"))
        .map(|name| name.trim_end().to_owned())
        .unwrap_or_default()
}

impl Args {
    /// The options of a plain `attach PID --duration`.
    pub fn plain(pid: i32, duration: Duration, top: usize) -> Args {
        use clap::Parser;
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            args: Args,
        }
        let mut args = Only::parse_from(["attach", &pid.to_string()]).args;
        args.duration = Some(duration);
        args.interval = Duration::MAX;
        args.view.top = top;
        args
    }
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pid = args.pid.or(args.pid_option).unwrap_or(0);
    let config = args.tracing.config()?;
    let functions = plan::selected_functions(&args.tracing.functions)?;
    let mut checks = memhook_process::preflight(pid);
    checks.extend(limits::checks(
        pid,
        memhook_abi::region_bytes(config.ring_bytes as usize) as u64,
    ));
    if let Some(why) = memhook_process::first_failure(&checks) {
        bail!("{why}");
    }
    if args.dry_run {
        return plan::dry_run(pid, &functions);
    }
    // Before the target is touched: an output that cannot be written costs nothing then.
    let json = args.json || args.format == Format::Json;
    let path = args.output.as_deref().map(|path| output::expand(path, pid));
    let path = path.transpose()?;
    let (recorded, path) = match args.recording.is_asked_for(path.as_deref()) {
        true => (path, None),
        false => (None, path),
    };
    let style = output::style(path.as_deref(), args.color, args.verbose);
    let mut output = Output::open(path.as_deref(), args.force, json, style)?;
    let wish = Wish {
        options: &args.recording,
        tracing: &args.tracing,
        force: args.force,
        quiet: args.quiet,
    };
    let create = |path| Recording::create(&wish, pid, &config, path);
    let recording = recorded.as_deref().map(create).transpose()?;
    signals::catch_stops();
    let session = match Session::start(pid, config, functions) {
        Ok(session) => session,
        Err(error) => {
            output.abandon();
            if let Some(recording) = recording {
                recording.abandon();
            }
            return Err(error);
        }
    };
    if !args.quiet {
        let (slots, modules) = session.patched();
        eprintln!(
            "Attached to {pid} ({}) in {:.1} ms (one thread held {:.1} ms): {slots} slots in {modules} modules. Ctrl-C to detach",
            memhook_foreign::visible(&name_of(pid)),
            session.attach_time.as_secs_f64() * 1e3,
            session.held_time.as_secs_f64() * 1e3,
        );
    }
    trace::run(args, pid, session, &mut output, recording)
}
