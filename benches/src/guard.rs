//! Ends what hangs, and leaves nothing behind when the benchmark itself is ended.

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

/// From now on SIGINT, SIGTERM and SIGHUP end this process with all that it has started, and remove
/// its folders. Signals are handled, not blocked: programs that are started inherit a mask, and an
/// attacher that SIGINT does not reach never detaches.
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

/// Kills everything that this process has started, when dropped too late.
pub struct Limit {
    _in_time: Sender<()>,
}

impl Limit {
    /// From now on.
    pub fn start(limit: Duration) -> Limit {
        let (in_time, ended) = channel::<()>();
        std::thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("longer than {limit:?}: what it waits for is killed");
                kill_descendants();
            }
        });
        Limit { _in_time: in_time }
    }
}

/// The processes that this one has started, and theirs.
fn descendants() -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The command's name, in parentheses, may hold anything; state and parent come after it
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
        // It says so when both are there.
        output.read_line(&mut text).expect("text");
        let limit = Limit::start(Duration::from_millis(100));
        // Both have the pipe open: it ends when both have.
        output.read_to_string(&mut text).expect("text");
        drop(limit);
        let status = child.wait().expect("a child of ours");
        assert!(!status.success(), "{status}");
        assert!(text.trim().parse::<i32>().is_ok(), "{text:?}");
    }
}
