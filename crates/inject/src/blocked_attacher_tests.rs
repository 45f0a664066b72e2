//! The target continues if the attacher is stopped, frozen or blocked while it holds a thread.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::{patiently, send, state};
use crate::kill_tests::{Target, target_of_attacher};
use crate::{hold_all, steps};
use memhook_process::tracer;

/// A large multiple of the time that a watchdog may need even if it gets no processor for seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// Attacher that is killed if the test ends early, because a target that it still holds could not be ended.
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

/// Attacher for the tests below. It holds all threads, so a watchdog may not release them.
#[test]
#[ignore = "the process to be killed, started by the other tests"]
fn holder_of_all() {
    let Some(pid) = target_of_attacher() else {
        return;
    };
    let held = patiently(|| hold_all(pid as i32));
    if let Ok(cgroup) = std::env::var(STARVED_IN) {
        wait_for_a_starved_thread(&cgroup);
    } else {
        // On a busy machine, each check of the watchdog has less weight.
        std::thread::sleep(5 * LIMIT);
    }
    held.release();
}

/// Environment variable with the directory of a cgroup in which an attacher gets almost no processor time.
const STARVED_IN: &str = "MEMHOOK_TEST_STARVED_IN";

/// Waits for a lock that another thread of the process holds while it computes and hardly ever runs.
fn wait_for_a_starved_thread(cgroup: &str) {
    let lock = std::sync::Mutex::new(());
    let is_locked = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _locked = lock.lock();
            // SAFETY: no pointers.
            let own = unsafe { libc::gettid() }.to_string();
            std::fs::write(format!("{cgroup}/tasks"), own).unwrap();
            is_locked.wait();
            // Processor time of the thread itself.
            let mut used = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            while used.tv_sec == 0 && used.tv_nsec < 30_000_000 {
                // SAFETY: the kernel writes one timespec.
                unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut used) };
            }
        });
        is_locked.wait();
        drop(lock.lock());
    });
}

