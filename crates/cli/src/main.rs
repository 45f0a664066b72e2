//! The memhook-rs command: where does the heap of a running C or C++ process go?

#[macro_use]
mod printing;

mod attach;
mod completions;
mod demo;
mod detach;
mod diff;
mod doctor;
mod exit_code;
mod frames;
mod gate;
mod last_look;
mod model;
mod options;
mod output;
mod record;
mod report;
mod report_job;
mod run;
mod scan;
mod signals;
mod symbols_pack;
mod top;
mod tracing;
mod view;

use clap::{Parser, Subcommand};
use memhook_foreign::visible;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "memhook-rs",
    version,
    about = "Where does the heap of a running C or C++ process go?"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Trace every allocation of a running process and show what is live
    Attach(Box<attach::Args>),
    /// Show what a recording holds: live memory, peak, any window, in many formats
    Report(Box<report::Args>),
    /// Compare two recordings or JSON reports: which sites grew, shrank, appeared or went
    Diff(Box<diff::Args>),
    /// Turn a recording into a page for the browser: heap over time, flame graphs, sites, sources
    View(Box<view::Args>),
    /// Prepare names for recordings that are read on another machine
    #[command(subcommand)]
    Symbols(symbols_pack::Command),
    /// Start a program and trace it from before its first constructor to its end
    Run(Box<run::Args>),
    /// Start a program and fail if it leaks: a check for CI
    Gate(Box<gate::Args>),
    /// Watch the heap of a running process on the terminal
    Top(Box<top::Args>),
    /// Put back what a killed attacher has left behind
    Detach {
        /// Process id
        pid: i32,
    },
    /// Start a small C++ service that leaks, attach to it, and show where it leaks
    Demo {
        /// How long to trace
        #[arg(short, long, value_parser = options::duration, default_value = "3s")]
        duration: std::time::Duration,
    },
    /// Find unreachable memory in a running process, without tracing it
    Scan(scan::Args),
    /// Check whether a process can be traced, and if not, say why and what to do
    Doctor {
        /// Process id
        pid: i32,
    },
    /// Print a script that completes commands and options in a shell
    Completions(completions::CompletionsArgs),
    /// Write man pages into a directory
    #[command(hide = true)]
    Man(completions::ManArgs),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let result = match cli.command {
        Command::Attach(args) => attach::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::View(args) => view::run(&args),
        Command::Symbols(command) => symbols_pack::run(&command),
        Command::Run(args) => run::run(&args),
        Command::Gate(args) => gate::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Detach { pid } => detach::run(pid),
        Command::Demo { duration } => demo::run(duration),
        Command::Scan(args) => scan::run(&args),
        Command::Doctor { pid } => doctor::run(pid),
        Command::Completions(args) => completions::completions(&args),
        Command::Man(args) => completions::man(&args),
    };
    memhook_attach::finish_keeping_tables();
    match result {
        Ok(code) => code,
        Err(error) => {
            let error = format!("{error:#}");
            eprintln!("memhook-rs: {}", visible(&error));
            ExitCode::from(exit_code::BAD_INPUT)
        }
    }
}

/// Help as it is; a mistake in one line.
fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind::{
        DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion,
    };
    if error.kind() == DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(exit_code::BAD_INPUT);
    }
    if matches!(error.kind(), DisplayHelp | DisplayVersion) {
        // A reader that went away has seen enough.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    let lines = text.lines().map(str::trim);
    // What follows the message is the usage, which --help has too.
    let message: Vec<&str> = lines
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        .filter(|line| !line.is_empty())
        .collect();
    let message = message.join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    eprintln!("memhook-rs: {}; see memhook-rs --help", visible(message));
    ExitCode::from(exit_code::BAD_INPUT)
}
