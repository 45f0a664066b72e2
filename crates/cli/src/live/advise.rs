//! `advise`: diagnoses a leak, fragmentation or retention, and names the remedies.

mod what_if;

use super::copy_limits::{CopyLimits, words_of_a_search};
use super::ending;
use super::read_only::ReadOnly;
use super::signals::{self, NameWait};
use super::trim::trim;
use crate::exit_code;
use crate::options::HoldLimit;
use crate::output::Json;
use crate::report::{self, open, sources};
use crate::target::Target;
use anyhow::{Context, bail};
use memhook_advice::{Advice, Tried};
use memhook_attach::{End, gap_said};
use memhook_checkup::{
    Attendant, Examination, Examined, MemoryLooks, advice_of, advice_of_look, examine,
    resident_now, usual_tracing,
};
use memhook_foreign::{check_output, units};
use memhook_heap::Limits;
use memhook_process::{TargetRoot, first_failure, preflight_of_search};
use memhook_recording::Options;
use memhook_report::{Document, Progress, recorded};
use memhook_symbols::SearchPath;
use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Options of `advise`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Examine it for this time
    #[arg(short, long, value_name = "TIME", value_parser = units::duration, default_value = "60s", conflicts_with = "read_only")]
    duration: Duration,
    /// If the answer is unsure, examine it again, up to this total time
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with = "read_only")]
    until_sure: Option<Duration>,
    /// Share of the process's time that tracing may take
    ///
    /// If recording everything would take more, memhook-rs samples allocations, and estimates the memory of sites.
    #[arg(long, value_name = "PERCENT", value_parser = units::budget, default_value = "2%", conflicts_with = "read_only")]
    overhead: f64,
    /// Try the remedy of the first finding, and report what it gave back
    ///
    /// Only a remedy that asks the allocator for its free memory is tried, as trim does.
    #[arg(long = "try", conflicts_with = "read_only")]
    tries: bool,
    #[command(flatten)]
    hold: HoldLimit,
    #[command(flatten)]
    read_only: ReadOnly,
    #[command(flatten)]
    sources: sources::Args,
    #[command(flatten)]
    what_if: what_if::WhatIfArgs,
    #[command(flatten)]
    output: PageOutput,
}

impl Args {
    fn limits(&self) -> CopyLimits {
        CopyLimits {
            hold: self.hold,
            max_memory: None,
        }
    }
}

/// Output of the answer.
#[derive(clap::Args)]
struct PageOutput {
    #[command(flatten)]
    json: Json,
    /// Also write the answer as a page to this file (HTML)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite the output file if it exists
    #[arg(long, requires = "output")]
    force: bool,
}

impl PageOutput {
    /// Checks the options before the work starts.
    fn check(&self, recording: Option<&Path>) -> anyhow::Result<()> {
        let output = self.output.as_deref();
        Ok(check_output(output, self.force, recording)?)
    }

    fn write(&self, document: &impl Document, page: impl FnOnce() -> String) -> anyhow::Result<()> {
        if let Some(path) = &self.output {
            report::write(Some(path), self.force, page().as_bytes())?;
        }
        self.json.print(document)
    }
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.output.check(args.target.recording())?;
    if args.what_if.is_wanted() {
        return what_if::run(args);
    }
    if let Some(file) = args.target.recording() {
        if args.read_only.read_only {
            bail!(
                "--read-only looks at a running process, and {} is a recording",
                file.display()
            );
        }
        if args.tries {
            bail!(
                "--try changes a running process, and {} is a recording",
                file.display()
            );
        }
        let advice = advice(args, file, None, Vec::new())?;
        args.output.write(&advice, || advice.page())?;
        return Ok(ExitCode::SUCCESS);
    }
    let pid = args.target.pid()?;
    if args.read_only.read_only {
        return only_look(args, pid);
    }
    if args.until_sure.is_some_and(|most| most < args.duration) {
        bail!("--until-sure is the time of all looks, and the first one alone takes longer (-d)");
    }
    let (mut advice, code) = looks(args, pid)?;
    if args.tries {
        advice.tried = tried(&advice, pid, args.limits());
    }
    args.output.write(&advice, || advice.page())?;
    Ok(ExitCode::from(code))
}

/// Examines a process. While the answer is unsure and time is left, examines the process again for longer. Returns the
/// last answer, and the exit code of its trace.
fn looks(args: &Args, pid: i32) -> anyhow::Result<(Advice, u8)> {
    let began = Instant::now();
    let mut last = look(args, pid, args.duration)?;
    while let (Some(most), Some(next), 0) = (args.until_sure, last.0.more_seconds, last.1) {
        let next = Duration::from_secs(next);
        if signals::stop_requested() || began.elapsed() + next > most {
            break;
        }
        last = match look(args, pid, next) {
            Ok(look) => look,
            Err(error) => {
                // The process may have ended since then. Earlier results still apply.
                eprintln!("memhook-rs: cannot observe it for longer: {error:#}");
                break;
            }
        };
    }
    Ok(last)
}

