//! Rules that trace within a budget. The sums are exact while all events fit into the budget, and
//! estimates with errors later.

use memhook_tests::agents::{Agent, Pprof};
use memhook_tests::programs::{Folder, copy_program};
use memhook_tests::{Target, build_target, until};
use serde_json::Value;
use std::sync::Arc;

/// Memory of the C++ library itself.
const OTHER_BYTES: f64 = 100_000.0;

/// Returns a rule for a copy of a program that no other test starts.
fn rule(folder: &Folder, program: &str, overhead: &str) -> (String, String) {
    let copy = folder.path("budgeted");
    copy_program(build_target(program, &["-O1"]), &copy);
    let rule = format!(
        "[files]\ndirectory = \"{}\"\n[[rule]]\nname = \"web\"\nexecutable = \"{copy}\"\noverhead = \"{overhead}\"\n\
         send = [\"files\"]\ninterval = \"500ms\"\n",
        folder.path("profiles")
    );
    (copy, rule)
}

/// Returns the difference between a sum and the true value, in standard errors.
fn off(numbers: &Value, sum: &str, error: &str, truth: f64) -> f64 {
    let number = |name: &str| numbers[name].as_f64().unwrap_or(0.0);
    ((number(sum) - truth).abs() - OTHER_BYTES).max(0.0) / number(error).max(1.0)
}

/// Uses a budget that the program exceeds on any machine.
#[test]
fn estimates_are_within_their_errors_though_the_distance_changes() {
    let folder = Arc::new(Folder::new("agent-budget"));
    let (program, rule) = rule(&folder, "changing_rate", "0.05%");
    let mut target = Target::start(program.as_ref(), &["64", "150000"]);
    let agent = Agent::start(&folder, &rule);
    let pid = target.pid();
    agent.await_phase(pid, "traced");
    target.go();
    let line = target.expect("done");
    let words = line.split_whitespace().skip(1);
    let truth: Vec<f64> = words.map(|word| word.parse().expect("a number")).collect();
    let mut numbers = Value::Null;
    until("the sums are those of the end", || {
        let found = agent.targets().remove(&u64::from(pid)).unwrap_or_default();
        numbers = found["numbers"].clone();
        off(
            &numbers,
            "allocated_bytes",
            "allocated_error_bytes",
            truth[1],
        ) <= 6.0
            && off(&numbers, "live_bytes", "live_error_bytes", truth[3]) <= 6.0
    });
    assert!(
        numbers["live_error_bytes"].as_f64() > Some(0.0),
        "{numbers}"
    );
    let label = format!("pid=\"{pid}\"");
    let error = agent.metric("memhook_target_live_error_bytes", &[&label]);
    assert!(error > Some(0.0), "{numbers}");
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(target.finish().success());

    // The last profile also contains these sums.
    let files = std::fs::read_dir(folder.path("profiles")).expect("profiles");
    let mut files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    files.sort();
    let last = files.last().expect("a profile");
    let last = Pprof::read(&std::fs::read(last).expect("readable"));
    let sent = serde_json::json!({
        "live_bytes": last.sum("inuse_space"),
        "live_error_bytes": numbers["live_error_bytes"],
    });
    let off = off(&sent, "live_bytes", "live_error_bytes", truth[3]);
    assert!(off <= 6.0, "{sent} instead of {}", truth[3]);
}

#[test]
fn what_fits_is_exact() {
    let folder = Arc::new(Folder::new("agent-fits"));
    let (program, rule) = rule(&folder, "served", "50%");
    let mut target = Target::start(program.as_ref(), &[]);
    let agent = Agent::start(&folder, &rule);
    let pid = target.pid();
    until("everything is recorded", || {
        let found = agent.targets().remove(&u64::from(pid)).unwrap_or_default();
        found["numbers"]["sample_bytes"] == 0
    });
    target.send("l");
    target.expect("done");
    agent.await_number(pid, "live_bytes", 100_000);
    agent.await_number(pid, "allocations", 150);
    let numbers = agent.targets().remove(&u64::from(pid)).unwrap_or_default()["numbers"].clone();
    assert_eq!(numbers["sample_bytes"], 0, "{numbers}");
    assert!(numbers["live_error_bytes"].is_null(), "{numbers}");
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(target.finish().success());
}
