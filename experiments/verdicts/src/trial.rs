//! Builds, starts and attaches to the program of one situation, and compares the advice with the truth.

use crate::situation::{Allocator, Language, Situation};
use crate::source::source;
use serde_json::Value;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Advice on one situation.
pub struct Said {
    pub class: String,
    /// True if the first finding names the responsible function, or if there is none.
    pub is_site_right: bool,
    pub is_certain: bool,
    /// Certainty of the first finding; empty without one.
    pub certainty: String,
    /// Bytes that the remedy of the first finding was to return, and bytes that it returned, if it was tried.
    pub tried: Option<(f64, f64)>,
    /// First line, or the error.
    pub answer: String,
}

/// Running program. Its output stays open, because writing to a closed pipe would kill it.
struct Running {
    child: Child,
    output: Option<Lines<BufReader<ChildStdout>>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // The program may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// Returns the library to preload, and the settings that keep free memory in the process if that is the disease.
fn preloaded(
    allocator: Allocator,
) -> Option<(&'static str, &'static [(&'static str, &'static str)])> {
    match allocator {
        Allocator::Glibc | Allocator::Musl => None,
        Allocator::Jemalloc => Some((
            "libjemalloc.so.2",
            &[("MALLOC_CONF", "dirty_decay_ms:-1,muzzy_decay_ms:-1")],
        )),
        Allocator::Tcmalloc => Some((
            "libtcmalloc_minimal.so.4",
            &[("TCMALLOC_RELEASE_RATE", "0")],
        )),
        Allocator::Mimalloc => Some((
            "libmimalloc.so.2",
            &[
                ("MIMALLOC_PAGE_RESET", "0"),
                ("MIMALLOC_RESET_DELAY", "1000000"),
                ("MIMALLOC_PURGE_DELAY", "-1"),
            ],
        )),
    }
}

fn build(of: &Situation, folder: &Path) -> Result<std::path::PathBuf, String> {
    const OF_C: &[&str] = &["-O1", "-g", "-pthread", "-w", "-fpermissive"];
    const OF_RUST: &[&str] = &["--edition", "2021", "-C", "opt-level=1", "-g"];
    let (compiler, ending, options) = match (of.language, of.allocator) {
        (Language::C, Allocator::Musl) => ("musl-gcc", "c", OF_C),
        (Language::C, _) => ("cc", "c", OF_C),
        (Language::Cpp, _) => ("c++", "cc", OF_C),
        (Language::Rust, _) => ("rustc", "rs", OF_RUST),
    };
    let name = format!("program{}", of.number);
    let text = folder.join(format!("{name}.{ending}"));
    std::fs::write(&text, source(of)).map_err(|error| error.to_string())?;
    let program = folder.join(name);
    let built = Command::new(compiler)
        .args(options)
        .args([text.as_os_str(), "-o".as_ref(), program.as_os_str()])
        .output()
        .map_err(|error| error.to_string())?;
    match built.status.success() {
        true => Ok(program),
        false => Err(String::from_utf8_lossy(&built.stderr).into_owned()),
    }
}

fn started(of: &Situation, program: &Path) -> Result<Running, String> {
    let mut command = Command::new(program);
    if let Some((library, settings)) = preloaded(of.allocator) {
        command.env("LD_PRELOAD", format!("{LIBRARIES}/{library}"));
        if of.disease.class() == "allocator" {
            command.envs(settings.iter().copied());
        }
    }
    let child = command.stdout(Stdio::piped()).spawn();
    let mut running = Running {
        child: child.map_err(|error| error.to_string())?,
        output: None,
    };
    let output = running.child.stdout.take().ok_or("no output")?;
    let lines = running.output.insert(BufReader::new(output).lines());
    for line in lines {
        if line.map_err(|error| error.to_string())? == of.moment {
            return Ok(running);
        }
    }
    Err("it has ended by itself".into())
}

/// Builds and starts the program, and asks for advice.
pub fn trial(of: &Situation, memhook: &str, time: &str, folder: &Path) -> Said {
    try_it(of, memhook, time, folder).unwrap_or_else(|why| Said {
        class: "failed".into(),
        is_site_right: false,
        is_certain: false,
        certainty: String::new(),
        tried: None,
        answer: why.lines().last().unwrap_or_default().into(),
    })
}

fn try_it(of: &Situation, memhook: &str, time: &str, folder: &Path) -> Result<Said, String> {
    let running = started(of, &build(of, folder)?)?;
    let asked = Command::new(memhook)
        .args([
            "advise",
            &running.child.id().to_string(),
            "-d",
            time,
            "--try",
            "--json",
        ])
        .output()
        .map_err(|error| error.to_string())?;
    let json: Value = serde_json::from_slice(&asked.stdout)
        .map_err(|_| String::from_utf8_lossy(&asked.stderr).into_owned())?;
    let _ = std::fs::write(
        folder.join(format!("said{}.json", of.number)),
        &asked.stdout,
    );
    let first = &json["findings"][0];
    let class = match json["class"].as_str() {
        Some(class) => class.to_owned(),
        // This version of memhook-rs reports only the kinds of its findings.
        None => class_of_kind(first["kind"].as_str()).to_owned(),
    };
    let place = first["place"].as_str().unwrap_or_default();
    Ok(Said {
        is_site_right: !of.disease.has_site() || place.contains(of.function),
        is_certain: matches!(first["certainty"].as_str(), Some("exact" | "certain")),
        certainty: first["certainty"].as_str().unwrap_or_default().to_owned(),
        tried: json["tried"]["predicted_bytes"]
            .as_f64()
            .zip(json["tried"]["given_back_bytes"].as_f64()),
        answer: json["answer"].as_str().unwrap_or("nothing").to_owned(),
        class,
    })
}

fn class_of_kind(kind: Option<&str>) -> &'static str {
    match kind {
        Some("leak") => "leak",
        Some("growth") => "unbounded",
        Some("fragmentation") => "fragmentation",
        Some("retention" | "arenas" | "thread_caches" | "huge_pages") => "allocator",
        Some("mappings") => "mappings",
        Some("stacks") => "stacks",
        _ => "nothing",
    }
}
