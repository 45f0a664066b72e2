//! Kills the attacher at every step of remote work, and at random moments in between. The target must never notice.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{self, LONG, Program, anywhere, is_for_want_of_a_processor, patiently};
use memhook_process::{RemoteAddress, read_memory, read_word};

use crate::map_tests::map_and_call;
use crate::stop::hold_with;
use crate::timing::Timing;
use crate::write_watch::take_userfault;
use crate::{
    Dlopen, Error, ForkPlan, Held, Others, create_region, hold_all, load_object, restart, steps,
};

/// Environment variable that passes the target to the attacher, which is another run of this test program.
pub(crate) const TARGET: &str = "MEMHOOK_TEST_TARGET";

/// Holds a thread that returns to its own code soon after the attacher is killed.
pub(crate) fn hold(pid: u64) -> Held {
    patiently(|| hold_with(pid as i32, &anywhere(), Timing::QUICK))
}

/// Exit status of an attacher that was descheduled for so long that its target was released. The test then runs the
/// attacher again.
pub(crate) const STARVED: i32 = 77;

/// Returns the result of an attacher's work.
pub(crate) fn done<T>(result: Result<T, Error>) -> T {
    match result {
        Err(error) if is_for_want_of_a_processor(&error) => std::process::exit(STARVED),
        result => result.unwrap(),
    }
}

/// Returns the process id of the target, in an attacher that a test has started.
pub(crate) fn target_of_attacher() -> Option<u64> {
    let target = std::env::var(TARGET).ok()?;
    target.split(' ').next()?.parse().ok()
}

/// Attacher that the other tests run in a separate process, with [`TARGET`] set.
#[test]
#[ignore = "the process to be killed, started by the other tests"]
fn attacher() {
    let Ok(target) = std::env::var(TARGET) else {
        return;
    };
    let numbers: Vec<u64> = target.split(' ').map(|n| n.parse().unwrap()).collect();
    let [pid, addresses @ ..] = &numbers[..] else {
        panic!("{target}");
    };
    let (pid, addresses) = (*pid, addresses.iter().copied().map(RemoteAddress));
    let [getpid, spoil, dlopen] = addresses.collect::<Vec<_>>()[..] else {
        panic!("{target}");
    };
    let object = std::fs::read(std::env::var("MEMHOOK_TEST_OBJECT").unwrap()).unwrap();
    let others = Others::of(pid as i32);
    let mut held = hold(pid);
    done(held.syscall(libc::SYS_getpid, [0; 6]));
    assert_eq!(done(held.call(getpid, &[])), pid);
    done(held.call(spoil, &[1, 2, 3, 4, 5, 6]));
    let many: Vec<u64> = (0..400).collect();
    let until = Instant::now() + LONG;
    assert_eq!(done(held.call_each(spoil, &many, until)), many.len());
    let called = held.call_each_to_its_end(spoil, &many, until, LONG);
    assert_eq!(done(called), many.len());
    done(create_region(&mut held, c"memhook-region", 1 << 16));
    let dlopen = Dlopen {
        address: dlopen,
        internal_mode: false,
    };
    done(held.stop_others(&others));
    done(load_object(&mut held, dlopen, &object));
    held.let_others_go();
    done(map_and_call(&mut held));
    // Not every kernel supports it.
    drop(take_userfault(&mut held));
    done(held.release());
    let mut plan = ForkPlan::of(pid as i32).unwrap();
    plan.survey.timing = Timing::QUICK;
    let mut all = patiently(|| hold_all(pid as i32));
    let copy = done(all.fork(&plan));
    all.release();
    read_memory(copy.pid(), getpid, &mut [0; 8]).unwrap();
}

/// Attacher that the other tests run in a separate process, with [`TARGET`] set. The second hold finds the thread in a
/// system call that was restarted after the first hold.
#[test]
#[ignore = "the process to be killed, started by the other tests"]
fn caller_again() {
    let Ok(target) = std::env::var(TARGET) else {
        return;
    };
    let numbers: Vec<u64> = target.split(' ').map(|n| n.parse().unwrap()).collect();
    done(hold(numbers[0]).release());
    let mut held = hold(numbers[0]);
    let getpid = RemoteAddress(numbers[1]);
    assert_eq!(done(held.call(getpid, &[])), numbers[0]);
    done(held.release());
}

