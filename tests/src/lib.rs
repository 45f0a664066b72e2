//! Harness of the end-to-end tests: builds targets, starts them, and attaches the real binary.

pub mod agents;
pub mod arm64;
mod building;
mod debian_packages;
mod debian_sources;
mod debug_server;
mod json_schema;
pub mod listening;
pub mod mapping_stalls;
mod memory_box;
pub mod otlp;
pub mod patience;
pub mod pods;
pub mod pprof;
mod probing;
mod processor_box;
pub mod programs;
pub mod releases;
mod requirements;
mod rounds;
pub mod scans;
mod sites;
pub mod terminal;

pub use building::{
    access_runtime, binary, binary_is, build_c_target, build_library, build_on_musl, build_service,
    build_target, build_telling, compile, source,
};
pub use debian_packages::DebianPackages;
pub use debian_sources::debian_source;
pub use debug_server::{DebugServer, build_id};
pub use json_schema::JsonSchema;
pub use memhook_test_attribute::test;
pub use memory_box::MemoryBox;
pub use patience::{patiently, stop, until};
pub use probing::{Prober, calls, changed_code};
pub use processor_box::ProcessorBox;
pub use requirements::{
    can_pass_by_filters, has_library, has_program, leave, leave_unless_linkable, not_run,
    not_run_here, unless_left,
};
pub use rounds::rounds;
pub use sites::{Sites, expect_sites, sites};
use std::{
    collections::BTreeMap,
    io::{BufReader, Read, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
};

/// Runs a target that is traced from "ready" to "done", checks its exit status, and returns the
/// report. If the target temporarily ran untraced, repeats this with another target.
pub fn trace(program: &Path, options: &[&str]) -> serde_json::Value {
    for _ in 0..patience::TRIES {
        let mut target = Target::start(program, &[]);
        let attacher = Attacher::start(&target, options);
        target.go();
        target.expect("done");
        let report = attacher.finish_unless_late();
        let status = target.finish();
        assert!(status.success(), "the target's self-check: {status}");
        if let Some(report) = report {
            return report;
        }
    }
    panic!("{}: it goes on untraced each time", program.display());
}

/// A running target; dropping it kills the process.
pub struct Target {
    child: Child,
    pid: u32,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Target {
    /// Starts a program and waits until it prints `ready`.
    pub fn start(program: &Path, args: &[&str]) -> Target {
        Self::run(Command::new(program).args(args))
    }

    /// Runs a command and waits until it prints `ready`.
    pub fn run(command: &mut Command) -> Target {
        let mut target = Self::silent(command);
        target.expect("ready");
        target
    }

    /// Runs a third-party program, which prints no `ready`.
    pub fn silent(command: &mut Command) -> Target {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Target {
            pid: child.id(),
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().expect("piped")),
            child,
        }
    }

    /// Makes the innermost descendant of the process the target, for a wrapper that forks.
    pub fn descend(&mut self) {
        while let Some(child) = a_child(self.pid) {
            self.pid = child;
        }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns true if the process is still running.
    pub fn is_alive(&self) -> bool {
        is_living(&self.folder())
    }

    /// Reads a line and checks its prefix.
    pub fn expect(&mut self, beginning: &str) -> String {
        let line = patience::line(&mut self.output);
        assert!(line.starts_with(beginning), "the target says {line:?}");
        line
    }

    /// Sends one byte.
    pub fn go(&mut self) {
        self.send("g");
    }

    /// Sends a text.
    pub fn send(&mut self, text: &str) {
        let input = self.input.as_mut().expect("open");
        input
            .write_all(text.as_bytes())
            .expect("the target listens");
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes plain integers; the child has not been waited for.
        let result = unsafe { libc::kill(self.pid as i32, signal) };
        assert_eq!(result, 0, "signal {signal} to {}", self.pid);
    }

    /// Closes the input, and returns the exit status, which is the result of the program's
    /// self-check.
    pub fn finish(mut self) -> ExitStatus {
        self.input = None;
        patience::end_of(&mut self.child)
    }

    /// Returns the target's folder in /proc. This is the folder of a live thread, because the
    /// kernel shows no data for an exited initial thread.
    pub fn folder(&self) -> String {
        let tasks = format!("/proc/{}/task", self.pid);
        let threads = std::fs::read_dir(&tasks).into_iter().flatten().flatten();
        let mut folders = threads.map(|thread| thread.path().display().to_string());
        folders.find(|f| is_living(f)).unwrap_or(tasks + "/0")
    }

    /// Returns the value of a line of /proc/PID/status.
    pub fn status(&self, name: &str) -> String {
        let status = std::fs::read_to_string(format!("{}/status", self.folder()));
        let status = status.expect("the target lives");
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
        line.expect(name).trim().to_owned()
    }

    /// Returns the target's mappings as text from the kernel.
    pub fn maps(&self) -> String {
        std::fs::read_to_string(format!("{}/maps", self.folder())).expect("the target lives")
    }

    /// Returns the number of memhook-rs's mappings in the target.
    pub fn our_mappings(&self) -> usize {
        self.maps().matches("memhook").count()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            if self.pid != self.child.id() {
                // SAFETY: kill takes plain integers; the live wrapper still has this descendant.
                unsafe { libc::kill(self.pid as i32, libc::SIGKILL) };
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A running attacher; dropping it kills the process.
pub struct Attacher {
    child: Child,
    output: Option<BufReader<ChildStdout>>,
    errors: BufReader<std::process::ChildStderr>,
}

impl Attacher {
    /// Attaches to a target with extra options and JSON output. Returns when every slot is patched.
    /// Most tests compare exact numbers, even on a busy machine, so by default the target waits for
    /// room in its rings.
    pub fn start(target: &Target, options: &[&str]) -> Attacher {
        Attacher::start_by(&[], target, options)
    }

    /// Attaches through a wrapper program that executes its arguments.
    pub fn start_by(through: &[&str], target: &Target, options: &[&str]) -> Attacher {
        let binary = binary().to_str().expect("UTF-8");
        let words = [through, &[binary]].concat();
        Attacher::start_as(&words, target.pid(), options)
    }

    /// Attaches with a command line that ends with memhook-rs; `pid` is the target's process id in
    /// the namespace of that command.
    pub fn start_as(words: &[&str], pid: u32, options: &[&str]) -> Attacher {
        let pid = pid.to_string();
        let mut options = [&[pid.as_str(), "-i", "1h"], options].concat();
        if !options.contains(&"--on-full") {
            options.extend(["--on-full", "wait"]);
        }
        Attacher::attached(words, &options)
    }

    /// Attaches without the options for exact numbers.
    pub fn start_plain(target: &Target, options: &[&str]) -> Attacher {
        let binary = binary().to_str().expect("UTF-8");
        let pid = target.pid().to_string();
        let options = [&[pid.as_str(), "-i", "1h"], options].concat();
        Attacher::attached(&[binary], &options)
    }

    fn attached(words: &[&str], options: &[&str]) -> Attacher {
        for tries in 1.. {
            let mut attacher = Attacher::spawn(words, options);
            let line = patience::line(&mut attacher.errors);
            if line.starts_with("Attached to") {
                return attacher;
            }
            let may_be_tried_again = patience::is_for_want_of_a_processor(&line);
            assert!(may_be_tried_again && tries < patience::TRIES, "{line}");
        }
        unreachable!("the last one is attached, or the test has failed")
    }

    /// Attaches to the target in the options, with JSON output. Returns immediately.
    pub fn to(options: &[&str]) -> Attacher {
        let binary = binary().to_str().expect("UTF-8");
        Attacher::spawn(&[binary], options)
    }

    /// Like [`Attacher::to`], with a log on standard error. `filter`: value of MEMHOOK_LOG.
    pub fn logging(filter: &str, options: &[&str]) -> Attacher {
        let binary = binary().to_str().expect("UTF-8");
        let variable = format!("MEMHOOK_LOG={filter}");
        Attacher::spawn(&["env", &variable, binary], options)
    }

    fn spawn(words: &[&str], options: &[&str]) -> Attacher {
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .args(["attach", "--json", "-T", "1000"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("memhook-rs starts");
        let errors = BufReader::new(child.stderr.take().expect("piped"));
        Attacher {
            output: child.stdout.take().map(BufReader::new),
            child,
            errors,
        }
    }

    /// Reads standard error up to the line with this prefix, and returns that line.
    pub fn says(&mut self, beginning: &str) -> String {
        loop {
            let line = patience::line(&mut self.errors);
            assert!(!line.is_empty(), "it ended and did not say: {beginning}");
            // The output of a failed test shows this line.
            eprint!("{line}");
            if line.starts_with(beginning) {
                return line;
            }
        }
    }

    /// Returns the attacher's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if the attacher is still running.
    pub fn lives(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// Sends a signal to the attacher.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes plain integers; the child has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// Reads messages up to the first message with this text.
    pub fn wait_for(&mut self, words: &str) {
        loop {
            let line = patience::line(&mut self.errors);
            assert!(!line.is_empty(), "it does not say {words:?}");
            eprint!("{line}");
            if line.contains(words) {
                return;
            }
        }
    }

    /// Reads reports up to the first one with this property.
    pub fn report_where(&mut self, is: impl Fn(&serde_json::Value) -> bool) {
        let output = self.output.as_mut().expect("open");
        loop {
            let line = patience::line(output);
            let report = serde_json::from_str(&line);
            if is(&report.unwrap_or_else(|e| panic!("{e}: {line:?}"))) {
                return;
            }
        }
    }

    /// Closes the pipe for reports.
    pub fn close_output(&mut self) {
        self.output = None;
    }

    /// Asks the attacher to detach, and returns the final report.
    pub fn finish(self) -> serde_json::Value {
        self.signal(libc::SIGINT);
        self.last_report()
    }

    /// Asks the attacher to detach, and returns the final report. Returns `None` if the target
    /// temporarily ran untraced because the attacher was not scheduled.
    pub fn finish_unless_late(self) -> Option<serde_json::Value> {
        self.signal(libc::SIGINT);
        let (status, output, errors) = self.outcome();
        if status.code() == Some(1) && patience::is_for_want_of_a_processor(&errors) {
            return None;
        }
        assert!(status.success(), "{status}: {errors}");
        let last = output.lines().last().expect("a report");
        Some(serde_json::from_str(last).expect("JSON"))
    }

    /// Waits for an attacher that exits by itself, and returns the final report.
    pub fn last_report(self) -> serde_json::Value {
        let (status, output, errors) = self.outcome();
        assert!(status.success(), "{status}: {errors}");
        let last = output.lines().last().expect("a report");
        serde_json::from_str(last).expect("JSON")
    }

    /// Asks the attacher to detach. Returns the exit status, the rest of standard error, and the
    /// last report of each process by process id.
    pub fn last_reports(self) -> (ExitStatus, String, BTreeMap<u64, serde_json::Value>) {
        self.signal(libc::SIGINT);
        let (status, output, errors) = self.outcome();
        let report = |line| serde_json::from_str::<serde_json::Value>(line).expect("JSON");
        let by_pid = |report: serde_json::Value| (report["target"]["pid"].as_u64(), report);
        let reports = output.lines().map(report).map(by_pid);
        let reports = reports.map(|(pid, report)| (pid.expect("a pid"), report));
        (status, errors, reports.collect())
    }

    /// Waits until the attacher exits. Returns the exit status, standard output, and standard error
    /// after the first line.
    pub fn outcome(mut self) -> (ExitStatus, String, String) {
        let mut output = String::new();
        if let Some(pipe) = &mut self.output {
            pipe.read_to_string(&mut output).expect("readable");
        }
        let mut errors = String::new();
        self.errors.read_to_string(&mut errors).expect("readable");
        (patience::end_of(&mut self.child), output, errors)
    }

    /// Kills the attacher, so that it cannot clean up.
    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
    }
}

impl Drop for Attacher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns true if the thread with this folder in /proc is still alive.
fn is_living(folder: &str) -> bool {
    let stat = std::fs::read_to_string(format!("{folder}/stat"));
    let state = stat
        .ok()
        .and_then(|s| s.rsplit_once(')')?.1.trim().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Returns one child of a process. The kernel lists children by thread (proc_pid_task(5)).
fn a_child(pid: u32) -> Option<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the target lives");
    let lists = threads
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let children: Vec<String> = lists.collect();
    // The watchdog process of memhook-rs does not count as a child.
    let is_ours = |child: &&str| {
        std::fs::read_link(format!("/proc/{child}/exe")).is_ok_and(|exe| exe == binary())
    };
    let mut children = children
        .iter()
        .flat_map(|list| list.split_ascii_whitespace());
    let child = children.find(|child| !is_ours(child))?;
    Some(child.parse().expect("a pid"))
}

/// Runs memhook-rs on a program with options that make it write `file`. Returns the exit code, the
/// contents of the file, and standard error.
pub fn run_program(
    options: &[&str],
    file: &str,
    program: &Path,
    args: &[&str],
) -> (Option<i32>, String, String) {
    let output = Command::new(binary())
        .args(options)
        .arg("--")
        .arg(program)
        .args(args)
        .output()
        .expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{e}: {errors}"));
    (output.status.code(), text, errors)
}

/// Runs memhook-rs with these arguments. Returns the exit code, standard output and standard error.
pub fn run(args: &[&str]) -> (i32, String, String) {
    run_with(args, &[])
}

/// Runs memhook-rs with environment variables. It ignores the user's cache and servers. Retries if
/// memhook-rs refused because no processor was free.
pub fn run_with(args: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let mut ended = run_once(args, variables);
    for _ in 1..patience::TRIES {
        if ended.0 != 2 || !patience::is_for_want_of_a_processor(&ended.2) {
            break;
        }
        ended = run_once(args, variables);
    }
    ended
}

fn run_once(args: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = Command::new(binary());
    command
        .args(args)
        .env("XDG_CACHE_HOME", "/dev/null")
        .env_remove("DEBUGINFOD_URLS")
        .envs(variables.iter().copied());
    let output = patience::output_of(&mut command);
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}
