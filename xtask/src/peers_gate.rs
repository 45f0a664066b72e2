//! `cargo xtask peers-gate`: what a leak check costs, with the gate, LeakSanitizer and memcheck, on the same programs.
//!
//! The programs are Python ones, because LeakSanitizer can be preloaded into Python as a distribution builds it: every
//! other tool would measure another build. With PYTHONMALLOC=malloc each small object is an allocation.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Options of the task.
#[derive(clap::Args)]
pub struct Args {
    /// Runs of each tool but memcheck, which runs once; the median counts
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Rounds of work: 100 take some ten seconds
    #[arg(long, default_value_t = 100)]
    rounds: usize,
}

/// Reads and writes documents, sorts and counts words, as the tests of a program would that handles text.
const WORK: &str = "
import json, random, re, sys
random.seed(1)
words = ['word%d' % random.randrange(3000) for _ in range(4000)]
for n in range(int(sys.argv[1])):
    doc = {w: {'n': i, 'tags': words[i:i+5], 'text': ' '.join(words[i:i+9])} for i, w in enumerate(words)}
    again = json.loads(json.dumps(doc))
    counts = {}
    for entry in again.values():
        for w in re.findall('[a-z]+[0-9]+', entry['text']):
            counts[w] = counts.get(w, 0) + 1
    top = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:10]
print(top[0][0])
";

#[derive(Clone, Copy, PartialEq)]
enum Tool {
    None,
    Gate,
    Lsan,
    Memcheck,
}

/// Runs the task; prints a Markdown table.
pub fn run(args: &Args) -> ExitCode {
    match table(args) {
        Ok(table) => {
            print!("{table}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(2)
        }
    }
}

fn table(args: &Args) -> Result<String, String> {
    let gate = gate_binary()?;
    let rounds = args.rounds.to_string();
    let work = ["python3", "-c", WORK, &rounds];
    let mut out = String::from(
        "| program | untraced | gate | LeakSanitizer | memcheck |\n|---|---|---|---|---|\n",
    );
    for (name, command, runs) in [
        ("a small program (`true`)", &["true"][..], args.runs.max(20)),
        ("10 s of documents in Python", &work, args.runs),
    ] {
        let mut times = [const { Vec::new() }; 4];
        for run in 0..runs {
            // In turn, so that a load of the machine meets all of them.
            for (tool, times) in [Tool::None, Tool::Gate, Tool::Lsan, Tool::Memcheck]
                .into_iter()
                .zip(&mut times)
            {
                if tool != Tool::Memcheck || run == 0 {
                    times.push(time(tool, &gate, command)?);
                }
            }
        }
        let [none, rest @ ..] = times.map(median);
        let cells = rest.map(|t| {
            let more = t.saturating_sub(none).as_secs_f64() * 1e3;
            let factor = t.as_secs_f64() / none.as_secs_f64();
            match none < Duration::from_secs(1) {
                true => format!("+{more:.0} ms"),
                false => format!("{factor:.2} times"),
            }
        });
        let none = match none < Duration::from_secs(1) {
            true => format!("{:.1} ms", none.as_secs_f64() * 1e3),
            false => format!("{:.1} s", none.as_secs_f64()),
        };
        out += &format!("| {name} | {none} | {} |\n", cells.join(" | "));
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let load: Vec<&str> = load.split(' ').take(2).collect();
    eprintln!(
        "{cores} cores; load at the end, of 1 and 5 minutes: {}",
        load.join(", ")
    );
    Ok(out)
}

/// Beside this task's own program, in the same profile.
fn gate_binary() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let folder = own.parent().ok_or("no folder")?;
    let release = folder.join("../release/memhook-rs");
    match release.is_file() {
        true => Ok(release),
        false => Err("no release build: cargo build --release".to_owned()),
    }
}

fn time(tool: Tool, gate: &PathBuf, command: &[&str]) -> Result<Duration, String> {
    let mut run = match tool {
        Tool::None => Command::new(command[0]),
        Tool::Lsan => {
            let mut run = Command::new(command[0]);
            run.env("LD_PRELOAD", lsan()?)
                .env("LSAN_OPTIONS", "exitcode=0");
            run
        }
        Tool::Gate => {
            let mut run = Command::new(gate);
            run.args(["gate", "--max-leaked", "1G", "--allow-partial", "--"])
                .arg(command[0]);
            run
        }
        Tool::Memcheck => {
            let mut run = Command::new("valgrind");
            run.args(["-q", "--leak-check=full"]).arg(command[0]);
            run
        }
    };
    run.args(&command[1..]).env("PYTHONMALLOC", "malloc");
    run.stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let begin = Instant::now();
    let status = run
        .status()
        .map_err(|e| format!("{:?}: {e}", run.get_program()))?;
    let time = begin.elapsed();
    match status.success() {
        true => Ok(time),
        false => Err(format!("{run:?}: {status}")),
    }
}

/// The runtime of the C compiler.
fn lsan() -> Result<String, String> {
    let output = Command::new("cc")
        .arg("-print-file-name=liblsan.so")
        .output();
    let text = output.map_err(|e| e.to_string())?.stdout;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
