//! Foreign tracers that run as separate processes.

use memhook_measurements::uprobe::file_offset;
use memhook_measurements::{Outcome, Running, Tool};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Time limit for a tracer to report that it has attached.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tracer that was started for a process.
pub struct Spawned {
    name: String,
    command: Box<dyn Fn(u32) -> Result<Command, String>>,
    /// Part of the line that the tracer prints once it has attached.
    ready: &'static str,
    /// Time from that line until all probes are in place.
    settles_in: Duration,
}

/// Returns a bpftrace script. `LIBC` in the script is replaced by the path of the target's C library. The script must
/// print a map when it ends, as proof that its probes were hit.
pub fn bpftrace(name: &str, script: &str) -> Spawned {
    let script = format!("BEGIN {{ printf(\"ready\\n\"); }} {script}");
    Spawned {
        name: name.to_owned(),
        command: Box::new(move |pid| {
            let (libc, _) = file_offset(pid as i32, |module| module.is_libc, "malloc")?;
            let mut command = bpftrace_command(&script, &libc);
            command.args(["-p", &pid.to_string()]);
            Ok(command)
        }),
        ready: "ready",
        settles_in: Duration::from_millis(700),
    }
}

/// Starts a bpftrace script on every process that uses this C library.
pub fn bpftrace_of_all(script: &str, libc: &str) -> Result<Box<dyn Running>, String> {
    let script = format!("BEGIN {{ printf(\"ready\\n\"); }} {script}");
    let command = bpftrace_command(&script, libc);
    start(command, "ready", Duration::from_millis(700))
}

/// Returns the C library that a program will use.
pub fn libc_of(program: &str) -> Result<String, String> {
    let output = Command::new("ldd").arg(program).output();
    let output = output.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths = text.split_whitespace();
    let mut found = paths.filter(|word| word.starts_with('/') && word.contains("libc.so"));
    found
        .next()
        .map(str::to_owned)
        .ok_or(format!("{program} has no libc"))
}

fn bpftrace_command(script: &str, libc: &str) -> Command {
    let mut command = Command::new("bpftrace");
    command.args(["-B", "line", "-e", &script.replace("LIBC", libc)]);
    command.env("BPFTRACE_MAP_KEYS_MAX", "1000000");
    command
}

/// Returns strace in counting mode.
pub fn strace() -> Spawned {
    Spawned {
        name: "strace -c".to_owned(),
        command: Box::new(|pid| {
            let mut command = Command::new("strace");
            command.args(["-c", "-p", &pid.to_string()]);
            Ok(command)
        }),
        ready: "attached",
        settles_in: Duration::from_millis(200),
    }
}

/// Returns ltrace in counting mode.
pub fn ltrace() -> Spawned {
    Spawned {
        name: "ltrace -c".to_owned(),
        command: Box::new(|pid| {
            let mut command = Command::new("sh");
            // ltrace prints nothing when it has attached.
            let line = format!("echo ready; exec ltrace -c -e malloc+free -p {pid}");
            command.args(["-c", &line]);
            Ok(command)
        }),
        ready: "ready",
        settles_in: Duration::from_secs(2),
    }
}

/// Returns gdb with a breakpoint at which it always continues.
pub fn gdb(function: &str) -> Spawned {
    let function = function.to_owned();
    Spawned {
        name: "gdb -batch, a breakpoint that is ignored".to_owned(),
        command: Box::new(move |pid| {
            let mut command = Command::new("gdb");
            command.args(["-batch", "-nx", "-p", &pid.to_string()]);
            command.args(["-ex", &format!("break {function}")]);
            command.args(["-ex", "ignore $bpnum 1000000000", "-ex", "echo ready\\n"]);
            command.args(["-ex", "continue", "-ex", "delete", "-ex", "detach"]);
            Ok(command)
        }),
        ready: "ready",
        settles_in: Duration::from_millis(300),
    }
}

impl Tool for Spawned {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(&self, pid: u32) -> Result<Box<dyn Running>, String> {
        start((self.command)(pid)?, self.ready, self.settles_in)
    }
}

/// Running tracer, and the lines of its stdout and stderr.
struct Started {
    child: Child,
    lines: Receiver<String>,
}

fn start(
    mut command: Command,
    ready: &str,
    settles_in: Duration,
) -> Result<Box<dyn Running>, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let (sender, lines) = channel();
    let outputs: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|pipe| Box::new(pipe) as _),
        child.stderr.take().map(|pipe| Box::new(pipe) as _),
    ];
    for output in outputs.into_iter().flatten() {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.for_each(|line| drop(sender.send(line)));
        });
    }
    drop(sender);
    let started = Started { child, lines };
    let mut said = String::new();
    let does_not = |said: &str| Err(format!("{program} does not attach: {said}"));
    loop {
        match started.lines.recv_timeout(PATIENCE) {
            Ok(line) if line.contains(ready) => break,
            Ok(line) => said = line,
            Err(_) => return does_not(&said),
        }
    }
    std::thread::sleep(settles_in);
    let mut started = started;
    if started
        .child
        .try_wait()
        .is_ok_and(|status| status.is_some())
    {
        let lines: Vec<String> = started.lines.iter().collect();
        return does_not(&lines.join("; "));
    }
    Ok(Box::new(started))
}

impl Running for Started {
    fn cpu_ns(&self) -> u64 {
        let path = format!("/proc/{}/schedstat", self.child.id());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let first = text.split_whitespace().next();
        first.and_then(|ns| ns.parse().ok()).unwrap_or(0)
    }

    fn finish(mut self: Box<Self>) -> Result<Outcome, String> {
        let pid = Pid::from_raw(self.child.id() as i32);
        kill(pid, Signal::SIGINT).map_err(|error| error.to_string())?;
        self.child.wait().map_err(|error| error.to_string())?;
        match self.lines.iter().count() {
            0 => Err("it has said nothing of what it saw".into()),
            _ => Ok(Outcome::default()),
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
