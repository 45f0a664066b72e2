//! Tests of a frozen copy whose ancestors adopt orphans (prctl(2), PR_SET_CHILD_SUBREAPER). The ancestors adopt the
//! copy, and the copy ends.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{LONG, patiently};
use crate::kill_tests::{TARGET, Target, children, done, target_of_attacher};
use crate::timing::Timing;
use crate::{ForkPlan, hold_all, steps};

/// Attacher that the following tests run in a separate process.
#[test]
#[ignore = "the process to be killed, started by the other tests"]
fn copier() {
    let Some(pid) = target_of_attacher() else {
        return;
    };
    // A target that is killed in the meantime can be neither held nor copied.
    let Ok(mut plan) = ForkPlan::of(pid as i32) else {
        return;
    };
    plan.survey.timing = Timing::QUICK;
    let copy = match std::env::var_os(steps::VICTIM) {
        None => {
            let mut all = patiently(|| hold_all(pid as i32));
            let copy = done(all.fork(&plan));
            all.release();
            copy
        }
        Some(_) => {
            let all = hold_all(pid as i32);
            let Ok(copy) = all.and_then(|mut all| all.fork(&plan)) else {
                return println!("steps: {}", steps::count());
            };
            copy
        }
    };
    drop(copy);
    println!("steps: {}", steps::count());
}

/// Makes this process adopt orphans. The following tests run in a separate process, because this setting applies to the
/// whole process.
fn take_orphans_in() {
    // SAFETY: plain integers.
    let set = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    assert_eq!(set, 0);
}

/// Waits for the ends of all children except these targets. Returns the statuses of orphaned copies, which have ended
/// or end by themselves. The attacher's watchdog is also one of the children.
fn orphans(targets: &[i32]) -> Vec<i32> {
    let until = Instant::now() + LONG;
    let mut statuses = Vec::new();
    loop {
        let all = children(std::process::id() as i32);
        let mut ids = all.split_whitespace().map(|id| id.parse().unwrap());
        let Some(orphan) = ids.find(|id: &i32| !targets.contains(id)) else {
            return statuses;
        };
        let name = std::fs::read_to_string(format!("/proc/{orphan}/comm")).unwrap_or_default();
        let mut status = 0;
        // SAFETY: the kernel writes one integer.
        let ended = unsafe { libc::waitpid(orphan, &raw mut status, libc::WNOHANG) };
        if ended == orphan && name.starts_with("canary") {
            statuses.push(status);
        }
        assert!(Instant::now() < until, "orphan {orphan} does not end");
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// The attacher is killed at every step.
#[test]
#[ignore = "started by a test as a process of its own"]
fn reaper() {
    take_orphans_in();
    let target = Target::start("canary", &[]);
    let pid = target.program.pid();
    let mut copies = 0;
    let mut step = 1;
    loop {
        let is_done = target.run("orphan_tests::copier", step, None);
        let when = format!("killed at step {step}");
        target.works(&when);
        let statuses = orphans(&[pid]);
        assert!(statuses.len() <= 1, "{when}: {statuses:?}");
        assert!(
            statuses.iter().all(|&status| status == 0),
            "{when}: {statuses:?}"
        );
        copies += statuses.len();
        if is_done {
            break;
        }
        step += 1;
    }
    assert!(copies > 1, "{copies} copies in {step} steps");
    target.ends_well();
    println!("{step} steps, {copies} copies");
}

/// The target is killed at every fourth step, so that both of the processes being created may become our children.
#[test]
#[ignore = "started by a test as a process of its own"]
fn reaper_of_all() {
    take_orphans_in();
    let mut most = 0;
    let first = Target::start("canary", &[]);
    for step in (1..).step_by(4) {
        let target = first.again("canary");
        let pid = target.program.pid();
        let mut attacher = target.attacher("orphan_tests::copier", step);
        let attacher = attacher
            .arg("--nocapture")
            .env(steps::VICTIM, pid.to_string());
        let output = attacher.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "step {step}: {said}");
        most = most.max(orphans(&[pid, first.program.pid()]).len());
        let made = said.lines().find_map(|line| line.strip_prefix("steps: "));
        if made.is_some_and(|made| made.parse::<u64>().unwrap() < step) {
            break;
        }
    }
    println!("at most {most} orphans at a time");
    assert!(most > 0);
}

fn as_a_process_of_its_own(name: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env_remove(TARGET)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
    println!("{said}");
}

#[test]
fn who_takes_orphans_in_gets_a_copy_that_ends() {
    as_a_process_of_its_own("orphan_tests::reaper");
}

#[test]
fn nothing_stays_of_a_target_that_is_killed_while_it_forks() {
    as_a_process_of_its_own("orphan_tests::reaper_of_all");
}
