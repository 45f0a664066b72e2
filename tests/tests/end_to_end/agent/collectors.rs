//! Checks that the oldest supported and the newest OpenTelemetry Collector read the agent's data.

use super::served::{ask, files, rule, service};
use memhook_tests::agents::{Agent, ScriptedStore};
use memhook_tests::programs::{Folder, installed};
use memhook_tests::{not_run_here, until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Seconds for a build with its downloads.
const PATIENCE: &str = "300";

/// Builds the reader with this go.mod file, once for all runs.
fn reader(modules: &str) -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let sources = root.join("fleet/demo/reader");
    let target = root.join("target/fleet");
    std::fs::create_dir_all(&target).expect("a folder");
    let program = target.canonicalize().expect("there");
    let program = program.join(format!("reader-{modules}"));
    let output = Command::new("timeout")
        .arg(PATIENCE)
        .arg(installed("go"))
        .arg("build")
        .arg(format!("-modfile={modules}.mod"))
        .arg("-o")
        .arg(&program)
        .arg(".")
        .current_dir(sources)
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(program);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {said}", output.status))
}

/// Returns the service and the sums, as decoded by the reader.
fn read(reader: &Path, request: &[u8]) -> (String, BTreeMap<String, i64>) {
    let mut child = Command::new(reader)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(request).expect("taken");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let sums = answer["sums"].as_object().expect("sums").iter();
    let sums = sums.map(|(name, sum)| (name.clone(), sum.as_i64().expect("a number")));
    let service = answer["service"].as_str().unwrap_or_default();
    (service.to_owned(), sums.collect())
}

#[test]
fn the_oldest_and_the_newest_read_the_same_sums() {
    let mut readers = Vec::new();
    for modules in ["oldest", "go"] {
        match reader(modules) {
            Ok(reader) => readers.push(reader),
            // Downloading the modules requires the network.
            Err(why) => {
                return not_run_here(&format!(
                    "cannot build the reader with the collectors' modules: {why}"
                ));
            }
        }
    }
    let folder = Arc::new(Folder::new("otlp-collectors"));
    let (mut target, program) = service(&folder);
    let store = ScriptedStore::start(Vec::new());
    let directory = folder.path("profiles");
    let more =
        "mode = \"exact\"\nsend = [\"otlp\", \"files\"]\ninterval = \"500ms\"\nservice = \"shop\"";
    let text = format!(
        "[files]\ndirectory = \"{directory}\"\n[otlp]\nurl = \"{}\"\n{}",
        store.url(),
        rule(&program, more)
    );
    let agent = Agent::start_with(&folder, &text, &["--experimental-otlp"]);
    agent.await_phase(target.pid(), "traced");
    for round in 1..=3 {
        ask(&mut target, "l");
        agent.await_number(target.pid(), "live_bytes", 100_000 * round);
    }
    until("nothing waits", || {
        agent.metric("memhook_agent_queue_bytes", &["otlp"]) == Some(0.0)
    });
    assert_eq!(agent.end().0, Some(0));
    assert!(target.finish().success());
    // The next agent sends the data that its predecessor could not send.
    let queued = || std::fs::read_dir(folder.path("state/queue/otlp")).map_or(0, Iterator::count);
    let next = Agent::start_with(&folder, &text, &["--experimental-otlp"]);
    until("everything has arrived", || queued() == 0);
    assert_eq!(next.end().0, Some(0));
    let written = files(&directory);
    let requests = store.requests();
    assert_eq!(requests.len(), written.len());
    for reader in readers {
        let mut sums = BTreeMap::<String, i64>::new();
        for request in &requests {
            let (service, of_request) = read(&reader, &request.body);
            assert_eq!(service, "shop");
            for (name, sum) in of_request {
                *sums.entry(name).or_default() += sum;
            }
        }
        assert_eq!(sums.len(), 4, "{sums:?}");
        for (name, sum) in &sums {
            let all = written.iter().map(|profile| profile.sum(name)).sum::<i64>();
            assert_eq!(*sum, all, "{name}, {}", reader.display());
        }
        assert!(sums["alloc_space"] >= 300_000, "{sums:?}");
    }
}
