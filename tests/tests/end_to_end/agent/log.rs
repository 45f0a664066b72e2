//! The log of the agent.

use super::served::{rule, service};
use memhook_tests::agents::Agent;
use memhook_tests::programs::Folder;
use serde_json::Value;
use std::sync::Arc;

/// Each line is an object with a time and a level. Checks that the log contains attaches and
/// detaches, but not the steps of an attach.
#[test]
fn as_json() {
    let folder = Arc::new(Folder::new("agent-log"));
    let (target, program) = service(&folder);
    let pid = target.pid();
    let traced = rule(&program, "mode = \"exact\"");
    let agent = Agent::start_with(&folder, &traced, &["--log-format", "json"]);
    agent.await_phase(pid, "traced");
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    let parsed = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let lines: Vec<Value> = said.lines().map(parsed).collect();
    for line in &lines {
        assert!(
            line["timestamp"].is_string() && line["level"] == "INFO",
            "{line}"
        );
        let place = line["target"].as_str().expect("a place");
        assert!(place.starts_with("memhook_agent"), "{line}");
    }
    let of_target = |what: &str| {
        let is_it = |line: &&Value| line["message"] == what && line["pid"] == pid;
        lines
            .iter()
            .find(is_it)
            .unwrap_or_else(|| panic!("{what}: {said}"))
    };
    of_target("traced");
    assert_eq!(of_target("a trace has ended")["outcome"], "left");
    assert!(target.finish().success());
}
