//! Checks that an attach and a detach do not affect a single-threaded target that is blocked in a
//! system call.

use memhook_tests::{Attacher, Target, build_target, run, until};

const ETIMEDOUT: i64 = 110;
const EAGAIN: i64 = 11;

/// Attaches and detaches twice during the call. Returns its result, errno and duration in ms.
fn during(call: &str) -> [i64; 3] {
    let program = build_target("blocked", &[]);
    let mut target = Target::start(&program, &[call]);
    // The target prints "ready" just before the call.
    until("it is in its call", || {
        target.status("State").starts_with('S')
    });
    for _ in 0..2 {
        Attacher::start(&target, &[]).finish();
    }
    if call == "read" {
        target.go();
    }
    let line = target.expect("");
    assert!(target.finish().success());
    let numbers: Vec<i64> = line
        .split_ascii_whitespace()
        .map(|n| n.parse().expect("a number"))
        .collect();
    numbers.try_into().expect("three numbers")
}

#[test]
fn timeouts_are_neither_interrupted_nor_early() {
    // One test thread per call, because each test spends most of its time waiting.
    let calls: Vec<_> = [
        ("poll", 0, 0),
        ("select", 0, 0),
        ("futex", ETIMEDOUT, 0),
        ("nanosleep", 0, 0),
        ("clock_nanosleep", 0, 0),
        ("epoll_wait", 0, 0),
        ("sigtimedwait", -1, EAGAIN),
        ("semtimedop", -1, EAGAIN),
    ]
    .into_iter()
    .map(|(call, result, errno)| {
        std::thread::spawn(move || {
            let [found, error, ms] = during(call);
            assert_eq!((found, error), (result, errno), "{call}");
            assert!(ms >= 1495, "{call} came back after {ms} ms");
        })
    })
    .collect();
    for call in calls {
        call.join().expect("the call was left alone");
    }
}

/// Checks the predicted effects of an attach on this process.
#[test]
fn doctor_says_which_thread_would_be_held() {
    let program = build_target("blocked", &[]);
    for (call, is_disturbed) in [("epoll_wait", true), ("read", false)] {
        let target = Target::start(&program, &[call]);
        let pid = target.pid().to_string();
        memhook_tests::until("it waits", || target.status("State").starts_with('S'));
        let (code, out, err) = run(&["doctor", &pid]);
        assert_eq!(code, 0, "{out}{err}");
        assert!(
            out.contains(&format!("for milliseconds; now it would choose {pid}")),
            "{out}"
        );
        assert_eq!(out.contains("no kernel restarts"), is_disturbed, "{out}");
        // The command only reads the process.
        assert!(out.contains(&format!("thread {pid} waits at one")), "{out}");
    }
}

#[test]
fn a_read_goes_on_waiting() {
    let [result, error, _] = during("read");
    assert_eq!((result, error), (1, 0));
}
