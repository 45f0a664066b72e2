//! Programs that use userfaultfd(2) themselves. If two users request one range of memory, the kernel refuses the
//! second.

use memhook_tests::{Attacher, Target, build_target, not_run_here, run, until};
use std::process::Command;
use std::time::Duration;

/// Starts the target. Skips the test if this system does not permit userfaultfd(2).
fn start(mode: &str) -> Option<Target> {
    let program = build_target("own_userfault", &[]);
    let mut target = Target::silent(Command::new(program).arg(mode));
    let line = target.expect("re");
    if line.trim() == "refused" {
        not_run_here("this system refuses userfaultfd(2)");
        return None;
    }
    Some(target)
}

/// Returns true if memory of the process is registered for write tracking (proc_pid_smaps(5), `uw`), as only memhook-rs
/// does here.
fn is_watched(target: &Target) -> bool {
    let smaps = std::fs::read_to_string(format!("{}/smaps", target.folder()));
    let smaps = smaps.expect("the target lives");
    let mut flags = smaps.lines().filter(|line| line.starts_with("VmFlags:"));
    flags.any(|line| line.contains(" uw"))
}

/// Checks that the kernel refuses none of the target's requests: `stale` watches neither shared memory nor memory that
/// is mapped after the descriptor was opened, and soon releases all other memory.
#[test]
fn stale_makes_way_for_a_program_that_begins_with_it() {
    memhook_tests::patiently(|| {
        let Some(mut target) = start("begins") else {
            return;
        };
        let attacher = Attacher::start(&target, &["--stale=1s"]);
        until("it is watched", || is_watched(&target));
        target.go();
        target.expect("begun");
        until("it is left alone", || !is_watched(&target));
        target.go();
        target.expect("registered");
        let report = attacher.finish();
        let notes = report["stale"]["notes"].to_string();
        assert!(notes.contains("uses userfaultfd(2) itself"), "{notes}");
        target.go();
        target.expect("done");
        assert!(target.finish().success());
    });
}

/// If the event of a fork is never read, the fork and the process wait forever.
#[test]
fn a_scan_does_not_fork_a_process_that_hears_of_it() {
    let Some(mut target) = start("hears") else {
        return;
    };
    let pid = target.pid().to_string();
    for method in ["fork", "precopy"] {
        let (code, out, err) = run(&["scan", &pid, "--json", "--snapshot", method]);
        assert!(code < 2, "{err}");
        let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(report["snapshot"]["method"], "stop", "{report}");
        let held = report["snapshot"]["held_ms"].as_f64().expect("a number");
        assert!(Duration::from_secs_f64(held / 1e3) < Duration::from_secs(4));
        assert!(report.to_string().contains("userfaultfd"), "{report}");
        let children = format!("/proc/{pid}/task/{pid}/children");
        assert_eq!(std::fs::read_to_string(children).expect("it lives"), "");
    }
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}
