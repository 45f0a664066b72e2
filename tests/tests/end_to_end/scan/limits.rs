//! Snapshots that would cost this machine much memory, or the target much time.

use memhook_tests::mapping_stalls::MappingStalls;
use memhook_tests::scans::{List, scan};
use memhook_tests::{Target, binary, build_target, run, until};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the target. Builds it once, because a file that is being written cannot be executed.
fn costly() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build_target("scan_limits", &[]))
}

fn start(mode: &str, bytes: u64) -> Target {
    Target::start(costly(), &[mode, &bytes.to_string()])
}

/// Returns the target's answer: resident bytes, and its longest pause in nanoseconds.
fn ask(target: &mut Target) -> (u64, u64) {
    target.go();
    let line = target.expect("done");
    let mut numbers = line.split_whitespace().skip(1).map(|n| n.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

fn json(target: &Target, options: &[&str]) -> Value {
    let report = scan(target.pid(), &[&["--json"], options].concat());
    serde_json::from_str(&report).unwrap()
}

/// Expects a refusal: one line, exit code 2.
fn refused(target: &Target, options: &[&str]) -> String {
    let pid = target.pid().to_string();
    let (code, out, err) = run(&[&["scan", &pid], options].concat());
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert_eq!(target.status("TracerPid"), "0");
    err
}

/// Checks memory without pages, which must not be populated here or in the target.
#[test]
fn memory_that_is_only_reserved() {
    let mut target = start("reserve", 200 << 30);
    let (before, _) = ask(&mut target);
    for method in ["precopy", "fork", "stop"] {
        let report = json(&target, &["--snapshot", method]);
        assert_eq!(report["snapshot"]["method"], method, "{report}");
        let copied = report["snapshot"]["copied_bytes"].as_u64().unwrap();
        assert!(copied < 4 << 20, "{report}");
    }
    // Blocks with references from pages far apart are reachable, and one block of 200 bytes is not.
    let found = List::parse(&scan(target.pid(), &["--list"]));
    let live = |bytes: u64| found.blocks.values().filter(move |b| **b == (false, bytes));
    assert_eq!(live(104).count(), 16);
    let (after, _) = ask(&mut target);
    assert!(after < before + (1 << 20), "{before} {after}");
    assert!(target.finish().success());
}

/// Checks zero pages: the kernel maps one page of zeros for all small pages, and one for all huge
/// pages.
#[test]
fn zeros_that_were_only_read() {
    let target = start("zeros", 1 << 30);
    for method in ["precopy", "fork", "stop"] {
        let report = json(&target, &["--snapshot", method]);
        let copied = report["snapshot"]["copied_bytes"].as_u64().unwrap();
        assert!(copied < 4 << 20, "{method}: {report}");
    }
    assert!(target.finish().success());
}

#[test]
fn a_copy_that_does_not_fit_is_refused_before_anything_is_held() {
    let target = start("fill", 64 << 20);
    for method in ["precopy", "fork", "stop"] {
        let why = refused(&target, &["--snapshot", method, "--max-memory", "70M"]);
        assert!(why.contains("would take about 80."), "{why}");
        assert!(why.contains("70.0 MiB is allowed"), "{why}");
    }
    json(&target, &["--max-memory", "100M"]);
    // Also limits the address space.
    let limited = Command::new("prlimit")
        .args(["--as=60000000"])
        .arg(binary())
        .args(["scan", &target.pid().to_string(), "--snapshot", "stop"])
        .output()
        .unwrap();
    let why = String::from_utf8_lossy(&limited.stderr);
    assert_eq!(limited.status.code(), Some(2), "{why}");
    assert!(why.contains("no address space"), "{why}");
    assert_eq!(target.status("TracerPid"), "0");
    assert!(target.finish().success());
}

/// Checks a program with which no copy can catch up: it writes 256 MiB in 40 ms, more than any
/// processor reads from another process.
#[test]
fn a_program_that_writes_everywhere_is_not_held_for_its_whole_memory() {
    let mut target = start("write", 256 << 20);
    ask(&mut target);
    // A copy can catch up only if the program has to wait for a processor.
    let mut report = Value::Null;
    until("it is not caught up with", || {
        report = json(&target, &["--max-hold", "40ms"]);
        report["snapshot"]["method"] == "fork"
    });
    let notes = report["notes"].to_string();
    assert!(notes.contains("no precopy, a fork instead"), "{notes}");
    assert!(notes.contains("and 40 ms are allowed"), "{notes}");
    // By its own clock, the target was not held for longer than the report says, apart from waits
    // for a processor.
    let (_, pause_ns) = ask(&mut target);
    let held = report["snapshot"]["held_ms"].as_f64().unwrap();
    println!("longest pause {} ms, held {held} ms", pause_ns / 1_000_000);
    assert!(report["snapshot"]["held_bytes"].as_u64() < Some(1 << 20));

    let pid = target.pid().to_string();
    let mut refused = (0, String::new(), String::new());
    until("it is not caught up with again", || {
        refused = run(&["scan", &pid, "--max-hold", "2ms"]);
        refused.0 == 2
    });
    let (_, out, why) = refused;
    assert_eq!((out.as_str(), why.lines().count()), ("", 1), "{why}");
    assert!(why.contains("would be held for longer than 2 ms"), "{why}");
    for method in ["by precopy", "by fork", "by stop", "--max-hold"] {
        assert!(why.contains(method), "{why}");
    }
    // Without a limit, all memory is copied.
    let report = json(&target, &["--snapshot", "stop"]);
    assert!(report["snapshot"]["held_bytes"].as_u64() > Some(256 << 20));
    assert!(target.finish().success());
}

/// Checks that the watch on a large heap is removed in slices after a snapshot, so that a thread
/// that maps memory does not wait for all slices.
#[test]
fn the_end_of_a_snapshot_makes_nobody_wait_long() {
    /// Limit for a wait, which is much less than the time to remove the watch in one step.
    const MOST_US: u64 = 25_000;
    let mut stalls = MappingStalls::start("1500");
    let pid = stalls.0.pid().to_string();
    let waits = stalls.waits_during(MOST_US, || {
        let (code, _, errors) = run(&["scan", &pid]);
        assert_eq!(code, 0, "{errors}");
    });
    assert!(waits.last() <= Some(&MOST_US), "{waits:?}");
}
