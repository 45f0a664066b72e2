//! `cargo experiment bench-report`: writes one Markdown page from the results of the benchmarks.

mod markdown;
mod moved;
mod results;
mod tables;

use memhook_measurements::output_folder;
use moved::Committed;
use results::Results;
use std::{path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
pub struct Args {
    /// Write the page to this file instead of to standard output
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Write only the machine's data, and the ratios compared with the last committed ratios
    #[arg(long)]
    ratios: bool,
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
    let committed = Committed::read(&crate::root());
    let page = if args.ratios {
        tables::ratios_alone(&results, &committed)
    } else {
        tables::page(&results, &committed)
    };
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
