//! `cargo xtask bench-report`: one Markdown page from what `cargo bench -p memhook-benches` and `cargo xtask peers` left.

mod markdown;
mod results;
mod tables;

use memhook_benches::output_folder;
use results::Results;
use std::{path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
pub struct Args {
    /// Write the page into this file instead of standard output
    #[arg(short, long)]
    output: Option<PathBuf>,
}

/// Writes the page.
pub fn run(args: &Args) -> ExitCode {
    let results = match Results::read(&output_folder()) {
        Ok(results) => results,
        Err(why) => {
            eprintln!("bench-report: {why}");
            return ExitCode::from(2);
        }
    };
    let page = tables::page(&results);
    let written = match &args.output {
        Some(path) => std::fs::write(path, page).map_err(|e| format!("{}: {e}", path.display())),
        None => {
            print!("{page}");
            Ok(())
        }
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench-report: {why}");
            ExitCode::from(2)
        }
    }
}
