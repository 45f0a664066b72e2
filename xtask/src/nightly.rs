//! `cargo xtask nightly`: runs jobs that take too long for `.ci/run`, by name.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Options of `nightly`.
#[derive(clap::Args)]
pub struct Args {
    /// Names of jobs; all by default
    jobs: Vec<String>,
    /// List the jobs and their commands
    #[arg(long)]
    list: bool,
}

/// Long-running job.
struct Job {
    name: &'static str,
    command: &'static str,
    variables: &'static [(&'static str, &'static str)],
}

const fn job(name: &'static str, command: &'static str) -> Job {
    Job {
        name,
        command,
        variables: &[],
    }
}

/// Returns the job that runs the end-to-end tests with all targets on the C library of one release.
const fn on_release(name: &'static str, release: &'static [(&'static str, &'static str)]) -> Job {
    Job {
        name,
        command: "cargo test --workspace --no-fail-fast --test end_to_end scan::",
        variables: release,
    }
}

/// Jobs in the order of execution. Jobs that may find a fault that harms a target are first.
const JOBS: [Job; 19] = [
    job("storm", "cargo xtask storm --cycles 2000"),
    job(
        "storm-charged",
        "cargo xtask storm --charged --cycles 300 --kinds haunted,intruding,prefork,forking,vforks,hammer",
    ),
    job(
        "storm-agent",
        "cargo test -p memhook-tests --test end_to_end agent::endings -- --ignored --nocapture",
    ),
    // CI runs this test with fewer cases.
    Job {
        name: "rounds",
        command: "cargo test --workspace --no-fail-fast --test end_to_end",
        variables: &[("MEMHOOK_TEST_ROUNDS", "60")],
    },
    job(
        "probed-functions",
        "cargo test -p memhook-probe --test executed -- --ignored",
    ),
    job(
        "built-twice",
        "cargo test -p memhook-xtask --test dist -- --ignored",
    ),
    job("debian-roots", "cargo xtask debian-roots"),
    on_release("scan-bullseye", &[("MEMHOOK_TEST_RELEASE", "bullseye")]),
    on_release("scan-trixie", &[("MEMHOOK_TEST_RELEASE", "trixie")]),
    on_release("scan-sid", &[("MEMHOOK_TEST_RELEASE", "sid")]),
    on_release(
        "scan-experimental",
        &[("MEMHOOK_TEST_RELEASE", "experimental")],
    ),
    job("fuzz", "cargo xtask fuzz --seconds 300"),
    // No other job compiles the experiments' workspace.
    job(
        "experiments",
        "cargo clippy --manifest-path experiments/Cargo.toml --workspace --all-targets -- -D warnings",
    ),
    job(
        "experiments-tests",
        "cargo test --manifest-path experiments/Cargo.toml --workspace --no-fail-fast",
    ),
    job("gate-projects", "cargo experiment gate-projects"),
    job("predictions", "cargo experiment predictions"),
    job("papers", "cargo experiment papers"),
    job("peers", "cargo measure peers"),
    job(
        "bench",
        "cargo bench --manifest-path experiments/Cargo.toml -p memhook-measurements",
    ),
];

/// Runs the jobs one after the other. After a failed job, the remaining jobs still run.
pub fn run(args: &Args) -> ExitCode {
    let is_chosen = |job: &&Job| args.jobs.is_empty() || args.jobs.iter().any(|n| n == job.name);
    let is_known = |name: &&String| JOBS.iter().all(|job| job.name != *name);
    if let Some(name) = args.jobs.iter().find(is_known) {
        eprintln!("nightly: there is no job {name:?}; --list shows all");
        return ExitCode::from(2);
    }
    let jobs: Vec<&Job> = JOBS.iter().filter(is_chosen).collect();
    if args.list {
        for job in jobs {
            println!("{:18} {}", job.name, shown(job));
        }
        return ExitCode::SUCCESS;
    }
    let ends: Vec<String> = jobs.into_iter().map(end_of).collect();
    println!();
    ends.iter().for_each(|end| println!("{end}"));
    match ends.iter().all(|end| end.ends_with(": done")) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Formats a job as a command line.
fn shown(job: &Job) -> String {
    let variables = job.variables.iter();
    let variables: String = variables
        .map(|(name, value)| format!("{name}={value} "))
        .collect();
    format!("{variables}{}", job.command)
}

/// Runs a job. Returns one line about its result.
fn end_of(job: &Job) -> String {
    println!("\n--- {}: {}", job.name, shown(job));
    let start = Instant::now();
    let mut words = job.command.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    command.args(words).current_dir(root);
    let status = command.envs(job.variables.iter().copied()).status();
    let how = match status {
        Ok(status) if status.success() => "done".to_owned(),
        Ok(status) => format!("failed ({status})"),
        Err(error) => format!("cannot be started: {error}"),
    };
    format!(
        "{} ({} min): {how}",
        job.name,
        start.elapsed().as_secs() / 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ() {
        let mut names: Vec<&str> = JOBS.iter().map(|job| job.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), JOBS.len());
    }
}
