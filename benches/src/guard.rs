//! Kills processes that hang, and cleans up when the benchmark itself is killed.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{
    collections::HashMap,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    time::Duration,
};

/// Installs handlers for SIGINT, SIGTERM and SIGHUP. The handlers kill this process and all its
/// descendants, and remove its folders. The signals are not blocked, because child processes would
/// inherit the mask: an attacher with SIGINT blocked would never detach.
pub fn guard() {
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) else {
        return;
    };
    std::thread::spawn(move || {
        let signal = signals.forever().next().unwrap_or(SIGTERM);
        kill_descendants();
        memhook_tests::programs::Folder::remove_all();
        std::process::exit(128 + signal);
    });
}

/// Kills all descendants of this process unless it is dropped within the time limit.
pub struct Limit {
    _in_time: Sender<()>,
}

impl Limit {
    /// Starts the time limit.
    pub fn start(limit: Duration) -> Limit {
        let (in_time, ended) = channel::<()>();
        std::thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("exceeded {limit:?}: its descendants are killed");
                kill_descendants();
            }
        });
        Limit { _in_time: in_time }
    }
}

/// Returns the process ids of all descendants of this process.
fn descendants() -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The command's name, in parentheses, may contain any character; state and parent follow it
        // (proc_pid_stat(5)).
        let parent = stat.rsplit(')').next().and_then(|rest| {
            let parent = rest.split_whitespace().nth(1)?;
            parent.parse().ok()
        });
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = vec![std::process::id() as i32];
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        found.extend(children.remove(&pid).unwrap_or_default());
        at += 1;
    }
    found.split_off(1)
}

fn kill_descendants() {
    for pid in descendants() {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Command, Stdio};

    #[test]
    fn what_takes_too_long_is_killed_with_what_it_started() {
        let mut child = Command::new("sh")
            .args(["-c", "sleep 1000 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut text = String::new();
        // The shell prints this line once both processes are running.
        output.read_line(&mut text).expect("text");
        let limit = Limit::start(Duration::from_millis(100));
        // Both processes hold the pipe open, so the read returns once both have ended.
        output.read_to_string(&mut text).expect("text");
        drop(limit);
        let status = child.wait().expect("a child of ours");
        assert!(!status.success(), "{status}");
        assert!(text.trim().parse::<i32>().is_ok(), "{text:?}");
    }
}
