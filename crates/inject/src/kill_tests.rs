//! The attacher is killed at every step of remote work, and at random moments between; the target
//! must never notice.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{self, Program, anywhere};
use memhook_process::{RemoteAddress, read_memory, read_word};

use crate::map_tests::map_and_call;
use crate::stop::hold_with;
use crate::timing::Timing;
use crate::write_watch::take_userfault;
use crate::{
    Dlopen, Error, ForkPlan, Held, HoldOptions, Others, create_region, hold_all, load_object,
    restart, steps,
};

/// Where the attacher, which is this test program started once more, finds its target.
const TARGET: &str = "MEMHOOK_TEST_TARGET";

/// Holds a thread that goes home soon when the attacher is killed.
pub(crate) fn hold(pid: u64) -> Held {
    hold_with(pid as i32, &anywhere(), Timing::QUICK).unwrap()
}

/// The process id of the target, in an attacher that a test has started.
pub(crate) fn target_of_attacher() -> Option<u64> {
    let target = std::env::var(TARGET).ok()?;
    target.split(' ').next()?.parse().ok()
}

/// The other tests start it with [`TARGET`] set.
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
    held.syscall(libc::SYS_getpid, [0; 6]).unwrap();
    assert_eq!(held.call(getpid, &[]).unwrap(), pid);
    held.call(spoil, &[1, 2, 3, 4, 5, 6]).unwrap();
    let many: Vec<u64> = (0..400).collect();
    let until = Instant::now() + Duration::from_secs(1);
    assert_eq!(held.call_each(spoil, &many, until).unwrap(), many.len());
    let patience = Duration::from_secs(1);
    let called = held.call_each_to_its_end(spoil, &many, until, patience);
    assert_eq!(called.unwrap(), many.len());
    create_region(&mut held, c"memhook-region", 1 << 16).unwrap();
    let dlopen = Dlopen {
        address: dlopen,
        internal_mode: false,
    };
    held.stop_others(&others).unwrap();
    load_object(&mut held, dlopen, &object).unwrap();
    held.let_others_go();
    map_and_call(&mut held);
    // Not every kernel has it.
    drop(take_userfault(&mut held));
    held.release().unwrap();
    let mut plan = ForkPlan::of(pid as i32).unwrap();
    plan.survey.timing = Timing::QUICK;
    let mut all = hold_all(pid as i32).unwrap();
    let copy = all.fork(&plan).unwrap();
    all.release();
    read_memory(copy.pid(), getpid, &mut [0; 8]).unwrap();
}

/// The other tests start it with [`TARGET`] set. The second hold finds the thread in a call that was restarted after
/// the first one.
#[test]
#[ignore = "the process to be killed, started by the other tests"]
fn caller_again() {
    let Ok(target) = std::env::var(TARGET) else {
        return;
    };
    let numbers: Vec<u64> = target.split(' ').map(|n| n.parse().unwrap()).collect();
    hold(numbers[0]).release().unwrap();
    let mut held = hold(numbers[0]);
    let getpid = RemoteAddress(numbers[1]);
    assert_eq!(held.call(getpid, &[]).unwrap(), numbers[0]);
    held.release().unwrap();
}

/// The other tests start it with [`TARGET`] set. The thread is held as if the stop had come when the kernel had set its
/// registers for restart_syscall, and the thread was not there yet: by the kernel itself, with the number of the
/// interrupted call, or after an interrupt, with none.
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
        held.write_registers(&registers).unwrap();
        held.saved.registers = registers;
    }
    let getpid = RemoteAddress(numbers[1]);
    assert_eq!(held.call(getpid, &[]).unwrap(), numbers[0]);
    held.release().unwrap();
}

/// The other tests start it with [`TARGET`] set; it leaves nothing in the target when it is done.
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
        // A test has stopped and continued this process, or made it stand still.
        Err(Error::WentHome { .. }) if has_lost_time() => {}
        result => assert_eq!(result.unwrap(), numbers[0]),
    }
    match held.release() {
        Err(Error::WentHome { .. }) if has_lost_time() => {}
        released => drop(released.unwrap()),
    }
}

fn has_lost_time() -> bool {
    [steps::SIGNAL, steps::BLOCK, steps::SPIN]
        .iter()
        .any(|variable| std::env::var(variable).is_ok())
}

