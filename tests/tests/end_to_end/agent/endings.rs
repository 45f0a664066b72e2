//! The exit of agents, and their remains.

use super::served::{ask, expect_untouched, rule, service};
use memhook_tests::agents::{Agent, wrapped_slots};
use memhook_tests::programs::Folder;
use memhook_tests::{Target, run, until};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Checks that the next agent finds the processes of a killed agent, even if no rule selects them
/// any more.
#[test]
fn an_agent_that_was_killed_is_cleaned_up_after() {
    let folder = Arc::new(Folder::new("agent-killed"));
    let (mut target, program) = service(&folder);
    let pid = target.pid();
    let traced = rule(&program, "mode = \"exact\"");
    for _ in 0..2 {
        let agent = Agent::start(&folder, &traced);
        agent.await_phase(pid, "traced");
        ask(&mut target, "l");
        agent.await_number(pid, "live_bytes", 100_000);
        agent.kill();
        assert!(wrapped_slots(pid) > 0, "it was killed while it traced");
        ask(&mut target, "l");
    }
    let mut agent = Agent::start(&folder, &rule(Path::new("/nowhere"), ""));
    agent.hear(&format!("detached from process {pid}"));
    expect_untouched(pid);
    // A second agent refuses to work with this state.
    let other = run(&["agent", "--config", &folder.path("agent.toml")]);
    assert_eq!(other.0, 2);
    assert!(
        other
            .2
            .contains("another agent runs with the state directory"),
        "{}",
        other.2
    );
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(target.finish().success());
}

/// Checks that the agent detaches from all targets when it exits, no matter how many there are, and
/// empties the list of attached processes.
#[test]
fn the_end_leaves_many_targets_as_they_were() {
    let folder = Arc::new(Folder::new("agent-many"));
    let mut targets = Vec::new();
    let mut program = PathBuf::new();
    for _ in 0..30 {
        let (target, path) = service(&folder);
        targets.push(target);
        program = path;
    }
    // One rule whose duration ends for all targets at the same time, and one rule without an end.
    for (more, ends_by_itself) in [("duration = \"1ms\"", true), ("mode = \"exact\"", false)] {
        let agent = Agent::start(&folder, &rule(&program, more));
        let phase = if ends_by_itself { "left" } else { "traced" };
        until(&format!("all are {phase}"), || {
            let all = agent.targets();
            all.values()
                .filter(|target| target["phase"] == phase)
                .count()
                == targets.len()
        });
        for target in &mut targets {
            assert_eq!(wrapped_slots(target.pid()) > 0, !ends_by_itself);
            ask(target, "l");
        }
        let (code, said) = agent.end();
        assert_eq!(code, Some(0), "{said}");
        for target in &mut targets {
            expect_untouched(target.pid());
            ask(target, "l");
        }
        let left = std::fs::read_to_string(folder.path("state/attached")).expect("a list");
        assert_eq!(left, "", "{said}");
    }
    for target in targets {
        assert!(target.finish().success());
    }
}

/// Repeatedly kills an agent with many targets at random moments, while its store is down. Takes
/// minutes: `MEMHOOK_ROUNDS=100 cargo test -p memhook-tests --test end_to_end agent -- --ignored
/// --nocapture`.
#[test]
#[ignore = "a storm of minutes"]
fn an_agent_that_is_killed_at_any_moment_harms_nobody() {
    let rounds = std::env::var("MEMHOOK_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(100);
    let folder = Arc::new(Folder::new("agent-storm"));
    let mut targets: Vec<Target> = Vec::new();
    let mut program = PathBuf::new();
    for _ in 0..50 {
        let (target, path) = service(&folder);
        targets.push(target);
        program = path;
    }
    let stores = "[pyroscope]\nurl = \"http://127.0.0.1:9\"\n";
    let more = "mode = \"exact\"\nsend = [\"pyroscope\"]\ninterval = \"500ms\"";
    let configuration = format!("{stores}{}", rule(&program, more));
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut most = 0;
    for round in 0..rounds {
        let agent = Agent::launch(&folder, &configuration);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let until = std::time::Instant::now() + std::time::Duration::from_millis(random % 2500);
        while std::time::Instant::now() < until {
            for target in &mut targets {
                ask(target, "l");
            }
            // The kill may come at any moment. Until then, the targets work at intervals.
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        agent.kill();
        let traced = targets
            .iter()
            .filter(|target| wrapped_slots(target.pid()) > 0)
            .count();
        most = most.max(traced);
        eprintln!("round {round}: killed with {traced} processes traced");
        for target in &mut targets {
            assert!(target.is_alive(), "process {}", target.pid());
            ask(target, "l");
        }
    }
    let agent = Agent::start(&folder, &rule(Path::new("/nowhere"), ""));
    until("everything is put right", || {
        targets
            .iter()
            .all(|target| wrapped_slots(target.pid()) == 0)
    });
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(most > 0, "the agent never got so far");
    for target in targets {
        assert!(target.finish().success());
    }
}
