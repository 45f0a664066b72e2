//! Targets that the agent searches but does not trace.

use super::served::{ask, expect_untouched, rule, service};
use memhook_tests::agents::Agent;
use memhook_tests::programs::{Folder, installed};
use memhook_tests::{Target, build_target, until};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

/// Checks that memhook-rs leaves nothing in a process that it only searches, and still finds its
/// leaked blocks.
#[test]
fn a_process_is_searched_and_not_traced() {
    let folder = Arc::new(Folder::new("agent-scan"));
    let (mut target, program) = service(&folder);
    ask(&mut target, "l");
    let more = "mode = \"scan\"\ninterval = \"5s\"\nmax_hold = \"20s\"";
    let agent = Agent::start(&folder, &rule(&program, more));
    let pid = target.pid();
    let found = |least: u64| {
        let mut found = Default::default();
        until(&format!("{least} lost blocks are found"), || {
            let target = agent.targets().remove(&u64::from(pid)).unwrap_or_default();
            let numbers = &target["numbers"];
            let number = |name: &str| numbers[name].as_u64().unwrap_or(0);
            found = [
                "unreachable_blocks",
                "unreachable_bytes",
                "scans",
                "live_blocks",
            ]
            .map(number);
            found[0] >= least
        });
        found
    };
    // The address of the last block may still be on the stack.
    let [blocks, bytes, scans, live] = found(98);
    assert!(blocks <= 100 && live >= blocks && scans >= 1);
    assert_eq!(bytes, blocks * 1000);
    expect_untouched(pid);
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    assert!(!maps.contains("/memfd:memhook"), "{maps}");
    ask(&mut target, "l");
    let [blocks, bytes, scans, _] = found(198);
    assert!(blocks <= 200 && scans >= 2);
    assert_eq!(bytes, blocks * 1000);
    let labels = ["mode=\"scan\""];
    let shown = agent.metric("memhook_target_unreachable_blocks", &labels);
    assert!(shown >= Some(198.0), "{shown:?}");
    assert!(agent.metric("memhook_target_scan_held_seconds_total", &labels) > Some(0.0));
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(target.finish().success());
}

/// Checks that a process that executes another program is subject to another rule, or to none.
#[test]
fn a_program_that_is_exchanged_is_searched_no_more() {
    let folder = Arc::new(Folder::new("agent-scan-exec"));
    let shell = PathBuf::from(folder.path("shell"));
    memhook_tests::programs::copy_program(installed("bash"), &shell);
    let mut child = Command::new(&shell)
        .args(["-c", "read line; exec sleep 600"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let more = "mode = \"scan\"\nmax_hold = \"20s\"";
    let agent = Agent::start(&folder, &rule(&shell, more));
    agent.await_phase(child.id(), "traced");
    drop(child.stdin.take());
    until("nothing is searched", || agent.targets().is_empty());
    assert!(child.try_wait().expect("a child").is_none(), "it goes on");
    child.kill().expect("killed");
    child.wait().expect("reaped");
}

/// Checks that a search also reports the resident memory, and the blocks that keep the heap from
/// shrinking, if a rule requests it.
#[test]
fn what_pins_memory_is_shown_where_a_rule_asks_for_it() {
    const PINS: u64 = 1500;
    let folder = Arc::new(Folder::new("agent-pins"));
    let program = PathBuf::from(folder.path("pinned"));
    memhook_tests::programs::copy_program(build_target("pinned_pages", &[]), &program);
    let mut target = Target::run(Command::new(&program).args(["2", "trimmed"]));
    let more =
        "mode = \"scan\"\nresident = true\npins = true\ninterval = \"1h\"\nmax_hold = \"20s\"";
    let agent = Agent::start(&folder, &rule(&program, more));
    let pid = target.pid();
    let mut numbers = Value::Null;
    until("what pins the memory is told", || {
        let mut target = agent.targets().remove(&u64::from(pid)).unwrap_or_default();
        numbers = target["numbers"].take();
        numbers["pins"][0].is_object()
    });
    let pins = numbers["pins"].as_array().expect("pins");
    assert!(pins.len() <= 10);
    let first = &pins[0];
    assert_eq!(first["name"], "blocks of 72 bytes", "{numbers:#}");
    // Libraries also have blocks of this size.
    let blocks = first["own_blocks"].as_u64().expect("a number");
    assert!((PINS..PINS + 50).contains(&blocks), "{first:#}");
    let parts = numbers["resident_parts"].as_object().expect("parts");
    let sum: u64 = parts.values().filter_map(Value::as_u64).sum();
    assert_eq!(sum, numbers["resident_bytes"], "{numbers:#}");
    let labels = [&format!("pid=\"{pid}\""), "blocks=\"blocks of 72 bytes\""];
    let predicted = first["pinned_bytes"].as_f64();
    assert_eq!(
        agent.metric("memhook_target_pinned_bytes", &labels),
        predicted
    );
    let own = agent.metric("memhook_target_pinning_bytes", &labels);
    assert_eq!(own, first["own_bytes"].as_f64());
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    let resident = || {
        memhook_process::resident_counters(pid as i32)
            .expect("it lives")
            .resident()
    };
    let before = resident();
    target.go();
    target.expect("freed");
    let fell = (before - resident()) as f64;
    let predicted = predicted.expect("a number");
    assert!(
        (fell - predicted).abs() <= predicted / 10.0,
        "{fell} for {predicted}"
    );
    assert!(target.finish().success());
}
