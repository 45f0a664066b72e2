//! Other tools that record allocations, if they are installed.

use crate::programs::find;
use crate::uprobe::{Action, Uprobes};
use crate::{Memhook, Outcome, Running, Tool};
use memhook_tests::programs::Folder;
use std::{
    cell::RefCell,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Tool that records allocations.
pub struct Peer {
    /// Name in tables.
    pub name: &'static str,
    /// How the tool reaches its target. The error names the missing program and how to install it.
    pub way: Result<Way, String>,
    /// True if the tool slows targets down so much that it runs only the smallest programs.
    pub is_slow: bool,
}

/// How a tool reaches its target.
pub enum Way {
    /// The tool attaches to the running process. It stays attached until the target ends, because
    /// some tools cannot be detached safely.
    Attached(Box<dyn Tool>),
    /// The tool starts the target, and executes it in its own process.
    Wrapped {
        /// Command through which the target is started for comparison.
        without: Vec<String>,
        /// Command through which the target is started with the tool.
        with: Vec<String>,
    },
}

const PRELOADED: &str = "/usr/lib/heaptrack/libheaptrack_preload.so";
const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Checks that a file of a package is installed.
fn file(path: &str, package: &str) -> Result<(), String> {
    let there = Path::new(path).is_file();
    let why = || format!("{path} is not installed: apt-get install {package}");
    there.then_some(()).ok_or_else(why)
}

fn attached(name: &'static str, tool: Result<Box<dyn Tool>, String>) -> Peer {
    Peer {
        name,
        way: tool.map(Way::Attached),
        is_slow: false,
    }
}

fn memhook(name: &'static str, options: &str) -> Peer {
    attached(name, Ok(Box::new(Memhook::new(name, options))))
}

fn probed(name: &'static str, probes: &[(&'static str, bool)]) -> Peer {
    let tool = Uprobes::new(name, probes, Action::ProgramWithStack);
    Peer {
        is_slow: true,
        ..attached(name, Ok(Box::new(tool)))
    }
}

fn wrapped(name: &'static str, with: Result<String, String>) -> Peer {
    let way = with.map(|with| Way::Wrapped {
        without: Vec::new(),
        with: words(&with),
    });
    Peer {
        name,
        way,
        is_slow: false,
    }
}

fn jemalloc(name: &'static str, options: &str) -> Peer {
    let start = |options: &str| words(&format!("env LD_PRELOAD={JEMALLOC} MALLOC_CONF={options}"));
    Peer {
        name,
        way: file(JEMALLOC, "libjemalloc2").map(|()| Way::Wrapped {
            // Both runs use the same allocator, because the change of allocator is not a cost of
            // the profiler.
            without: start("prof:false"),
            with: start(options),
        }),
        is_slow: false,
    }
}

fn valgrind(name: &'static str, options: &str) -> Peer {
    let program = find("valgrind", "valgrind");
    Peer {
        is_slow: true,
        ..wrapped(
            name,
            program.map(|path| format!("{} -q {options}", path.display())),
        )
    }
}

/// Returns memhook-rs and all other tools. Their output goes to the folder.
pub fn peers(folder: &Folder) -> Vec<Peer> {
    let preloaded = file(PRELOADED, "heaptrack").map(|()| {
        let output = folder.path("preloaded");
        format!("env LD_PRELOAD={PRELOADED} DUMP_HEAPTRACK_OUTPUT={output}")
    });
    let profile = folder.path("jemalloc");
    let profiled = |sample: &str| {
        format!("prof:true,prof_active:true,lg_prof_sample:{sample},prof_prefix:{profile}")
    };
    vec![
        memhook("memhook-rs", "--depth 10"),
        memhook("memhook-rs, sample 512 KiB", "--depth 10 --sample 524288"),
        attached(
            "heaptrack, attached",
            Attaching::heaptrack(folder.path("attached")),
        ),
        wrapped("heaptrack, preloaded", preloaded),
        attached("bcc memleak", Attaching::memleak()),
        probed("uprobe, BPF, stack 10, malloc", &[("malloc", false)]),
        probed(
            "uprobe, BPF, stack 10, malloc and free",
            &[("malloc", false), ("free", false)],
        ),
        jemalloc("jemalloc profiling, every allocation", &profiled("0")),
        jemalloc("jemalloc profiling, sample 512 KiB", &profiled("19")),
        valgrind(
            "valgrind massif",
            &format!("--tool=massif --massif-out-file={}", folder.path("massif")),
        ),
        valgrind(
            "valgrind dhat",
            &format!("--tool=dhat --dhat-out-file={}", folder.path("dhat")),
        ),
        valgrind("valgrind memcheck", "--tool=memcheck"),
    ]
}

