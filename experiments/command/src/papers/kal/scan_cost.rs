//! Figures 8 and 11: cost of scanning by heap size and by period, with the search on this machine and on another. A
//! loop of calls replaces SPEC CPU 2000, the background job of figure 11.

use super::super::scanner::{Search, scan, scan_behind, scanning};
use super::super::sheet::{Sheet, Sheets, number};
use super::downtime::graph;
use crate::line_chart::{Chart, Line};
use memhook_measurements::{Measured, Spread, bind_to, build, placement, ratios};
use std::time::{Duration, Instant};

const SIZES: [(&str, f64, [&str; 3]); 4] = [
    ("1 MB", 1.0, ["9000", "72", "1"]),
    ("10 MB", 10.0, ["90000", "72", "1"]),
    ("100 MB", 100.0, ["900000", "72", "1"]),
    ("1 GB", 1000.0, ["7000000", "110", "1"]),
];
const PERIODS: [u64; 4] = [2, 10, 20, 80];
const SCANS: usize = 5;
/// Rounds of the background job, alternately without and with scans.
const ROUNDS: usize = 6;
const ROUND_MS: f64 = 4000.0;

fn median(all: Vec<f64>) -> f64 {
    Spread::of(all).map_or(f64::NAN, |spread| spread.median)
}

pub fn run(sheets: &mut Sheets) -> Result<(), String> {
    by_size(sheets)?;
    beside_a_job(sheets)
}

fn by_size(sheets: &mut Sheets) -> Result<(), String> {
    let mut columns = vec![
        "heap".to_owned(),
        "searched".to_owned(),
        "processor time of a scan, ms".to_owned(),
        "from start to end, ms".to_owned(),
        "held, ms".to_owned(),
    ];
    columns.extend(PERIODS.map(|period| format!("every {period} s, % of a processor")));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut sheet = Sheet::new("What a scan costs by the size of the heap", &columns);
    let mut lines: Vec<Line> = Vec::new();
    for (search, place) in [(Search::Here, "here"), (Search::Elsewhere, "elsewhere")] {
        let mut points = PERIODS.map(|_| Vec::new());
        for (name, megabytes, arguments) in SIZES {
            let target = graph(&arguments);
            let scans: Result<Vec<_>, String> = (0..SCANS)
                .map(|_| scan(target.pid(), search, &[]))
                .collect();
            let scans = scans?;
            let cpu = median(scans.iter().map(|scan| scan.cpu_s).collect());
            let wall = median(scans.iter().map(|scan| scan.wall_s).collect());
            let held = median(scans.iter().map(|scan| scan.held_ms).collect());
            let mut cells = vec![name.to_owned(), place.to_owned()];
            cells.extend([cpu * 1e3, wall * 1e3, held].map(number));
            for (period, points) in PERIODS.iter().zip(&mut points) {
                let percent = cpu / *period as f64 * 100.0;
                cells.push(number(percent));
                points.push((megabytes, percent));
            }
            sheet.row(cells);
            target.finish();
        }
        for (period, points) in PERIODS.iter().zip(points) {
            lines.push((format!("every {period} s, searched {place}"), points));
        }
    }
    sheets.add(&sheet);
    sheets.say("Percentages are the processor time of one scan divided by the period.");
    let chart = Chart {
        title: "Processor time of scanning, by heap size".into(),
        x: "MB",
        y: "% of a processor",
        log_x: true,
        log_y: true,
    };
    sheets.plot("", &chart, &lines);
    Ok(())
}

/// Returns the job's calls per nanosecond of elapsed time. The job's own figure excludes waits for the processor.
fn speed(job: &mut Measured) -> Result<f64, String> {
    let (begin, cpu) = (Instant::now(), cpu_ns(job.pid()));
    job.send(ROUND_MS)?;
    let ns = job.figures()?.first().copied().ok_or("no answer")?;
    let share = (cpu_ns(job.pid()) - cpu) / begin.elapsed().as_nanos() as f64;
    Ok(share / ns)
}

/// Returns the processor time of a process's first thread in nanoseconds.
fn cpu_ns(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|ns| ns.parse().ok()).unwrap_or(f64::NAN)
}

/// Measures a loop that shares its processor with the scans.
fn beside_a_job(sheets: &mut Sheets) -> Result<(), String> {
    let place = placement();
    bind_to(&place.target);
    let mut job = Measured::start(&build("increment", &[]), &[], &place.target);
    let service = graph(&["90000", "72", "1"]);
    let mut sheet = Sheet::new(
        "A job that shares its processor with scans of a service of 10 MB",
        &["scan every", "searched", "time of the job, with / without"],
    );
    for (search, name) in [(Search::Here, "here"), (Search::Elsewhere, "elsewhere")] {
        for period in [1, 2] {
            let (mut without, mut with) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                without.push(speed(&mut job)?);
                let one = || scan_behind(service.pid(), search);
                let (left, scans) = scanning(Duration::from_secs(period), one, || speed(&mut job));
                scans?;
                with.push(left?);
            }
            let ratio = ratios(&with, &without).ok_or("no rounds")?;
            sheet.row(vec![
                format!("{period} s"),
                name.to_owned(),
                format!(
                    "{:.3} ({:.3} to {:.3})",
                    ratio.median, ratio.low, ratio.high
                ),
            ]);
        }
    }
    bind_to(&place.rest);
    service.finish();
    sheets.add(&sheet);
    sheets.say(
        "Scans beside the job run with nice 10, as the paper lowers the priority of its search.",
    );
    Ok(())
}
