//! `probe`: counts the calls of functions of a running process.

use super::signals;
use crate::report::OutputArgs;
use crate::target::Target;
use crate::{exit_code, options};
use memhook_attach::{
    PadPreview, PlannedFunction, ProbeOptions, ProbePlan, Probes, RefusedFunction, plan_probes,
    preview_probes,
};
use memhook_probe::{Condition, FunctionSelector, Histogram, MOST_CONDITIONS};
use memhook_report::{
    ProbeLatency, ProbePlanReport, ProbePlanRow, ProbeReport, ProbeRow, ProbeThread, RefusedRow,
};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Options of `probe`.
#[derive(clap::Args, Clone)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Functions to probe, separated by commas
    ///
    /// A name is mangled or demangled, with or without its parameters; module!name and
    /// module+0xOFFSET (an address in the module's file) say where it is. * and ? stand for any
    /// letters: then all functions are probed that match and can be probed.
    #[arg(long, value_name = "NAMES", required = true, num_args = 1)]
    func: Vec<String>,
    /// Count calls, in all and by thread; this is the default
    #[arg(long)]
    count: bool,
    /// Measure how long calls take, too: p50, p99 and the longest
    ///
    /// A jump is placed at every exit of a function for that; where there is no room for one, the
    /// function is refused. A call that ends with a jump to another function ends there. Calls that
    /// end by an exception or a longjmp are not measured, nor is the first call of a thread. At most
    /// 256 functions.
    #[arg(long)]
    latency: bool,
    /// Count only calls whose arguments meet this: 'arg2 > 4096'
    ///
    /// arg1 to arg6 are the first six integer or pointer arguments, compared as signed numbers of 64
    /// bits by ==, !=, <, <=, > or >=. && combines several.
    #[arg(long = "if", value_name = "CONDITION", value_parser = conditions)]
    conditions: Option<Conditions>,
    /// Detach after this time [default: when the process ends]
    #[arg(short, long, value_name = "TIME", value_parser = options::duration)]
    duration: Option<Duration>,
    /// Show what would be written, and touch nothing
    #[arg(long, conflicts_with = "duration")]
    dry_run: bool,
    /// Write JSON instead of text
    #[arg(short, long)]
    json: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// What calls must meet to be counted.
#[derive(Clone)]
struct Conditions(Vec<Condition>);

fn conditions(text: &str) -> Result<Conditions, String> {
    let list = Condition::list(text)?;
    if list.len() > MOST_CONDITIONS {
        return Err(format!(
            "at most {MOST_CONDITIONS} comparisons can be combined"
        ));
    }
    Ok(Conditions(list))
}

/// How often the counters are looked at for threads that are new.
const TURN: Duration = Duration::from_millis(20);

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let selectors = selectors(&args.func).map_err(anyhow::Error::msg)?;
    memhook_foreign::check_output(
        &args.output.output,
        std::iter::empty::<&std::path::PathBuf>(),
    )?;
    let pid = args.target.pid()?;
    if let Some(why) = memhook_process::first_failure(&memhook_process::preflight(pid)) {
        anyhow::bail!("{why}");
    }
    let conditions = args.conditions.clone();
    let options = ProbeOptions {
        conditions: conditions.map_or_else(Vec::new, |Conditions(list)| list),
        has_latency: args.latency,
    };
    let plan = plan_probes(pid, &selectors, &options)?;
    if args.dry_run {
        return dry_run(args, plan);
    }
    if let (true, Some(first)) = (plan.functions.is_empty(), plan.refused.first()) {
        anyhow::bail!("{}", refusal(first));
    }
    signals::catch_stops();
    let mut probes = Probes::place(plan)?;
    let begin = Instant::now();
    eprintln!(
        "Probing {} of {pid} (placed in {:.1} ms, all threads held {:.1} ms); {} refused. Ctrl-C to detach",
        memhook_report::counted(probes.functions().count() as u64, "function"),
        milliseconds(probes.placed_in()),
        milliseconds(probes.held()),
        probes.refused().len()
    );
    let is_over = || {
        args.duration
            .is_some_and(|duration| begin.elapsed() >= duration)
    };
    while !is_over() && !signals::stop_requested() && probes.is_in_place() {
        let left = args
            .duration
            .map_or(TURN, |duration| duration.saturating_sub(begin.elapsed()));
        std::thread::sleep(TURN.min(left));
        probes.follow_threads();
    }
    let counted_for = begin.elapsed();
    let removed = probes.remove();
    let report = report(&probes, counted_for)?;
    args.output.write_document(&report, args.json)?;
    match removed {
        Ok(0) => Ok(ExitCode::SUCCESS),
        Ok(left) => {
            eprintln!(
                "memhook-rs: {left} functions of process {pid} still lead to a pad, which counts and passes on; run: memhook-rs detach {pid}"
            );
            Ok(ExitCode::from(exit_code::NOT_RESTORED))
        }
        Err(error) => {
            let error = crate::printing::chain(&error);
            eprintln!("memhook-rs: {error}; run: memhook-rs detach {pid}");
            Ok(ExitCode::from(exit_code::NOT_RESTORED))
        }
    }
}

