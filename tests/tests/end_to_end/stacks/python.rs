//! Python programs: the site of an allocation is its line of Python code.

use memhook_tests::programs::Folder;
use memhook_tests::releases::Release;
use memhook_tests::{Attacher, Target, not_run, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A miniature service: handlers behind a dispatcher, a generator, a thread, a call from C back
/// into Python, a function whose code is discarded, and non-ASCII names.
const SERVICE: &str = r#"import sys, threading
kept = []

class Handler:
    def get(self, n):
        kept.append(bytearray(n))  # line 6

    def post(self, n):
        kept.extend(
            bytearray(n)  # line 10
            for _ in range(2))

def größe(n):
    return bytearray(n)  # line 14

def dispatch(routes, path, n):
    routes[path](n)  # line 17

def serve():
    handler = Handler()
    routes = {"/get": handler.get, "/post": handler.post}
    for _ in range(50):
        dispatch(routes, "/get", 10_000)  # line 23
    for _ in range(30):
        dispatch(routes, "/post", 20_000)
    # Through C and back: sorted() calls the key.
    sorted(range(20), key=lambda n: kept.append(größe(30_000)) or n)  # line 27
    for _ in range(10):
        space = {"kept": kept}
        exec(compile("def gone(kept):\n\n    kept.append(bytearray(40_000))\ngone(kept)", "<made>", "exec"), space)

print("ready", flush=True)
for line in sys.stdin:
    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    print("done", flush=True)
"#;

/// Sizes of the program's own blocks.
const PLANTED: [u64; 4] = [10_001, 20_001, 30_001, 40_001];

/// Returns blocks and bytes by the innermost Python function and line of the service.
fn by_line(report: &Value) -> BTreeMap<(String, u64), (u64, u64)> {
    let mut found = BTreeMap::new();
    for site in report["sites"].as_array().expect("sites") {
        let (bytes, blocks) = (site["bytes"].as_u64(), site["blocks"].as_u64());
        let (bytes, blocks) = (bytes.expect("bytes"), blocks.expect("blocks"));
        let frames = site["stack"].as_array().expect("a stack");
        let Some(frame) = frames.iter().find(|frame| frame["module"] == "python") else {
            continue;
        };
        if blocks == 0 || !PLANTED.contains(&(bytes / blocks)) {
            continue;
        }
        let function = frame["function"].as_str().expect("a function").to_owned();
        let line = frame["line"].as_u64().expect("a line");
        let sum: &mut (u64, u64) = found.entry((function, line)).or_default();
        sum.0 += blocks;
        sum.1 += bytes;
    }
    found
}

/// Returns the blocks planted by the service, by function and line. Qualified names exist since
/// 3.11.
fn planted(minor: u32) -> BTreeMap<(String, u64), (u64, u64)> {
    let name = |qualified: &str| match minor {
        11.. => qualified.to_owned(),
        _ => qualified.rsplit('.').next().unwrap_or_default().to_owned(),
    };
    // A block is one byte larger than its array.
    BTreeMap::from([
        ((name("Handler.get"), 6), (50, 50 * 10_001)),
        (
            (name("Handler.post.<locals>.<genexpr>"), 10),
            (60, 60 * 20_001),
        ),
        ((name("größe"), 14), (20, 20 * 30_001)),
        ((name("gone"), 3), (10, 10 * 40_001)),
    ])
}

/// A Python interpreter.
struct Python {
    /// Minor version: N of 3.N.
    minor: u32,
    program: PathBuf,
    /// Unpacked Debian release to which the interpreter belongs.
    root: Option<Release>,
}

impl Python {
    fn command(&self) -> Command {
        match &self.root {
            None => Command::new(&self.program),
            Some(release) => {
                let mut command = release.command(&self.program);
                command.env("PYTHONHOME", release.path("usr"));
                command
            }
        }
    }
}

/// Returns the interpreters of this machine: Debian's, and any others.
fn interpreters() -> Vec<Python> {
    let mut found = Vec::new();
    for minor in 8..=14 {
        let debian = PathBuf::from(format!("/usr/bin/python3.{minor}"));
        let home = std::env::var_os("HOME").unwrap_or_default();
        let versions = Path::new(&home).join(".pyenv/versions");
        let versions = std::fs::read_dir(versions).into_iter().flatten().flatten();
        let of_user = versions.map(|v| v.path().join(format!("bin/python3.{minor}")));
        let here = [debian].into_iter().chain(of_user).map(|path| (path, None));
        let of_releases = Release::all().into_iter().map(|release| {
            let path = release.path(&format!("usr/bin/python3.{minor}"));
            (path, Some(release))
        });
        let there = here.chain(of_releases).filter(|(path, _)| path.exists());
        found.extend(there.map(|(program, root)| Python {
            minor,
            program,
            root,
        }));
    }
    found
}

#[test]
fn the_site_is_the_line() {
    memhook_tests::patiently(|| {
        let interpreters = interpreters();
        if interpreters.is_empty() {
            return not_run("no Python from 3.8 to 3.14 is installed");
        }
        let directory = Folder::new("python");
        let file = directory.path("service.py");
        std::fs::write(&file, SERVICE).unwrap();
        for python in interpreters {
            let (program, minor) = (&python.program, python.minor);
            let mut target = Target::run(python.command().arg(&file));
            let recording = &directory.path("run.mhk");
            let options = ["-o", recording, "--force"];
            let attacher = Attacher::start(&target, &options);
            target.send("go\n");
            target.expect("done");
            let report = attacher.finish();
            assert_eq!(report["totals"]["lost_events"], 0);
            assert_eq!(by_line(&report), planted(minor), "{program:?}: {report:#}");
            // Callers are also Python functions, and the report names their files.
            let text = report.to_string();
            assert!(
                text.contains("service.py\"") && text.contains("\"<made>\""),
                "{text}"
            );
            let (code, output, errors) = run(&["report", recording, "--json", "-T", "1000"]);
            assert_eq!(code, 0, "{errors}");
            let recorded: Value = serde_json::from_str(&output).expect("JSON");
            assert_eq!(by_line(&recorded), planted(minor), "{program:?}: recorded");
            assert!(target.finish().success(), "{program:?}");
        }
    });
}

/// A program that allocates along many call paths, at many depths, and in functions whose code is
/// discarded, so that different code with different lines takes its place in memory.
const WAYS: &str = r#"import sys
kept = []

def made(round):
    space = {"kept": kept}
    line = round % 7
    text = "\n" * line + "def made(n):\n    kept.append(bytearray(n)); return bytearray(5_000)\n"
    exec(compile(text, "<made>", "exec"), space)
    for _ in range(20):
        space["made"](40_000 + line)
        kept.pop()
    space["made"](40_000 + line)

def down(depth):
    if depth:
        return down(depth - 1)
    return [bytearray(3_000) for _ in range(20)]

print("ready", flush=True)
for line in sys.stdin:
    for round in range(350):
        made(round)
        down(round % 30)
        bytes(down(3)[0])
    print("done", flush=True)
"#;

#[test]
fn remembered_frames_are_right() {
    memhook_tests::patiently(|| {
        let mut interpreters = interpreters();
        // Checks the oldest and the newest interpreter.
        let newest = interpreters.pop();
        let some = interpreters.into_iter().take(1).chain(newest);
        let some: Vec<Python> = some.collect();
        if some.is_empty() {
            return not_run("no Python from 3.8 to 3.14 is installed");
        }
        some.iter().for_each(check_remembered_frames);
    });
}

fn check_remembered_frames(python: &Python) {
    let directory = Folder::new("python-ways");
    let file = directory.path("ways.py");
    std::fs::write(&file, WAYS).unwrap();
    let mut command = python.command();
    command.arg(&file).env("PYTHONMALLOC", "malloc");
    let mut target = Target::run(&mut command);
    // The attacher exits with code 3 if a remembered backtrace was wrong, which makes finish()
    // fail.
    let options = ["--check-memo", "--depth", "40"];
    let attacher = Attacher::start(&target, &options);
    for _ in 0..3 {
        target.send("go\n");
        target.expect("done");
    }
    let report = attacher.finish();
    let mut found = BTreeMap::new();
    for site in report["sites"].as_array().expect("sites") {
        let (bytes, blocks) = (site["bytes"].as_u64(), site["blocks"].as_u64());
        let (bytes, blocks) = (bytes.expect("bytes"), blocks.expect("blocks"));
        if blocks > 0 && (40_000..40_010).contains(&(bytes / blocks)) {
            let frames = site["stack"].as_array().expect("a stack");
            let frame = frames.iter().find(|frame| frame["module"] == "python");
            let line = frame.and_then(|frame| frame["line"].as_u64());
            *found.entry((bytes / blocks, line)).or_insert(0) += blocks;
        }
    }
    // A block is one byte larger than its array.
    let planted = (0..7).map(|line| ((40_001 + line, Some(line + 2)), 150));
    assert_eq!(found, planted.collect(), "{report:#}");
    assert!(target.finish().success());
}

/// A program that discards code and compiles different code, which gets the old addresses but has a
/// different line, file or name.
const PLACES: &str = r#"import sys
kept = []
space = {"kept": kept}

def line(variant):
    text = "n = 0\n" + "\n" * variant + f"kept.append(bytearray({60_000 + variant}))\n"
    exec(compile(text, "<made>", "exec"), space)

def file(variant):
    text = f"kept.append(bytearray({70_000 + variant}))\n"
    exec(compile(text, f"<made {variant}>", "exec"), space)

def name(variant):
    text = f"def made{variant}():\n    kept.append(bytearray({80_000 + variant}))\nmade{variant}()\n"
    exec(compile(text, "<made>", "exec"), space)
    del space[f"made{variant}"]

print("ready", flush=True)
for order in sys.stdin:
    for make in line, file, name:
        for round in range(280):
            make(round % 7)
            # Those of the last rounds stay.
            if round < 210:
                kept.pop()
    print("done", flush=True)
"#;

#[test]
fn code_at_the_same_addresses_is_told_apart() {
    memhook_tests::patiently(|| {
        let interpreters = interpreters();
        if interpreters.is_empty() {
            return not_run("no Python from 3.8 to 3.14 is installed");
        }
        let directory = Folder::new("python-places");
        let file = directory.path("places.py");
        std::fs::write(&file, PLACES).unwrap();
        for python in interpreters {
            let program = &python.program;
            let mut target = Target::run(python.command().arg(&file));
            let attacher = Attacher::start(&target, &["--check-memo"]);
            target.send("go\n");
            target.expect("done");
            let report = attacher.finish();
            assert_eq!(made_places(&report), planted_places(), "{program:?}");
            assert!(target.finish().success(), "{program:?}");
        }
    });
}

/// A block size, and the function, file and line that created blocks of this size.
type MadePlace = (u64, String, String, u64);

/// Returns the number of the program's own blocks by location.
fn made_places(report: &Value) -> BTreeMap<MadePlace, u64> {
    let mut found = BTreeMap::new();
    for site in report["sites"].as_array().expect("sites") {
        let (bytes, blocks) = (site["bytes"].as_u64(), site["blocks"].as_u64());
        let (bytes, blocks) = (bytes.expect("bytes"), blocks.expect("blocks"));
        let frames = site["stack"].as_array().expect("a stack");
        let Some(frame) = frames.iter().find(|frame| frame["module"] == "python") else {
            continue;
        };
        if blocks > 0 && (60_000..90_000).contains(&(bytes / blocks)) {
            let text = |key: &str| frame[key].as_str().unwrap_or_default().to_owned();
            let line = frame["line"].as_u64().unwrap_or_default();
            let place = (bytes / blocks, text("function"), text("file"), line);
            *found.entry(place).or_insert(0) += blocks;
        }
    }
    found
}

/// Returns the expected locations. A block is one byte larger than its array.
fn planted_places() -> BTreeMap<MadePlace, u64> {
    let place = |size: u64, function: &str, file: &str, line: u64| {
        ((size, function.to_owned(), file.to_owned(), line), 10)
    };
    let of_variant = |variant: u64| {
        [
            place(60_001 + variant, "<module>", "<made>", 2 + variant),
            place(
                70_001 + variant,
                "<module>",
                &format!("<made {variant}>"),
                1,
            ),
            place(80_001 + variant, &format!("made{variant}"), "<made>", 2),
        ]
    };
    (0..7).flat_map(of_variant).collect()
}
