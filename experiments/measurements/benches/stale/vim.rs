//! Memcov's own workload: vim, driven by a script.

use super::{attached, report};
use memhook_measurements::{Band, band_plot};
use serde_json::Value;
use std::fs::{read_to_string, write};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Number of lines. Vim inserts the lines at the beginning, writes the file, deletes all lines, writes the file again,
/// and quits.
const LINES: u32 = 200_000;
/// Number of lines after which vim waits, so that blocks can become old.
const LINES_AT_A_TIME: u32 = 500;
const PAUSE_MS: u32 = 75;

/// A running vim that waits for keys.
struct Vim {
    child: Child,
    script: PathBuf,
}

impl Vim {
    fn start(folder: &Path, pause_ms: u32) -> Vim {
        let script = folder.join("benchmark.vim");
        let text = format!(
            "let s:i = 0\n\
             while s:i < {LINES}\n\
             \x20 execute \"normal! ggOline \" . s:i . \" of a text that is inserted at the beginning\"\n\
             \x20 let s:i += 1\n\
             \x20 if s:i % {LINES_AT_A_TIME} == 0 && {pause_ms} > 0\n\
             \x20   sleep {pause_ms}m\n\
             \x20 endif\n\
             endwhile\n\
             write! {0}\n%delete\nwrite! {0}\nqall!\n",
            folder.join("written.txt").display()
        );
        write(&script, text).expect("a script");
        let child = Command::new("vim")
            .args(["--not-a-term", "-T", "dumb", "-N", "-u", "NONE", "-n"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("vim: apt-get install vim");
        // Vim needs some time before it reads keys.
        std::thread::sleep(Duration::from_secs(1));
        Vim { child, script }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Types the name of the script, and waits until vim exits. Returns vim's processor time in seconds.
    fn work(mut self) -> f64 {
        let mut keys = self.child.stdin.take().expect("piped");
        let line = format!(":source {}\r", self.script.display());
        keys.write_all(line.as_bytes()).expect("vim listens");
        let stat = format!("/proc/{}/stat", self.child.id());
        let mut ticks = 0;
        while self.child.try_wait().expect("a child").is_none() {
            let text = read_to_string(&stat).unwrap_or_default();
            let fields = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
            let fields: Vec<&str> = fields.split(' ').collect();
            let number = |at: usize| fields.get(at).and_then(|f| f.parse().ok()).unwrap_or(0);
            ticks = ticks.max(number(11) + number(12));
            std::thread::sleep(Duration::from_millis(10));
        }
        // A clock tick is 10 ms on x86-64 (proc(5), sysconf(3)).
        ticks as f64 / 100.0
    }
}

fn numbers(list: &Value) -> Vec<f64> {
    let list = list.as_array().expect("a list").iter();
    list.map(|number| number.as_f64().expect("a number"))
        .collect()
}

/// Measures and plots figures 4, 5 and 6.
pub fn figures(folder: &Path) {
    let recording = folder.join("vim.mhk");
    let recording = recording.to_str().expect("a path");
    let vim = Vim::start(folder, PAUSE_MS);
    let options = [
        "attach",
        &vim.pid(),
        "--stale=10s",
        "-o",
        recording,
        "--force",
        "--json",
    ];
    let attacher = attached(&options);
    vim.work();
    let report = report(attacher);
    let history = &report["stale"]["history"];
    let points = history["points"].as_array().expect("points");
    let times: Vec<f64> = points
        .iter()
        .map(|p| p["at_s"].as_f64().expect("s"))
        .collect();
    let bands_of = |field: &str, names: Vec<String>| -> Vec<Band> {
        let rows: Vec<Vec<f64>> = points.iter().map(|point| numbers(&point[field])).collect();
        let band = |(at, name)| Band {
            name,
            values: rows.iter().map(|row| row[at]).collect(),
        };
        names.into_iter().enumerate().map(band).collect()
    };
    let ages = numbers(&history["ages_s"]);
    let mut names = vec![format!("less than {} s", ages[0])];
    names.extend(ages.iter().map(|age| format!("at least {age} s")));
    let mut by_age = bands_of("untouched_bytes", names);
    by_age.reverse();
    save(
        folder,
        "figure-5-ages.svg",
        &band_plot(
            "vim: live bytes by how long they were not touched",
            "bytes",
            &times,
            &by_age,
        ),
    );
    let thresholds = numbers(&history["thresholds_s"]);
    let names = thresholds.iter().map(|s| format!("{s} s after a write"));
    let by_threshold = bands_of("pages", names.collect());
    save(
        folder,
        "figure-6-thresholds.svg",
        &band_plot(
            "vim: pages by when they are looked at again",
            "pages",
            &times,
            &by_threshold,
        ),
    );
    calls(folder, recording, times.last().copied().unwrap_or(1.0));
    let last = &by_age.iter().map(|band| band.values[times.len() - 1]);
    let all: f64 = last.clone().sum();
    let old: f64 = last.clone().take(2).sum();
    println!(
        "vim at its end: {:.0} % of the live bytes untouched for at least 16 s (the paper: 78 % of allocations); \
         watching took {:.2} % of its time",
        old / all.max(1.0) * 100.0,
        report["stale"]["cost"].as_f64().unwrap_or(0.0) * 100.0
    );
}

/// Plots figure 4: calls of malloc and free in each second.
fn calls(folder: &Path, recording: &str, seconds: f64) {
    let mut times = Vec::new();
    let mut bands = ["allocations", "releases"].map(|name| Band {
        name: name.to_owned(),
        values: Vec::new(),
    });
    for second in 0..seconds as u32 {
        let (from, to) = (format!("{second}s"), format!("{}s", second + 1));
        let output = Command::new(memhook_tests::binary())
            .args([
                "report", recording, "--from", &from, "--to", &to, "--json", "-T", "1",
            ])
            .output()
            .expect("memhook-rs");
        let Ok(report) = serde_json::from_slice::<Value>(&output.stdout) else {
            continue;
        };
        times.push(f64::from(second));
        for (band, field) in bands.iter_mut().zip(["allocations", "releases"]) {
            let calls = report["totals"][field].as_f64().unwrap_or(0.0);
            band.values.push(calls);
        }
    }
    let picture = band_plot(
        "vim: calls of allocating and releasing functions",
        "calls a second",
        &times,
        &bands,
    );
    save(folder, "figure-4-calls.svg", &picture);
}

fn save(folder: &Path, name: &str, picture: &str) {
    let path = folder.join(name);
    write(&path, picture).expect("a picture");
    println!("{}", path.display());
}

/// Compares the processor time of vim's script when vim is traced and when it is also watched.
pub fn run_times(folder: &Path) {
    const ROUNDS: usize = 5;
    let ways: [(&str, bool); 2] = [("traced, not watched", false), ("watched", true)];
    let mut seconds = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for (of_way, (_, is_watched)) in seconds.iter_mut().zip(&ways) {
            let vim = Vim::start(folder, PAUSE_MS / 5);
            let pid = vim.pid();
            let mut arguments = vec![];
            if *is_watched {
                arguments.extend([
                    "stale", &pid, "--json", "-d", "1h", "--older", "5s", "--budget", "50%",
                ]);
            } else {
                arguments.extend(["attach", &pid, "--json", "-i", "1h"]);
            }
            let attacher = attached(&arguments);
            of_way.push(vim.work());
            report(attacher);
        }
    }
    let median = |list: &Vec<f64>| {
        let mut list = list.clone();
        list.sort_by(f64::total_cmp);
        list[list.len() / 2]
    };
    let medians: Vec<f64> = seconds.iter().map(median).collect();
    for ((name, _), seconds) in ways.iter().zip(&medians) {
        println!("vim's processor time, {name}: {seconds:.2} s");
    }
}
