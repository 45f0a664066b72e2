//! What the user sees while a long recording is read.

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use std::{
    io::{IsTerminal, Write},
    thread::JoinHandle,
    time::Duration,
};

/// A line on the terminal while something takes longer than a second.
pub struct Progress {
    stop: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Begins; nothing is shown where no terminal is.
    pub fn start(what: &'static str) -> Progress {
        let (stop, stopped) = bounded::<()>(0);
        let show = move || {
            let wait = |time| stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
            let mut shown = false;
            let mut seconds = 0;
            while wait(Duration::from_secs(1)) {
                seconds += 1;
                shown = true;
                let line = format!("\r{what} ... {seconds} s");
                let _ = std::io::stderr().lock().write_all(line.as_bytes());
            }
            if shown {
                let _ = std::io::stderr().lock().write_all(b"\r\x1b[K");
            }
        };
        let thread = if std::io::stderr().is_terminal() {
            std::thread::Builder::new().spawn(show).ok()
        } else {
            None
        };
        Progress { stop, thread }
    }

    /// Takes the line away.
    pub fn end(self) {
        drop(self.stop);
        if let Some(thread) = self.thread {
            let _ = thread.join();
        }
    }
}
