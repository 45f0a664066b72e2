//! Attaches and detaches repeatedly, and sometimes kills the attacher at a random moment. This must
//! not affect the target.

use memhook_tests::{Attacher, Target, binary, build_target, rounds, run};
use std::process::{Command, Stdio};
use std::time::Duration;

fn open_files(target: &Target) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", target.pid()))
        .expect("the target lives")
        .count()
}

/// Starts an attacher and kills it after `delay`, which may be during the injection.
fn killed_after(target: &Target, delay: Duration) {
    let mut child = Command::new(binary())
        .args(["attach", "-q", &target.pid().to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("memhook-rs starts");
    // The kill may come at any moment.
    std::thread::sleep(delay);
    child.kill().expect("killed");
    child.wait().expect("reaped");
}

#[test]
fn cycles_on_a_hammering_target() {
    memhook_tests::patiently(|| {
        let program = build_target("hammer", &[]);
        let target = Target::start(&program, &[]);
        let mut constant = None;
        let mut random = 12345u64;
        for cycle in 0..rounds(40) {
            if cycle % 5 == 3 {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                killed_after(&target, Duration::from_micros((random >> 33) % 400_000));
                continue;
            }
            let report = Attacher::start(&target, &[]).finish();
            assert_eq!(report["totals"]["lost_events"], 0, "cycle {cycle}");
            let now = (target.our_mappings(), open_files(&target));
            assert_eq!(*constant.get_or_insert(now), now, "cycle {cycle}");
        }
        let (code, out, err) = run(&["detach", &target.pid().to_string()]);
        assert_eq!(code, 0, "{out}{err}");
        assert!(target.finish().success());
    });
}

/// Checks that a stopped attacher does not keep a thread stopped, regardless of its work at that
/// moment.
#[test]
fn a_stopped_attacher_stops_nobody_else() {
    let program = build_target("canary", &[]);
    let target = Target::start(&program, &[]);
    let pid = target.pid().to_string();
    let moments = rounds(12) as u64;
    for moment in (0..moments).map(|n| Duration::from_millis(60 * n / moments)) {
        let mut attacher = Command::new(binary())
            .args(["attach", "-q", "-d", "10ms", &pid])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("memhook-rs starts");
        // The stop may come at any moment.
        std::thread::sleep(moment);
        let id = attacher.id() as i32;
        let signal = |signal| {
            // SAFETY: plain integers; the child has not been waited for.
            unsafe { libc::kill(id, signal) };
        };
        signal(libc::SIGSTOP);
        memhook_tests::until("it goes on", || {
            target.status("TracerPid") == "0" && !target.status("State").starts_with(['t', 'T'])
        });
        signal(libc::SIGCONT);
        let status = attacher.wait().expect("reaped");
        // Alternatively, the attacher reports that the thread has resumed its own work.
        assert!(matches!(status.code(), Some(0 | 2)), "{status}");
    }
    let (code, out, err) = run(&["detach", &pid]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(target.finish().success());
}

#[test]
fn vector_registers_survive() {
    memhook_tests::patiently(|| {
        let program = build_target("canary", &[]);
        let target = Target::start(&program, &[]);
        for _ in 0..8 {
            Attacher::start(&target, &[]).finish();
        }
        assert!(target.finish().success());
    });
}
