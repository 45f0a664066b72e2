//! Processes that start and exit faster than an agent can follow, and a state directory that
//! disappears while the agent runs.

use super::served::{ask, expect_untouched, rule, service};
use memhook_tests::agents::Agent;
use memhook_tests::programs::{Folder, copy_program};
use memhook_tests::{build_target, patience, until};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;

/// Returns a program that only this test uses.
fn own_program(folder: &Folder, name: &str) -> PathBuf {
    let program = PathBuf::from(folder.path(name));
    copy_program(build_target(name, &["-O2"]), &program);
    program
}

fn start(program: &PathBuf, argument: &str) -> Child {
    Command::new(program)
        .arg(argument)
        .spawn()
        .expect("it runs")
}

/// Checks that the agent still works, and has forgotten all of these processes.
fn expect_forgotten(folder: &Folder, agent: Agent) {
    assert_eq!(agent.get("/healthz").trim(), "ok");
    let attached = folder.path("state/attached");
    until("nothing is attached to", || {
        std::fs::read_to_string(&attached).is_ok_and(|text| text.is_empty())
            && agent.targets().is_empty()
    });
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("internal error"), "{said}");
}

/// Each program may fork, and may exec another program, at any moment: after it was selected,
/// during the attach, and during the trace.
#[test]
fn programs_that_fork_and_execute_all_the_time_suffer_nothing() {
    let folder = Arc::new(Folder::new("agent-executes"));
    let program = own_program(&folder, "executes_itself");
    let agent = Agent::start(&folder, &rule(&program, "mode = \"exact\""));
    let mut rounds = 0;
    until("attaches to them were tried in several rounds", || {
        let started: Vec<Child> = (0..12)
            .map(|n| start(&program, &format!("{}", 40 + n)))
            .collect();
        for mut child in started {
            let status = patience::end_of(&mut child);
            assert!(status.success(), "{status}: {}", agent.said());
        }
        rounds += 1;
        rounds >= 4 && agent.said().contains("process=\"executes_itself\"")
    });
    expect_forgotten(&folder, agent);
}

/// Starts many more processes at once than the agent may trace.
#[test]
fn a_crowd_that_appears_at_once_suffers_nothing() {
    let folder = Arc::new(Folder::new("agent-crowd"));
    let program = own_program(&folder, "executes_itself");
    let agent = Agent::start(&folder, &rule(&program, "max_targets = 8"));
    let started: Vec<Child> = (0..300).map(|_| start(&program, "6")).collect();
    for mut child in started {
        let status = patience::end_of(&mut child);
        assert!(status.success(), "{status}: {}", agent.said());
    }
    expect_forgotten(&folder, agent);
}

/// Checks that the agent attaches to no new process while it cannot write its state, and that
/// existing traces continue.
#[test]
fn a_state_directory_that_is_gone_harms_nobody() {
    let folder = Arc::new(Folder::new("agent-stateless"));
    let (mut traced, program) = service(&folder);
    let mut agent = Agent::start(&folder, &rule(&program, "mode = \"exact\""));
    agent.await_phase(traced.pid(), "traced");
    std::fs::remove_dir_all(folder.path("state")).expect("removed");
    let (mut other, _) = service(&folder);
    agent.await_phase(other.pid(), "refused");
    agent.hear("the list of attached processes cannot be written");
    expect_untouched(other.pid());
    ask(&mut traced, "l");
    agent.await_number(traced.pid(), "live_bytes", 100_000);
    ask(&mut other, "l");
    assert!(traced.finish().success());
    let pid = other.pid();
    until("it is forgotten", || {
        agent.targets().keys().eq([&u64::from(pid)])
    });
    assert!(agent.lives());
    assert_eq!(agent.get("/healthz").trim(), "ok");
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    expect_untouched(other.pid());
    assert!(other.finish().success());
}
