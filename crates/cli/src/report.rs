//! `report`: the contents of a recording, in many forms.

pub mod follow;
pub mod sources;
mod target;

pub use target::{BlockArgs, OutputArgs, code_of, open, presentable, read, write};

use crate::options::{Moment, Order, OrderParser, Quiet, format, moment, rows};
use crate::scores;
use anyhow::{Context, bail};
use memhook_foreign::check_output;
use memhook_foreign::units;
use memhook_recording::{Recording, ScoreOptions};
use memhook_report::formats::Html;
use memhook_report::recorded::{self, Contents, Selection, Window};
use memhook_report::{
    Format, FormatChoice, FormatOptions, Measure, Nature, Profile, RESERVED_NAMES, Root, RowsBy,
    SortBy, Unit,
};
use std::{io::IsTerminal, path::PathBuf, process::ExitCode, time::Duration};

/// Options of `report`.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// The recording (attach -o FILE.mhk); - is standard input
    file: PathBuf,
    /// What to count: live, peak, ... [default: live]
    ///
    /// One of live, peak, allocated, released, temporary and unreachable. With --scores, the default is allocated. peak
    /// is the live memory when the heap was largest. temporary counts blocks that a thread released before its next
    /// allocation. unreachable counts blocks that nothing pointed to at the end (attach --leaks).
    #[arg(long, value_name = "WHAT", value_parser = parse::<Measure>)]
    measure: Option<Measure>,
    /// Rows by site, function, thread, ...
    #[arg(long, value_name = "ROWS", value_parser = rows(false), default_value = "site")]
    by: RowsBy,
    /// Sort by bytes, count, age, growth, time, score
    ///
    /// By score (with --scores), the worst sites come first. By the name of your own score, the largest values come
    /// first, and sites without a value last.
    #[arg(long, value_name = "ORDER", value_parser = OrderParser, default_value = "bytes")]
    sort: Order,
    /// Number of rows
    #[arg(
        short = 'T',
        long,
        value_name = "N",
        default_value_t = 10,
        allow_negative_numbers = true
    )]
    top: usize,
    /// Show who releases what others allocated
    ///
    /// The recording must have the call stacks of releases (attach --stacks all).
    #[arg(long, conflicts_with_all = ["tree", "scores"])]
    who_frees: bool,
    /// Show a tree of calls: top-down or bottom-up
    ///
    /// Names are shortened so that lines fit the terminal, or 160 columns in a file or a pipe. With -v, names are
    /// complete.
    #[arg(long, value_enum, value_name = "DIRECTION", conflicts_with = "scores")]
    tree: Option<Direction>,
    /// Count blocks instead of bytes
    ///
    /// In trees, and in formats that have a single value.
    #[arg(long)]
    blocks: bool,
    /// Format: text, flamegraph, pprof, ...
    ///
    /// The formats are text and formats of other programs: folded, flamegraph, pprof, heaptrack, speedscope, massif and
    /// html.
    #[arg(short, long, value_parser = format, default_value = "text")]
    format: FormatChoice,
    /// Write JSON
    #[arg(short, long, conflicts_with = "format")]
    json: bool,
    /// Follow a recording that is still being written
    ///
    /// The file may also be read from a pipe (attach -o -). A report is printed after each interval, and the last
    /// report when the recording has ended.
    #[arg(long, conflicts_with_all = ["tree", "who_frees", "scores", "output"])]
    follow: bool,
    /// Time between the reports of --follow
    #[arg(short, long, value_name = "TIME", value_parser = units::duration, default_value = "5s")]
    interval: Duration,
    #[command(flatten)]
    quiet: Quiet,
    #[command(flatten)]
    shown: BlockArgs,
    #[command(flatten)]
    scores: scores::Args,
    #[command(flatten)]
    window: WindowArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    sources: sources::Args,
}

/// Options that choose a part of the run.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
#[command(next_help_heading = "Time")]
pub struct WindowArgs {
    /// Start at this time after the attach (30s), or at a mark
    ///
    /// A mark was set by memhook-rs mark; its first occurrence counts. mark:NAME is a mark whose name looks like a
    /// time.
    #[arg(long, value_name = "TIME|MARK", value_parser = moment)]
    from: Option<Moment>,
    /// End at this time or mark, and show what was live then
    #[arg(long, value_name = "TIME|MARK", value_parser = moment)]
    to: Option<Moment>,
}

