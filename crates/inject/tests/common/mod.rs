//! Builds the C programs of `tests/programs`, runs them, and always ends them.
#![allow(dead_code)] // each test file uses its part

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use memhook_inject::{Error, Held, HoldOptions, hold, let_late_threads_go};

/// Returns the name of a test for the option `--exact`. `module`: `module_path!()` of the test.
pub fn name_of_test(module: &str, test: &str) -> String {
    let (_, within) = module.split_once("::").expect("a module");
    format!("{within}::{test}")
}

/// Returns a path for a program. Tests run concurrently and share programs, so each call returns a new path.
fn output(name: &str) -> PathBuf {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    // Cargo sets this only for tests of this directory.
    option_env!("CARGO_TARGET_TMPDIR")
        .map_or_else(std::env::temp_dir, PathBuf::from)
        .join(format!("{name}-{}-{number}", std::process::id()))
}

/// Links the result of [`build`] to a second path, because compiling takes longer than most tests.
pub fn link(name: &str, built: &Path) -> PathBuf {
    let path = output(name);
    std::fs::hard_link(built, &path).expect("a link beside it");
    path
}

/// Compiles `tests/programs/NAME.c` and returns the path of the executable.
pub fn build(name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    let output = output(name);
    let status = Command::new("cc")
        .args(["-O1", "-g", "-pthread", "-Wall"])
        .args(flags)
        .arg("-o")
        .arg(&output)
        .arg(&source)
        .status()
        .expect("cc runs");
    assert!(status.success(), "cc {name}.c");
    output
}

/// A running program that prints `name value` lines.
pub struct Program {
    pub child: Child,
    path: PathBuf,
    lines: BufReader<ChildStdout>,
}

impl Program {
    /// Builds and starts a program.
    pub fn start(name: &str, args: &[&str]) -> Program {
        Program::run(build(name, &[]), args)
    }

    /// Starts the same program again.
    pub fn again(&self, name: &str, args: &[&str]) -> Program {
        Program::run(link(name, &self.path), args)
    }

    fn run(path: PathBuf, args: &[&str]) -> Program {
        let mut child = Command::new(&path)
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .expect("program starts");
        let lines = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Program { child, path, lines }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Returns the next line of output; empty at the end.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("output is text");
        line.trim_end().to_owned()
    }

    /// Returns the `name value` lines up to the line `ready`, with values in hexadecimal.
    pub fn addresses(&mut self) -> HashMap<String, u64> {
        let mut found = HashMap::new();
        loop {
            let line = self.line();
            assert!(!line.is_empty(), "the program ended early");
            if line == "ready" {
                return found;
            }
            let (name, value) = line.split_once(' ').expect("name value");
            let value = u64::from_str_radix(value.trim_start_matches("0x"), 16).expect("hex");
            found.insert(name.to_owned(), value);
        }
    }

    /// Waits for the program to exit without help, and checks that it has succeeded.
    pub fn ends_well(mut self) {
        let until = Instant::now() + LONG;
        while Instant::now() < until {
            // A thread that stopped late could not end.
            let_late_threads_go();
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    assert!(status.success(), "the program ended with {status}");
                    return;
                }
                Ok(None) => {}
                // The earlier call has already collected the exit status.
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return,
                Err(error) => panic!("{error}"),
            }
            // Pause between two checks.
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the program does not end");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Maximum time for which a test waits for an event that happens by itself. It is long because a busy machine may give
/// a thread no processor for seconds.
pub const LONG: Duration = Duration::from_secs(60);

/// Number of attempts at an action that a busy machine may prevent.
const MOST_TRIES: u32 = 20;

/// Options that accept any thread.
pub fn anywhere() -> HoldOptions<'static> {
    HoldOptions::anywhere(LONG)
}

/// Returns true if an error only means that we, or the target, got no processor for a while.
pub fn is_for_want_of_a_processor(error: &Error) -> bool {
    matches!(
        error,
        Error::Starved { .. }
            | Error::DoesNotStop { .. }
            | Error::StopsTooLate { .. }
            | Error::WentHome { .. }
    )
}

/// Repeats an attempt that failed for lack of processor time.
pub fn patiently<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> T {
    let mut tries = 0;
    loop {
        tries += 1;
        match attempt() {
            Ok(done) => return done,
            Err(error) if is_for_want_of_a_processor(&error) && tries < MOST_TRIES => {
                println!("once more: {error}");
                let_late_threads_go();
                // The load on the processor may have ended meanwhile.
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Works with a held thread and releases it. Repeats the work if the thread was released early.
pub fn with_held<T>(
    pid: i32,
    options: &HoldOptions<'_>,
    mut work: impl FnMut(&mut Held) -> Result<T, Error>,
) -> T {
    patiently(|| {
        let mut held = hold(pid, options)?;
        let done = work(&mut held)?;
        held.release()?;
        Ok(done)
    })
}

pub fn send(pid: i32, signal: i32) {
    // SAFETY: no pointers.
    unsafe { libc::kill(pid, signal) };
}

/// Limits the number of queued signals of a process (RLIMIT_SIGPENDING).
pub fn limit_queued_signals(pid: i32, count: u64) {
    // The limit counts all processes of the user, and other processes have queued signals too.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let queued = status
        .lines()
        .find_map(|line| line.strip_prefix("SigQ:"))
        .and_then(|text| text.trim().split_once('/')?.0.parse::<u64>().ok());
    let count = queued.expect("how many are queued") + count;
    let limit = libc::rlimit {
        rlim_cur: count,
        rlim_max: count,
    };
    let (limit, before) = (&raw const limit, std::ptr::null_mut());
    // SAFETY: the kernel reads one rlimit and is not asked for the previous one.
    let set = unsafe { libc::prlimit(pid, libc::RLIMIT_SIGPENDING, limit, before) };
    assert_eq!(set, 0);
}

/// Returns the state letter of a thread.
pub fn state(pid: i32, tid: i32) -> char {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
    text.rsplit(')')
        .next()
        .and_then(|rest| rest.trim().chars().next())
        .unwrap_or('?')
}

/// Waits until the only thread of `pid` is blocked in a system call, or has been blocked and has ended.
pub fn wait_until_blocked(pid: i32) {
    let until = Instant::now() + LONG;
    while !matches!(state(pid, pid), 'S' | 'Z') {
        assert!(Instant::now() < until, "the program does not block");
        std::thread::sleep(Duration::from_millis(1));
    }
    // The thread may have slept for a moment on its way there.
    std::thread::sleep(Duration::from_millis(5));
}
