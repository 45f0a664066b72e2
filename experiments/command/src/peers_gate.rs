//! `cargo experiment peers-gate`: measures the cost of a leak check with the gate, LeakSanitizer and memcheck, on the
//! same programs.
//!
//! The programs are binaries of a distribution, and LeakSanitizer is preloaded, so that all tools run the same build.
//! With PYTHONMALLOC=malloc, Python allocates each small object with malloc.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Options of the task.
#[derive(clap::Args)]
pub struct Args {
    /// Number of runs with each tool, of which the median is reported; memcheck runs once
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Factor for the usual amount of work, which takes about ten seconds
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Run only programs whose names contain this text
    #[arg(long)]
    program: Option<String>,
}

/// Reads and writes documents, sorts and counts words, like the tests of a text processing program.
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

const PYTHON_ROUNDS: f64 = 700.0;
const SQL_ROWS: f64 = 2_200_000.0;
/// Fraction of the work for memcheck, which is compared with an untraced run of the same fraction.
const MEMCHECK_SHARE: f64 = 0.04;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Tool {
    None,
    Gate,
    Lsan,
    Memcheck,
}

/// Program to measure.
struct Program {
    name: &'static str,
    /// Returns the program's command for this amount of work.
    command: fn(f64) -> std::io::Result<Vec<String>>,
    /// True if a run is so short that more runs are needed.
    is_short: bool,
}

const PROGRAMS: [Program; 3] = [
    Program {
        name: "`true`: what a start and an end cost",
        command: |_| Ok(vec!["true".into()]),
        is_short: true,
    },
    Program {
        name: "sqlite3: single inserts into an indexed table",
        command: sql,
        is_short: false,
    },
    Program {
        name: "Python: documents, every object from malloc",
        command: |scale| {
            let rounds = (PYTHON_ROUNDS * scale).ceil().to_string();
            // This avoids a version manager's wrapper, which is a chain of shell scripts.
            let python = Path::new("/usr/bin/python3");
            let python = if python.exists() {
                "/usr/bin/python3"
            } else {
                "python3"
            };
            Ok(vec![python.into(), "-c".into(), WORK.into(), rounds])
        },
        is_short: false,
    },
];

/// Writes SQL statements to a file, as in a dump.
fn sql(scale: f64) -> std::io::Result<Vec<String>> {
    use std::fmt::Write;
    let rows = (SQL_ROWS * scale) as u64;
    let mut text = String::from(
        "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c TEXT);\nCREATE INDEX i ON t(b);\n",
    );
    for row in 0..rows {
        let key = row * 7919 % 100_003;
        let _ = writeln!(
            text,
            "INSERT INTO t VALUES({row},'key {key}','some text of row {row}');"
        );
    }
    let file =
        std::env::temp_dir().join(format!("memhook-peers-{}-{rows}.sql", std::process::id()));
    std::fs::write(&file, text)?;
    Ok(vec![
        "sqlite3".into(),
        ":memory:".into(),
        format!(".read {}", file.display()),
    ])
}

/// Runs the task, and prints a Markdown table.
pub fn run(args: &Args) -> ExitCode {
    match table(args) {
        Ok(table) => {
            print!("{table}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("peers-gate: {error}");
            ExitCode::from(2)
        }
    }
}

fn table(args: &Args) -> Result<String, String> {
    let gate = memhook_tests::binary();
    let mut out = String::from(
        "| program | untraced | gate | LeakSanitizer | memcheck |\n|---|---|---|---|---|\n",
    );
    let wanted = |p: &&Program| {
        args.program
            .as_ref()
            .is_none_or(|part| p.name.contains(part.as_str()))
    };
    for program in PROGRAMS.iter().filter(wanted) {
        let command = |scale: f64| (program.command)(scale).map_err(|e| e.to_string());
        let (whole, part) = (command(args.scale)?, command(args.scale * MEMCHECK_SHARE)?);
        let [whole_file, part_file] = [&whole, &part].map(|command| {
            let read = command.last().and_then(|word| word.strip_prefix(".read "));
            read.map(PathBuf::from)
        });
        let runs = if program.is_short {
            args.runs.max(20)
        } else {
            args.runs
        };
        let tools = [Tool::None, Tool::Gate, Tool::Lsan];
        let mut times = [const { Ok(Vec::new()) }; 3];
        for _ in 0..runs {
            // The runs alternate, so that load on the machine affects all of them.
            for (tool, times) in tools.into_iter().zip(&mut times) {
                add(times, time(tool, gate, &whole)?);
            }
        }
        let [none, traced, sanitized] = times.map(|times| times.map(median));
        let none = none.map_err(|end| format!("{}: {end}", program.name))?;
        let alone = time(Tool::None, gate, &part)?;
        let checked = time(Tool::Memcheck, gate, &part)?;
        let checked = [cell(&alone, &checked)];
        let cells = [traced, sanitized].map(|time| cell(&Ok(none), &time));
        let whole = if is_short(none) {
            format!("{:.1} ms", none.as_secs_f64() * 1e3)
        } else {
            format!("{:.1} s", none.as_secs_f64())
        };
        let cells: Vec<String> = cells.into_iter().chain(checked).collect();
        out += &format!("| {} | {whole} | {} |\n", program.name, cells.join(" | "));
        for file in [whole_file, part_file].into_iter().flatten() {
            let _ = std::fs::remove_file(file);
        }
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let load: Vec<&str> = load.split(' ').take(2).collect();
    eprintln!(
        "{cores} cores; load average at the end, for 1 and 5 minutes: {}",
        load.join(", ")
    );
    Ok(out)
}

/// Time of a run, or its failure. A single failure fails all runs of the tool.
type Timed = Result<Duration, String>;

fn add(times: &mut Result<Vec<Duration>, String>, time: Timed) {
    match (times.as_mut(), time) {
        (Ok(times), Ok(time)) => times.push(time),
        (Ok(_), Err(end)) => *times = Err(end),
        (Err(_), _) => {}
    }
}

fn is_short(time: Duration) -> bool {
    time < Duration::from_millis(100)
}

fn cell(alone: &Timed, with: &Timed) -> String {
    match (alone, with) {
        (Ok(alone), Ok(with)) if is_short(*alone) => {
            format!("+{:.0} ms", with.saturating_sub(*alone).as_secs_f64() * 1e3)
        }
        (Ok(alone), Ok(with)) => {
            format!("{:.2} times", with.as_secs_f64() / alone.as_secs_f64())
        }
        (Err(end), _) | (_, Err(end)) => end.clone(),
    }
}

/// Returns the run time of a command. Fails if the command cannot be started.
fn time(tool: Tool, gate: &Path, command: &[String]) -> Result<Timed, String> {
    let mut run = match tool {
        Tool::None => Command::new(&command[0]),
        Tool::Lsan => {
            let mut run = Command::new(&command[0]);
            run.env("LD_PRELOAD", lsan()?)
                .env("LSAN_OPTIONS", "exitcode=0");
            run
        }
        Tool::Gate => {
            let mut run = Command::new(gate);
            run.args(["gate", "--fail-on", "leaked > 1G", "--allow-partial", "--"])
                .arg(&command[0]);
            run
        }
        Tool::Memcheck => {
            let mut run = Command::new("valgrind");
            run.args(["-q", "--leak-check=full"]).arg(&command[0]);
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
    Ok(if status.success() {
        Ok(time)
    } else {
        Err(format!("fails ({status})"))
    })
}

/// Returns the sanitizer runtime of the C compiler.
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