impl WindowArgs {
    /// Returns the window in nanoseconds. Refuses a moment that the recording does not have.
    pub fn window(&self, recording: &Recording) -> anyhow::Result<Window> {
        let end = Duration::from_nanos(recording.span_ns().1);
        if let Some(Moment::After(to)) = self.to.as_ref()
            && *to > end
        {
            bail!("--to {to:?}: the recording ends {end:.1?} after the attach");
        }
        let ns = |option: &str, moment: &Moment, from_ns: u64| match moment {
            Moment::After(time) => Ok(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
            Moment::Mark(name) => mark(recording, option, name, from_ns),
        };
        let from = self.from.as_ref().map(|moment| ns("--from", moment, 0));
        let from_ns = from.transpose()?;
        let to = self.to.as_ref();
        let to_ns = to.map(|moment| ns("--to", moment, from_ns.unwrap_or(0)));
        Ok(Window {
            from_ns,
            to_ns: to_ns.transpose()?,
        })
    }
}

/// Returns the time of the first mark with this name from a moment on, in nanoseconds since the
/// attach.
fn mark(recording: &Recording, option: &str, name: &str, from_ns: u64) -> anyhow::Result<u64> {
    let marks = recording.marks();
    let named = marks.iter().filter(|mark| mark.name == name);
    let mut at = named.map(|mark| mark.time_ns);
    if let Some(time_ns) = at.clone().find(|&time_ns| time_ns >= from_ns) {
        return Ok(time_ns);
    }
    if let Some(time_ns) = at.next() {
        let before = Duration::from_nanos(from_ns - time_ns);
        bail!("{option} {name:?}: this mark was set {before:.1?} before the window begins");
    }
    let known: Vec<String> = marks
        .iter()
        .take(10)
        .map(|m| format!("{:?}", m.name))
        .collect();
    match known.as_slice() {
        [] => bail!(
            "{option} {name:?} is not a time since the attach, such as 30s, and the recording has no marks"
        ),
        _ => bail!(
            "{option} {name:?} is neither a time since the attach, such as 30s, nor one of the recording's marks: {}",
            known.join(", ")
        ),
    }
}

/// Direction of a tree.
#[derive(Clone, Copy, PartialEq, Debug, clap::ValueEnum)]
enum Direction {
    /// From the outermost functions down: what they call
    TopDown,
    /// From the functions that allocate up: what called them
    BottomUp,
}

/// Parses a value that has words in the library.
pub fn parse<T: std::str::FromStr<Err = String>>(word: &str) -> Result<T, String> {
    word.parse()
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.quiet.begin();
    if args.follow {
        return print_following(args);
    }
    let file = &args.file;
    check_output(&args.output.output, args.output.force, [file])?;
    let recording = open(file)?;
    check(args, &recording)?;
    let format = if args.json {
        FormatChoice::Json
    } else {
        args.format
    };
    let is_binary = format.nature() == Nature::Binary;
    if is_binary && args.output.output.is_none() && std::io::stdout().is_terminal() {
        bail!("this format is not for a terminal: add -o FILE");
    }
    let window = args.window.window(&recording)?;
    let contents = match format {
        FormatChoice::Export(format) => page_contents(format, &recording),
        _ => Contents::scored(args.scores.options()),
    };
    let (mut profile, symbols) = read(&recording, file, &args.sources, window, contents)?;
    let is_page = matches!(format, FormatChoice::Export(format) if format.name() == Html.name());
    args.scores.add_to(&mut profile)?;
    if is_page {
        recorded::add_types(&mut profile, &symbols);
    }
    if !args.shown.apply(&mut profile, &symbols) {
        return Err(args.shown.refuse(file));
    }
    if let FormatChoice::Export(format) = format {
        export(args, &profile, format)?;
        return Ok(ExitCode::from(code_of(&recording)));
    }
    let as_json = matches!(format, FormatChoice::Json);
    if let Some(direction) = args.tree {
        let root = match direction {
            Direction::TopDown => Root::Outermost,
            Direction::BottomUp => Root::Innermost,
        };
        let tree = memhook_report::tree(&profile, root, measure(args), unit(args));
        args.output.write_document(&tree, as_json)?;
    } else if args.who_frees {
        let pairs = memhook_report::who_frees(&profile, args.top);
        args.output.write_document(&pairs, as_json)?;
    } else {
        let report = recorded::report(&recording, &symbols, &profile, &selection(args, as_json)?);
        let report = report.context("the recorder's note on what it saw cannot be read")?;
        args.output.write_document(&report, as_json)?;
    }
    Ok(ExitCode::from(code_of(&recording)))
}

/// Prints reports of the recording so far, for as long as it grows.
fn print_following(args: &Args) -> anyhow::Result<ExitCode> {
    let as_json = args.json || matches!(args.format, FormatChoice::Json);
    if !as_json && !matches!(args.format, FormatChoice::Text) {
        bail!("--follow prints reports as text or JSON: leave -f out");
    }
    follow::follow(&args.file, args.interval, &mut |recording| {
        let recording = &*recording;
        check(args, recording)?;
        let mut symbols = sources::symbolizer(recording, &args.sources)?;
        // No data exists about a moment in the future.
        let Ok(window) = args.window.window(recording) else {
            return Ok(());
        };
        let mut profile = recorded::profile(recording, &mut symbols, window, Contents::default())?;
        // The named blocks may appear later.
        args.shown.apply(&mut profile, &symbols);
        let report = recorded::report(recording, &symbols, &profile, &selection(args, as_json)?);
        let report = report.context("the recorder's note on what it saw cannot be read")?;
        args.output.write_document(&report, as_json)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &Args) -> Measure {
    let usual = if args.scores.are_wanted() {
        // Sites with bad scores often have no live blocks.
        Measure::Allocated
    } else {
        Measure::Live
    };
    args.measure.unwrap_or(usual)
}

/// Returns the contents of an exported profile other than its sites. A page has scores and
/// addresses if possible, and other formats have no place for them.
pub fn page_contents(format: &dyn Format<Profile>, recording: &Recording) -> Contents {
    let is_page = format.name() == Html.name();
    let has_scores = is_page && recording.check_scores().is_ok();
    Contents {
        scores: has_scores.then(ScoreOptions::of_pictures),
        addresses: is_page && !recording.is_summary(),
    }
}

/// Refuses options that this recording cannot serve.
fn check(args: &Args, recording: &Recording) -> anyhow::Result<()> {
    let measure = measure(args);
    if args.scores.are_wanted() {
        recording.check_scores().context("--scores")?;
        if args.by != RowsBy::Site {
            bail!("--scores is about sites: leave --by out");
        }
        if let FormatChoice::Export(format) = args.format {
            bail!(
                "--scores is for text and JSON: leave it out of -f {}",
                format.name()
            );
        }
    }
    let order = order(args)?;
    if measure == Measure::Unreachable {
        recorded::check_unreachable(recording).context("--measure unreachable")?;
    }
    if args.who_frees && !recording.has_release_stacks() {
        bail!("--who-frees: stacks of releases were not recorded; attach with --stacks all");
    }
    if args.by == RowsBy::Size && !matches!(measure, Measure::Live | Measure::Allocated) {
        bail!("--by size counts live or allocated blocks: use --measure live or allocated");
    }
    if args.by == RowsBy::Lifetime && !matches!(measure, Measure::Live | Measure::Released) {
        bail!("--by lifetime counts released blocks: leave --measure out");
    }
    if !recording.is_summary() {
        return Ok(());
    }
    let missing = match (args.by, measure) {
        (RowsBy::Thread, _) => "threads",
        (RowsBy::Lifetime, _) => "lifetimes",
        (RowsBy::Size, _) => "sizes of blocks",
        (_, Measure::Temporary) => "temporary allocations",
        _ if args.who_frees => "who frees",
        _ if order == SortBy::Age => "ages",
        _ => return Ok(()),
    };
    bail!(
        "the recording holds sums of intervals, which do not show {missing}: record events for that"
    );
}

fn export(
    args: &Args,
    profile: &Profile,
    format: &'static dyn Format<Profile>,
) -> anyhow::Result<()> {
    let is_packed = |path: &PathBuf| path.extension().is_some_and(|e| e == "gz");
    let options = FormatOptions {
        measure: measure(args),
        unit: unit(args),
        gzip: args.output.output.as_ref().is_some_and(is_packed),
        ..FormatOptions::default()
    };
    let mut bytes = Vec::new();
    memhook_report::formats::write(format, profile, &options, &mut bytes)?;
    args.output.write(&bytes, format.nature())
}

fn unit(args: &Args) -> Unit {
    if args.blocks {
        Unit::Blocks
    } else {
        Unit::Bytes
    }
}

/// Returns the order of rows. They are sorted by scores only if scores exist.
fn order(args: &Args) -> anyhow::Result<SortBy> {
    match &args.sort {
        Order::By(SortBy::Score) if !args.scores.are_wanted() => {
            bail!("--sort score: add --scores")
        }
        Order::By(order) => Ok(*order),
        Order::Score(name) => match args.scores.place_of(name) {
            Some(place) => Ok(SortBy::Formula(place)),
            None => bail!(
                "--sort {}: expected {}, or the name of a score that is added with --scores",
                memhook_foreign::visible(&name.replace('\n', " ")),
                RESERVED_NAMES.join(", ")
            ),
        },
    }
}

fn selection(args: &Args, as_json: bool) -> anyhow::Result<Selection> {
    Ok(Selection {
        by: args.by,
        measure: match args.by {
            RowsBy::Lifetime => Measure::Released,
            _ => measure(args),
        },
        sort: order(args)?,
        top: args.top,
        is_window: args.window.from.is_some(),
        // Sites with the same text have separate scores.
        merges_alike: !as_json && !args.scores.are_wanted(),
    })
}
