//! Figures 7 and 9: a program that keeps a sorted list and leaks some of the removed nodes. It runs
//! alone, with the leaked blocks released at several periods, and with Boehm's conservative
//! collector.

use super::super::scanner::Reclaimer;
use super::super::sheet::{Sheet, Sheets, number};
use crate::line_chart::{Chart, Line};
use memhook_measurements::placement;
use memhook_tests::{Target, build_target};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Percentage of removed nodes that are leaked.
const LOST: &str = "10";
/// Pause between two operations in µs, so that the leak rate is the same on every machine.
const PACE: &str = "20";
const TIME: Duration = Duration::from_secs(42);
const PERIODS: [u64; 3] = [2, 5, 10];
const WRAPPED: [&str; 6] = [
    "malloc",
    "free",
    "malloc_usable_size",
    "mallinfo2",
    "pthread_create",
    "pthread_join",
];

/// One variant of the program, by the handling of its leaks.
struct Case {
    name: String,
    program: PathBuf,
    lost: &'static str,
    every: Option<u64>,
}

struct Outcome {
    name: String,
    /// Time in seconds, and the size of the heap in MiB.
    heap: Vec<(f64, f64)>,
    /// Processor time per operation in microseconds.
    cost: f64,
    released_mib: f64,
    /// Hold times in milliseconds: of all threads for each snapshot, and of one thread for the
    /// releases.
    held: Vec<f64>,
    releasing: Vec<f64>,
}

/// Builds the program with the collector.
fn collected(folder: &Path) -> Result<PathBuf, String> {
    let root = crate::root();
    let program = folder.join("leaktest-collected");
    let mut command = Command::new("c++");
    command.args(["-std=c++20", "-O2", "-pthread", "-static-libstdc++"]);
    command.args(WRAPPED.map(|name| format!("-Wl,--wrap={name}")));
    command.arg(root.join("tests/targets/leaktest.cc"));
    command.arg(root.join("benches/targets/collected.cc"));
    command.arg("-o").arg(&program).arg("-lgc");
    match command.status() {
        Ok(status) if status.success() => Ok(program),
        Ok(status) => Err(format!("{program:?} does not build: {status}")),
        Err(error) => Err(format!("c++: {error}")),
    }
}

/// Returns the processor time of the process's threads in microseconds.
fn cpu_us(pid: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let ns = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    });
    ns.fold(0.0, |sum, ns| sum + ns) / 1e3
}

fn watch(case: Case) -> Result<Outcome, String> {
    let mut command = Command::new("taskset");
    command.args(["-c", &placement().target]).arg(&case.program);
    let mut target = Target::run(command.args(["1", case.lost, "1000", PACE]));
    let reclaimer = match case.every {
        Some(seconds) => Some(Reclaimer::start(target.pid(), seconds)?),
        None => None,
    };
    let (begin, mut heap, mut operations) = (Instant::now(), Vec::new(), 0.0);
    while begin.elapsed() < TIME {
        std::thread::sleep(Duration::from_millis(500));
        target.go();
        let line = target.expect("done");
        let numbers: Vec<f64> = line
            .split_whitespace()
            .skip(1)
            .filter_map(|word| word.parse().ok())
            .collect();
        operations = numbers[0];
        heap.push((
            begin.elapsed().as_secs_f64(),
            numbers[2] / f64::from(1 << 20),
        ));
    }
    let cost = cpu_us(target.pid()) / operations;
    let rounds = match reclaimer {
        Some(reclaimer) => reclaimer.finish()?,
        None => Vec::new(),
    };
    if !target.finish().success() {
        return Err(format!("{}: the program's own check failed", case.name));
    }
    let all = |field: &str| -> Vec<f64> {
        rounds
            .iter()
            .filter_map(|round| round[field].as_f64())
            .collect()
    };
    Ok(Outcome {
        name: case.name,
        heap,
        cost,
        released_mib: all("released_bytes")
            .iter()
            .fold(0.0, |sum, bytes| sum + bytes)
            / f64::from(1 << 20),
        held: all("snapshot_held_ms"),
        releasing: all("longest_hold_ms"),
    })
}

pub fn run(sheets: &mut Sheets) -> Result<(), String> {
    let program = build_target("leaktest", &[]);
    let collected = collected(&memhook_measurements::output_folder());
    let case = |name: &str, program: &PathBuf, lost, every| Case {
        name: name.to_owned(),
        program: program.clone(),
        lost,
        every,
    };
    let mut cases = vec![
        case("no leak", &program, "0", None),
        case("leak", &program, LOST, None),
    ];
    for seconds in PERIODS {
        let name = format!("leak, released every {seconds} s");
        cases.push(case(&name, &program, LOST, Some(seconds)));
    }
    match &collected {
        Ok(program) => {
            cases.push(case("no leak, bdwgc", program, "0", None));
            cases.push(case("leak, bdwgc", program, LOST, None));
        }
        Err(why) => sheets.say(why),
    }
    // The cases run concurrently, because each needs little processor time, and other load affects
    // all of them equally.
    let outcomes: Result<Vec<Outcome>, String> = std::thread::scope(|scope| {
        let running: Vec<_> = cases
            .into_iter()
            .map(|case| scope.spawn(move || watch(case)))
            .collect();
        let ended = running.into_iter().map(|run| run.join());
        ended
            .map(|run| run.unwrap_or(Err("it panicked".into())))
            .collect()
    });
    let outcomes = outcomes?;
    let base = outcomes[0].cost;
    let mut sheet = Sheet::new(
        "leaktest, all cases side by side",
        &[
            "case",
            "processor time an operation, µs",
            "times that of no leak",
            "heap at the end, MiB",
            "largest heap, MiB",
            "released, MiB",
            "all threads held, ms, median (longest)",
            "one thread held to release, ms, median (longest)",
        ],
    );
    for of in &outcomes {
        let largest = of.heap.iter().map(|point| point.1).fold(0.0, f64::max);
        let spread = |all: &Vec<f64>| {
            let longest = all.iter().copied().fold(f64::NAN, f64::max);
            let middle = memhook_measurements::Spread::of(all.clone());
            let middle = middle.map_or(f64::NAN, |spread| spread.median);
            format!("{} ({})", number(middle), number(longest))
        };
        sheet.row(vec![
            of.name.clone(),
            number(of.cost),
            number(of.cost / base),
            number(of.heap.last().map_or(f64::NAN, |point| point.1)),
            number(largest),
            number(of.released_mib),
            spread(&of.held),
            spread(&of.releasing),
        ]);
    }
    sheets.add(&sheet);
    let chart = Chart {
        title: "Heap of a leaking program".into(),
        x: "seconds",
        y: "MiB",
        ..Chart::default()
    };
    let lines: Vec<Line> = outcomes.into_iter().map(|of| (of.name, of.heap)).collect();
    sheets.plot("", &chart, &lines);
    Ok(())
}
