//! `diff`: changes from one run to another.

mod snapshots;

use crate::exit_code;
use crate::output::Json;
use crate::report::{self, BlockArgs, OutputArgs, sources};
use crate::scores;
use anyhow::Context;
use memhook_foreign::check_output;
use memhook_recording::ScoreOptions;
use memhook_report::recorded::{self, Contents, Window, add_types};
use memhook_report::{FailOn, Measure, Profile};
use std::{
    io::Read,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Options of `diff`.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// The older run: a recording, or a JSON report of all sites
    ///
    /// Or compare two snapshots of one process (scan --save): new blocks, their types, and what retains them.
    old: PathBuf,
    /// The newer run
    new: PathBuf,
    /// What to compare: live, peak, ... [default: live]
    ///
    /// One of live, peak, allocated, released and temporary. With --scores, the default is allocated.
    #[arg(long, value_name = "WHAT", value_parser = report::parse::<Measure>)]
    measure: Option<Measure>,
    /// Rows by site or by type
    ///
    /// The type of a block is known as far as its call stack reveals it. Only recordings have types.
    #[arg(long, value_enum, value_name = "ROWS", default_value = "site")]
    by: DiffBy,
    /// Number of rows to show
    #[arg(
        short = 'T',
        long,
        value_name = "N",
        default_value_t = 10,
        allow_negative_numbers = true
    )]
    top: usize,
    /// End with code 1 if more has grown: 'growth > 5%'
    ///
    /// Or 'allocated > 10M', 'site growth > 1M', 'count > 100'. An estimate counts only if it exceeds the limit by
    /// two standard errors.
    #[arg(long, value_name = "EXPRESSION", value_parser = report::parse::<FailOn>)]
    fail_on: Option<FailOn>,
    #[command(flatten)]
    json: Json,
    #[command(flatten)]
    shown: BlockArgs,
    #[command(flatten)]
    scores: scores::Args,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    sources: sources::Args,
}

/// Kind of rows of a comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum DiffBy {
    /// The call stack of an allocation
    Site,
    /// The type of a block, as far as its call stack reveals it
    Type,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (output, inputs) = (&args.output, [&args.old, &args.new]);
    check_output(&output.output, output.force, inputs)?;
    match [&args.old, &args.new].map(|path| snapshots::is_snapshot(path)) {
        [true, true] => return snapshots::compare(args),
        [false, false] => {}
        [old_is, _] => {
            let (one, other) = if old_is {
                (&args.old, &args.new)
            } else {
                (&args.new, &args.old)
            };
            anyhow::bail!(
                "{} is a snapshot, and {} is not: compare two snapshots (scan --save), or two runs",
                one.display(),
                other.display()
            );
        }
    }
    let measure = measure(args);
    let other = args.fail_on.as_ref().and_then(FailOn::measure);
    if let Some(other) = other.filter(|other| *other != measure) {
        anyhow::bail!(
            "--fail-on is about what is {0}, the comparison about what is {1}: add --measure {0}",
            other.name(),
            measure.name()
        );
    }
    if args.by == DiffBy::Type && args.scores.are_wanted() {
        anyhow::bail!("--scores is about sites: leave --by out");
    }
    let (old, code_of_old) = load(args, &args.old)?;
    let (new, code_of_new) = load(args, &args.new)?;
    if args.shown.option().is_some() && old.sites.is_empty() && new.sites.is_empty() {
        return Err(args.shown.refuse(&args.new));
    }
    let done = ExitCode::from(code_of_old.max(code_of_new));
    let compare = match args.by {
        DiffBy::Site => memhook_report::diff,
        DiffBy::Type => memhook_report::diff_by_type,
    };
    let diff = compare(&old, &new, measure, args.top);
    args.output.write_document(&diff, args.json.json)?;
    let Some(fail_on) = &args.fail_on else {
        return Ok(done);
    };
    if let Some(violation) =
        fail_on.violation(&memhook_report::diff(&old, &new, measure, usize::MAX))
    {
        eprintln!("memhook-rs: {violation}");
        return Ok(ExitCode::from(exit_code::LIMIT_EXCEEDED));
    }
    if [&old, &new].iter().any(|run| !run.gaps.is_empty()) {
        eprintln!("memhook-rs: no verdict: at times nothing was seen of a run");
        return Ok(ExitCode::from(exit_code::NO_VERDICT));
    }
    Ok(done)
}

fn measure(args: &Args) -> Measure {
    let usual = if args.scores.are_wanted() {
        Measure::Allocated
    } else {
        Measure::Live
    };
    args.measure.unwrap_or(usual)
}

/// Loads a run. Also returns the exit code to use if everything else succeeds.
fn load(args: &Args, path: &Path) -> anyhow::Result<(Profile, u8)> {
    let measure = measure(args);
    if is_json(path) {
        let text =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let profile = memhook_report::read_back(&text, measure);
        let profile = profile.with_context(|| path.display().to_string())?;
        let of_types = (args.by == DiffBy::Type).then_some("--by type");
        if let Some(option) = args.shown.option().or(of_types) {
            let lacks = match option {
                "--focus" => "call stacks but those of its rows",
                _ => "types of blocks",
            };
            anyhow::bail!(
                "{option}: {} is a report, which has no {lacks}; compare recordings",
                path.display()
            );
        }
        if !args.scores.formulas()?.is_empty() {
            anyhow::bail!(
                "--scores: {} is a report, which has no more than its own scores; compare recordings",
                path.display()
            );
        }
        if args.scores.are_wanted() && profile.scores.is_none() {
            anyhow::bail!(
                "{}: the report has no scores: make it with report --scores --json",
                path.display()
            );
        }
        return Ok((profile, exit_code::DONE));
    }
    let recording = report::open(path)?;
    if recording.is_summary() && measure == Measure::Temporary {
        anyhow::bail!(
            "{} holds sums of intervals, which do not show temporary allocations",
            path.display()
        );
    }
    if measure == Measure::Unreachable {
        let checked = recorded::check_unreachable(&recording);
        checked.with_context(|| format!("--measure unreachable: {}", path.display()))?;
    }
    if args.scores.are_wanted() {
        let checked = recording.check_scores();
        checked.with_context(|| format!("--scores: {}", path.display()))?;
    }
    // If scores are available, they belong to the comparison.
    let scores = args.scores.options();
    let scores = scores.or_else(|| {
        recording
            .check_scores()
            .ok()
            .map(|()| ScoreOptions::default())
    });
    let window = Window::default();
    let (mut profile, symbols) = report::read(
        &recording,
        path,
        &args.sources,
        window,
        Contents::scored(scores),
    )?;
    let added = args.scores.add_to(&mut profile);
    added.with_context(|| path.display().to_string())?;
    if args.by == DiffBy::Type {
        add_types(&mut profile, &symbols);
    }
    args.shown.apply(&mut profile, &symbols);
    Ok((profile, report::code_of(&recording)))
}

/// Returns true if a file begins like a JSON report. A recording begins with a byte that no text contains.
fn is_json(path: &Path) -> bool {
    let is_regular = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let mut first = [0];
    is_regular
        && std::fs::File::open(path).is_ok_and(|mut file| file.read_exact(&mut first).is_ok())
        && first == *b"{"
}
