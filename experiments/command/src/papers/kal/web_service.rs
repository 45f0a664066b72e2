//! Figures 14 and 15: a web service that leaks, with and without the release of leaked blocks. The paper plants a leak
//! in PHP under Apache. Here, an extension loaded by php-fpm leaks.

use super::super::scanner::Reclaimer;
use super::super::sheet::{Sheet, Sheets, number};
use crate::line_chart::{Chart, Line};
use memhook_measurements::Spread;
use memhook_measurements::programs::find;
use memhook_tests::programs::{Folder, server};
use memhook_tests::{Target, until};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const TIME: Duration = Duration::from_secs(75);
/// Pause between two requests, chosen for about the request rate of the paper's services.
const PACE: Duration = Duration::from_millis(10);
const PERIOD: u64 = 10;
/// Name, number of blocks leaked per request, and true if leaked blocks are released.
const CASES: [(&str, u32, bool); 3] = [
    ("no leak", 0, false),
    ("leak", 1, false),
    ("leak, released every 10 s", 1, true),
];

/// Compiles the extension against the headers that `php-config` names.
fn extension() -> Result<PathBuf, String> {
    let config = find("php-config", "php8.2-dev")?;
    let output = Command::new(config).arg("--includes").output();
    let output = output.map_err(|error| error.to_string())?;
    let includes = String::from_utf8_lossy(&output.stdout).into_owned();
    let root = crate::root();
    let library = memhook_measurements::output_folder().join("php_leak.so");
    let mut command = Command::new("c++");
    command.args(["-std=c++20", "-O2", "-shared", "-fPIC"]);
    command.args(includes.split_whitespace());
    command.arg(root.join("benches/targets/php_leak.cc"));
    match command.arg("-o").arg(&library).status() {
        Ok(status) if status.success() => Ok(library),
        _ => Err("the extension does not build against these headers of PHP".into()),
    }
}

/// php-fpm with one worker, which serves all requests.
struct Service {
    manager: Target,
    worker: u32,
    socket: String,
    script: String,
    _folder: Folder,
}

impl Service {
    fn start(extension: &Path) -> Result<Service, String> {
        let folder = Folder::new("papers-php");
        let (socket, script) = (folder.path("socket"), folder.path("page.php"));
        let configuration = format!(
            "[global]\nerror_log = {}\n[www]\nuser = root\ngroup = root\nlisten = {socket}\n\
             pm = static\npm.max_children = 1\n",
            folder.path("log"),
        );
        let page = "<?php echo leaky_work((int)$_SERVER['QUERY_STRING']);\n";
        let write = |path: &str, text: &str| {
            std::fs::write(path, text).map_err(|error| format!("{path}: {error}"))
        };
        write(&folder.path("php-fpm.conf"), &configuration)?;
        write(&script, page)?;
        let program = find("php-fpm8.2", "php8.2-fpm")?;
        let mut command = Command::new(program);
        command.args(["-n", "-R", "-F", "-y", &folder.path("php-fpm.conf")]);
        command
            .arg("-d")
            .arg(format!("extension={}", extension.display()));
        let manager = server(&mut command, &socket);
        let pid = manager.pid();
        let mut worker = None;
        until("there is a worker", || {
            let path = format!("/proc/{pid}/task/{pid}/children");
            let children = std::fs::read_to_string(path).unwrap_or_default();
            worker = children
                .split_whitespace()
                .next()
                .and_then(|id| id.parse().ok());
            worker.is_some()
        });
        Ok(Service {
            worker: worker.ok_or("there is no worker")?,
            manager,
            socket,
            script,
            _folder: folder,
        })
    }

    /// Sends a request. Returns its response time in milliseconds.
    fn request(&self, lost: u32) -> Result<f64, String> {
        let begin = Instant::now();
        let answer = fast_cgi(&self.socket, &self.script, lost);
        let answer = answer.map_err(|error| format!("php-fpm: {error}"))?;
        match String::from_utf8_lossy(&answer).contains("3000") {
            true => Ok(begin.elapsed().as_secs_f64() * 1e3),
            false => Err(format!("php-fpm: {}", String::from_utf8_lossy(&answer))),
        }
    }

    /// Returns the anonymous memory of the worker in MiB.
    fn anonymous(&self) -> f64 {
        let path = format!("/proc/{}/status", self.worker);
        let status = std::fs::read_to_string(path).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kib.map_or(f64::NAN, |kib| kib / 1024.0)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // The manager ends its worker, then exits.
        self.manager.signal(libc::SIGTERM);
        until("php-fpm ends", || !self.manager.is_alive());
    }
}

