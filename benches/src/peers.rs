//! Other tools that record allocations, as far as they are installed.

use crate::programs::find;
use crate::tools::{Memhook, Outcome, Running, Tool};
use memhook_tests::programs::Folder;
use std::{
    cell::RefCell,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

/// How a tool gets to its target.
pub enum Peer {
    /// Into the running process. Its target is ended with it still there: taking it off again is not
    /// safe for all of them.
    Attached(Box<dyn Tool>),
    /// It starts the target, in the same process in the end.
    Wrapped {
        /// As tables show it.
        name: &'static str,
        /// What the target is started through for comparison.
        without: Vec<String>,
        /// What it is started through; or what is missing.
        with: Result<Vec<String>, String>,
        /// Slows the target down so much that only the smallest programs are run.
        is_slow: bool,
    },
}

impl Peer {
    /// As tables show it.
    pub fn name(&self) -> &str {
        match self {
            Peer::Attached(tool) => tool.name(),
            Peer::Wrapped { name, .. } => name,
        }
    }
}

const PRELOADED: &str = "/usr/lib/heaptrack/libheaptrack_preload.so";
const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";

/// memhook-rs, and the others; what they write goes into the folder.
pub fn peers(folder: &Folder) -> Vec<Peer> {
    let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let file = |path: &str, package: &str| {
        let there = Path::new(path).is_file();
        there
            .then_some(())
            .ok_or_else(|| format!("{path} is not there: apt-get install {package}"))
    };
    let jemalloc = |options: &str| {
        let options = format!("env LD_PRELOAD={JEMALLOC} MALLOC_CONF={options}");
        file(JEMALLOC, "libjemalloc2").map(|()| words(options))
    };
    let valgrind = |options: &str| {
        find("valgrind", "valgrind").map(|path| words(format!("{} {options}", path.display())))
    };
    let profile = folder.path("jemalloc");
    let wrapped = |name, with, is_slow| Peer::Wrapped {
        name,
        without: Vec::new(),
        with,
        is_slow,
    };
    let profiled = |name, sample: &str| Peer::Wrapped {
        name,
        // The other allocator is not the profiler's doing.
        without: jemalloc("prof:false").unwrap_or_default(),
        with: jemalloc(&format!(
            "prof:true,prof_active:true,lg_prof_sample:{sample},prof_prefix:{profile}"
        )),
        is_slow: false,
    };
    vec![
        Peer::Attached(Box::new(Memhook::new("memhook-rs", "--depth 12"))),
        Peer::Attached(Box::new(Memhook::new(
            "memhook-rs, sample 512 KiB",
            "--depth 12 --sample 524288",
        ))),
        Peer::Attached(Box::new(Attaching::heaptrack(folder.path("attached")))),
        wrapped(
            "heaptrack, preloaded",
            file(PRELOADED, "heaptrack").map(|()| {
                let output = folder.path("preloaded");
                words(format!(
                    "env LD_PRELOAD={PRELOADED} DUMP_HEAPTRACK_OUTPUT={output}"
                ))
            }),
            false,
        ),
        Peer::Attached(Box::new(Attaching::memleak())),
        profiled("jemalloc profiling, every allocation", "0"),
        profiled("jemalloc profiling, sample 512 KiB", "19"),
        wrapped(
            "valgrind massif",
            valgrind(&format!(
                "-q --tool=massif --massif-out-file={}",
                folder.path("massif")
            )),
            true,
        ),
        wrapped(
            "valgrind dhat",
            valgrind(&format!(
                "-q --tool=dhat --dhat-out-file={}",
                folder.path("dhat")
            )),
            true,
        ),
        wrapped("valgrind memcheck", valgrind("-q --tool=memcheck"), true),
    ]
}

/// A program that attaches, says so, and stays until its target ends.
struct Attaching {
    name: &'static str,
    program: Result<std::path::PathBuf, String>,
    /// Arguments before the process id.
    before: Vec<String>,
    /// And after it.
    after: Vec<String>,
    /// How the line begins that says that it is there.
    ready: &'static str,
    /// Those whose targets have ended, or are about to.
    left: RefCell<Vec<Child>>,
}

impl Attaching {
    fn heaptrack(output: String) -> Attaching {
        Attaching {
            name: "heaptrack, attached",
            program: find("heaptrack", "heaptrack gdb"),
            before: vec!["-r".into(), "-o".into(), output, "-p".into()],
            after: Vec::new(),
            ready: "injection finished",
            left: RefCell::default(),
        }
    }

    fn memleak() -> Attaching {
        Attaching {
            name: "bcc memleak",
            program: find("memleak-bpfcc", "bpfcc-tools"),
            before: vec!["-p".into()],
            after: vec!["3600".into()],
            ready: "Attaching to pid",
            left: RefCell::default(),
        }
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
        let program = self.program.as_ref().map_err(Clone::clone)?;
        let mut child = Command::new(program)
            .args(&self.before)
            .arg(pid.to_string())
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
            return Err(last.map_or("it said nothing".into(), |l| l.trim().to_owned()));
        }
        // It shall not wait for us to read more, nor end because nobody does.
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
        crate::attacher::cpu_ns(self.0)
    }

    fn finish(self: Box<Self>) -> Result<Outcome, String> {
        // What it has lost it does not say.
        Ok(Outcome::default())
    }
}
