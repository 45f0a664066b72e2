//! Kills the attacher while a thread waits, in a remote call, for a lock that another thread of the target holds.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{self, LONG, Program, anywhere, patiently};
use crate::kill_tests::{TARGET, status};
use crate::stop::hold_with;
use crate::timing::Timing;
use crate::{Dlopen, Held, HoldOptions, load_object};
use memhook_process::{RemoteAddress, read_word};

/// Holds the initial thread of the target, in an attacher that a test has started, and returns the address of the
/// function.
fn held() -> Option<(Held, RemoteAddress)> {
    let target = std::env::var(TARGET).ok()?;
    let numbers: Vec<u64> = target.split(' ').map(|n| n.parse().unwrap()).collect();
    let pid = numbers[0] as i32;
    let options = HoldOptions {
        thread: Some(pid),
        ..anywhere()
    };
    let held = patiently(|| hold_with(pid, &options, Timing::QUICK));
    Some((held, RemoteAddress(numbers[1])))
}

/// Attacher that the other tests run in a separate process, with [`TARGET`] set. Its call waits for a lock while
/// holding another, until the attacher is killed.
#[test]
#[ignore = "the process to be killed, started by the other tests"]
fn caller_that_waits() {
    let Some((mut held, function)) = held() else {
        return;
    };
    let minute = Duration::from_secs(60);
    let _ = held.call_to_its_end(function, &mut [], minute, |_| vec![7]);
    panic!("it was not killed");
}

/// Attacher that the other tests run in a separate process, with [`TARGET`] set. Its `dlopen` waits for a lock of the
/// loader, until the attacher is killed.
#[test]
#[ignore = "the process to be killed, started by the other tests"]
fn loader_that_waits() {
    let Some((mut held, function)) = held() else {
        return;
    };
    let object = std::fs::read(std::env::var("MEMHOOK_TEST_OBJECT").unwrap()).unwrap();
    let dlopen = Dlopen {
        address: function,
        internal_mode: false,
    };
    // The locks are not checked first, so the call really waits.
    let loaded = load_object(&mut held, dlopen, &object);
    panic!("it was not killed: {loaded:?}");
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The attacher is killed while its `dlopen` waits for a lock that another thread of the target holds. The thread
/// continues when it gets the lock, goes home when the object is loaded, and then holds no lock.
fn loading_that_waits(arguments: &[&str]) {
    let until = Instant::now() + LONG;
    while !is_killed_while_it_loads(arguments) {
        assert!(Instant::now() < until, "it does not wait for the lock");
    }
}

/// Returns true if the attacher was killed before a lack of processor time made it release the thread.
fn is_killed_while_it_loads(arguments: &[&str]) -> bool {
    let object = common::build("object", &["-shared", "-fPIC", "-nostdlib", "-DNUMBER=1"]);
    let mut program = Program::start("keeps_loader", arguments);
    let at = program.addresses();
    let pid = program.pid();
    let number = |name: &str| read_word(pid, RemoteAddress(at[name])).unwrap();
    let before = status(pid, "SigBlk:");
    let mut attacher = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "waiting_call_tests::loader_that_waits",
            "--ignored",
        ])
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
    let until = Instant::now() + LONG;
    while !waits_for_lock() {
        assert!(Instant::now() < until, "it waits for the lock");
        if attacher.try_wait().unwrap().is_some() {
            let _ = std::fs::remove_file(object);
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let rounds = number("rounds");
    attacher.kill().unwrap();
    attacher.wait().unwrap();
    // The thread still waits, without an attacher.
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
    true
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

/// The attacher is killed while the thread waits in a remote call. The thread gets the lock when it is free, releases
/// all locks that it has taken, and goes home.
#[test]
fn a_call_that_waits_outlives_the_attacher() {
    let mut program = Program::start("enters", &[]);
    let at = program.addresses();
    let pid = program.pid();
    let number = |name: &str| read_word(pid, RemoteAddress(at[name])).unwrap() as u32;
    let start = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "waiting_call_tests::caller_that_waits"])
            .arg("--ignored")
            .env(TARGET, format!("{pid} {}", at["enter"]))
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut attacher = start();
    let until = Instant::now() + LONG;
    while number("entered") != 1 {
        assert!(Instant::now() < until, "it has one lock");
        // The attacher got no processor for so long that the thread was released before the call.
        if attacher.try_wait().unwrap().is_some() && number("entered") == 0 {
            attacher = start();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    attacher.kill().unwrap();
    attacher.wait().unwrap();
    crate::write_bytes(pid, RemoteAddress(at["is_open"]), &1u32.to_le_bytes()).unwrap();
    wait_for("it has let go of both", || number("left") == 1);
    let rounds = number("rounds");
    wait_for("it goes on with its work", || number("rounds") > rounds + 5);
    common::send(pid, libc::SIGTERM);
    program.ends_well();
}
