//! Conditions that a target must meet between cycles.

use memhook_tests::Target;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// State that an attach must not change, except for the mappings that the first attach leaves behind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Footprint {
    /// Number of our mappings. The guide next to each region is not counted, because it has a name only if other
    /// processes can see it.
    pub mappings: usize,
    /// Locked memory, in KiB.
    pub locked_kib: i64,
    /// Open files.
    pub files: Vec<PathBuf>,
    /// Blocked signals of the main thread, except signals with a handler, which are blocked while the handler runs
    /// (sigaction(2)).
    pub blocked: u64,
}

impl Footprint {
    /// Reads the current state.
    pub fn of(target: &Target) -> Footprint {
        let files = std::fs::read_dir(format!("{}/fd", target.folder()));
        let files = files.into_iter().flatten().flatten();
        Footprint {
            mappings: target.our_mappings() - target.maps().matches("memhook-guide").count(),
            locked_kib: kib(target, "VmLck"),
            files: files
                .map(|file| std::fs::read_link(file.path()).unwrap_or_default())
                .collect(),
            blocked: signals(target, "SigBlk") & !signals(target, "SigCgt"),
        }
    }

    /// Reads the state once it has stopped changing, because a fork briefly blocks all signals.
    pub fn settled(target: &Target) -> Footprint {
        let start = Instant::now();
        let mut seen = Footprint::of(target);
        let mut same = 0;
        while same < 5 && start.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(2));
            let now = Footprint::of(target);
            same = if now == seen { same + 1 } else { 0 };
            seen = now;
        }
        seen
    }
}

/// Returns the target's resident memory.
pub fn resident_kib(target: &Target) -> i64 {
    kib(target, "VmRSS")
}

fn kib(target: &Target, name: &str) -> i64 {
    let text = target.status(name);
    text.trim_end_matches("kB").trim().parse().unwrap_or(0)
}

/// Returns a signal set from the target's status (proc_pid_status(5)).
fn signals(target: &Target, name: &str) -> u64 {
    u64::from_str_radix(&target.status(name), 16).unwrap_or(0)
}

/// Checks that the target exists and is untraced, and that it runs, sleeps or is stopped as expected. After its
/// attacher was killed or stopped, the target has some seconds to recover.
pub fn healthy(target: &Target, stopped: bool) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let folder = target.folder();
        let Ok(status) = std::fs::read_to_string(format!("{folder}/status")) else {
            return Err("it is gone".into());
        };
        let field = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name));
            line.unwrap_or("").trim().to_owned()
        };
        let (state, tracer) = (field("State:"), field("TracerPid:"));
        if state.starts_with('Z') {
            return Err("it has ended".into());
        }
        if tracer == "0" && state.starts_with('T') == stopped && !state.starts_with('t') {
            return Ok(());
        }
        if start.elapsed() > Duration::from_secs(5) {
            return Err(format!("state {state}, traced by {tracer}"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
