//! Starts and ends the targets of a storm.

use crate::kinds::Kind;
use crate::tally::{Class, Failure, Tally, failed};
use fastrand::Rng;
use memhook_tests::{Target, build_library, build_target};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Libraries of the distribution, used if they are installed.
const PLUGINS: [&str; 6] = [
    "libxml2.so.2",
    "libcurl.so.4",
    "libsqlite3.so.0",
    "liblzma.so.5",
    "libzstd.so.1",
    "libpq.so.5",
];
/// Ways in which `endings` ends.
const WAYS: [&str; 6] = ["exit", "_exit", "kill", "segv", "exec", "exec_by_thread"];
/// gperftools' allocator and heap profiler.
const TCMALLOC: &str = "libtcmalloc.so.4";
/// The distribution's Python, which finds the distribution's packages.
const PYTHON: &str = "/usr/bin/python3";
/// Memory limit of the small cgroup.
const LIMIT_BYTES: u64 = 96 << 20;

/// Separate cgroup for a target, removed on drop.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Option<Cgroup> {
        let name = format!("memhook-storm-{}", std::process::id());
        let kinds = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        kinds.iter().find_map(|(mount, limit)| {
            let folder = PathBuf::from(mount).join(&name);
            if !folder.exists() {
                std::fs::create_dir(&folder).ok()?;
            }
            let cgroup = Cgroup(folder);
            std::fs::write(cgroup.0.join(limit), LIMIT_BYTES.to_string()).ok()?;
            Some(cgroup)
        })
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Running target.
pub struct Prey {
    pub target: Target,
    /// Way in which the target ends by itself, if it does.
    way: &'static str,
    // This field is dropped after the target.
    _cgroup: Option<Cgroup>,
}

impl Prey {
    /// Makes the target end by itself.
    pub fn have_end(&mut self) {
        match self.way {
            "" => self.target.signal(libc::SIGKILL),
            _ => self.target.go(),
        }
    }
}

impl Kind {
    /// Starts a target. If that is impossible, prints the reason and returns `None`.
    pub fn start(self, random: &mut Rng) -> Option<Prey> {
        let way = match self {
            Kind::Ending => WAYS[random.usize(..WAYS.len())],
            _ => "",
        };
        let library;
        let marker = std::env::temp_dir().join(format!("storm-{}-called", std::process::id()));
        let (name, args): (_, Vec<&str>) = match self {
            Kind::Hammer | Kind::Dying | Kind::Limited => ("hammer", vec![]),
            Kind::Idle | Kind::Stopped => ("before_attach", vec![]),
            Kind::Forking => ("forking", vec![]),
            Kind::Signals => ("ticking", vec!["endless"]),
            Kind::Registers => ("canary", vec![]),
            Kind::Prefork => ("storm", vec!["prefork"]),
            Kind::Plugins => {
                let is_there = |name: &&&str| {
                    PathBuf::from("/usr/lib/x86_64-linux-gnu")
                        .join(name)
                        .exists()
                };
                let plugins = PLUGINS.iter().filter(is_there).copied();
                ("storm", ["plugins"].into_iter().chain(plugins).collect())
            }
            Kind::Sandboxed => ("storm", vec!["sandboxed"]),
            Kind::Handler => ("storm", vec!["handler"]),
            Kind::Cancelled => ("storm", vec!["cancelled"]),
            Kind::Waits => ("storm", vec!["waits"]),
            Kind::Joining => ("adversary", vec!["joining"]),
            Kind::Detached => ("adversary", vec!["detached"]),
            Kind::Setxid => ("adversary", vec!["setxid"]),
            Kind::Locked => ("adversary", vec!["locked"]),
            Kind::Bounded => ("adversary", vec!["bounded"]),
            Kind::Leaderless => ("adversary", vec!["leaderless"]),
            Kind::Coroutines => ("adversary", vec!["coroutines"]),
            Kind::Vforks => ("adversary", vec!["vforks"]),
            Kind::Closing => ("adversary", vec!["closing"]),
            Kind::Intruding => ("adversary", vec!["intruding"]),
            Kind::Sequences => ("adversary", vec!["sequences"]),
            Kind::Trapping => ("adversary", vec!["trapping"]),
            Kind::Dispatching => ("adversary", vec!["dispatching"]),
            Kind::Mutexed | Kind::Spinning | Kind::Cached | Kind::Linked => {
                ("executable_allocator", vec![])
            }
            Kind::Lent | Kind::Preloaded | Kind::Audited => ("lent_lock", vec!["again"]),
            Kind::Greenlets => return self.start_python(),
            Kind::Ending => ("endings", vec![way]),
            Kind::Profiled => ("adversary_memory", vec!["profiled"]),
            Kind::Hooked => ("adversary_memory", vec!["hooked"]),
            Kind::Faulting => ("adversary_memory", vec!["faulting"]),
            Kind::Huge => ("adversary_memory", vec!["huge"]),
            Kind::Packed => ("adversary_memory", vec!["packed"]),
            Kind::Haunted => {
                library = build_library("late_library", "liblate.so", &[]);
                let paths = [library.to_str()?, marker.to_str()?];
                ("evil_worker", [paths[0], paths[1], "endless"].to_vec())
            }
        };
        let program = build_target(name, self.build_options());
        let mut command = Command::new(&program);
        command.args(&args);
        if let Some((variable, name)) = self.library() {
            let file = format!("{name}.so");
            command.env(variable, build_library(name, &file, &["-pthread"]));
        }
        if matches!(self, Kind::Profiled | Kind::Hooked) {
            command.env("LD_PRELOAD", TCMALLOC);
        }
        let mut cgroup = None;
        if self == Kind::Limited {
            let Some(new) = Cgroup::new() else {
                println!("Limited: not run, no cgroup can be made here");
                return None;
            };
            command = Command::new("sh");
            command.args(["-c", "echo $$ > \"$1\"; exec \"$2\"", "sh"]);
            command.arg(new.0.join("cgroup.procs")).arg(&program);
            cgroup = Some(new);
        }
        let mut target = Target::silent(&mut command);
        let first = target.expect("");
        if first.trim_end() != "ready" {
            println!("{self:?}: not run: {first}");
            return None;
        }
        if self == Kind::Stopped {
            target.signal(libc::SIGSTOP);
            memhook_tests::until("it stops", || target.status("State").starts_with('T'));
        }
        Some(Prey {
            target,
            way,
            _cgroup: cgroup,
        })
    }