/// Attacher that the other tests run in a separate process, with [`TARGET`] set. The thread is held as if it had
/// stopped after the kernel set its registers for restart_syscall and before the thread made that call. It is held
/// twice: once with the number of the interrupted call, and once without a number, as after an interrupt.
#[test]
#[ignore = "the process to be killed, started by the other tests"]
fn caller_on_the_way() {
    let Ok(target) = std::env::var(TARGET) else {
        return;
    };
    let numbers: Vec<u64> = target.split(' ').map(|n| n.parse().unwrap()).collect();
    let mut held = hold(numbers[0]);
    let mut registers = *held.registers();
    if registers.rax as i64 == restart::RESTART_BY_BLOCK {
        registers.rip -= restart::SYSCALL_BYTES;
        registers.rax = libc::SYS_restart_syscall as u64;
        let step: u64 = std::env::var(steps::STEP).unwrap().parse().unwrap();
        if step.is_multiple_of(2) {
            registers.orig_rax = u64::MAX;
        }
        done(held.write_registers(&registers));
        held.saved.registers = registers;
    }
    let getpid = RemoteAddress(numbers[1]);
    assert_eq!(done(held.call(getpid, &[])), numbers[0]);
    done(held.release());
}

/// Attacher that the other tests run in a separate process, with [`TARGET`] set. It leaves nothing behind in the
/// target.
#[test]
#[ignore = "the process to be killed, started by the other tests"]
fn caller() {
    let Ok(target) = std::env::var(TARGET) else {
        return;
    };
    if let Ok(cgroup) = std::env::var(steps::FREEZE) {
        let own = std::process::id().to_string();
        std::fs::write(format!("{cgroup}/cgroup.procs"), own).unwrap();
    }
    let numbers: Vec<u64> = target.split(' ').map(|n| n.parse().unwrap()).collect();
    let mut held = hold(numbers[0]);
    match held.call(RemoteAddress(numbers[1]), &[]) {
        // A test has stopped and continued this process, or it was descheduled for too long.
        Err(Error::WentHome { .. }) if has_lost_time() => {}
        result => assert_eq!(done(result), numbers[0]),
    }
    match held.release() {
        Err(Error::WentHome { .. }) if has_lost_time() => {}
        released => drop(done(released)),
    }
}

fn has_lost_time() -> bool {
    [steps::SIGNAL, steps::BLOCK, steps::SPIN]
        .iter()
        .any(|variable| std::env::var(variable).is_ok())
}

pub(crate) struct Target {
    pub program: Program,
    /// Address of the target's count of rounds.
    rounds: u64,
    /// Address of the target's count of calls that ended with EINTR.
    interrupted: Option<u64>,
    attacher: String,
    object: Object,
    blocked: String,
}

/// File that is removed with this value.
struct Object(std::path::PathBuf);

impl Drop for Object {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Target {
    pub fn start(name: &str, args: &[&str]) -> Target {
        let flags = ["-shared", "-fPIC", "-nostdlib", "-DNUMBER=1"];
        Target::of(Program::start(name, args), common::build("object", &flags))
    }

    /// Starts the same program again.
    pub fn again(&self, name: &str) -> Target {
        let object = common::link("object", &self.object.0);
        Target::of(self.program.again(name, &[]), object)
    }

    fn of(mut program: Program, object: std::path::PathBuf) -> Target {
        let at = program.addresses();
        let pid = program.pid();
        let functions = ["getpid", "spoil", "dlopen"].map(|function| at[function].to_string());
        let target = Target {
            attacher: format!("{pid} {}", functions.join(" ")),
            object: Object(object),
            rounds: at["rounds"],
            interrupted: at.get("interrupted").copied(),
            blocked: status(pid, "SigBlk:"),
            program,
        };
        target.works("before");
        target
    }

    fn count(&self) -> u64 {
        self.word(self.rounds)
    }

    fn interrupted(&self) -> u64 {
        self.interrupted.map_or(0, |address| self.word(address))
    }

    fn word(&self, address: u64) -> u64 {
        read_word(self.program.pid(), RemoteAddress(address)).expect("the target lives")
    }

    /// Runs the attacher; `true` if it finished.
    fn attach(&self, step: u64, delay_us: Option<u64>) -> bool {
        self.run("kill_tests::attacher", step, delay_us)
    }

