//! Python programs: the site of an allocation is the line of Python that made it.

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, Target, not_run, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A service in small: handlers behind a dispatcher, a generator, a thread, a call from C back into Python, a function
/// whose code is thrown away, and names that are not ASCII.
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

/// The sizes of the program's own blocks.
const PLANTED: [u64; 4] = [10_001, 20_001, 30_001, 40_001];

/// Blocks and bytes by the innermost Python function and line of the service.
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

/// What the service plants, by function and line. Qualified names are there since 3.11.
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

/// The interpreters of this machine: Debian's, and others where they are.
fn interpreters() -> Vec<(PathBuf, u32)> {
    let mut found = Vec::new();
    for minor in 8..=13 {
        let debian = PathBuf::from(format!("/usr/bin/python3.{minor}"));
        let home = std::env::var_os("HOME").unwrap_or_default();
        let versions = Path::new(&home).join(".pyenv/versions");
        let versions = std::fs::read_dir(versions).into_iter().flatten().flatten();
        let of_user = versions.map(|v| v.path().join(format!("bin/python3.{minor}")));
        let found_here = [debian]
            .into_iter()
            .chain(of_user)
            .filter(|path| path.exists());
        found.extend(found_here.map(|path| (path, minor)));
    }
    found
}

#[test]
fn the_site_is_the_line() {
    let interpreters = interpreters();
    if interpreters.is_empty() {
        return not_run("no Python from 3.8 to 3.13 is installed");
    }
    let directory = Folder::new("python");
    let file = directory.path("service.py");
    std::fs::write(&file, SERVICE).unwrap();
    for (python, minor) in interpreters {
        let mut target = Target::run(Command::new(&python).arg(&file));
        let recording = &directory.path("run.mhk");
        let options = ["-o", recording, "--force"];
        let attacher = Attacher::start(&target, &options);
        target.send("go\n");
        target.expect("done");
        let report = attacher.finish();
        assert_eq!(report["totals"]["lost_events"], 0);
        assert_eq!(by_line(&report), planted(minor), "{python:?}: {report:#}");
        // Callers are Python functions too, and the file has its name.
        let text = report.to_string();
        assert!(
            text.contains("service.py\"") && text.contains("\"<made>\""),
            "{text}"
        );
        let (code, output, errors) = run(&["report", recording, "--json", "-T", "1000"]);
        assert_eq!(code, 0, "{errors}");
        let recorded: Value = serde_json::from_str(&output).expect("JSON");
        assert_eq!(by_line(&recorded), planted(minor), "{python:?}: recorded");
        assert!(target.finish().success(), "{python:?}");
    }
}
