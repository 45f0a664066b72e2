//! Tests that a system call with a timeout ends on time even if it is interrupted repeatedly: it never ends early, and
//! interruptions do not postpone its end.

mod common;

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{LONG, Program, anywhere, send, wait_until_blocked};
use memhook_inject::{HoldOptions, hold, hold_all};

/// Interrupts a program that waits for 400 ms with a hold every 50 ms. If each interruption restarted the wait, the
/// wait would never end. The program itself checks that the wait does not end early.
fn ends_under_holds(how: &str, hold_once: fn(i32)) {
    let path = common::build("blocked", &["-DLATE_IS_FINE"]);
    let mut child = Command::new(&path)
        .arg(how)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id() as i32;
    wait_until_blocked(pid);
    let until = Instant::now() + LONG;
    let mut holds = 0;
    loop {
        // The program is held repeatedly throughout its call.
        std::thread::sleep(Duration::from_millis(50));
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(_)) => break,
            // If the program ended during a hold, the hold has already reaped it, because in this test the tracer is
            // its parent.
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ECHILD), "{error}");
                break;
            }
        }
        // About ten holds are expected, but on a busy machine the program may end late.
        if Instant::now() >= until || holds > 1000 {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{how} does not end: {holds} holds");
        }
        memhook_inject::let_late_threads_go();
        hold_once(pid);
        holds += 1;
    }
    let mut text = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    println!("{holds} holds: {}", text.lines().last().unwrap_or(""));
    let _ = std::fs::remove_file(path);
    assert!(text.ends_with("right\n"), "{text}");
}

/// Holds the program once; it may end meanwhile.
fn one(pid: i32) {
    if let Ok(mut held) = hold(pid, &anywhere()) {
        let _ = held.syscall(libc::SYS_getpid, [0; 6]);
        let _ = held.release();
    }
}

/// The kernel restarts these calls by itself.
#[test]
fn what_the_kernel_restarts_ends() {
    for how in [
        "nanosleep",
        "clock_nanosleep",
        "poll",
        "ppoll",
        "select",
        "futex",
    ] {
        ends_under_holds(how, one);
    }
}

#[test]
fn epoll_wait_ends() {
    ends_under_holds("epoll_finite", one);
}

#[test]
fn epoll_pwait2_ends() {
    ends_under_holds("epoll_pwait2", one);
}

#[test]
fn sigtimedwait_ends() {
    ends_under_holds("sigtimedwait", one);
}

#[test]
fn semtimedop_ends() {
    ends_under_holds("semop", one);
}

#[test]
fn epoll_wait_ends_though_all_threads_are_held() {
    ends_under_holds("epoll_finite", |pid| {
        if let Ok(held) = hold_all(pid) {
            held.release();
        }
    });
}

/// The event that ends a wait may come at any moment, even directly before the stop.
fn is_never_early(how: &str) {
    let until = Instant::now() + LONG;
    // On a busy machine, the program may barely have begun to wait.
    while !waits_to_the_end(how) {
        assert!(Instant::now() < until, "no wait took its whole time");
    }
}

/// Returns true if any wait lasted its full time. None may end early.
fn waits_to_the_end(how: &str) -> bool {
    let mut program = Program::start("timeouts", &[how]);
    assert_eq!(program.line(), "ready");
    let pid = program.pid();
    let options = HoldOptions {
        thread: Some(pid),
        ..anywhere()
    };
    let until = Instant::now() + Duration::from_secs(4);
    let mut holds = 0u64;
    while Instant::now() < until {
        match hold(pid, &options) {
            Ok(held) => drop(held.release()),
            Err(error) if common::is_for_want_of_a_processor(&error) => {}
            Err(_) => break,
        }
        holds += 1;
        // Holds come at different moments of its call.
        std::thread::sleep(Duration::from_millis(holds * 7 % 30));
    }
    send(pid, libc::SIGTERM);
    let line = program.line();
    println!("{how}: {holds} holds, {line}");
    let words: Vec<&str> = line.split(' ').collect();
    assert!(words.len() == 7, "{line}");
    let whole: u32 = words[2].parse().unwrap();
    program.ends_well();
    whole > 0
}

#[test]
fn epoll_wait_is_never_early() {
    is_never_early("epoll");
}

#[test]
fn sigtimedwait_is_never_early() {
    is_never_early("sigtimedwait");
}