/// Makes one FastCGI request (FastCGI specification, sections 3 to 6), and returns the response.
fn fast_cgi(socket: &str, script: &str, lost: u32) -> std::io::Result<Vec<u8>> {
    fn record(to: &mut Vec<u8>, kind: u8, content: &[u8]) {
        let length = (content.len() as u16).to_be_bytes();
        to.extend([1, kind, 0, 1, length[0], length[1], 0, 0]);
        to.extend(content);
    }
    let lost = lost.to_string();
    let mut parameters = Vec::new();
    for (name, value) in [
        ("SCRIPT_FILENAME", script),
        ("REQUEST_METHOD", "GET"),
        ("QUERY_STRING", &lost),
    ] {
        parameters.extend([name.len() as u8, value.len() as u8]);
        parameters.extend(name.bytes().chain(value.bytes()));
    }
    let mut request = Vec::new();
    // The records are: begin as a responder that closes the connection, parameters, end of parameters, no input.
    record(&mut request, 1, &[0, 1, 0, 0, 0, 0, 0, 0]);
    record(&mut request, 4, &parameters);
    record(&mut request, 4, &[]);
    record(&mut request, 5, &[]);
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(&request)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

struct Outcome {
    heap: Vec<(f64, f64)>,
    answers: Vec<f64>,
    released_mib: f64,
    held: Vec<f64>,
}

fn watch(extension: &Path, lost: u32, is_released: bool) -> Result<Outcome, String> {
    let service = Service::start(extension)?;
    let reclaimer = match is_released {
        true => Some(Reclaimer::start(service.worker, PERIOD)?),
        false => None,
    };
    let (begin, mut heap, mut answers) = (Instant::now(), Vec::new(), Vec::new());
    while begin.elapsed() < TIME {
        answers.push(service.request(lost)?);
        if answers.len() % 50 == 0 {
            heap.push((begin.elapsed().as_secs_f64(), service.anonymous()));
        }
        std::thread::sleep(PACE);
    }
    let rounds = match reclaimer {
        Some(reclaimer) => reclaimer.finish()?,
        None => Vec::new(),
    };
    let all = |field: &str| -> Vec<f64> {
        rounds
            .iter()
            .filter_map(|round| round[field].as_f64())
            .collect()
    };
    Ok(Outcome {
        heap,
        answers,
        released_mib: all("released_bytes").iter().sum::<f64>() / f64::from(1 << 20),
        held: all("snapshot_held_ms"),
    })
}

pub fn run(sheets: &mut Sheets) -> Result<(), String> {
    let extension = extension()?;
    let outcomes: Result<Vec<Outcome>, String> = std::thread::scope(|scope| {
        let extension = &extension;
        let running: Vec<_> = CASES
            .iter()
            .map(|&(_, lost, is_released)| scope.spawn(move || watch(extension, lost, is_released)))
            .collect();
        let ended = running.into_iter().map(|run| run.join());
        ended
            .map(|run| run.unwrap_or(Err("it panicked".into())))
            .collect()
    });
    let outcomes = outcomes?;
    let mut sheet = Sheet::new(
        "php-fpm with an extension that leaks one block in 3,000, all cases concurrently",
        &[
            "case",
            "requests",
            "anonymous memory at first, MiB",
            "at the end, MiB",
            "released, MiB",
            "answer, ms: median",
            "99 of 100",
            "longest",
            "held for a snapshot, ms, median (longest)",
        ],
    );
    let mut lines: Vec<Line> = Vec::new();
    for ((name, ..), of) in CASES.iter().zip(outcomes) {
        let mut answers = of.answers.clone();
        answers.sort_by(f64::total_cmp);
        let at = |share: f64| answers[((answers.len() - 1) as f64 * share) as usize];
        let longest = of.held.iter().copied().fold(f64::NAN, f64::max);
        let held = Spread::of(of.held).map_or(f64::NAN, |spread| spread.median);
        sheet.row(vec![
            (*name).to_owned(),
            answers.len().to_string(),
            number(of.heap.first().map_or(f64::NAN, |point| point.1)),
            number(of.heap.last().map_or(f64::NAN, |point| point.1)),
            number(of.released_mib),
            number(at(0.5)),
            number(at(0.99)),
            number(at(1.0)),
            format!("{} ({})", number(held), number(longest)),
        ]);
        lines.push(((*name).to_owned(), of.heap));
    }
    sheets.add(&sheet);
    let chart = Chart {
        title: "Memory of a php-fpm worker".into(),
        x: "seconds",
        y: "MiB, anonymous",
        ..Chart::default()
    };
    sheets.plot("", &chart, &lines);
    Ok(())
}
