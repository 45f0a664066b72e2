//! Waiting with a limit: a test that hangs would tell nobody what it waited for.

use std::{
    io::{BufRead, BufReader, Read},
    os::fd::AsRawFd,
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Reads a line; empty at the end of the stream.
pub fn line<R: Read + AsRawFd>(reader: &mut BufReader<R>) -> String {
    if reader.buffer().is_empty() {
        let mut poll = libc::pollfd {
            fd: reader.get_ref().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd; the descriptor is open as long as the reader lives.
        let ready = unsafe { libc::poll(&mut poll, 1, PATIENCE.as_millis() as i32) };
        assert!(ready > 0, "nothing said in {PATIENCE:?}");
    }
    let mut line = String::new();
    reader.read_line(&mut line).expect("a line of text");
    line
}

/// Waits until `done`; the pauses are short.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The exit status of a child; one that does not end is killed.
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
        std::thread::sleep(Duration::from_millis(1));
    }
}
