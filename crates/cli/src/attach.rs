//! `attach`: trace a running process, report, leave.

use crate::pacing::Pacing;
use crate::ring_owners::RingOwners;
use crate::{model, session, session::Session, signals};
use anyhow::bail;
use memhook_abi::{Event, clock_mode, flags};
use memhook_ledger::{Ledger, LedgerOptions};
use memhook_stream::{Config, Drain, Sink};
use std::{
    io::Write,
    process::ExitCode,
    time::{Duration, Instant},
};

/// Order of the sites.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum SortBy {
    Bytes,
    Count,
    Age,
    Growth,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Clock {
    Coarse,
    Monotonic,
    Attacher,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Unwind {
    Table,
    Fp,
    Glibc,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum OnFull {
    Wait,
    Drop,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Options of `attach`.
#[derive(clap::Args)]
pub struct Args {
    /// Process id
    #[arg(required_unless_present = "pid_option")]
    pid: Option<i32>,
    /// Process id
    #[arg(short = 'p', long = "pid", id = "pid_option", conflicts_with = "pid")]
    pid_option: Option<i32>,
    /// Frames to collect of each call stack
    #[arg(long, alias = "max-stack", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=128))]
    depth: u32,
    /// Detach after this time (500ms, 30s, 10m)
    #[arg(short, long, value_parser = duration)]
    duration: Option<Duration>,
    /// Report every so often
    #[arg(short, long, value_parser = duration, default_value = "5s")]
    interval: Duration,
    /// Sites to show
    #[arg(short = 'T', long, default_value_t = 10)]
    top: usize,
    /// Hook only these (malloc,free,new,...)
    #[arg(long, value_delimiter = ',')]
    functions: Vec<String>,
    /// Record only blocks of at least this size (4K, 1M)
    #[arg(short = 'z', long, value_parser = size)]
    min_size: Option<u64>,
    /// Record only blocks of at most this size
    #[arg(short = 'Z', long, value_parser = size)]
    max_size: Option<u64>,
    /// Record only blocks of these sizes
    #[arg(long = "size", value_delimiter = ',', value_parser = size)]
    sizes: Vec<u64>,
    /// Show only blocks at least this old
    #[arg(long, value_parser = duration)]
    older: Option<Duration>,
    /// How call stacks are found: by unwind tables, along frame pointers, or by glibc's own
    /// backtrace (slow; for comparison)
    #[arg(long, value_enum, default_value = "table")]
    unwind: Unwind,
    /// Unwind each remembered backtrace again and compare
    #[arg(long, hide = true)]
    check_memo: bool,
    /// Where time stamps come from
    #[arg(long, value_enum, default_value = "coarse")]
    clock: Clock,
    /// Order of the sites
    #[arg(long, value_enum, default_value = "bytes")]
    sort: SortBy,
    /// Bytes of each thread's ring
    #[arg(long, value_parser = size, default_value = "1M")]
    ring_size: u64,
    /// What a thread does when its ring is full
    #[arg(long, value_enum, default_value = "wait")]
    on_full: OnFull,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    format: Format,
    /// Same as --format json
    #[arg(short, long)]
    json: bool,
    /// Only check whether the process can be traced
    #[arg(long)]
    dry_run: bool,
    /// No status lines
    #[arg(short, long)]
    quiet: bool,
}

/// `500ms`, `30s`, `10m`, `2h`; a bare number is seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let at = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let factor = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit {unit}: use ms, s, m or h")),
    };
    match number.parse::<f64>() {
        Ok(n) if n > 0.0 && n * factor < 1e9 => Ok(Duration::from_secs_f64(n * factor)),
        _ => Err("expected a positive duration like 500ms, 30s or 10m".into()),
    }
}

/// `100`, `4K`, `1M`, `2G`.
fn size(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number
        .parse::<u64>()
        .ok()
        .filter(|n| *n <= u64::MAX >> shift)
        .map(|n| n << shift)
        .ok_or_else(|| "expected a size like 100, 4K or 1M".into())
}

/// The ledger, and the time of the pass in ns since the attach.
struct ToLedger<'a>(&'a mut Ledger, u64);

impl Sink for ToLedger<'_> {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.0.begin_ring(ring, tid);
    }
    fn event(&mut self, event: Event, size_bytes: u64, time_ns: u64) {
        self.0.event(event, size_bytes, time_ns);
    }
    fn end_pass(&mut self) {
        self.0.end_pass(self.1);
    }
}

impl Args {
    fn is_filtered(&self) -> bool {
        self.min_size.is_some() || self.max_size.is_some() || !self.sizes.is_empty()
    }

