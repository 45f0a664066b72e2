//! Cost of an attach by number of threads and libraries: its duration, the longest hold of a thread, and the longest
//! stall as measured by the threads themselves.
//!
//! `cargo measure attach`

use memhook_measurements::{
    Attacher, Figure, Figures, Measured, Memhook, Outcome, Round, Subject, Tool, alternate,
    bind_to, build, build_library, is_test, output_folder, placement,
};
use std::{path::PathBuf, time::Duration};

/// Name, number of threads, and number of additional libraries.
const TARGETS: [(&str, usize, usize); 6] = [
    ("1 thread, 0 libraries", 1, 0),
    ("8 threads, 0 libraries", 8, 0),
    ("64 threads, 0 libraries", 64, 0),
    ("500 threads, 0 libraries", 500, 0),
    ("1 thread, 200 libraries", 1, 200),
    ("8 threads, 200 libraries", 8, 200),
];

const OTHERS: &str = "longest stall of the others";
const WORKS: [&str; 4] = [
    "longest stall of any thread",
    OTHERS,
    "duration of the attach",
    "longest hold of a thread",
];

/// Copies one library. Each copy is a separate file and module.
fn libraries(count: usize) -> Vec<String> {
    let built = build_library("library", "library.so");
    let folder: PathBuf = output_folder().join("targets/libraries");
    std::fs::create_dir_all(&folder).expect("a folder");
    let copy = |number: usize| {
        let path = folder.join(format!("library-{number}.so"));
        std::fs::copy(&built, &path).expect("a copy");
        path.to_string_lossy().into_owned()
    };
    (0..count).map(copy).collect()
}

struct Stalls {
    threads: usize,
    libraries: Vec<String>,
    processors: String,
}

impl Stalls {
    /// Returns the longest stall of any thread, and the longest stall among all other threads.
    fn measure(&self, target: &mut Measured, work: impl FnOnce()) -> Result<Vec<f64>, String> {
        target.send(0.0)?;
        std::thread::sleep(Duration::from_millis(20));
        work();
        target.send(0.0)?;
        let microseconds = target.figures()?;
        let stalls = microseconds.iter().map(|us| us * 1e3);
        // With a single thread, there are no other threads.
        Ok(stalls.take(self.threads.min(2)).collect())
    }
}

fn figures(ns: Vec<f64>) -> Vec<Figure> {
    ns.into_iter().map(Figure::from).collect()
}

impl Subject for Stalls {
    /// Each round uses a new process, because only the first attach to a process loads the hook.
    fn round(&mut self, tool: Option<&dyn Tool>) -> Result<Round, String> {
        let threads = self.threads.to_string();
        let mut args = vec![threads.as_str()];
        args.extend(self.libraries.iter().map(String::as_str));
        let mut target = Measured::start(&build("stalls", &[]), &args, &self.processors);
        let pid = target.pid();
        if tool.is_none() {
            let pause = || std::thread::sleep(Duration::from_millis(150));
            return Ok(Round {
                figures: figures(self.measure(&mut target, pause)?),
                ..Round::default()
            });
        }
        let mut report = Err(String::new());
        let mut found = self.measure(&mut target, || {
            report = Attacher::start(pid, &[]).and_then(|attacher| {
                std::thread::sleep(Duration::from_millis(50));
                attacher.detach()
            });
        })?;
        let report = report?;
        found.extend([report.attach_ms() * 1e6, report.held_ms() * 1e6]);
        Ok(Round {
            figures: figures(found),
            outcome: Outcome {
                lost: report.lost(),
                events: report.events(),
            },
            ..Round::default()
        })
    }
}

fn main() {
    let mut figures = Figures::new("attach");
    let place = placement();
    bind_to(&place.rest);
    // The tool is not started through the trait, because the rounds need its report.
    let tool = Memhook::new("attach and detach", "");
    for (name, threads, count) in TARGETS {
        let count = if is_test() { count.min(2) } else { count };
        let works: Vec<String> = WORKS
            .iter()
            .filter(|&&work| threads > 1 || work != OTHERS)
            .map(|work| format!("{name}: {work}"))
            .collect();
        let works: Vec<&str> = works.iter().map(String::as_str).collect();
        figures.add(&works, &[tool.name()], || {
            let mut subject = Stalls {
                threads,
                libraries: libraries(count),
                processors: place.target.clone(),
            };
            alternate(&mut subject, &[&tool], Figures::cycles())
        });
    }
    figures.finish();
}
