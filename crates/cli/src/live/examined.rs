//! Part of `advise`: records a running process, or replays a recorded run.

use super::advice::{Args, WhatIfArgs, advice};
use super::copy_limits::{CopyLimits, words_of_a_search};
use super::ending;
use super::signals::{self, NameWait};
use super::trim::trim;
use crate::exit_code;
use crate::report::open;
use anyhow::{Context, bail};
use memhook_advice::{Advice, Tried};
use memhook_attach::{End, gap_said};
use memhook_checkup::{Attendant, Examination, Examined, MemoryLooks, examine, usual_tracing};
use memhook_heap::Limits;
use memhook_process::TargetRoot;
use memhook_recording::Options;
use memhook_report::Progress;
use memhook_symbols::SearchPath;
use memhook_whatif::{Comparison, WhatIf};
use std::cell::OnceCell;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Examines a process, and tries a remedy if requested. Also returns the exit code of the trace.
pub(super) fn advise(args: &Args, pid: i32) -> anyhow::Result<(Advice, u8)> {
    if args.until_sure.is_some_and(|most| most < args.duration) {
        bail!("--until-sure is the time of all looks, and the first one alone takes longer (-d)");
    }
    let (mut advice, code) = looks(args, pid)?;
    if args.tries {
        advice.tried = tried(&advice, pid, args.limits());
    }
    Ok((advice, code))
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

/// Records a process for a time, like `attach --leaks --rss=pins`. Without an overhead budget, every call is recorded,
/// and the process's memory is not searched.
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

/// Replays a recording. Without a recording, records a process now and replays that.
pub(super) fn what_if(args: &Args) -> anyhow::Result<ExitCode> {
    let output = &args.output;
    if let Some(path) = args.target.recording() {
        let comparison = compared(&args.what_if, path);
        let comparison = comparison.with_context(|| path.display().to_string())?;
        output.write(&comparison, || comparison.page())?;
        return Ok(ExitCode::SUCCESS);
    }
    let pid = args.target.pid()?;
    let examined = examined(pid, args, args.duration, None, "recording the process")?;
    let code = judged(&examined, pid);
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
    let replay = || memhook_whatif::what_if(&recording, &wanted);
    let what = "replaying the run under several allocators";
    Ok(Progress::during(what, replay)?)
}