    fn config(&self) -> anyhow::Result<Config> {
        let (min, max) = (
            self.min_size.unwrap_or(0),
            self.max_size.unwrap_or(u64::MAX),
        );
        if min > max {
            bail!("--min-size {min} is above --max-size {max}: no block can pass");
        }
        if self.sizes.len() > memhook_abi::MAX_EXACT_SIZES {
            bail!(
                "--size takes at most {} sizes",
                memhook_abi::MAX_EXACT_SIZES
            );
        }
        if !self.ring_size.is_power_of_two() || !(65_536..=1 << 26).contains(&self.ring_size) {
            bail!(
                "--ring-size {}: a power of two from 64K to 64M is needed",
                self.ring_size
            );
        }
        let filtered = self.is_filtered();
        Ok(Config {
            epoch: 1,
            ring_bytes: self.ring_size,
            depth: self.depth,
            clock_mode: match self.clock {
                Clock::Coarse => clock_mode::COARSE,
                Clock::Monotonic => clock_mode::MONOTONIC,
                Clock::Attacher => clock_mode::ATTACHER,
            },
            flags: if filtered { flags::SIZE_FILTER } else { 0 }
                | match self.unwind {
                    Unwind::Table => 0,
                    Unwind::Fp => flags::FRAME_POINTERS,
                    Unwind::Glibc => flags::LIBC_BACKTRACE,
                }
                | if self.check_memo {
                    flags::CHECK_MEMO
                } else {
                    0
                }
                | if self.on_full == OnFull::Drop {
                    flags::DROP_WHEN_FULL
                } else {
                    0
                },
            min_size: min,
            max_size: max,
            exact_sizes: self.sizes.clone(),
            vdso_clock: 0,
            libc_backtrace: 0,
            sample_bytes: 0,
            attacher_pid: std::process::id(),
        })
    }
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pid = args.pid.or(args.pid_option).unwrap_or(0);
    let config = args.config()?;
    let functions = session::selected_functions(&args.functions)?;
    if let Some(why) = memhook_process::first_failure(&memhook_process::preflight(pid)) {
        bail!("{why}");
    }
    if args.dry_run {
        return crate::doctor::run(pid);
    }
    signals::install();
    let session = Session::start(pid, config, functions)?;
    if !args.quiet {
        let (slots, modules) = session.patched();
        let exe = session.modules.first().map_or("", |m| m.name());
        eprintln!(
            "Attached to {pid} ({exe}) in {:.1} ms (one thread held {:.1} ms): {slots} slots in {modules} modules. Ctrl-C to detach",
            session.attach_time.as_secs_f64() * 1e3,
            session.held_time.as_secs_f64() * 1e3,
        );
    }
    trace(args, pid, session)
}

fn alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|s| !s[s.rfind(')').unwrap_or(0)..].starts_with(") Z"))
}

/// Consumes until the end is asked for or the target is gone, then detaches and reports.
fn trace(args: &Args, pid: i32, mut session: Session) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let mut ledger = Ledger::new(LedgerOptions {
        track_release_stacks: false,
        ignore_unknown_releases: args.is_filtered(),
    });
    let mut drain = Drain::new();
    let mut owners = RingOwners::new(pid);
    let mut pacing = Pacing::default();
    let mut answered = 0;
    let mut next_report = start + args.interval;
    let mut next_care = start;
    let mut verified = false;
    let mut gone = false;
    let mut reporter = model::Reporter::new(
        pid,
        model::View {
            top: args.top,
            sort: args.sort,
            older: args.older,
        },
    );
    loop {
        let now = start.elapsed();
        session.region().set_clock_ns(now.as_nanos() as u64 + 1);
        let stats = drain.pass(
            session.region(),
            &mut ToLedger(&mut ledger, now.as_nanos() as u64),
        );
        if session.follow_modules(&mut answered).is_err() {
            gone = !alive(pid);
        }
        owners.care(session.region());
        if start + now >= next_care {
            next_care = start + now + Duration::from_millis(100);
            gone = gone || !alive(pid);
            if !verified && now > Duration::from_millis(100) {
                verified = true;
                let _ = session.verify_slots();
            }
        }
        let over = args.duration.is_some_and(|d| now >= d);
        if gone || over || signals::stop_requested() {
            break;
        }
        if start + now >= next_report {
            next_report += args.interval;
            let report = model::build(&mut reporter, &session, &ledger, now, false);
            print(args, &report);
        }
        pacing.sleep(stats.events);
    }
    let mut code = 0;
    if !gone {
        match session.detach() {
            Ok(0) => {}
            Ok(left) => {
                eprintln!("memhook-rs: {left} slots of process {pid} could not be restored");
                code = 3;
            }
            Err(_) if !alive(pid) => {}
            Err(error) => {
                eprintln!("memhook-rs: {error:#}; run: memhook-rs detach {pid}");
                code = 3;
            }
        }
    }
    // Calls that were under way at the detach publish within moments.
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(1));
        let now_ns = start.elapsed().as_nanos() as u64;
        drain.pass(session.region(), &mut ToLedger(&mut ledger, now_ns));
    }
    ledger.finish();
    if args.check_memo {
        let losses = session.region().losses();
        eprintln!(
            "{} remembered backtraces checked, {} wrong; {} unwound",
            losses.memo_checked, losses.memo_wrong, losses.unwound
        );
        code = if losses.memo_wrong > 0 { 3 } else { code };
    }
    let elapsed = start.elapsed();
    let report = model::build(&mut reporter, &session, &ledger, elapsed, true);
    print(args, &report);
    Ok(ExitCode::from(code))
}

fn print(args: &Args, report: &memhook_report::ReportModel) {
    let mut out = std::io::stdout().lock();
    // A reader that went away must not keep us from detaching.
    let _ = if args.json || args.format == Format::Json {
        writeln!(out, "{}", memhook_report::json(report))
    } else {
        writeln!(out, "{}", memhook_report::text(report))
    };
    let _ = out.flush();
}