fn selectors(texts: &[String]) -> Result<Vec<FunctionSelector>, String> {
    let lists = texts.iter().map(|text| FunctionSelector::list(text));
    Ok(lists
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .flatten()
        .collect())
}

fn refusal(refused: &RefusedFunction) -> String {
    format!(
        "cannot probe {} of {}: {}",
        refused.function, refused.module, refused.why
    )
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn refused_rows(refused: &[RefusedFunction]) -> Vec<RefusedRow> {
    let row = |refused: &RefusedFunction| RefusedRow {
        function: refused.function.clone(),
        module: refused.module.clone(),
        why: refused.why.clone(),
    };
    refused.iter().map(row).collect()
}

fn report(probes: &Probes, duration: Duration) -> anyhow::Result<ProbeReport> {
    let counts = probes.counts()?;
    let seconds = duration.as_secs_f64();
    let row = |(number, function): (usize, &PlannedFunction)| ProbeRow {
        function: function.function.clone(),
        module: function.module.clone(),
        calls: counts[number].calls,
        rate_per_s: counts[number].calls as f64 / seconds,
        latency_ns: probes
            .has_latency()
            .then(|| latency(&counts[number].latency, probes.clock_rate())),
        threads: counts[number]
            .threads
            .iter()
            .map(|thread| ProbeThread {
                tid: thread.tid,
                name: thread.name.clone(),
                calls: thread.calls,
            })
            .collect(),
    };
    let mut report = ProbeReport {
        schema: ProbeReport::SCHEMA,
        is_final: true,
        pid: probes.pid(),
        duration_s: seconds,
        placed_ms: milliseconds(probes.placed_in()),
        held_ms: milliseconds(probes.held()),
        probes: probes.functions().map(row).collect(),
        refused: refused_rows(probes.refused()),
    };
    report.sort();
    Ok(report)
}

/// `rate`: counts of the time-stamp counter in a millisecond.
fn latency(histogram: &Histogram, rate: u64) -> ProbeLatency {
    let nanoseconds = |counts: u64| {
        let exact = u128::from(counts) * 1_000_000 / u128::from(rate.max(1));
        u64::try_from(exact).unwrap_or(u64::MAX)
    };
    ProbeLatency {
        calls: histogram.calls(),
        p50: nanoseconds(histogram.quantile(500)),
        p99: nanoseconds(histogram.quantile(990)),
        max: nanoseconds(histogram.longest()),
    }
}

fn dry_run(args: &Args, plan: ProbePlan) -> anyhow::Result<ExitCode> {
    let preview = preview_probes(plan)?;
    let row = |pad: &PadPreview| ProbePlanRow {
        function: pad.function.function.clone(),
        module: pad.function.module.clone(),
        address: format!("{:#x}", pad.pad.from),
        bytes: hex(&pad.pad.original),
        jump: hex(&pad.pad.jump),
        displaced: pad.pad.displaced.clone(),
        pad_address: format!("{:#x}", pad.pad.at),
        pad: hex(&pad.pad.code),
        pad_assembly: pad.pad.assembly(),
    };
    let document = ProbePlanReport {
        schema: ProbePlanReport::SCHEMA,
        pid: preview.pid,
        probes: preview.pads.iter().map(row).collect(),
        refused: refused_rows(&preview.refused),
    };
    args.output.write_document(&document, args.json)?;
    Ok(ExitCode::SUCCESS)
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.join(" ")
}