/// Program that attaches, reports the attach, and runs until its target ends.
struct Attaching {
    name: &'static str,
    program: PathBuf,
    /// Arguments before the process id.
    before: Vec<String>,
    /// Arguments after the process id.
    after: Vec<String>,
    /// Returns the arguments that select the target's allocator.
    allocator: fn(u32) -> Vec<String>,
    /// Beginning of the line that reports the attach.
    ready: &'static str,
    /// Tools whose targets have ended or are about to end.
    left: RefCell<Vec<Child>>,
}

/// memleak traces libc by default, which finds nothing if the program uses another allocator.
fn memleak_object(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mut paths = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let jemalloc = paths.find(|path| path.contains("/libjemalloc.so"));
    jemalloc.map_or_else(Vec::new, |path| vec!["-O".to_owned(), path.to_owned()])
}

impl Attaching {
    fn heaptrack(output: String) -> Result<Box<dyn Tool>, String> {
        find("gdb", "gdb")?;
        Ok(Box::new(Attaching {
            name: "heaptrack, attached",
            program: find("heaptrack", "heaptrack")?,
            before: vec!["-r".into(), "-o".into(), output, "-p".into()],
            after: Vec::new(),
            allocator: |_| Vec::new(),
            ready: "injection finished",
            left: RefCell::default(),
        }))
    }

    fn memleak() -> Result<Box<dyn Tool>, String> {
        Ok(Box::new(Attaching {
            name: "bcc memleak",
            program: find("memleak-bpfcc", "bpfcc-tools")?,
            before: vec!["-p".into()],
            after: vec!["3600".into()],
            allocator: memleak_object,
            ready: "Attaching to pid",
            left: RefCell::default(),
        }))
    }

    fn reap(&self) {
        for mut child in self.left.borrow_mut().drain(..) {
            // SAFETY: plain integers; the child has not been waited for.
            unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
            let _ = child.wait();
        }
    }
}

impl Tool for Attaching {
    fn name(&self) -> &str {
        self.name
    }

    fn start(&self, pid: u32) -> Result<Box<dyn Running>, String> {
        self.reap();
        let program = &self.program;
        let mut child = Command::new(program)
            .args(&self.before)
            .arg(pid.to_string())
            .args((self.allocator)(pid))
            .args(&self.after)
            .env("PYTHONUNBUFFERED", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        let output = child.stdout.take().expect("piped");
        let mut errors = child.stderr.take().expect("piped");
        let id = child.id();
        self.left.borrow_mut().push(child);
        let mut said = Vec::new();
        let mut lines = BufReader::new(output).lines();
        let is_ready = lines.by_ref().map_while(Result::ok).any(|line| {
            said.push(line);
            said.last().is_some_and(|line| line.starts_with(self.ready))
        });
        if !is_ready {
            let mut text = String::new();
            let _ = std::io::Read::read_to_string(&mut errors, &mut text);
            said.extend(text.lines().map(str::to_owned));
            let last = said.iter().rev().find(|line| !line.trim().is_empty());
            let last = last.map_or("it said nothing", |line| line.trim());
            // bcc compiles its programs at each start.
            let advice = if last.contains("Failed to compile BPF module") {
                "; it needs the kernel's headers: apt-get install linux-headers-$(uname -r)"
            } else {
                ""
            };
            return Err(format!("{last}{advice}"));
        }
        // The tool must neither block on a full pipe nor end because its output has no reader.
        std::thread::spawn(move || lines.for_each(drop));
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        Ok(Box::new(Attached(id)))
    }
}

impl Drop for Attaching {
    fn drop(&mut self) {
        self.reap();
    }
}

struct Attached(u32);

impl Running for Attached {
    fn cpu_ns(&self) -> u64 {
        crate::cpu_ns(self.0)
    }

    fn finish(self: Box<Self>) -> Result<Outcome, String> {
        // The tool does not report its losses.
        Ok(Outcome::default())
    }
}
