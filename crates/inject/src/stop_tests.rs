//! The attacher is stopped, frozen or blocked while it holds a thread: the target goes on.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::{send, state};
use crate::kill_tests::Target;
use crate::steps;
use memhook_process::tracer;

/// Many times as long as a watchdog may need.
const LIMIT: Duration = Duration::from_secs(20);

/// It is killed when the test ends early, because a target that it holds could not be ended.
struct Attacher(Option<Child>);

impl Attacher {
    fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    fn output(mut self) -> Output {
        let child = self.0.take().unwrap();
        child.wait_with_output().unwrap()
    }
}

impl Drop for Attacher {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until the attacher is stopped (`true`) or has ended.
fn is_stopped(attacher: &mut Child, target: &Target) -> bool {
    let pid = target.program.pid();
    let until = Instant::now() + LIMIT;
    loop {
        if attacher.try_wait().unwrap().is_some() {
            return false;
        }
        // It is stopped, but not while it holds.
        if state(attacher.id() as i32, attacher.id() as i32) == 'T' && tracer(pid, pid) == 0 {
            return true;
        }
        assert!(Instant::now() < until, "it neither stops nor ends");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Stops the attacher by this signal at every third step of a hold with a call.
fn stopped_everywhere(name: &str, args: &[&str], signal: i32) {
    let target = Target::start(name, args);
    let mut stops = 0;
    for step in (1..).step_by(3) {
        let mut command = target.attacher("kill_tests::caller", step);
        // A group of its own with a parent in another is not orphaned, so the terminal's signals stop it.
        command.process_group(0);
        command.env(steps::SIGNAL, signal.to_string());
        let mut attacher = Attacher(Some(command.spawn().unwrap()));
        let stopped = is_stopped(attacher.child(), &target);
        target.works(&format!("stopped by {signal} at step {step}"));
        if stopped {
            stops += 1;
            send(attacher.child().id() as i32, libc::SIGCONT);
        }
        let Output { status, stderr, .. } = attacher.output();
        let errors = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "step {step}: {status}: {errors}");
        target.works(&format!("continued at step {step}"));
        if !stopped {
            break;
        }
    }
    assert!(stops > 10, "only {stops} steps");
    target.ends_well();
}

#[test]
fn a_stopped_attacher_stops_nobody_else() {
    stopped_everywhere("canary", &[], libc::SIGSTOP);
}

#[test]
fn a_stop_from_the_terminal_comes_after_the_hold() {
    stopped_everywhere("waits", &["nanosleep"], libc::SIGTSTP);
}

#[test]
fn writing_to_the_terminal_from_the_background_stops_after_the_hold() {
    stopped_everywhere("waits", &["futex"], libc::SIGTTOU);
}

/// Steps of a hold with a call, from its begin to its end.
const WHILE_HOLDING: [u64; 4] = [2, 9, 20, 31];

#[test]
fn who_is_continued_during_a_hold_does_not_stop_after_it() {
    let target = Target::start("waits", &["nanosleep"]);
    for signal in [libc::SIGSTOP, libc::SIGTSTP] {
        for step in WHILE_HOLDING {
            let mut command = target.attacher("kill_tests::caller", step);
            command.process_group(0);
            command.env(steps::SIGNAL, signal.to_string());
            command.env(steps::CONTINUE, "1");
            let mut attacher = Attacher(Some(command.spawn().unwrap()));
            let until = Instant::now() + LIMIT;
            while attacher.child().try_wait().unwrap().is_none() {
                assert!(Instant::now() < until, "stopped by {signal} at step {step}");
                std::thread::sleep(Duration::from_millis(1));
            }
            let Output { status, stderr, .. } = attacher.output();
            let errors = String::from_utf8_lossy(&stderr);
            assert!(status.success(), "step {step}: {status}: {errors}");
            target.works(&format!("after {signal} at step {step}"));
        }
    }
    target.ends_well();
}

/// Makes the attacher hang at some steps, so that only killing it helps.
fn ended_by_the_watchdog(variable: &str, value: &str, again: impl Fn()) {
    let target = Target::start("waits", &["nanosleep"]);
    for step in WHILE_HOLDING {
        let mut command = target.attacher("kill_tests::caller", step);
        let mut attacher = Attacher(Some(command.env(variable, value).spawn().unwrap()));
        let until = Instant::now() + LIMIT;
        while attacher.child().try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        let Output { status, stderr, .. } = attacher.output();
        let errors = String::from_utf8_lossy(&stderr);
        assert_eq!(
            status.signal(),
            Some(libc::SIGKILL),
            "step {step}: {errors}"
        );
        assert!(errors.contains("killed by its watchdog"), "{errors}");
        target.works(&format!("still at step {step}"));
        again();
    }
    target.ends_well();
}

#[test]
fn an_attacher_that_blocks_is_ended() {
    // Not for ever, in case nobody ends it.
    ended_by_the_watchdog(steps::BLOCK, "30000", || {});
}

/// A holder that stands still for three times as long as it may on a calm machine, beside many threads that want to run.
#[test]
fn an_attacher_is_not_ended_because_the_machine_is_busy() {
    let target = Target::start("waits", &["nanosleep"]);
    let ends = AtomicBool::new(false);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..20 * processors {
            scope.spawn(|| {
                // SAFETY: no pointers; 0 is this thread, which others need not wait for.
                unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
                while !ends.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let mut command = target.attacher("kill_tests::caller", WHILE_HOLDING[1]);
        let attacher = command.env(steps::BLOCK, "1500").spawn();
        let outcome = Attacher(Some(attacher.unwrap())).output();
        ends.store(true, Relaxed);
        let errors = String::from_utf8_lossy(&outcome.stderr);
        assert!(outcome.status.success(), "{}: {errors}", outcome.status);
    });
    target.works("after a pause of the attacher");
    target.ends_well();
}

#[test]
fn an_attacher_that_is_frozen_is_ended() {
    let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let directory = mounts.iter().find_map(|mount| {
        std::fs::metadata(format!("{mount}/cgroup.procs")).ok()?;
        let directory = format!("{mount}/memhook-test-{}", std::process::id());
        std::fs::create_dir(&directory).ok()?;
        Some(directory)
    });
    let Some(directory) =
        directory.filter(|d| std::fs::metadata(format!("{d}/cgroup.freeze")).is_ok())
    else {
        println!("not run: no cgroup of version 2 can be made here");
        return;
    };
    struct Cgroup(String);
    impl Drop for Cgroup {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir(&self.0);
        }
    }
    let cgroup = Cgroup(directory);
    let thaw = || std::fs::write(format!("{}/cgroup.freeze", cgroup.0), "0").unwrap();
    ended_by_the_watchdog(steps::FREEZE, &cgroup.0, thaw);
}
