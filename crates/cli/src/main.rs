//! The memhook-rs command: where does the heap of a running C or C++ process go?

// On processors without tracing, some shared code is unused.
#![cfg_attr(not(target_arch = "x86_64"), allow(unused))]

#[macro_use]
mod printing;

mod command_groups;
mod completions;
mod diff;
mod exit_code;
mod gate;
mod log;
mod options;
mod output;
mod remedies;
mod report;
mod scores;
mod short_help;
mod symbolize;
mod symbols_pack;
mod target;
mod tracing;
mod view;

/// Commands that look at processes, hold or trace them. Those that need `memhook-attach`, which must be ported to each
/// processor, have a line in `live/not_ported.rs`.
#[cfg(target_arch = "x86_64")]
mod live;
#[cfg(not(target_arch = "x86_64"))]
#[path = "live/not_ported.rs"]
mod live;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use live::{
    advise, agent, attach, demo, detach, doctor, emit, mark, probe, rss, run, scan, sdk, signals,
    stale, top, trim, watch,
};
use memhook_foreign::visible;
use std::path::PathBuf;
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;

#[derive(Parser)]
#[command(
    name = "memhook-rs",
    version,
    about = "Where does the heap of a running C or C++ process go?",
    after_long_help = include_str!("help/memhook-rs.txt"),
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Leave nothing out, and log each step (-vv: in detail)
    ///
    /// Reports show complete names and paths, all modules and small branches. The log goes to standard error; the
    /// variable MEMHOOK_LOG selects what is logged: debug, or memhook_inject=trace,memhook_heap=info.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, display_order = 1000)]
    verbose: u8,
    /// Record each act that touches a process
    ///
    /// Appends a line of JSON for each stop with its time, and for each call, mapping, exchanged slot and released
    /// block. Only its owner can read the file; it is written while no thread is held.
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        display_order = 1001,
        hide_short_help = true
    )]
    audit: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Trace the allocations of a running process, and show what is live
    #[command(after_long_help = include_str!("help/attach.txt"))]
    Attach(Box<attach::Args>),
    /// Show what a recording holds, in many formats
    #[command(after_long_help = include_str!("help/report.txt"))]
    Report(Box<report::Args>),
    /// Compare two recordings or JSON reports
    #[command(after_long_help = include_str!("help/diff.txt"))]
    Diff(Box<diff::Args>),
    /// Turn a recording into a page for the browser
    #[command(after_long_help = include_str!("help/view.txt"))]
    View(Box<view::Args>),
    /// Collect names for recordings that are read on another machine
    #[command(subcommand, after_long_help = include_str!("help/symbols.txt"))]
    Symbols(symbols_pack::Command),
    /// Add names to profiles that have only addresses
    #[command(after_long_help = include_str!("help/symbolize.txt"))]
    Symbolize(symbolize::Args),
    /// Start a program and trace it from the beginning to the end
    #[command(after_long_help = include_str!("help/run.txt"))]
    Run(Box<run::Args>),
    /// Write files to build a program with, for marks and usage scores
    #[command(after_long_help = include_str!("help/sdk.txt"))]
    Sdk(sdk::Args),
    /// Start a program and fail if it leaks (for CI)
    #[command(after_long_help = include_str!("help/gate.txt"))]
    Gate(Box<gate::Args>),
    /// Watch the heap of a running process in the terminal
    #[command(after_long_help = include_str!("help/top.txt"))]
    Top(Box<top::Args>),
    /// Say why a process needs so much memory, and what to do about it
    #[command(after_long_help = include_str!("help/advise.txt"))]
    Advise(Box<advise::Args>),
    /// Count the calls of functions of a running process
    #[command(after_long_help = include_str!("help/probe.txt"))]
    Probe(Box<probe::Args>),
    /// Clean up in a process after memhook-rs was killed
    #[command(after_long_help = include_str!("help/detach.txt"))]
    Detach(detach::Args),
    /// Trace a small C++ service that leaks, and show where
    #[command(after_long_help = include_str!("help/demo.txt"))]
    Demo(demo::Args),
    /// Find leaked memory in a running process, without tracing it
    #[command(after_long_help = include_str!("help/scan.txt"))]
    Scan(scan::Args),
    /// Find memory that a running process holds but no longer touches
    #[command(after_long_help = include_str!("help/stale.txt"))]
    Stale(stale::Args),
    /// Show where the resident memory of a running process is
    #[command(after_long_help = include_str!("help/rss.txt"))]
    Rss(rss::Args),
    /// Return a running process's free heap memory to the system
    #[command(after_long_help = include_str!("help/trim.txt"))]
    Trim(trim::Args),
    /// Trace a process, and keep the evidence if it runs out of memory
    #[command(after_long_help = include_str!("help/watch.txt"))]
    Watch(Box<watch::Args>),
    /// Let other profilers listen to a process's allocations
    ///
    /// The process gets the probes otel_memory:alloc and otel_memory:free. alloc has the block's address, its size, and
    /// weighted_bytes: the size divided by the probability with which such a block is reported. free has the address,
    /// and is called for blocks that were reported. They are USDT probes with semaphores: without a listener, a call
    /// costs one load and one branch.
    #[command(after_long_help = include_str!("help/emit.txt"))]
    Emit(emit::Args),
    /// Name a moment of a running trace
    #[command(after_long_help = include_str!("help/mark.txt"))]
    Mark(mark::Args),
    /// Trace many processes all the time, as rules choose them
    #[command(after_long_help = include_str!("help/agent.txt"))]
    Agent(agent::Args),
    /// Check whether a process can be traced, and say what to do if not
    #[command(after_long_help = include_str!("help/doctor.txt"))]
    Doctor(doctor::Args),
    /// Print a script that lets a shell complete commands and options
    #[command(after_long_help = include_str!("help/completions.txt"))]
    Completions(completions::CompletionsArgs),
    /// Write man pages into a directory
    #[command(hide = true)]
    Man(completions::ManArgs),
}