/// The other tests start it with [`TARGET`] set. Its call waits for a lock with another one held, until it is killed.
#[test]
#[ignore = "the process to be killed, started by the other tests"]
fn caller_that_waits() {
    let Ok(target) = std::env::var(TARGET) else {
        return;
    };
    let numbers: Vec<u64> = target.split(' ').map(|n| n.parse().unwrap()).collect();
    let options = HoldOptions {
        thread: Some(numbers[0] as i32),
        ..anywhere()
    };
    let mut held = hold_with(numbers[0] as i32, &options, Timing::QUICK).unwrap();
    let minute = Duration::from_secs(60);
    let _ = held.call_to_its_end(RemoteAddress(numbers[1]), &mut [], minute, |_| vec![7]);
    panic!("it was not killed");
}

/// The other tests start it with [`TARGET`] set. Its `dlopen` waits for a lock of the loader, until it is killed.
#[test]
#[ignore = "the process to be killed, started by the other tests"]
fn loader_that_waits() {
    let Ok(target) = std::env::var(TARGET) else {
        return;
    };
    let numbers: Vec<u64> = target.split(' ').map(|n| n.parse().unwrap()).collect();
    let options = HoldOptions {
        thread: Some(numbers[0] as i32),
        ..anywhere()
    };
    let object = std::fs::read(std::env::var("MEMHOOK_TEST_OBJECT").unwrap()).unwrap();
    let mut held = hold_with(numbers[0] as i32, &options, Timing::QUICK).unwrap();
    let dlopen = Dlopen {
        address: RemoteAddress(numbers[1]),
        internal_mode: false,
    };
    // The locks are not asked for, so that it does wait.
    let loaded = load_object(&mut held, dlopen, &object);
    panic!("it was not killed: {loaded:?}");
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The attacher is killed while its `dlopen` waits for a lock that another thread of the target keeps: the thread goes
/// on when it gets the lock, and home when the object is loaded, and nobody is left with a lock.
fn loading_that_waits(arguments: &[&str]) {
    let object = common::build("object", &["-shared", "-fPIC", "-nostdlib", "-DNUMBER=1"]);
    let mut program = Program::start("keeps_loader", arguments);
    let at = program.addresses();
    let pid = program.pid();
    let number = |name: &str| read_word(pid, RemoteAddress(at[name])).unwrap();
    let before = status(pid, "SigBlk:");
    let mut attacher = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill_tests::loader_that_waits", "--ignored"])
        .env(TARGET, format!("{pid} {}", at["dlopen"]))
        .env("MEMHOOK_TEST_OBJECT", &object)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let waits_for_lock = || {
        let call = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/syscall"));
        let futex = format!("{} ", libc::SYS_futex);
        call.is_ok_and(|call| call.starts_with(&futex)) && status(pid, "TracerPid:") != "0"
    };
    wait_for("it waits for the lock", waits_for_lock);
    let rounds = number("rounds");
    attacher.kill().unwrap();
    attacher.wait().unwrap();
    // It still waits, in nobody's hands.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!((number("rounds"), number("works") as u32), (rounds, 0));
    assert_eq!(status(pid, "TracerPid:"), "0");
    crate::write_bytes(pid, RemoteAddress(at["is_open"]), &1u32.to_le_bytes()).unwrap();
    wait_for("it goes on with its work", || number("rounds") > rounds + 5);
    wait_for("no lock is kept", || number("works") as u32 == 1);
    assert_eq!(status(pid, "SigBlk:"), before);
    let files = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten();
    let mut files = files.flat_map(|file| std::fs::read_link(file.path()));
    assert!(!files.any(|to| to.to_string_lossy().contains("memhook")));
    common::send(pid, libc::SIGTERM);
    program.ends_well();
    let _ = std::fs::remove_file(object);
}

#[test]
fn a_dlopen_that_waits_for_the_list_of_modules_outlives_the_attacher() {
    loading_that_waits(&["list"]);
}

#[test]
fn a_dlopen_that_waits_for_another_one_outlives_the_attacher() {
    let library = common::build("waiting_constructor", &["-shared", "-fPIC"]);
    loading_that_waits(&["load", library.to_str().unwrap()]);
    let _ = std::fs::remove_file(library);
}

/// The attacher is killed while the thread waits in a call of ours: the thread gets the lock when it is free, lets go of
/// all that it has taken, and goes home.
#[test]
fn a_call_that_waits_outlives_the_attacher() {
    let mut program = Program::start("enters", &[]);
    let at = program.addresses();
    let pid = program.pid();
    let number = |name: &str| read_word(pid, RemoteAddress(at[name])).unwrap() as u32;
    let mut attacher = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill_tests::caller_that_waits", "--ignored"])
        .env(TARGET, format!("{pid} {}", at["enter"]))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("it has one lock", || number("entered") == 1);
    attacher.kill().unwrap();
    attacher.wait().unwrap();
    crate::write_bytes(pid, RemoteAddress(at["is_open"]), &1u32.to_le_bytes()).unwrap();
    wait_for("it has let go of both", || number("left") == 1);
    let rounds = number("rounds");
    wait_for("it goes on with its work", || number("rounds") > rounds + 5);
    common::send(pid, libc::SIGTERM);
    program.ends_well();
}

pub(crate) struct Target {
    pub program: Program,
    /// The address of its count of rounds.
    rounds: u64,
    /// The address of its count of calls that ended with EINTR.
    interrupted: Option<u64>,
    attacher: String,
    object: std::path::PathBuf,
    blocked: String,
}

impl Target {
    pub fn start(name: &str, args: &[&str]) -> Target {
        let mut program = Program::start(name, args);
        let at = program.addresses();
        let pid = program.pid();
        let functions = ["getpid", "spoil", "dlopen"].map(|function| at[function].to_string());
        let target = Target {
            attacher: format!("{pid} {}", functions.join(" ")),
            object: common::build("object", &["-shared", "-fPIC", "-nostdlib", "-DNUMBER=1"]),
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

    /// Runs the attacher; `true` if it came to its end.
    fn attach(&self, step: u64, delay_us: Option<u64>) -> bool {
        self.run("kill_tests::attacher", step, delay_us)
    }

    /// Prepares an attacher (the path of a test) that dies, or does something else, at this step.
    pub fn attacher(&self, name: &str, step: u64) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", name, "--ignored"])
            .env(TARGET, &self.attacher)
            .env("MEMHOOK_TEST_OBJECT", &self.object)
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
        let output = command.output().unwrap();
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

    /// Checks that the target goes on, untraced and with its signal mask.
    pub fn works(&self, when: &str) {
        let pid = self.program.pid();
        let begin = Instant::now();
        let until = begin + Duration::from_secs(20);
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

    /// Checks that no descriptor of ours is open in it.
    pub fn has_no_file_of_ours(&self, when: &str) {
        let folder = format!("/proc/{}/fd", self.program.pid());
        let files = std::fs::read_dir(folder).expect("the target lives");
        let files = files
            .flatten()
            .flat_map(|file| std::fs::read_link(file.path()));
        let files: Vec<String> = files.map(|to| to.to_string_lossy().into_owned()).collect();
        let is_ours = |to: &String| to.contains("memfd:memhook") || to.contains("userfaultfd");
        assert!(!files.iter().any(is_ours), "{when}: {files:?}");
    }

    /// All mappings, but for where the main thread's stack begins: it grows whenever the program itself, or the kernel for a
    /// signal of its, needs more of it.
    pub fn mappings(&self) -> String {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.program.pid())).unwrap();
        let end_of_stack = |line: &str| match line.ends_with("[stack]") {
            true => line.split_once('-').map_or("", |range| range.1).to_owned() + "\n",
            false => line.to_owned() + "\n",
        };
        maps.lines().map(end_of_stack).collect()
    }

    /// Checks that the mappings come to be these again.
    pub fn has_only(&self, mappings: &str, when: &str) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.mappings() != mappings {
            let now = self.mappings();
            assert!(Instant::now() < until, "{when}: {now}\nbefore: {mappings}");
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    pub fn ends_well(self) {
        let _ = std::fs::remove_file(&self.object);
        common::send(self.program.pid(), libc::SIGTERM);
        self.program.ends_well();
    }
}

/// The ids of the children of all threads.
fn children(pid: i32) -> String {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the target lives");
    let files = threads
        .flatten()
        .map(|thread| thread.path().join("children"));
    files.flat_map(std::fs::read_to_string).collect()
}

fn status(pid: i32, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the target lives");
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim().to_owned()
}

/// A random number (xorshift64).
fn random(state: &mut u64, below: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % below
}

/// How many random kills there are; the variable MEMHOOK_TEST_ROUNDS may set another number.
fn rounds() -> u64 {
    let given = std::env::var("MEMHOOK_TEST_ROUNDS").ok();
    given.and_then(|rounds| rounds.parse().ok()).unwrap_or(60)
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
    // In each of two holds: from the request to stop over the wait up to the read of the registers. The
    // numbers differ by one or two between runs.
    assert!(interrupting.len() <= 10, "EINTR at {interrupting:?}");
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

/// The scratch memory goes away with its maker, whenever that dies.
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

/// Kills at every third step of a hold of a thread whose call has been restarted before, or is about to be.
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

/// The wait is made by glibc's function for any call, which has no number in front of the call.
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
