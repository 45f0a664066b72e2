//! Processes whose initial thread calls pthread_exit(3) before, during or after a command.

use memhook_tests::{Attacher, Prober, Target, build_target, calls, rounds, run, sites};
use serde_json::Value;

/// Checks that the report contains the live thread's allocations since the attach.
fn check(report: &Value) {
    let found = sites(report, "leader_gone.cc");
    let kept = found.get(&("hold_some".to_owned(), "malloc".to_owned()));
    assert_eq!(kept, Some(&(20, 20 * 765)), "{report:#}");
    assert_eq!(report["totals"]["lost_events"], 0, "{report}");
}

fn start() -> Target {
    Target::start(&build_target("leader_gone", &[]), &["wait"])
}

fn end_initial_thread(target: &mut Target) {
    target.go();
    target.expect("gone");
}

/// Makes the target allocate 20 blocks.
fn allocate(target: &mut Target) {
    target.go();
    target.expect("done");
}

fn holds_nothing(target: &Target) {
    let (code, out, err) = run(&["detach", &target.pid().to_string()]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(
        out.contains("nothing of memhook-rs") || out.contains("every slot"),
        "{out}{err}"
    );
}

#[test]
fn it_ends_before_the_attach() {
    let mut target = start();
    end_initial_thread(&mut target);
    let attacher = Attacher::start(&target, &[]);
    allocate(&mut target);
    check(&attacher.finish());
    holds_nothing(&target);
    assert!(target.is_alive());
    assert!(target.finish().success());
}

/// Checks that a command finds the process by the name of its initial thread, which `ps` shows.
#[test]
fn it_is_found_by_name() {
    let mut target = Target::start(&build_target("leader_gone", &[]), &["renamed"]);
    end_initial_thread(&mut target);
    let (code, out, err) = run(&["attach", "chief", "-d", "200ms", "--json"]);
    assert_eq!(code, 0, "{out}{err}");
    let last = out.lines().last().expect("a report");
    let report: Value = serde_json::from_str(last).expect("JSON");
    assert_eq!(report["target"]["pid"], target.pid(), "{report}");
    assert!(target.finish().success());
}

#[test]
fn it_ends_while_the_process_is_traced() {
    let mut target = start();
    let attacher = Attacher::start(&target, &[]);
    end_initial_thread(&mut target);
    allocate(&mut target);
    check(&attacher.finish());
    holds_nothing(&target);
    assert!(target.finish().success());
}

#[test]
fn it_ends_while_an_attach_is_under_way() {
    let rounds = rounds(10) as u64;
    for round in 0..rounds {
        let mut target = start();
        let pid = target.pid().to_string();
        let attacher = std::thread::spawn(move || run(&["attach", &pid, "-d", "1s", "--json"]));
        // The thread may exit at any moment of an attach.
        std::thread::sleep(std::time::Duration::from_millis(100 * round / rounds));
        end_initial_thread(&mut target);
        let (code, out, err) = attacher.join().expect("no panic");
        assert!(
            code == 0 && out.contains("\"final\":true"),
            "{code}: {out}{err}"
        );
        holds_nothing(&target);
        assert!(target.finish().success());
    }
}

#[test]
fn detach_cleans_up_without_it() {
    let mut target = start();
    let attacher = Attacher::start(&target, &[]);
    end_initial_thread(&mut target);
    attacher.kill();
    let (code, out, err) = run(&["detach", &target.pid().to_string()]);
    assert!(
        code == 0 && out.contains("every slot holds its original"),
        "{out}{err}"
    );
    let attacher = Attacher::start(&target, &[]);
    allocate(&mut target);
    check(&attacher.finish());
    assert!(target.finish().success());
}

#[test]
fn probes_count_without_it() {
    let mut target = start();
    end_initial_thread(&mut target);
    let prober = Prober::start(&target, "hold_some", &[]);
    allocate(&mut target);
    let report = prober.finish();
    let calls = calls(&report);
    assert_eq!(calls.get("hold_some()"), Some(&1), "{report}");
    assert!(target.finish().success());
}

#[test]
fn every_command_that_looks_takes_it_for_what_it_is() {
    let mut target = start();
    end_initial_thread(&mut target);
    allocate(&mut target);
    let pid = target.pid().to_string();
    for command in [
        &["doctor", &pid][..],
        &["rss", &pid],
        &["scan", &pid],
        &["scan", &pid, "--reclaim"],
        &["trim", &pid, "--dry-run"],
        &["trim", &pid],
        &["stale", &pid, "-d", "1s"],
        &["attach", &pid, "-d", "200ms", "--json"],
    ] {
        let (code, out, err) = run(command);
        assert_eq!(code, 0, "{command:?}: {out}{err}");
        assert!(!err.contains("zombie"), "{command:?}: {err}");
        // No output mistakes the process itself for another process that shares its memory.
        let shares = [&out, &err].map(|text| text.contains("runs in the same memory"));
        assert_eq!(shares, [false; 2], "{command:?}: {out}{err}");
    }
    holds_nothing(&target);
    assert!(target.finish().success());
}

/// Checks that watchpoints also work for the remaining threads, if the machine has watchpoints.
#[test]
fn accesses_are_sampled_without_it() {
    let mut target = start();
    end_initial_thread(&mut target);
    let options = ["--scores", "--access", "sampled", "-d", "500ms", "--json"];
    let pid = target.pid().to_string();
    let (_, out, err) = run(&[&["attach", &pid][..], &options].concat());
    assert!(!err.contains("No such process"), "{out}{err}");
    assert!(target.is_alive());
    allocate(&mut target);
    assert!(target.finish().success());
}
