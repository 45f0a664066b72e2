//! The memhook-rs command: where does the heap of a running C or C++ process go?

mod attach;
mod consumer;
mod coverage;
mod demo;
mod detach;
mod doctor;
mod hook_object;
mod live_filter;
mod model;
mod options;
mod output;
mod pacing;
mod ring_owners;
mod rows;
mod safe_point;
mod scan;
mod session;
mod signals;
mod trace;
mod unwind_tables;

use clap::{Parser, Subcommand};
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
    /// Put back what an attacher that was killed left behind
    Detach {
        /// Process id
        pid: i32,
    },
    /// Start a small C++ service that leaks, attach to it, and show where
    Demo {
        /// How long to trace
        #[arg(short, long, value_parser = options::duration, default_value = "3s")]
        duration: std::time::Duration,
    },
    /// Find unreachable memory in a running process, with no tracing
    Scan(scan::Args),
    /// Say whether a process can be traced, and if not, why and what to do
    Doctor {
        /// Process id
        pid: i32,
    },
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Attach(args) => attach::run(&args),
        Command::Detach { pid } => detach::run(pid),
        Command::Demo { duration } => demo::run(duration),
        Command::Scan(args) => scan::run(&args),
        Command::Doctor { pid } => doctor::run(pid),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("memhook-rs: {error:#}");
            ExitCode::from(2)
        }
    }
}