    /// Returns the environment variable and the library that it preloads.
    fn library(self) -> Option<(&'static str, &'static str)> {
        match self {
            Kind::Preloaded => Some(("LD_PRELOAD", "lending_allocator")),
            Kind::Audited => Some(("LD_AUDIT", "lending_auditor")),
            _ => None,
        }
    }

    fn build_options(self) -> &'static [&'static str] {
        match self {
            Kind::Mutexed => &["-O2", "-DMUTEX"],
            Kind::Spinning => &["-O2", "-DSPIN"],
            Kind::Cached => &["-O2", "-DCACHE"],
            Kind::Linked => &["-O2", "-l:libjemalloc.a"],
            Kind::Lent => &["-DOWN_ALLOCATOR", "-rdynamic"],
            Kind::Haunted => &[concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../hook-cxx")],
            _ => &[],
        }
    }

    fn start_python(self) -> Option<Prey> {
        let has_it = Command::new(PYTHON)
            .args(["-c", "import greenlet"])
            .stderr(Stdio::null())
            .status();
        if !has_it.is_ok_and(|status| status.success()) {
            println!("{self:?}: not run, {PYTHON} has no module greenlet");
            return None;
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/targets/greenlets.py");
        Some(Prey {
            target: Target::run(Command::new(PYTHON).arg(script)),
            way: "",
            _cgroup: None,
        })
    }

    /// Ends the target and adds its counts to the tally. Fails if the target's self-check failed.
    pub fn end(self, prey: Prey, tally: &mut Tally) -> Result<(), Failure> {
        let mut target = prey.target;
        match self {
            Kind::Stopped => target.signal(libc::SIGCONT),
            Kind::Dying => return Ok(()),
            Kind::Ending => return end_by_itself(target, prey.way),
            _ => {}
        }
        if matches!(self, Kind::Idle | Kind::Stopped) {
            target.go();
            target.expect("done");
        }
        let mut early = String::new();
        if self == Kind::Waits && target.is_alive() {
            target.go();
            // One line for each kind of wait: number of waits, ended with EINTR, ended early,
            // largest delay.
            for _ in 0..6 {
                let line = target.expect("");
                let mut words = line.split_ascii_whitespace();
                let name = words.next().unwrap_or("").to_owned();
                let numbers: Vec<u64> = words.flat_map(str::parse).collect();
                let [rounds, interrupted, too_early, latest] = numbers[..] else {
                    return failed(Class::WrongAnswer, format!("it says {line:?}"));
                };
                tally.waits += rounds;
                tally.interrupted += interrupted;
                tally.latest_ms = tally.latest_ms.max(latest);
                if too_early > 0 {
                    early += &format!(" {name} {too_early} of {rounds}");
                }
                if interrupted > 0 {
                    println!("{self:?}: {name} ended with EINTR {interrupted} times of {rounds}");
                }
            }
        }
        let (pid, status) = (target.pid(), target.finish());
        if let Some(signal) = status.signal() {
            let class = Class::Died;
            return failed(class, format!("signal {signal}{}", fault_of(pid)));
        }
        if !status.success() {
            return failed(Class::WrongAnswer, format!("its self-check: {status}"));
        }
        if !early.is_empty() {
            return failed(Class::Early, format!("ended early:{early}"));
        }
        Ok(())
    }
}

/// Compares the actual end of the target with the intended end.
fn end_by_itself(mut target: Target, way: &str) -> Result<(), Failure> {
    if way.starts_with("exec") {
        target.expect("ready");
        target.go();
        target.expect("done");
    }
    let expected = match way {
        "kill" => Some(libc::SIGKILL),
        "segv" => Some(libc::SIGSEGV),
        _ => None,
    };
    let status = target.finish();
    if status.signal() != expected || (expected.is_none() && !status.success()) {
        return failed(Class::Died, format!("by {way}: {status}"));
    }
    Ok(())
}

/// Returns the kernel's log line about a process's fault, with address and module.
pub fn fault_of(pid: u32) -> String {
    let log = Command::new("dmesg").output();
    let log = log.map_or(String::new(), |o| String::from_utf8_lossy(&o.stdout).into());
    let mark = format!("[{pid}]");
    let line = log.lines().rev().find(|line| line.contains(&mark));
    line.map_or(String::new(), |line| format!(" ({})", line.trim()))
}
