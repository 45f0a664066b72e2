//! Figure 10: response times of a server while snapshots of it are taken. The paper requests files of 64 KiB from a web
//! server. This experiment requests values of 64 KiB from redis-server.

use super::super::held::Copier;
use super::super::scanner::{Search, scan};
use super::super::sheet::{Sheet, Sheets, number};
use super::super::spawned::libc_of;
use crate::line_chart::{Chart, Line};
use memhook_measurements::placement;
use memhook_measurements::programs::find;
use memhook_tests::programs::{Client, Folder, server};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const VALUE_BYTES: usize = 64 << 10;
/// Number of values: together the 10 MB of the paper's web server.
const VALUES: usize = 160;
const WINDOWS: usize = 16;
const WINDOW: Duration = Duration::from_millis(900);
const PACE: Duration = Duration::from_micros(500);

/// Kind of copying in a window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copying {
    None,
    Scan,
    StopAndCopy,
}

const WAYS: [(Copying, &str); 3] = [
    (Copying::None, "no snapshot"),
    (Copying::Scan, "memhook-rs scan"),
    (Copying::StopAndCopy, "stop and copy"),
];

/// Sends requests until `ended` is set. Returns for each response its time since the start in seconds, and its duration
/// in milliseconds.
fn ask(socket: &str, ended: &AtomicBool, since: Instant) -> Vec<(f64, f64)> {
    let mut client = Client::connect(socket);
    let mut answers = Vec::new();
    while !ended.load(Relaxed) {
        let begin = Instant::now();
        client.redis(&format!("GET key:{}", answers.len() % VALUES));
        answers.push((
            (begin - since).as_secs_f64(),
            begin.elapsed().as_secs_f64() * 1e3,
        ));
        std::thread::sleep(PACE);
    }
    answers
}

/// Returns the quantile of the sorted values at this fraction.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted
        .get(at.saturating_sub(1))
        .copied()
        .unwrap_or(f64::NAN)
}

pub fn run(sheets: &mut Sheets) -> Result<(), String> {
    let program = find("redis-server", "redis-server")?;
    let folder = Folder::new("papers-redis");
    let socket = folder.path("socket");
    let mut command = placement().command(&program);
    // Debian's redis uses jemalloc, and a scan cannot find the boundaries of jemalloc's blocks.
    command.env("LD_PRELOAD", libc_of(&program.to_string_lossy())?);
    command.args(["--port", "0", "--save", "", "--appendonly", "no"]);
    command.args(["--loglevel", "warning", "--unixsocket", &socket]);
    let redis = server(&mut command, &socket);
    let mut client = Client::connect(&socket);
    for key in 0..VALUES {
        // A line may have less than 64 KiB.
        for _ in 0..2 {
            client.redis(&format!("APPEND key:{key} {}", "v".repeat(VALUE_BYTES / 2)));
        }
    }
    let mut copier = Copier::with_room(256 << 20);
    let mut windows = WAYS.map(|_| Vec::new());
    let [mut held, mut stopped, mut bytes] = [const { Vec::new() }; 3];
    let (ended, since) = (AtomicBool::new(false), Instant::now());
    let answers = std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask(&socket, &ended, since));
        let mut copy = || -> Result<(), String> {
            for _ in 0..WINDOWS {
                for ((way, _), windows) in WAYS.iter().zip(&mut windows) {
                    let begin = Instant::now();
                    match way {
                        Copying::None => {}
                        Copying::Scan => {
                            let scan = scan(redis.pid(), Search::Here, &[])?;
                            held.push(scan.held_ms);
                            bytes.push(scan.copied / 1e6);
                        }
                        Copying::StopAndCopy => stopped.push(copier.copy(redis.pid())?.held_ms),
                    }
                    std::thread::sleep(WINDOW.saturating_sub(begin.elapsed()));
                    let end = since.elapsed().as_secs_f64();
                    windows.push(((begin - since).as_secs_f64(), end));
                }
            }
            Ok(())
        };
        let copied = copy();
        ended.store(true, Relaxed);
        let answers = asking.join().map_err(|_| "the client failed".to_owned());
        copied.and(answers)
    })?;
    let within = |windows: &[(f64, f64)]| {
        let is_in = |at: f64| windows.iter().any(|&(from, to)| from <= at && at < to);
        let mut all: Vec<f64> = answers
            .iter()
            .filter(|(at, _)| is_in(*at))
            .map(|(_, ms)| *ms)
            .collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let mut sheet = Sheet::new(
        "Response times for 64 KiB in ms, with one snapshot in each window of 0.9 s",
        &[
            "in the window",
            "answers",
            "p50",
            "p99",
            "p99.9",
            "longest",
            "median of the windows' longest",
        ],
    );
    for ((_, name), windows) in WAYS.iter().zip(&windows) {
        let all = within(windows);
        let mut longest: Vec<f64> = windows
            .iter()
            .filter_map(|&window| within(&[window]).last().copied())
            .collect();
        longest.sort_by(f64::total_cmp);
        let figures = [
            quantile(&all, 0.5),
            quantile(&all, 0.99),
            quantile(&all, 0.999),
            quantile(&all, 1.0),
            quantile(&longest, 0.5),
        ];
        let cells = [(*name).to_owned(), all.len().to_string()].into_iter();
        sheet.row(cells.chain(figures.map(number)).collect());
    }
    sheets.add(&sheet);
    let middle = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        number(quantile(&all, 0.5))
    };
    sheets.say(&format!(
        "Held: {} ms by a scan, {} ms by stop and copy (medians); {} MB copied.",
        middle(held),
        middle(stopped),
        middle(bytes)
    ));
    plot(sheets, &windows, &answers);
    redis.signal(libc::SIGKILL);
    Ok(())
}

/// Plots the first windows, with one line per kind of copying.
fn plot(sheets: &mut Sheets, windows: &[Vec<(f64, f64)>; 3], answers: &[(f64, f64)]) {
    let line = |(windows, (_, name)): (&Vec<(f64, f64)>, &(Copying, &str))| -> Line {
        let (from, to) = windows.get(1).copied().unwrap_or_default();
        let shown = answers.iter().filter(|(at, _)| (from..to).contains(at));
        let points = shown.map(|(at, ms)| (at - from, *ms));
        ((*name).to_owned(), points.collect())
    };
    let lines: Vec<Line> = windows.iter().zip(&WAYS).map(line).collect();
    let chart = Chart {
        title: "Response times of redis-server in one window of each kind".into(),
        x: "seconds",
        y: "ms",
        ..Chart::default()
    };
    sheets.plot("", &chart, &lines);
}
