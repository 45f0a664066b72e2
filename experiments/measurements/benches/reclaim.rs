//! Measures a program that keeps a sorted list and leaks some of the removed nodes. Reports its heap size over time
//! without leaks, with leaks, and with leaks that are reclaimed at several intervals; its operations per second of
//! processor time; and the hold times of its threads. Also measures the hold times of scans of larger programs that
//! keep writing.
//!
//! `cargo measure reclaim -- [--seconds N]`: seven concurrent runs take N seconds, and each needs little processor
//! time. The default is 170, because only the second scan that finds a block lost releases it. With the preceding
//! scans, the benchmark takes about four minutes. Writes `target/reclaim/heap.svg`.

use memhook_tests::{Target, binary, build_target};
use plotters::prelude::*;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Percentage of removed nodes that are leaked.
const LOST: &str = "10";
/// Pause between two operations in µs, so that the leak rate is about the same on every machine.
const PACE: &str = "20";
const INTERVALS: [u64; 5] = [2, 10, 20, 40, 80];

/// Results of one run.
struct Run {
    name: String,
    /// Time in seconds, and the size of malloc's heap in MiB.
    heap: Vec<(f64, f64)>,
    operations_a_cpu_second: f64,
    /// Hold times in milliseconds: of all threads for each snapshot, and the longest hold of one thread for the
    /// releases of a round.
    snapshot_holds: Vec<f64>,
    release_holds: Vec<f64>,
    released_mib: f64,
}

fn run(name: String, lost: &str, every: Option<u64>, time: Duration) -> Run {
    let program = build_target("leaktest", &[]);
    let mut target = Target::start(&program, &["1", lost, "1000", PACE]);
    let reclaimer = every.map(|seconds| {
        Command::new(binary())
            .args([
                "scan",
                &target.pid().to_string(),
                "--reclaim",
                "--yes",
                "--json",
            ])
            .args(["--every", &format!("{seconds}s")])
            .stdout(Stdio::piped())
            .spawn()
            .expect("memhook-rs starts")
    });
    let begin = Instant::now();
    let mut heap = Vec::new();
    let mut operations = 0.0;
    while begin.elapsed() < time {
        std::thread::sleep(Duration::from_millis(500));
        target.go();
        let line = target.expect("done");
        let numbers = line.split_whitespace().skip(1);
        let numbers: Vec<f64> = numbers.filter_map(|n| n.parse().ok()).collect();
        operations = numbers[0];
        heap.push((
            begin.elapsed().as_secs_f64(),
            numbers[2] / f64::from(1 << 20),
        ));
    }
    let operations_a_cpu_second = operations / processor_time(target.pid());
    let mut rounds = Vec::new();
    if let Some(reclaimer) = reclaimer {
        let id = reclaimer.id().to_string();
        let interrupted = Command::new("kill").args(["-INT", &id]).status();
        assert!(interrupted.is_ok_and(|s| s.success()));
        let output = reclaimer.wait_with_output().expect("it ends");
        assert!(output.status.success());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let parse = |line| serde_json::from_str::<serde_json::Value>(line).expect("JSON");
        rounds = text.lines().map(parse).collect();
    }
    assert!(
        target.finish().success(),
        "{name}: the program's own checks"
    );
    let all = |field: &str| rounds.iter().filter_map(|r| r[field].as_f64()).collect();
    let released: Vec<f64> = all("released_bytes");
    Run {
        name,
        heap,
        operations_a_cpu_second,
        snapshot_holds: all("snapshot_held_ms"),
        release_holds: all("longest_hold_ms"),
        released_mib: released.iter().fold(0.0, |sum, r| sum + r) / f64::from(1 << 20),
    }
}

/// Returns the processor time of a process in seconds (fields 14 and 15 of proc_pid_stat(5), in ticks of 10 ms).
fn processor_time(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    let ticks = fields
        .skip(11)
        .take(2)
        .filter_map(|n| n.parse::<f64>().ok());
    ticks.fold(0.0, |sum, t| sum + t) / 100.0
}

