//! The fuzzer, with what it needs of the compiler. `fuzz/README.md` says more.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Coverage as libFuzzer reads it (clang's manual, SanitizerCoverage): the passes that `cargo fuzz` asks for,
/// which a stable compiler has too. Given as RUSTFLAGS, they stand in place of those in `.cargo/config.toml`.
const FLAGS: [&str; 8] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ctarget-feature=-crt-static",
    "--cfg=fuzzing",
    "-Clink-dead-code",
];

/// Options of `fuzz`.
#[derive(clap::Args)]
pub struct Args {
    /// What to give bytes to, a folder of fuzz/corpus; without one all, one after the other
    surface: Option<String>,
    /// How long each
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// At most so many executions of each
    #[arg(long, default_value_t = u64::MAX)]
    runs: u64,
    /// Runs this input only
    #[arg(long, value_name = "FILE", requires = "surface")]
    input: Option<PathBuf>,
    /// Replaces the kept inputs by the smallest ones that reach as much of the code, but large ones
    #[arg(long, requires = "surface")]
    keep: bool,
    /// For libFuzzer
    #[arg(last = true)]
    more: Vec<String>,
}

/// Inputs above this are not kept.
const MOST_KEPT_BYTES: u64 = 4096;
/// So many of a surface are kept.
const MOST_KEPT: usize = 48;

pub fn run(args: &Args) -> ExitCode {
    match fuzz(args) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("{failed} surfaces failed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::from(2)
        }
    }
}

fn fuzz(args: &Args) -> std::io::Result<usize> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = root.join("fuzz");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder.join("corpus"))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    if let Some(surface) = &args.surface {
        if !names.contains(surface) {
            let all = names.join(", ");
            let problem = format!("there is no surface {surface}, there are {all}");
            return Err(std::io::Error::other(problem));
        }
        names = vec![surface.clone()];
    }
    let program = build(&folder)?;
    let mut failed = 0;
    for name in names {
        failed += usize::from(!one(args, &folder, &program, &name)?);
    }
    Ok(failed)
}

fn build(folder: &Path) -> std::io::Result<PathBuf> {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "--target", "x86_64-unknown-linux-gnu"])
        .env("RUSTFLAGS", FLAGS.join(" "))
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .current_dir(folder)
        .status()?;
    if !status.success() {
        return Err(std::io::Error::other("the fuzzer does not build"));
    }
    Ok(folder.join("target/x86_64-unknown-linux-gnu/release/memhook-fuzz"))
}

/// Whether nothing was found.
fn one(args: &Args, folder: &Path, program: &Path, name: &str) -> std::io::Result<bool> {
    let kept = folder.join("corpus").join(name);
    // What is found goes here; the kept inputs change only by --keep.
    let found = folder.join("target/found").join(name);
    std::fs::create_dir_all(&found)?;
    let mut command = Command::new(program);
    command
        .env("MEMHOOK_SURFACE", name)
        .current_dir(folder.join("target"));
    // A length that is asked of the system and not touched is no harm: resident memory is limited.
    command.args([
        "-malloc_limit_mb=65536",
        "-rss_limit_mb=2048",
        "-timeout=25",
    ]);
    if let Some(input) = &args.input {
        command.arg(input.canonicalize()?);
    } else if args.keep {
        return keep(command, &kept, &found);
    } else {
        eprintln!("{name}:");
        command
            .arg(format!("-max_total_time={}", args.seconds))
            .args((args.runs < u64::MAX).then(|| format!("-runs={}", args.runs)))
            .args(["-max_len=16384", "-print_final_stats=1", "-verbosity=1"])
            .arg(format!("-artifact_prefix={name}-"))
            .args(&args.more)
            .args([&found, &kept]);
    }
    Ok(command.status()?.success())
}

/// Keeps the smallest inputs that together reach all that was reached.
fn keep(mut command: Command, kept: &Path, found: &Path) -> std::io::Result<bool> {
    let best = found.with_extension("best");
    let _ = std::fs::remove_dir_all(&best);
    std::fs::create_dir_all(&best)?;
    let status = command
        .arg("-merge=1")
        .args([best.as_path(), kept, found])
        .status()?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&best)? {
        let entry = entry?;
        files.push((entry.metadata()?.len(), entry.path()));
    }
    files.sort();
    let small = files.iter().filter(|(bytes, _)| *bytes <= MOST_KEPT_BYTES);
    let small: Vec<_> = small.collect();
    // Of small and large ones alike.
    let step = small.len().div_ceil(MOST_KEPT).max(1);
    for (_, path) in small.iter().rev().step_by(step) {
        let name = path.file_name().unwrap_or_default();
        std::fs::copy(path, kept.join(name))?;
    }
    Ok(status.success())
}
