//! Compares the predictions of `advise --what-if` with measured memory. Each program is recorded once and replayed, and
//! then started again with each setting.

mod programs;

use memhook_process::resident_counters;
use memhook_tests::binary;
use programs::{Program, Work};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Options of this task.
#[derive(clap::Args)]
pub struct Args {
    /// Names of programs; all by default
    programs: Vec<String>,
    /// Number of runs of a program with each setting, of which the median is reported
    #[arg(long, default_value_t = 3)]
    starts: usize,
}

/// Largest allowed error of a prediction.
const MOST: f64 = 0.15;
/// Time between two readings of resident memory, as in a recording.
const PAUSE: Duration = Duration::from_millis(50);
/// Time limit for one run of a program.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the task.
pub fn run(args: &Args) -> ExitCode {
    let folder = memhook_tests::programs::Folder::new("predictions");
    let chosen = programs::ALL.iter().filter(|program| {
        args.programs.is_empty() || args.programs.iter().any(|name| name == program.name)
    });
    let (mut all, mut good) = (0, 0);
    println!("| program | setting | predicted MiB, mean and peak | measured | off by |");
    println!("|---|---|---|---|---|");
    for program in chosen {
        match of_program(program, Path::new(&folder.path("")), args.starts) {
            Ok((rows, right)) => {
                all += rows;
                good += right;
            }
            Err(why) => println!("| {} | {why} | | | |", program.name),
        }
    }
    println!(
        "\n{good} of {all} predictions are within {:.0} %",
        MOST * 100.0
    );
    ExitCode::SUCCESS
}

/// Average and peak of resident anonymous memory.
#[derive(Clone, Copy, Debug)]
struct Taken {
    mean: f64,
    peak: f64,
}

/// Returns the number of predictions, and the number of correct predictions.
fn of_program(program: &Program, folder: &Path, starts: usize) -> Result<(usize, usize), String> {
    let work = (program.work)(folder)?;
    let file = folder.join(format!("{}.mhk", program.name));
    let mut record = work.command(&[
        &binary().display().to_string(),
        "run",
        "-q",
        "--force",
        "-o",
        &file.display().to_string(),
        "--",
    ]);
    started(&mut record, &work, program)?;
    let mut replay = Command::new(binary());
    replay.args(["advise", "--what-if", "--json"]).arg(&file);
    let output = replay.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let said: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let error = |name: &str| said["truth"][name].as_f64().unwrap_or(f64::NAN) * 100.0;
    let recommended = said["recommendation"].clone();
    println!(
        "| {} | {} as recorded, {} calls: replay off by {:+.1} and {:+.1} % | | | |",
        program.name,
        said["recorded_allocator"].as_str().unwrap_or_default(),
        said["calls"],
        error("median_error"),
        error("peak_error"),
    );
    let rows = said["rows"].as_array().ok_or("no rows")?;
    let rows: Vec<&Value> = rows.iter().filter(|row| row["problem"].is_null()).collect();
    let (first, others) = rows.split_first().ok_or("no replay came to its end")?;
    let now = measured(program, &work, first, starts)?;
    let mut right = 0;
    for row in others {
        let outcome = measured(program, &work, row, starts)?;
        // A reader of the table does the same calculation: the current memory minus the predicted decrease.
        let change =
            |name: &str| row[name].as_f64().unwrap_or(0.0) - first[name].as_f64().unwrap_or(0.0);
        let predicted = Taken {
            mean: now.mean + change("mean_rss_bytes"),
            peak: now.peak + change("peak_rss_bytes"),
        };
        let off = [
            predicted.mean / outcome.mean - 1.0,
            predicted.peak / outcome.peak - 1.0,
        ];
        right += usize::from(off.iter().all(|off| off.abs() <= MOST));
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        let is_advised = row["allocator"] == recommended["allocator"]
            && row["settings"] == recommended["settings"];
        println!(
            "| {} | {} {}{} | {:.1}, {:.1} | {:.1}, {:.1} | {:+.1} %, {:+.1} % |",
            program.name,
            row["allocator"].as_str().unwrap_or_default(),
            row["settings"].as_str().unwrap_or_default(),
            if is_advised { " (recommended)" } else { "" },
            mib(predicted.mean),
            mib(predicted.peak),
            mib(outcome.mean),
            mib(outcome.peak),
            off[0] * 100.0,
            off[1] * 100.0,
        );
    }
    Ok((others.len(), right))
}

/// Returns the memory of the untraced program with the settings of a row.
fn measured(program: &Program, work: &Work, row: &Value, starts: usize) -> Result<Taken, String> {
    let settings = row["settings"].as_str().unwrap_or_default();
    let settings = settings
        .split(' ')
        .filter_map(|setting| setting.split_once('='));
    let mut command = work.command(&[]);
    command.envs(settings);
    match row["library"].as_str() {
        Some(library) => drop(command.env("LD_PRELOAD", library)),
        // If a program is linked with another allocator, the C library's allocator is preloaded.
        None => drop(command.env("LD_PRELOAD", "libc.so.6")),
    }
    let mut all = Vec::new();
    for _ in 0..starts.max(1) {
        all.push(started(&mut command, work, program)?);
    }
    let middle = |of: fn(&Taken) -> f64| {
        let mut values: Vec<f64> = all.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Ok(Taken {
        mean: middle(|taken| taken.mean),
        peak: middle(|taken| taken.peak),
    })
}

/// Runs a program, and measures its memory.
fn started(command: &mut Command, work: &Work, program: &Program) -> Result<Taken, String> {
    let child = command
        .stdin(work.input()?)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.map_err(|error| format!("{}: {error}", program.name))?;
    let driver = program.driver.map(std::thread::spawn);
    let taken = looked_at(&mut child);
    if let Some(driver) = driver {
        driver.join().map_err(|_| "the driver panicked")??;
    }
    taken
}

fn looked_at(child: &mut Child) -> Result<Taken, String> {
    let begin = Instant::now();
    let mut seen = Vec::new();
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            if !status.success() {
                return Err(format!("ended with {status}"));
            }
            break;
        }
        if begin.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("it took longer than {} s", PATIENCE.as_secs()));
        }
        if let Some(found) = resident_counters(child.id() as i32) {
            seen.push(found.anonymous as f64);
        }
        std::thread::sleep(PAUSE);
    }
    let peak = seen.iter().copied().fold(0.0, f64::max);
    if seen.is_empty() {
        return Err("it ended at once".into());
    }
    Ok(Taken {
        mean: seen.iter().sum::<f64>() / seen.len() as f64,
        peak,
    })
}
