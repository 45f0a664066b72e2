//! `cargo experiment gate-projects`: compares the gate's verdicts, blocks, bytes and cost with LeakSanitizer and
//! memcheck on the tests of foreign projects.
//!
//! Each test runs unchanged and with a planted leak (`planted.c`). All three tools must report the exact size of the
//! planted leak.

mod builds;
mod comparison;
mod projects;
mod tools;

use builds::{Builds, Flavour};
use comparison::{Compared, Row};
use projects::{PROJECTS, Project};
use std::path::PathBuf;
use std::process::ExitCode;
use tools::Runner;

/// Options of the task.
#[derive(clap::Args)]
pub struct Args {
    /// Names of projects (Debian source packages); all by default
    names: Vec<String>,
    /// The directory for builds, 4 GB for all projects; existing builds are reused
    #[arg(long, value_name = "DIR")]
    builds: Option<PathBuf>,
    /// Build the projects, but run no tests
    #[arg(long)]
    only_build: bool,
    /// Alternating timed runs of each test without a tool and under the gate; the medians count
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

/// Runs the task. Prints a Markdown table and every disagreement. The exit code is 1 if there is a disagreement.
pub fn run(args: &Args) -> ExitCode {
    match compare(args) {
        Ok(disagreements) if disagreements.is_empty() => ExitCode::SUCCESS,
        Ok(disagreements) => {
            eprintln!("\nDisagreements:");
            disagreements.iter().for_each(|text| eprintln!("- {text}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("gate-projects: {error}");
            ExitCode::from(2)
        }
    }
}

fn compare(args: &Args) -> Result<Vec<String>, String> {
    let wanted = wanted(&args.names)?;
    let folder = args.builds.clone();
    let folder = folder.unwrap_or_else(|| std::env::temp_dir().join("memhook-gate-projects"));
    let builds = Builds::new(folder)?;
    let mut rows = Vec::new();
    let mut disagreements = Vec::new();
    for project in wanted {
        let plain = builds.of(project, Flavour::Plain)?;
        let sanitized = builds.of(project, Flavour::Sanitized)?;
        if args.only_build {
            continue;
        }
        let runner = Runner::new(&builds, project, plain, sanitized)?;
        let mut row = Row::new(project.name);
        for test in runner.tests()? {
            eprintln!("{}: {test}", project.name);
            let compared = Compared::of(&runner, &test, args.runs)?;
            disagreements.extend(compared.disagreements(project.name, &test));
            row.add(&compared);
        }
        eprintln!("{}", row.cells());
        rows.push(row);
    }
    if !args.only_build {
        print!("{}", comparison::table(&rows));
    }
    Ok(disagreements)
}

fn wanted(names: &[String]) -> Result<Vec<&'static Project>, String> {
    if names.is_empty() {
        return Ok(PROJECTS.iter().collect());
    }
    let find = |name: &String| {
        let found = PROJECTS.iter().find(|project| project.name == name);
        found.ok_or_else(|| {
            let known: Vec<&str> = PROJECTS.iter().map(|project| project.name).collect();
            format!("there is no project {name}; there are {}", known.join(", "))
        })
    };
    names.iter().map(find).collect()
}
