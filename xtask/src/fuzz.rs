//! Builds and runs the fuzzer. `fuzz/README.md` describes it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Flags for libFuzzer's coverage instrumentation (clang's manual, SanitizerCoverage). They select the same passes as
/// `cargo fuzz`, which a stable compiler also supports. As RUSTFLAGS, they replace the flags of `.cargo/config.toml`.
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
    /// Surface to fuzz, a directory of fuzz/corpus; by default all surfaces in turn
    surface: Option<String>,
    /// Duration of the run of each surface, in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Maximum number of executions of each surface
    #[arg(long, default_value_t = u64::MAX)]
    runs: u64,
    /// Run only this input
    #[arg(long, value_name = "FILE", requires = "surface")]
    input: Option<PathBuf>,
    /// Replace the kept inputs without a name by small inputs with the same coverage
    #[arg(long, conflicts_with = "input")]
    keep: bool,
    /// Arguments for libFuzzer
    #[arg(last = true)]
    more: Vec<String>,
}

/// Size limit of kept inputs.
const MOST_KEPT_BYTES: u64 = 4096;
/// Maximum number of kept inputs without a name per surface.
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
    let fuzz_dir = root.join("fuzz");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(fuzz_dir.join("corpus"))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    if let Some(surface) = &args.surface {
        if !names.contains(surface) {
            let all = names.join(", ");
            let problem = format!("there is no surface {surface}; the surfaces are {all}");
            return Err(std::io::Error::other(problem));
        }
        names = vec![surface.clone()];
    }
    let program = build(&fuzz_dir)?;
    let mut failed = 0;
    for name in names {
        failed += usize::from(!one(args, &fuzz_dir, &program, &name)?);
    }
    Ok(failed)
}

fn build(fuzz_dir: &Path) -> std::io::Result<PathBuf> {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "--target", "x86_64-unknown-linux-gnu"])
        .env("RUSTFLAGS", FLAGS.join(" "))
        .env("CARGO_TARGET_DIR", fuzz_dir.join("target"))
        .current_dir(fuzz_dir)
        .status()?;
    if !status.success() {
        return Err(std::io::Error::other("the fuzzer does not build"));
    }
    Ok(fuzz_dir.join("target/x86_64-unknown-linux-gnu/release/memhook-fuzz"))
}

/// Runs or minimizes one surface. Returns true if no fault was found.
fn one(args: &Args, fuzz_dir: &Path, program: &Path, name: &str) -> std::io::Result<bool> {
    let kept = fuzz_dir.join("corpus").join(name);
    // New inputs go here. Only --keep changes the kept inputs.
    let found = fuzz_dir.join("target/found").join(name);
    std::fs::create_dir_all(&found)?;
    let mut command = Command::new(program);
    command
        .env("MEMHOOK_SURFACE", name)
        .current_dir(fuzz_dir.join("target"));
    // Untouched allocated memory does no harm, so resident memory is limited instead.
    command.args([
        "-malloc_limit_mb=65536",
        "-rss_limit_mb=2048",
        "-timeout=25",
    ]);
    if let Some(input) = &args.input {
        command
            .arg(format!("-artifact_prefix={name}-"))
            .args(&args.more)
            .arg(input.canonicalize()?);
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

/// Replaces the kept inputs by small inputs with the same coverage. Named inputs are kept, because they reproduce a
/// finding or are seeds.
fn keep(mut command: Command, kept: &Path, found: &Path) -> std::io::Result<bool> {
    let best = found.with_extension("best");
    let _ = std::fs::remove_dir_all(&best);
    std::fs::create_dir_all(&best)?;
    let status = command
        .arg("-merge=1")
        .args([best.as_path(), kept, found])
        .status()?;
    if !status.success() {
        return Ok(false);
    }
    let mut named = HashSet::new();
    let mut unnamed = Vec::new();
    for entry in std::fs::read_dir(kept)? {
        let path = entry?.path();
        if is_unnamed(&path) {
            unnamed.push(path);
        } else {
            named.insert(std::fs::read(path)?);
        }
    }
    let mut small = Vec::new();
    for entry in std::fs::read_dir(&best)? {
        let entry = entry?;
        let input = std::fs::read(entry.path())?;
        if input.len() as u64 <= MOST_KEPT_BYTES && !named.contains(&input) {
            let mut name = entry.file_name().to_string_lossy().into_owned();
            name.truncate(NAME_DIGITS);
            small.push((input.len(), name, input));
        }
    }
    small.sort();
    for path in unnamed {
        std::fs::remove_file(path)?;
    }
    // The step selects some inputs of every length.
    let step = small.len().div_ceil(MOST_KEPT).max(1);
    let chosen: Vec<_> = small.iter().rev().step_by(step).collect();
    for (_, name, input) in &chosen {
        std::fs::write(kept.join(name), input)?;
    }
    eprintln!("{}: {} kept", kept.display(), named.len() + chosen.len());
    Ok(true)
}

/// Length of a generated input name. libFuzzer names an input by its SHA-1, of which this number of digits is kept.
const NAME_DIGITS: usize = 12;

fn is_unnamed(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.len() == NAME_DIGITS && name.iter().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_with_a_name_are_told_apart() {
        assert!(is_unnamed(Path::new("corpus/elf/0083ea3da22f")));
        for name in ["counters-beyond-the-ring", "0", "plain", "ABCDEF012345"] {
            assert!(!is_unnamed(Path::new(name)), "{name}");
        }
    }
}
