//! Waits with a time limit. A test that hangs could not report what it was waiting for.

use std::{
    io::{BufRead, BufReader, Read},
    os::fd::AsRawFd,
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

/// Time limit of a wait, longer than any operation takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Time limit of a command, longer than any command of a test runs.
const A_COMMAND: Duration = Duration::from_secs(400);

/// Runs a command without input and collects its output. Kills a command that exceeds the time limit.
pub fn output_of(command: &mut Command) -> Output {
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("it runs");
    let pid = child.id() as i32;
    let (ended, end) = mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        let hangs = end.recv_timeout(A_COMMAND) == Err(mpsc::RecvTimeoutError::Timeout);
        if hangs {
            // SAFETY: kill takes plain integers. If the child was reaped at this moment, its id is not reused yet,
            // because the kernel assigns ids cyclically.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        hangs
    });
    let output = child.wait_with_output().expect("it ends");
    drop(ended);
    assert!(!watch.join().expect("no panic"), "{command:?} does not end");
    output
}

/// Reads a line; it is empty at the end of the stream.
pub fn line<R: Read + AsRawFd>(reader: &mut BufReader<R>) -> String {
    if reader.buffer().is_empty() {
        let mut poll = libc::pollfd {
            fd: reader.get_ref().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd; the descriptor stays open while the reader exists.
        let ready = unsafe { libc::poll(&mut poll, 1, PATIENCE.as_millis() as i32) };
        assert!(ready > 0, "nothing said in {PATIENCE:?}");
    }
    let mut line = String::new();
    reader.read_line(&mut line).expect("a line of text");
    line
}

/// Stops a process as Ctrl-Z does, and waits until none of its threads runs. The kernel stops the threads only when one
/// of them is scheduled, and until then they continue (signal(7), kernel/signal.c: do_signal_stop).
pub fn stop(pid: u32) {
    // SAFETY: kill takes plain integers.
    assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGSTOP) }, 0);
    until("all of its threads are stopped", || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
        tasks.flatten().all(|task| {
            let status = std::fs::read_to_string(task.path().join("status"));
            status.is_ok_and(|status| status.contains("\nState:\tT"))
        })
    });
}

/// Waits until `done` returns true, with short pauses.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Messages that report that memhook-rs or its target was not scheduled in time. On a busy machine, these failures are
/// acceptable. A test also retries after any other failure whose message contains these words, so it detects only
/// persistent failures of that kind.
const SAID_WITHOUT_A_PROCESSOR: [&str; 8] = [
    // No thread could be held, or not for long enough.
    "for each turn on a processor",
    "get too little processor time",
    "next to no processor time",
    "Starved {",
    "LongHolds {",
    // A held thread resumed its own work before the hold had ended.
    "memhook-rs was stopped or delayed",
    // The target continued untraced.
    "waited too long for memhook-rs",
    "othing was seen from",
];

/// Returns true if memhook-rs reports that it or its target was not scheduled in time.
pub fn is_for_want_of_a_processor(said: &str) -> bool {
    let mut all = SAID_WITHOUT_A_PROCESSOR.iter();
    all.any(|words| said.contains(words))
}

/// Maximum number of attempts at an operation that a busy machine may prevent.
pub const TRIES: usize = 6;

/// Runs a test, and repeats it if the failure message says that memhook-rs was not scheduled in time. The test fails if
/// every attempt fails.
pub fn patiently(test: impl Fn()) {
    for _ in 1..TRIES {
        let run = std::panic::AssertUnwindSafe(&test);
        let Err(panic) = std::panic::catch_unwind(run) else {
            return;
        };
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        if !text.is_some_and(is_for_want_of_a_processor) {
            std::panic::resume_unwind(panic);
        }
        eprintln!("once more, as there was no processor");
    }
    test();
}

/// Returns the exit status of a child. Kills a child that exceeds the time limit.
pub fn end_of(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            return status;
        }
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            panic!("process {} does not end", child.id());
        }
        // Pause between two checks.
        std::thread::sleep(Duration::from_millis(1));
    }
}