fn look(args: &Args, pid: i32, duration: Duration) -> anyhow::Result<(Advice, u8)> {
    // The process's own files, which are used without a build-id. They are also needed after it has ended.
    let root = TargetRoot::of(pid);
    let examined = examined(
        pid,
        args,
        duration,
        Some(args.overhead),
        "looking at the process",
    )?;
    let code = judged(&examined, pid);
    let running = matches!(examined.end, End::Detached(_)).then_some(pid);
    let roots = root.search_order();
    Ok((advice(args, &examined.path, running, roots)?, code))
}

/// Applies the remedy of the first finding, if that can be done from outside. Otherwise prints the reason.
fn tried(advice: &Advice, pid: i32, limits: CopyLimits) -> Option<Tried> {
    if !advice.can_be_tried() {
        eprintln!(
            "memhook-rs: nothing was tried: the first finding is not free memory of the allocator"
        );
        return None;
    }
    match trim(pid, limits, false) {
        Ok(done) => Some(Tried {
            call: done.call,
            predicted_bytes: done.predicted_bytes,
            given_back_bytes: done
                .rss_before_bytes
                .saturating_sub(done.rss_after_bytes.unwrap_or(done.rss_before_bytes)),
            held_ms: done.held_ms.unwrap_or(0.0),
        }),
        Err(error) => {
            eprintln!("memhook-rs: {error:#}");
            None
        }
    }
}

/// Gives advice without a trace.
fn only_look(args: &Args, pid: i32) -> anyhow::Result<ExitCode> {
    if let Some(why) = first_failure(&preflight_of_search(pid)) {
        bail!("{why}");
    }
    let limits = args.read_only.of(args.limits().usual());
    let work = || advice_of_look(pid, limits);
    let advice = Progress::during("looking at the memory", work)?;
    args.output.write(&advice, || advice.page())?;
    Ok(ExitCode::SUCCESS)
}

/// Gives advice from a recording. `running` is the recorded process, if it may still exist. `roots`
/// are the file systems that have its files, if they are known.
fn advice(
    args: &Args,
    file: &Path,
    running: Option<i32>,
    roots: Vec<PathBuf>,
) -> anyhow::Result<Advice> {
    let recording = open(file)?;
    if recording.is_summary() {
        bail!("the recording holds sums of intervals: advice needs events (--record events)");
    }
    let mut names = sources::name_sources(&args.sources)?;
    if names.sysroots.is_empty() {
        names.sysroots = roots;
    }
    let symbols = recorded::symbolizer(&recording, names);
    let limits = args.limits().usual();
    let resident = running.and_then(|pid| resident_now(pid, limits, &recording));
    let advice = advice_of(&recording, symbols, resident, running.is_some());
    advice.with_context(|| file.display().to_string())
}

/// Records a process for a time, like `attach --leaks --rss=pins`. Without an overhead, every call is recorded, and its
/// memory is not searched.
fn examined(
    pid: i32,
    args: &Args,
    duration: Duration,
    overhead: Option<f64>,
    what: &'static str,
) -> anyhow::Result<Examined> {
    let examination = Examination {
        duration,
        config: usual_tracing(overhead),
        files: None,
        looks: overhead.map(|_| MemoryLooks {
            search: args.hold.to_search(),
            walk: Limits::default(),
            words: words_of_a_search,
        }),
        recording: Options {
            overwrite: true,
            ..Options::default()
        },
        directory: std::env::temp_dir(),
        names: Some(SearchPath::default()),
    };
    signals::catch_stops();
    let mut attendant = AtTerminal::default();
    let work = || examine(pid, examination, &mut attendant);
    Ok(Progress::during(what, work)?)
}

/// Output of an examination for a user at a terminal.
#[derive(Default)]
struct AtTerminal {
    names: OnceCell<NameWait>,
}

impl Attendant for AtTerminal {
    fn gives_up_names(&self) -> bool {
        self.names.get_or_init(NameWait::begin).is_over()
    }

    fn notice(&mut self, text: &str) {
        eprintln!("memhook-rs: {text}");
    }
}

/// Reports errors of the trace, and returns the exit code for them.
fn judged(examined: &Examined, pid: i32) -> u8 {
    let mut code = ending::of_trace(&examined.end, pid);
    if let Some(gap) = examined.gaps.last() {
        code = code.max(exit_code::HAS_GAPS);
        if examined.is_abandoned {
            // This gap was still open when the trace ended. The other gaps were reported as they closed.
            eprintln!("memhook-rs: {}", gap_said(pid, *gap));
        }
    }
    match examined.is_complete {
        true => code,
        false => code.max(exit_code::BAD_INPUT),
    }
}
