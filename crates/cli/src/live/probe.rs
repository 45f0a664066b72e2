//! `probe`: counts the calls of functions of a running process.

use super::signals::{self, NameWait};
use crate::exit_code;
use crate::options::format;
use crate::report::OutputArgs;
use crate::target::Target;
use memhook_abi::PROBE_ARGUMENTS;
use memhook_attach::{
    EventOptions, PadPreview, PlannedFunction, ProbeOptions, ProbePlan, Probes, RefusedFunction,
    plan_probes, preview_probes,
};
use memhook_foreign::units;
use memhook_heap::module_file;
use memhook_probe::{Condition, FunctionSelector, Histogram, MOST_CONDITIONS, ValueClass, Values};
use memhook_process::{TargetRoot, process_name};
use memhook_report::{
    ArgumentClass, ArgumentRow, ArgumentValue, CountedStack, Format, FormatChoice, FormatOptions,
    NamedStacks, ProbeLatency, ProbePlanReport, ProbePlanRow, ProbeReport, ProbeRow, ProbeStacks,
    ProbeThread, ProbedFunction, Profile, Progress, RefusedRow, StackRow, Target as ReportTarget,
    Unit,
};
use memhook_symbols::Symbolizer;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Options of `probe`.
#[derive(clap::Args, Clone)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Functions to probe, separated by commas
    ///
    /// A name is mangled or demangled, with or without its parameters. module!name and module+0xOFFSET (an address in
    /// the module's file) select functions of one module. Scopes may be left out if no function has the whole name. *
    /// and ? are wildcards, which probe all matching functions that can be probed.
    #[arg(long, value_name = "NAMES", required = true, num_args = 1)]
    func: Vec<String>,
    /// Measure how long calls take, too: p50, p99 and the longest
    ///
    /// This places a jump at every exit of a function. A function without space for a jump is refused. A call that ends
    /// with a jump to another function ends there. Calls that end by an exception or a longjmp, or that switch to
    /// another stack, are not measured, and neither is the first call of a thread. At most 256 functions.
    #[arg(long)]
    latency: bool,
    /// Count only calls whose arguments meet this: 'arg2 > 4096'
    ///
    /// arg1 to arg6 are the first six integer or pointer arguments, compared as signed numbers of 64
    /// bits by ==, !=, <, <=, > or >=. && combines several.
    #[arg(long = "if", value_name = "CONDITION", value_parser = conditions)]
    conditions: Option<Conditions>,
    /// Count the values of these arguments: 1,2
    ///
    /// 1 to 6 are the first six integer or pointer arguments. Shows the lowest and the highest value, the most frequent
    /// values, and a histogram of their numbers of bits. A thread counts 256 values individually; beyond that, the
    /// rarest values are grouped as "others". At most 256 functions.
    #[arg(long = "args", value_name = "LIST", value_parser = arguments)]
    arguments: Option<Arguments>,
    /// Count the call stacks of the callers
    ///
    /// Unwind tables that are compiled beforehand find them in the process, as for allocations. At most 256
    /// functions.
    #[arg(long)]
    stack: bool,
    /// Frames of a call stack
    #[arg(long, value_name = "N", requires = "stack", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=128))]
    depth: u32,
    /// Detach after this time [default: when the process ends]
    #[arg(short, long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// Show what would be written, and touch nothing
    #[arg(long, conflicts_with = "duration")]
    dry_run: bool,
    /// Format: text, folded or flamegraph
    ///
    /// folded and flamegraph are the call stacks of --stack, with the probed function innermost.
    #[arg(short, long, value_parser = format, default_value = "text")]
    format: FormatChoice,
    /// Write JSON
    #[arg(short, long, conflicts_with = "format")]
    json: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Conditions on counted calls.
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

/// The arguments whose values are counted.
#[derive(Clone)]
struct Arguments(Vec<usize>);

fn arguments(text: &str) -> Result<Arguments, String> {
    let mut list = Vec::new();
    for part in text.split(',') {
        let number = part.trim().strip_prefix("arg").unwrap_or(part.trim());
        let number: usize = number
            .parse()
            .map_err(|_| format!("'{part}' is not an argument: expected numbers like 1,2"))?;
        if !(1..=PROBE_ARGUMENTS).contains(&number) {
            return Err(format!(
                "argument {number} is not in a register: only 1 to {PROBE_ARGUMENTS} can be counted"
            ));
        }
        if !list.contains(&(number - 1)) {
            list.push(number - 1);
        }
    }
    Ok(Arguments(list))
}

impl Args {
    fn is_json(&self) -> bool {
        self.json || matches!(self.format, FormatChoice::Json)
    }

    /// Returns the format of call stacks, if the user asked for one.
    fn stack_format(&self) -> anyhow::Result<Option<&'static dyn Format<Profile>>> {
        let FormatChoice::Export(format) = self.format else {
            return Ok(None);
        };
        let name = format.name();
        if !["folded", "flamegraph"].contains(&name) {
            anyhow::bail!("probe writes text, json, folded or flamegraph, and not {name}");
        }
        if !self.stack || self.dry_run {
            anyhow::bail!("--format {name} is for call stacks: add --stack");
        }
        Ok(Some(format))
    }
}