fn main() -> ExitCode {
    let cli = match options()
        .try_get_matches()
        .and_then(|m| Cli::from_arg_matches(&m))
    {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    log::set_verbosity(cli.verbose);
    let audited = cli.audit.as_deref().map_or(Ok(()), live::audit::start);
    let result = audited
        .and_then(|()| start_log(&cli.command))
        .and_then(|()| run(cli.command));
    live::finish();
    live::audit::finish();
    let code = match result {
        Ok(code) => code,
        Err(error) => {
            let error = remedies::in_words(error.as_ref());
            eprintln!("memhook-rs: {}", visible(&error));
            ExitCode::from(exit_code::BAD_INPUT)
        }
    };
    log::finish();
    code
}

/// Starts the log, except for commands that choose its format.
fn start_log(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Agent(_) | Command::Doctor(_) => Ok(()),
        Command::Top(_) => log::start_beside_screen(),
        _ => log::start(log::Format::Text, LevelFilter::OFF),
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Advise(args) => advise::run(&args),
        Command::Attach(args) => attach::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::View(args) => view::run(&args),
        Command::Symbols(command) => symbols_pack::run(&command),
        Command::Symbolize(args) => symbolize::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Sdk(args) => sdk::run(&args),
        Command::Gate(args) => gate::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Detach(args) => detach::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Scan(args) => scan::run(&args),
        Command::Stale(args) => stale::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Emit(args) => emit::run(&args),
        Command::Mark(args) => mark::run(&args),
        Command::Rss(args) => rss::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Agent(args) => agent::run(&args),
        Command::Trim(args) => trim::run(&args),
        Command::Completions(args) => completions::completions(&args),
        Command::Man(args) => completions::man(&args),
    }
}

/// Returns the command with all options. `-h` gives each one line; only `--help` explains their values.
fn options() -> clap::Command {
    let is_short = std::env::args_os().any(|word| word == "-h");
    let shown = move |arg: clap::Arg| {
        let hides = is_short && arg.get_action().takes_values();
        if hides {
            arg.hide_possible_values(true)
        } else {
            arg
        }
    };
    let of = move |command: clap::Command| command.mut_args(shown);
    let command = Cli::command().mut_subcommands(move |command| of(command).mut_subcommands(of));
    let command = short_help::shortened(command);
    // Only the first page of the help lists the commands, and a list needs all of them.
    let first = std::env::args_os().nth(1);
    match first.is_some_and(|word| command.find_subcommand(word).is_some()) {
        true => command,
        false => command_groups::grouped(command),
    }
}

/// Puts the most likely meaning of a mistyped command first. clap puts it last.
fn best_tip_first(error: &mut clap::Error) {
    use clap::error::{ContextKind::SuggestedSubcommand, ContextValue::Strings};
    if let Some(Strings(mut names)) = error.remove(SuggestedSubcommand) {
        names.reverse();
        error.insert(SuggestedSubcommand, Strings(names));
    }
}

/// Translates the standard library's errors about numbers into plain words.
fn in_words(message: &str) -> String {
    message
        .replace("invalid digit found in string", "it must be a whole number")
        .replace(
            "cannot parse integer from empty string",
            "it must be a whole number",
        )
        .replace(
            "number too large to fit in target type",
            "this number is too large",
        )
        .replace("invalid float literal", "it must be a number")
}

/// Prints help unchanged, and a mistake without the usage, which --help shows.
fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind::{
        DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion,
    };
    if error.kind() == DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(exit_code::BAD_INPUT);
    }
    if matches!(error.kind(), DisplayHelp | DisplayVersion) {
        // A reader that has closed the pipe is not an error.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    // The message is rebuilt with escaped words, because its lines must not look like ours.
    let words = std::env::args_os().map(|word| visible(&word.to_string_lossy()).into_owned());
    let again = options().try_get_matches_from(words);
    let again = again.and_then(|matches| Cli::from_arg_matches(&matches).map(drop));
    let mut again = again.err();
    if let Some(error) = &mut again {
        best_tip_first(error);
    }
    let text = again.as_ref().unwrap_or(error).to_string();
    let lines = text.lines().filter(|line| !line.is_empty());
    let message: Vec<&str> = lines
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        .collect();
    let see = if message.len() > 1 { "\nSee" } else { "; see" };
    let message = message.join("\n");
    let message = in_words(message.strip_prefix("error: ").unwrap_or(&message));
    let word = std::env::args().nth(1).unwrap_or_default();
    let command = Cli::command()
        .find_subcommand(&word)
        .map(|_| format!("{word} "));
    let command = command.unwrap_or_default();
    eprintln!("memhook-rs: {message}{see} memhook-rs {command}--help");
    ExitCode::from(exit_code::BAD_INPUT)
}