/// Waits until the attacher is stopped (`true`) or has ended.
fn is_stopped(attacher: &mut Child, target: &Target) -> bool {
    let pid = target.program.pid();
    let until = Instant::now() + LIMIT;
    loop {
        if attacher.try_wait().unwrap().is_some() {
            return false;
        }
        // The attacher may be stopped only while it holds no thread.
        if state(attacher.id() as i32, attacher.id() as i32) == 'T' && tracer(pid, pid) == 0 {
            return true;
        }
        assert!(Instant::now() < until, "it neither stops nor ends");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Stops the attacher with this signal at every third step of a hold that makes a call.
fn stopped_everywhere(name: &str, args: &[&str], signal: i32) {
    let target = Target::start(name, args);
    let mut stops = 0;
    for step in (1..).step_by(3) {
        let mut command = target.attacher("kill_tests::caller", step);
        // A process group whose parent is in another group is not orphaned, so terminal signals stop it.
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

/// Number of steps of a hold that makes a call, from the beginning of the hold to its end.
const WHILE_HOLDING: [u64; 4] = [2, 9, 20, 31];
/// Approximate number of steps.
const LAST_STEP: u64 = 60;

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

/// Runs an attacher that hangs until a watchdog releases its target.
fn lets_go(variable: &str, milliseconds: &str) {
    let target = Target::start("waits", &["nanosleep"]);
    for step in WHILE_HOLDING {
        // The attacher hangs only for a while. The watchdog may release the target too late, or the test may check too
        // late.
        let is_seen = (0..10).any(|_| is_let_go(&target, step, variable, milliseconds));
        assert!(is_seen, "step {step}");
    }
    target.ends_well();
}

/// Returns true if the target was seen held, and then released while the attacher still hung.
fn is_let_go(target: &Target, step: u64, variable: &str, milliseconds: &str) -> bool {
    let mut command = target.attacher("kill_tests::caller", step);
    let mut attacher = Attacher(Some(command.env(variable, milliseconds).spawn().unwrap()));
    let pid = target.program.pid();
    let until = Instant::now() + LIMIT;
    let (mut was_held, mut is_seen) = (false, false);
    while !is_seen && attacher.child().try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "it does not end");
        let is_held = tracer(pid, pid) != 0;
        is_seen = was_held && !is_held;
        was_held = is_held;
        std::thread::sleep(Duration::from_millis(1));
    }
    is_seen = is_seen && attacher.child().try_wait().unwrap().is_none();
    target.works(&format!("while the attacher hangs at step {step}"));
    let Output { status, stderr, .. } = attacher.output();
    let errors = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "step {step}: {status}: {errors}");
    target.works(&format!("after step {step}"));
    is_seen
}

#[test]
fn an_attacher_that_blocks_lets_go() {
    lets_go(steps::BLOCK, "4000");
}

#[test]
fn an_attacher_in_an_endless_loop_lets_go() {
    lets_go(steps::SPIN, "4000");
}

#[test]
fn an_attacher_that_never_leaves_its_loop_is_ended() {
    ended_by_the_watchdog(steps::SPIN, "600000", || {});
}

/// Releases at every third step. The effect on the target equals that of a kill, but the attacher survives.
#[test]
fn a_target_that_is_let_go_in_the_middle_goes_on() {
    let targets = [("canary", &[][..]), ("waits", &["epoll"][..])];
    for (first, (name, args)) in (1..).zip(targets) {
        let target = Target::start(name, args);
        for step in (first..LAST_STEP).step_by(3) {
            let mut command = target.attacher("kill_tests::caller", step);
            let attacher = command.env(steps::BLOCK, "600").spawn().unwrap();
            let Output { status, stdout, .. } = Attacher(Some(attacher)).output();
            // A failed test prints the reason on its standard output.
            let said = String::from_utf8_lossy(&stdout);
            assert!(status.success(), "step {step}: {status}: {said}");
            target.works(&format!("let go at step {step}"));
        }
        target.ends_well();
    }
}

/// An attacher holds all threads and waits for a lock, whose owner gets a hundredth of a processor. The watchdog must
/// not kill a starved attacher.
#[test]
fn an_attacher_is_not_ended_because_one_of_its_threads_is_starved() {
    let directory = format!("/sys/fs/cgroup/cpu/memhook-test-{}", std::process::id());
    if std::fs::create_dir(&directory).is_err() {
        return memhook_tests::not_run_here("no cpu cgroup of version 1 can be made here");
    }
    let cgroup = Cgroup(directory);
    let set = |name: &str, value: &str| {
        std::fs::write(format!("{}/{name}", cgroup.0), value).unwrap();
    };
    set("cpu.cfs_period_us", "100000");
    set("cpu.cfs_quota_us", "1000");
    let target = Target::start("canary", &[]);
    let mut command = target.attacher("blocked_attacher_tests::holder_of_all", u64::MAX);
    let begin = Instant::now();
    let attacher = command.env(STARVED_IN, &cgroup.0).spawn().unwrap();
    let Output { status, stderr, .. } = Attacher(Some(attacher)).output();
    let errors = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{status}: {errors}");
    // Twice the time for which an attacher that is not starved can go without progress.
    assert!(begin.elapsed() > Duration::from_secs(1));
    target.works("after it was held");
    target.ends_well();
}

/// If the attacher holds all threads and may be changing their code, the watchdog must not release them.
#[test]
fn a_holder_of_all_threads_that_blocks_is_ended() {
    let target = Target::start("waits", &["nanosleep"]);
    let mut command = target.attacher("blocked_attacher_tests::holder_of_all", u64::MAX);
    let Output { status, stderr, .. } = Attacher(Some(command.spawn().unwrap())).output();
    let errors = String::from_utf8_lossy(&stderr);
    assert_eq!(status.signal(), Some(libc::SIGKILL), "{errors}");
    assert!(errors.contains("it stood still"), "{errors}");
    target.works("after the end of the attacher");
    target.ends_well();
}

struct Cgroup(String);

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Makes the attacher hang at some steps, so that the watchdog has to kill it.
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

/// Among many threads that compete for the processors, a holder makes no progress for three times the limit that
/// applies on an idle machine.
#[test]
fn an_attacher_is_not_ended_because_the_machine_is_busy() {
    let target = Target::start("waits", &["nanosleep"]);
    let ends = AtomicBool::new(false);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..20 * processors {
            scope.spawn(|| {
                // SAFETY: no pointers; 0 is this thread, for which no other thread needs to wait.
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
        return memhook_tests::not_run_here("no cgroup of version 2 can be made here");
    };
    let cgroup = Cgroup(directory);
    let thaw = || std::fs::write(format!("{}/cgroup.freeze", cgroup.0), "0").unwrap();
    ended_by_the_watchdog(steps::FREEZE, &cgroup.0, thaw);
}