/// Time between two searches of the counters for new threads.
const TURN: Duration = Duration::from_millis(20);

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stack_format = args.stack_format()?;
    let selectors = selectors(&args.func).map_err(anyhow::Error::msg)?;
    memhook_foreign::check_output(
        &args.output.output,
        args.output.force,
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
        events: EventOptions {
            arguments: args
                .arguments
                .clone()
                .map_or_else(Vec::new, |Arguments(list)| list),
            depth: args.stack.then_some(args.depth),
        },
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
    let stacks = named_stacks(&probes)?;
    match (stack_format, &stacks) {
        (Some(format), Some(stacks)) => write_stacks(args, format, &stacks.profile)?,
        _ => {
            let report = report(&probes, counted_for, stacks.as_ref())?;
            args.output.write_document(&report, args.is_json())?;
        }
    }
    match removed {
        Ok(0) => Ok(ExitCode::SUCCESS),
        Ok(left) => {
            eprintln!(
                "memhook-rs: {left} functions of process {pid} still lead to a pad, which counts each call and passes it on; run: memhook-rs detach {pid}"
            );
            Ok(ExitCode::from(exit_code::NOT_RESTORED))
        }
        Err(error) => {
            let error = crate::remedies::in_words(&error);
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

/// Length of one wait for names, after which signals are checked.
const NAMES_PAUSE: Duration = Duration::from_millis(50);

/// Returns the call stacks with names, if the user asked for them. A call with an unknown stack gets a stack without
/// callers.
fn named_stacks(probes: &Probes) -> anyhow::Result<Option<NamedStacks>> {
    if probes.events().depth.is_none() {
        return Ok(None);
    }
    let counts = probes.counts()?;
    let mut stacks = Vec::new();
    let mut unknown: Vec<u64> = counts.iter().map(|count| count.calls).collect();
    for ((probe, id), calls) in probes.stack_counts()?.calls {
        if let (Some((addresses, truncated)), Some(unknown)) =
            (probes.stack(id), unknown.get_mut(probe))
        {
            *unknown = unknown.saturating_sub(calls);
            stacks.push(CountedStack {
                probe,
                addresses,
                truncated,
                calls,
            });
        }
    }
    let unknown = unknown.into_iter().enumerate();
    stacks.extend(
        unknown
            .filter(|(_, calls)| *calls > 0)
            .map(|(probe, calls)| CountedStack {
                probe,
                calls,
                ..CountedStack::default()
            }),
    );
    let pid = probes.pid();
    let functions = probes.planned().map(|function| ProbedFunction {
        name: function.function.clone(),
        module: function.module.clone(),
        entry: function.base.wrapping_add(function.range.start),
    });
    let target = ReportTarget {
        pid,
        name: process_name(pid),
        exe: String::new(),
    };
    let symbols = Symbolizer::new(TargetRoot::of(pid).search_order());
    let mut named = ProbeStacks::begin(
        target,
        probes.depth(),
        functions.collect(),
        stacks,
        probes.modules().map(module_file).collect(),
        symbols,
    );
    let _progress = Progress::start("looking up names");
    let wait = NameWait::begin();
    Ok(loop {
        if let Some(found) = named.poll(NAMES_PAUSE) {
            break Some(found);
        }
        if wait.is_over() {
            break named.give_up_names();
        }
    })
}

fn write_stacks(
    args: &Args,
    format: &dyn Format<Profile>,
    profile: &Profile,
) -> anyhow::Result<()> {
    let options = FormatOptions {
        unit: Unit::Calls,
        style: args.output.style(),
        ..FormatOptions::default()
    };
    let mut bytes = Vec::new();
    format.write(profile, &options, &mut bytes)?;
    args.output.write(&bytes, format.nature())
}

/// Maximum number of reported values of an argument.
const TOP_VALUES: usize = 100;

fn argument_rows(arguments: &[usize], values: &[Values]) -> Vec<ArgumentRow> {
    let row = |(argument, values): (&usize, &Values)| {
        let (top, others) = values.top(TOP_VALUES);
        ArgumentRow {
            arg: argument + 1,
            calls: values.calls(),
            min: values.bounds().map(|(min, _)| min),
            max: values.bounds().map(|(_, max)| max),
            top: top
                .into_iter()
                .map(|(value, calls)| ArgumentValue { value, calls })
                .collect(),
            others,
            histogram: values
                .histogram()
                .into_iter()
                .map(|ValueClass { from, to, calls }| ArgumentClass { from, to, calls })
                .collect(),
        }
    };
    arguments.iter().zip(values).map(row).collect()
}

fn report(
    probes: &Probes,
    duration: Duration,
    stacks: Option<&NamedStacks>,
) -> anyhow::Result<ProbeReport> {
    let counts = probes.counts()?;
    let values = probes.values()?;
    let seconds = duration.as_secs_f64();
    let row = |(number, function): (usize, &PlannedFunction)| {
        let rows = stacks.map(|stacks| stacks.rows(number));
        let known = |rows: &Vec<StackRow>| {
            rows.iter()
                .fold(0u64, |sum, row| sum.saturating_add(row.calls))
        };
        ProbeRow {
            args: argument_rows(&probes.events().arguments, &values[number]),
            calls_without_stack: rows
                .as_ref()
                .map(|rows| counts[number].calls.saturating_sub(known(rows))),
            stacks: rows,
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
        }
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

/// Returns the latency of calls. `rate` is the number of ticks of the time stamp counter per millisecond.
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
    args.output.write_document(&document, args.is_json())?;
    Ok(ExitCode::SUCCESS)
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.join(" ")
}
