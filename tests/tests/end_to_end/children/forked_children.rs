//! Children of a traced process as separate targets: forked at any time and in any way, even if the
//! parent's attacher is killed.

use memhook_tests::{Attacher, Target, build_target, run};

/// State of the parent's trace before its children are traced.
#[derive(Clone, Copy, PartialEq)]
enum Parent {
    StillTraced,
    Detached,
    AttacherKilled,
}

/// Makes the server fork one child of each kind.
fn fork_children(server: &mut Target) -> Vec<String> {
    server.send("f");
    let line = |_| server.expect("child ");
    let lines = (0..5).map(line);
    lines
        .map(|line| line.trim()["child ".len()..].to_owned())
        .collect()
}

fn detach(pid: &str) {
    let (code, output, errors) = run(&["detach", pid]);
    assert_eq!(code, 0, "{output}{errors}");
}

/// Traces a process, and checks that the trace contains its allocations. Repeats the trace with a
/// longer duration if the process was suspended.
fn trace_shortly(pid: &str) {
    let trace = |duration: &str| {
        let (code, output, errors) = run(&["attach", "--json", "-d", duration, pid]);
        assert_eq!(code, 0, "{errors}");
        let last = output.lines().last().expect("a report");
        let report: serde_json::Value = serde_json::from_str(last).expect("JSON");
        assert_eq!(report["totals"]["lost_events"], 0);
        report["totals"]["allocations"].as_u64()
    };
    let mut seen = ["100ms", "1s", "6s", "20s"].into_iter().map(trace);
    assert!(seen.any(|seen| seen >= Some(32)), "process {pid}");
}

fn every_child(parent: Parent) {
    let mut server = Target::start(&build_target("prefork", &["-pthread", "-ldl"]), &[]);
    let mut children = fork_children(&mut server);
    let attacher = Attacher::start(&server, &[]);
    children.extend(fork_children(&mut server));
    let attacher = match parent {
        Parent::StillTraced => Some(attacher),
        Parent::Detached => {
            attacher.finish();
            None
        }
        Parent::AttacherKilled => {
            attacher.kill();
            None
        }
    };
    children.extend(fork_children(&mut server));
    let pid = server.pid().to_string();
    for (i, child) in children.iter().enumerate() {
        match i % 3 {
            0 => detach(child),
            1 => trace_shortly(child),
            _ => {
                detach(child);
                trace_shortly(child);
            }
        }
        trace_shortly(child);
        if parent == Parent::AttacherKilled && i == children.len() / 2 {
            detach(&pid);
        }
    }
    // Traces two children in parallel.
    let both = |server: &Target| {
        let child = &children[6];
        let other = std::thread::scope(|scope| {
            let other = scope.spawn(|| trace_shortly(child));
            trace_shortly(&children[5]);
            other.join()
        });
        other.expect("traced");
        assert!(server.our_mappings() > 0);
    };
    match attacher {
        Some(attacher) => {
            both(&server);
            let report = attacher.finish();
            assert_eq!(report["totals"]["lost_events"], 0);
        }
        None => {
            for _ in 0..2 {
                let attacher = Attacher::start(&server, &[]);
                both(&server);
                // On exit, the children check that their slots are restored.
                fork_children(&mut server)
                    .iter()
                    .for_each(|child| detach(child));
                let report = attacher.finish();
                assert!(
                    report["totals"]["allocations"].as_u64() >= Some(32),
                    "{report}"
                );
            }
        }
    }
    server.send("e");
    server.expect("done");
    assert!(server.finish().success());
}

#[test]
fn of_a_parent_that_is_traced() {
    every_child(Parent::StillTraced);
}

#[test]
fn of_a_parent_that_was_traced() {
    every_child(Parent::Detached);
}

#[test]
fn of_a_parent_whose_attacher_was_killed() {
    every_child(Parent::AttacherKilled);
}
