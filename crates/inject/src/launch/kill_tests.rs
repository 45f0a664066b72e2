//! Kills the launcher of a program at every step up to the program's first own instruction. The program must run to its
//! end unaffected.

use std::ffi::CString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::kill_tests::{STARVED, done};
use crate::timing::Timing;
use crate::{Event, StartPoint, common, launch, steps};

/// Environment variable for the launcher, which is another run of this test program. It names the program to launch,
/// and the point from which to trace it.
const PROGRAM: &str = "MEMHOOK_TEST_PROGRAM";

/// Launcher that the other tests run in a separate process, with [`PROGRAM`] set.
#[test]
#[ignore = "the process to be killed, started by the other tests"]
fn launcher() {
    let Ok(words) = std::env::var(PROGRAM) else {
        return;
    };
    let words: Vec<&str> = words.split(' ').collect();
    let (point, arguments) = words.split_first().unwrap();
    let arguments: Vec<CString> = arguments
        .iter()
        .map(|&a| CString::new(a).unwrap())
        .collect();
    let mut child = launch(&arguments, false).unwrap();
    child.timing = Timing::QUICK;
    let pid = child.pid();
    loop {
        let reached = child.run_to_start(pid, *point == "constructors").unwrap();
        let expected = match *point {
            "constructors" => StartPoint::BeforeConstructors,
            _ => StartPoint::Entry,
        };
        assert_eq!(reached, expected);
        let mut held = done(child.hold(pid));
        done(held.syscall(libc::SYS_getuid, [0; 6]));
        done(held.release());
        done(child.set_off(pid));
        match child.next_event(None).unwrap() {
            Some((_, Event::Executed)) => continue,
            Some((_, Event::Ending(_))) => child.let_end(pid),
            other => panic!("{other:?}"),
        }
        assert_eq!(
            child.next_event(None).unwrap(),
            Some((pid, Event::Ended(0)))
        );
        return;
    }
}

/// Runs the launcher, which dies at a step. Returns `true` if it finished. Returns `None` if it got no processor for a
/// while, which has the effect of a kill at a different step.
fn start(
    point: &str,
    program: &Path,
    file: &Path,
    kind: &str,
    step: u64,
    delay: Option<u64>,
) -> Option<bool> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let words = format!("{point} {} {} {kind}", program.display(), file.display());
    command
        .args(["--exact", &common::name_of_test(module_path!(), "launcher")])
        .arg("--ignored")
        .env(PROGRAM, words.trim_end())
        .env(steps::STEP, step.to_string())
        // The program inherits these descriptors. If they were pipes, we would also wait for the program's end.
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Some(delay) = delay {
        command.env(steps::DELAY_US, delay.to_string());
    }
    let status = command.status().unwrap();
    if status.code() == Some(STARVED) {
        return None;
    }
    assert!(
        status.success() || status.signal() == Some(libc::SIGKILL),
        "launcher at step {step}: {status}"
    );
    Some(status.success())
}

fn runs_to_its_end(file: &Path, expected: &str, when: &str) {
    let until = Instant::now() + common::LONG;
    loop {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if text == expected {
            break;
        }
        assert!(Instant::now() < until, "{when}: {text:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::fs::remove_file(file).unwrap();
}

fn killed_everywhere(point: &str, kind: &str, expected: &str) {
    let program = common::build("started", &[]);
    let file = program.with_extension(format!("{point}.out"));
    let start = |step, delay| {
        for _ in 0..100 {
            match start(point, &program, &file, kind, step, delay) {
                Some(is_done) => return is_done,
                None => runs_to_its_end(&file, expected, "let go early"),
            }
        }
        panic!("it never gets a processor")
    };
    assert!(start(u64::MAX, None));
    runs_to_its_end(&file, expected, "undisturbed");
    // In the first step, the launcher seizes the child. If the launcher is killed in this step, it has not yet told the
    // child to continue.
    let mut step = 2;
    while !start(step, None) {
        runs_to_its_end(&file, expected, &format!("killed at step {step}"));
        step += 1;
    }
    runs_to_its_end(&file, expected, "after its end");
    // The loader's work is not a step: the program is not stopped there.
    assert!(step > 50, "only {step} steps");
    for round in 0..60 {
        let (at, delay) = (2 + round * 37 % (step - 2), round * 89 % 400);
        start(at, Some(delay));
        runs_to_its_end(
            &file,
            expected,
            &format!("killed {delay} µs after step {at}"),
        );
    }
    std::fs::remove_file(&program).unwrap();
}

#[test]
fn nothing_is_left_of_a_launcher_killed_before_the_start() {
    let program = common::build("started", &[]);
    let file = program.with_extension("never.out");
    let words = format!("constructors {} {}", program.display(), file.display());
    let mut launcher = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &common::name_of_test(module_path!(), "launcher")])
        .arg("--ignored")
        .env(PROGRAM, words)
        .env(steps::STEP, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = launcher.stdout.take().unwrap();
    assert_eq!(launcher.wait().unwrap().signal(), Some(libc::SIGKILL));
    // The pipe reaches its end when no process has it open, so the child has ended by then.
    let (tell, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::Read::read_to_end(&mut output, &mut Vec::new());
        let _ = tell.send(());
    });
    ended.recv_timeout(common::LONG).expect("the child ends");
    assert!(!file.exists());
    std::fs::remove_file(&program).unwrap();
}

#[test]
fn a_program_survives_its_launcher() {
    killed_everywhere("constructors", "", "begun done");
}

#[test]
fn a_program_at_its_entry_point_survives_its_launcher() {
    killed_everywhere("entry", "", "begun done");
}

#[test]
fn what_a_program_executes_survives_its_launcher() {
    killed_everywhere("constructors", "again", "begun begun done");
}
