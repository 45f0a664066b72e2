//! Children that are forked while a guide is being created keep its descriptor, and map it for
//! writing.

use std::time::{Duration, Instant};

use crate::common::LONG;
use crate::kill_tests::{STARVED, Target, children, done, hold, target_of_attacher};
use crate::{Guide, create_guided_region, steps};

const GUIDE_BYTES: u64 = 1 << 16;
const BYTES: u64 = 1 << 20;
/// Time in milliseconds that the attacher waits at a step, so that a fork can happen there.
const WINDOW: &str = "20";

/// Attacher for the test below.
#[test]
#[ignore = "the attacher of another test"]
fn maker() {
    let Some(pid) = target_of_attacher() else {
        return;
    };
    let mut held = hold(pid);
    let names = [c"memhook-guide", c"memhook-region"];
    let region = done(create_guided_region(&mut held, names, GUIDE_BYTES, BYTES));
    done(held.release());
    let is_shared = matches!(region.guide, Guide::Mapped(_));
    println!("is shared: {is_shared}\nsteps: {}", steps::count());
}

/// Returns the inodes of guides that a process has mapped with this protection.
fn guides(pid: i32, protection: &str) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let guides = maps.lines().filter(|line| line.contains("memhook-guide"));
    let fields = guides.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let fields = fields.filter(|fields| fields[1].starts_with(protection));
    fields.map(|fields| fields[4].to_owned()).collect()
}

/// Returns true if a child has mapped all that it can. The child reports this by changing its name.
fn has_mapped(child: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|name| name.trim() == "mapped")
}

fn no_child_stays(pid: i32) {
    let until = Instant::now() + LONG;
    while !children(pid).trim().is_empty() {
        for child in children(pid).split_whitespace() {
            crate::common::send(child.parse().unwrap(), libc::SIGKILL);
        }
        assert!(Instant::now() < until, "children stay");
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Counts of the guides that were made during forks.
#[derive(Debug, Default)]
struct Made {
    used: usize,
    /// Guides that a child had mapped before they were sealed.
    thrown_away: usize,
}

/// Runs attachers that make guides. Each attacher waits at a different step.
fn make_guides(target: &Target, made: &mut Made) {
    let pid = target.program.pid();
    for step in 1.. {
        let mut command = target.attacher("guide_tests::maker", step);
        command.arg("--nocapture").env(steps::BLOCK, WINDOW);
        let before = guides(pid, "r--s");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let is_starved = output.status.code() == Some(STARVED);
        assert!(output.status.success() || is_starved, "step {step}: {said}");
        let mut ours = guides(pid, "r--s");
        ours.retain(|guide| !before.contains(guide));
        made.used += usize::from(said.contains("is shared: true"));
        for child in children(pid).split_whitespace() {
            let child = child.parse().unwrap();
            let until = Instant::now() + LONG;
            while !has_mapped(child) {
                assert!(Instant::now() < until, "child {child} is not ready");
                std::thread::sleep(Duration::from_micros(500));
            }
            let writable = guides(child, "rw-s");
            made.thrown_away += writable.len();
            let is_used = writable.iter().any(|guide| ours.contains(guide));
            assert!(!is_used, "step {step}: child {child} can write a guide");
        }
        no_child_stays(pid);
        let done = said.lines().find_map(|line| line.strip_prefix("steps: "));
        if done.is_some_and(|done| done.parse::<u64>().unwrap() < step) {
            break;
        }
    }
}

#[test]
fn no_child_can_ever_write_a_guide() {
    let target = Target::start("keeps_guides", &[]);
    let mut made = Made::default();
    // The forking threads need to run at the right moment.
    for _ in 0..10 {
        make_guides(&target, &mut made);
        if made.thrown_away > 0 {
            break;
        }
    }
    println!("{made:?}");
    assert!(made.used > 0 && made.thrown_away > 0, "{made:?}");
    target.ends_well();
}