    /// Prepares an attacher, named by the path of a test, that dies or performs another action at this step.
    pub fn attacher(&self, name: &str, step: u64) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", name, "--ignored"])
            .env(TARGET, &self.attacher)
            .env("MEMHOOK_TEST_OBJECT", &self.object.0)
            .env(steps::STEP, step.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub fn run(&self, attacher: &str, step: u64, delay_us: Option<u64>) -> bool {
        let mut command = self.attacher(attacher, step);
        if let Some(delay) = delay_us {
            command.env(steps::DELAY_US, delay.to_string());
        }
        let until = Instant::now() + LONG;
        let mut output = command.output().unwrap();
        while output.status.code() == Some(STARVED) && Instant::now() < until {
            output = command.output().unwrap();
        }
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let pid = self.program.pid();
        assert!(
            output.status.success() || output.status.signal() == Some(libc::SIGKILL),
            "attacher at step {step}: {}\n{}{}\nthe target: {}",
            output.status,
            text(&output.stdout),
            text(&output.stderr),
            std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
        );
        output.status.success()
    }

    /// Checks that the target continues, untraced and with its signal mask.
    pub fn works(&self, when: &str) {
        let pid = self.program.pid();
        let begin = Instant::now();
        let until = begin + LONG;
        let start = self.count();
        while self.count() < start + 3 || status(pid, "SigBlk:") != self.blocked {
            assert!(
                Instant::now() < until,
                "{when}: {} rounds\n{}",
                self.count() - start,
                std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_micros(500));
        }
        while !children(pid).is_empty() {
            assert!(Instant::now() < until, "{when}: child {}", children(pid));
            std::thread::sleep(Duration::from_micros(500));
        }
        assert_eq!(status(pid, "TracerPid:"), "0", "{when}");
        assert_eq!(status(pid, "SigBlk:"), self.blocked, "{when}");
    }

    /// Checks that no descriptor of ours stays open in the target. The held thread closes it on its way home. If
    /// another thread counts the rounds, all rounds may be over before the held thread is scheduled.
    pub fn has_no_file_of_ours(&self, when: &str) {
        let folder = format!("/proc/{}/fd", self.program.pid());
        let is_ours = |to: &String| to.contains("memfd:memhook") || to.contains("userfaultfd");
        let until = Instant::now() + LONG;
        loop {
            let files = std::fs::read_dir(&folder).expect("the target lives");
            let files = files.flatten();
            let files = files.flat_map(|file| std::fs::read_link(file.path()));
            let files: Vec<String> = files.map(|to| to.to_string_lossy().into_owned()).collect();
            if !files.iter().any(is_ours) {
                return;
            }
            assert!(Instant::now() < until, "{when}: {files:?}");
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// Returns all mappings, leaving out the start address of the main thread's stack: the stack grows whenever the
    /// program, or the kernel for a signal, needs more of it.
    pub fn mappings(&self) -> String {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.program.pid())).unwrap();
        let end_of_stack = |line: &str| match line.ends_with("[stack]") {
            true => line.split_once('-').map_or("", |range| range.1).to_owned() + "\n",
            false => line.to_owned() + "\n",
        };
        maps.lines().map(end_of_stack).collect()
    }

    /// Checks that the mappings are the same as before.
    pub fn has_only(&self, mappings: &str, when: &str) {
        let until = Instant::now() + LONG;
        while self.mappings() != mappings {
            let now = self.mappings();
            assert!(Instant::now() < until, "{when}: {now}\nbefore: {mappings}");
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    pub fn ends_well(self) {
        common::send(self.program.pid(), libc::SIGTERM);
        self.program.ends_well();
    }
}

/// Returns the ids of the children of all threads.
pub(crate) fn children(pid: i32) -> String {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the target lives");
    let files = threads
        .flatten()
        .map(|thread| thread.path().join("children"));
    files.flat_map(std::fs::read_to_string).collect()
}

pub(crate) fn status(pid: i32, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the target lives");
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim().to_owned()
}

/// Returns a random number (xorshift64).
fn random(state: &mut u64, below: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % below
}

/// Returns the number of random kills. MEMHOOK_TEST_ROUNDS can reduce it, as for the end-to-end tests. Their harness
/// depends on this crate, so it cannot be used here.
fn rounds() -> u64 {
    let asked = std::env::var("MEMHOOK_TEST_ROUNDS").ok();
    let number: Option<u64> = asked.map(|number| number.parse().expect("a number of rounds"));
    number.unwrap_or(60).clamp(1, 60)
}

fn killed_everywhere(name: &str, args: &[&str]) {
    let target = Target::start(name, args);
    assert!(target.attach(u64::MAX, None), "undisturbed");
    target.works("undisturbed");
    let mut step = 1;
    let mut interrupting = Vec::new();
    let mut before = target.interrupted();
    while !target.attach(step, None) {
        target.works(&format!("killed at step {step}"));
        target.has_no_file_of_ours(&format!("killed at step {step}"));
        if target.interrupted() != before {
            before = target.interrupted();
            interrupting.push(step);
        }
        step += 1;
    }
    // The steps cover two holds, each from the stop request to the reading of the registers. The number of steps varies
    // by one or two between runs, and by more if an attacher had to start over.
    assert!(interrupting.len() <= 20, "EINTR at {interrupting:?}");
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ u64::from(std::process::id());
    for _ in 0..rounds() {
        let at = 1 + random(&mut state, step);
        let delay = random(&mut state, 600);
        target.attach(at, Some(delay));
        let when = format!("killed {delay} µs after step {at}");
        target.works(&when);
        target.has_no_file_of_ours(&when);
    }
    println!("{name} {args:?}: {step} steps, EINTR at {interrupting:?}");
    for _ in 0..3 {
        assert!(target.attach(u64::MAX, None));
    }
    target.works("at the end");
    target.ends_well();
}

/// The scratch memory disappears with the attacher that created it, whenever that attacher dies.
#[test]
fn nothing_stays_mapped_after_a_kill() {
    let target = Target::start("canary", &[]);
    // The first call may make the main thread's stack grow.
    assert!(target.run("kill_tests::caller", u64::MAX, None));
    target.works("undisturbed");
    let before = target.mappings();
    let mut step = 1;
    while !target.run("kill_tests::caller", step, None) {
        target.has_only(&before, &format!("killed at step {step}"));
        step += 1;
    }
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ u64::from(std::process::id());
    for _ in 0..rounds() {
        let (at, delay) = (1 + random(&mut state, step), random(&mut state, 300));
        target.run("kill_tests::caller", at, Some(delay));
        target.has_only(&before, &format!("killed {delay} µs after step {at}"));
    }
    assert!(step > 40, "only {step} steps");
    target.works("at the end");
    target.ends_well();
}

/// Kills the attacher at every third step of a hold of a thread whose system call was restarted before, or is about to
/// be.
fn killed_in_a_restarted_call(how: &str) {
    let target = Target::start("waits", &["50", how]);
    for caller in ["kill_tests::caller_again", "kill_tests::caller_on_the_way"] {
        let mut step = 1;
        while !target.run(caller, step, None) {
            target.works(&format!("{how}: {caller} killed at step {step}"));
            step += 3;
        }
        assert!(step > 25, "only {step} steps");
    }
    target.ends_well();
}

#[test]
fn a_nanosleep_that_was_restarted_survives_a_killed_attacher() {
    killed_in_a_restarted_call("nanosleep");
}

#[test]
fn a_poll_that_was_restarted_survives_a_killed_attacher() {
    killed_in_a_restarted_call("poll");
}

/// The program waits in glibc's syscall(2) function, so the instruction before the call does not load its number.
#[test]
fn a_futex_wait_that_was_restarted_survives_a_killed_attacher() {
    killed_in_a_restarted_call("futex");
}

#[test]
fn a_busy_target_survives_a_killed_attacher() {
    killed_everywhere("canary", &[]);
}

#[test]
fn a_sleeping_target_survives_a_killed_attacher() {
    killed_everywhere("waits", &["nanosleep"]);
}

#[test]
fn a_target_in_futex_survives_a_killed_attacher() {
    killed_everywhere("waits", &["futex"]);
}

#[test]
fn a_reading_target_survives_a_killed_attacher() {
    killed_everywhere("waits", &["read"]);
}

#[test]
fn a_target_in_epoll_wait_survives_a_killed_attacher() {
    killed_everywhere("waits", &["epoll"]);
}