/// Formats median and maximum, or a dash.
fn spread(values: &[f64]) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.get(sorted.len() / 2), sorted.last()) {
        (Some(median), Some(most)) => format!("{median:.2} / {most:.2}"),
        _ => "-".to_owned(),
    }
}

fn plot(runs: &[Run]) -> Result<PathBuf, Box<dyn std::error::Error>> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/reclaim"));
    std::fs::create_dir_all(&folder)?;
    let file = folder.join("heap.svg");
    let points = || runs.iter().flat_map(|r| &r.heap);
    let seconds = points().map(|p| p.0).fold(1.0, f64::max);
    let most = points().map(|p| p.1).fold(1.0, f64::max);
    let path = file.clone();
    let area = SVGBackend::new(&path, (900, 500)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("Heap of a leaking program", ("sans-serif", 20))
        .margin(15)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..seconds, 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("seconds")
        .y_desc("MiB from the system")
        .draw()?;
    for (i, run) in runs.iter().enumerate() {
        let color = Palette99::pick(i).to_rgba();
        chart
            .draw_series(LineSeries::new(
                run.heap.iter().copied(),
                color.stroke_width(2),
            ))?
            .label(&run.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(file)
}

/// Measures the hold times of scans of a program with a heap of this size that keeps writing.
fn scan_holds(what: &str, blocks: &str, bytes: &str, megabytes_a_second: &str) {
    let program = build_target("scan_graph", &[]);
    let target = Target::start(&program, &[blocks, bytes, megabytes_a_second]);
    for method in ["precopy", "fork", "stop"] {
        let mut holds = Vec::new();
        for _ in 0..3 {
            let output = Command::new(binary())
                .args(["scan", "--json", "-T0", "--snapshot", method])
                .arg(target.pid().to_string())
                .output()
                .expect("memhook-rs runs");
            let report: serde_json::Value =
                serde_json::from_slice(&output.stdout).expect("a report");
            assert_eq!(report["totals"]["leaked_blocks"], 0, "{report}");
            holds.extend(report["snapshot"]["held_ms"].as_f64());
        }
        println!("{what:<40} {method:<8} {:>16}", spread(&holds));
    }
    assert!(target.finish().success());
}

fn main() {
    let mut arguments = std::env::args().skip_while(|a| a != "--seconds");
    let seconds = arguments.nth(1).and_then(|n| n.parse().ok()).unwrap_or(170);
    let time = Duration::from_secs(seconds);
    println!("held, ms (median / longest of 3 scans)");
    scan_holds("10 MB", "100000", "32", "0");
    scan_holds("10 MB, writing 100 MB/s", "100000", "32", "100");
    scan_holds("1 GB", "7000000", "64", "0");
    scan_holds("1 GB, writing 100 MB/s", "7000000", "64", "100");
    let mut planned = vec![
        ("no leak".to_owned(), "0", None),
        ("leak".to_owned(), LOST, None),
    ];
    planned.extend(INTERVALS.map(|every| {
        let name = format!("leak, reclaimed every {every} s");
        (name, LOST, Some(every))
    }));
    let runs: Vec<Run> = std::thread::scope(|scope| {
        let start = |(name, lost, every)| scope.spawn(move || run(name, lost, every, time));
        let running: Vec<_> = planned.into_iter().map(start).collect();
        let joined = running.into_iter().map(|run| run.join());
        joined.map(|run| run.expect("the run ends well")).collect()
    });
    println!(
        "\n{:<30} {:>9} {:>9} {:>9} {:>18} {:>18}",
        "", "heap MiB", "released", "speed", "all held ms", "one held ms"
    );
    let undisturbed = runs[0].operations_a_cpu_second;
    for run in &runs {
        println!(
            "{:<30} {:>9.1} {:>9.1} {:>9.3} {:>18} {:>18}",
            run.name,
            run.heap.last().map_or(0.0, |p| p.1),
            run.released_mib,
            run.operations_a_cpu_second / undisturbed,
            spread(&run.snapshot_holds),
            spread(&run.release_holds),
        );
    }
    match plot(&runs) {
        Ok(file) => println!("\n{}", file.display()),
        Err(error) => println!("\nno plot: {error}"),
    }
}
