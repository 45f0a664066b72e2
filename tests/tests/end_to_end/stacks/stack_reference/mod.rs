//! The modules of a process for both unwinders: the compiled tables, and gimli's interpretation of
//! the original call frame information.

use memhook_process::ModuleImage;
use memhook_tests::programs::{
    Background, Client, Folder, installed, many_templates, nginx_configuration,
};
use memhook_unwind::reference::Unwinder;
use memhook_unwind::{TableModule, compile};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Maximum number of frames compared in each stack.
pub const DEPTH: usize = 64;

/// Data on a process for both unwinders.
pub struct Modules {
    images: Vec<ModuleImage>,
    /// Modules for the tables.
    pub tables: Vec<TableModule>,
    /// Modules for gimli.
    #[allow(dead_code)] // unused if gdb is the reference
    pub reference: Unwinder,
}

impl Modules {
    /// Returns the modules of a running process.
    pub fn of(pid: i32) -> Modules {
        let maps = memhook_process::mappings(pid).expect("maps");
        let mut images =
            memhook_process::modules(pid, &maps, &mut memhook_process::ModuleFiles::new())
                .expect("modules");
        images.extend(memhook_process::vdso(pid, &maps));
        let mut reference = Unwinder::default();
        let mut tables = Vec::new();
        for m in &images {
            reference.add_module(m.base, m.start..m.end, &m.bytes.whole());
            tables.push(TableModule {
                base: m.base,
                start: m.start,
                end: m.end,
                table: Arc::new(compile(&m.bytes).unwrap_or_default()),
            });
        }
        Modules {
            images,
            tables,
            reference,
        }
    }

    /// Formats frames as "module+offset", one per line.
    pub fn names(&self, frames: &[u64]) -> String {
        let name = |pc: &u64| match self.images.iter().find(|m| m.contains(*pc)) {
            Some(m) => format!("{}+{:#x}", m.name(), pc - m.base),
            None => format!("{pc:#x}"),
        };
        frames.iter().map(name).collect::<Vec<_>>().join("\n")
    }
}

/// Describes the number of stacks, and the number and share of those that the tables truncated.
pub fn share(name: &str, stacks: u64, cut: u64) -> String {
    let percent = cut as f64 / stacks.max(1) as f64 * 100.0;
    format!("{name}: {stacks} stacks, {cut} cut short ({percent:.3} %)")
}

/// Returns the number of stacks to compare in each program: `usual`, or the number in
/// MEMHOOK_STACKS.
pub fn count(usual: usize) -> usize {
    std::env::var("MEMHOOK_STACKS").map_or(usual, |text| text.parse().expect("a number"))
}

/// A program that works until it is killed, and its load generator.
pub struct Busy {
    child: Child,
    _load: Option<Background>,
    _folder: Option<Folder>,
}

impl Busy {
    /// Starts a program that needs no load generator, by path or name.
    pub fn start(program: &str, args: &[&str]) -> Busy {
        let path = if program.contains('/') {
            program.into()
        } else {
            installed(program)
        };
        Self::run(Command::new(path).args(args), None).at_work()
    }

    /// Waits until the program has started, even on a busy machine. Counts nanoseconds on a
    /// processor (the first number of schedstat, Documentation/scheduler/sched-stats.rst in the
    /// kernel's sources).
    fn at_work(self) -> Busy {
        let ran = format!("/proc/{}/schedstat", self.child.id());
        memhook_tests::until("the program works", || {
            let text = std::fs::read_to_string(&ran).expect("it lives");
            let first = text.split(' ').next().unwrap_or("");
            first.parse::<u64>().expect("a number") > 250_000_000
        });
        self
    }

    fn run(command: &mut Command, folder: Option<Folder>) -> Busy {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}, which this test needs: {e}"));
        Busy {
            child,
            _load: None,
            _folder: folder,
        }
    }

    /// Starts python3, which creates Python objects.
    pub fn python() -> Busy {
        let text = "x = {}\nwhile True:\n  for i in range(1000): \
                    x[str(i)] = [sorted([j, 'a', str(j)], key=str) for j in range(9)]";
        let mut command = Command::new(installed("python3"));
        // Objects come from malloc, and not from Python's own arenas.
        command.args(["-c", text]).env("PYTHONMALLOC", "malloc");
        Self::run(&mut command, None).at_work()
    }

    /// Starts sqlite3 with an endless query.
    pub fn sqlite() -> Busy {
        let sql = "with recursive c(x) as (values(1) union all select x+1 from c) \
                   select sum(length(printf('%d %s', x, hex(randomblob(9))))) from c;";
        Self::start("sqlite3", &[":memory:", sql])
    }

    /// Starts cc1plus with a file that keeps it busy for longer than a test.
    pub fn compiler() -> Busy {
        let gcc = |args: &[&str]| {
            let output = Command::new(installed("g++")).args(args).output();
            let output = output.expect("g++ runs");
            assert!(output.status.success(), "g++ {args:?}");
            String::from_utf8(output.stdout).expect("text")
        };
        let program = gcc(&["-print-prog-name=cc1plus"]);
        let folder = Folder::new("stacks-compiler");
        let (source, preprocessed) = (folder.path("large.cc"), folder.path("large.ii"));
        std::fs::write(&source, many_templates(2000)).expect("written");
        gcc(&["-E", "-o", &preprocessed, &source]);
        let mut command = Command::new(program.trim());
        command.args(["-quiet", "-O2", "-fpreprocessed", &preprocessed]);
        Self::run(command.args(["-o", "/dev/null"]), Some(folder)).at_work()
    }

    /// Starts redis-server under all kinds of commands.
    pub fn redis() -> Busy {
        let folder = Folder::new("stacks-redis");
        let socket = folder.path("socket");
        let mut command = Command::new(installed("redis-server"));
        command.args(["--port", "0", "--save", "", "--unixsocket", &socket]);
        let mut busy = Self::run(command.args(["--loglevel", "warning"]), Some(folder));
        memhook_tests::until("redis listens", || {
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        });
        Client::connect(&socket).redis("PING");
        busy._load = Some(Background::start(
            Command::new(installed("redis-benchmark"))
                .args(["-s", &socket, "-l", "-q", "-c", "20", "-n", "20000"])
                .args(["-r", "1000", "-t", "set,get,lpush,lpop,sadd,hset,zadd,incr"]),
        ));
        busy
    }

    /// Starts nginx as a single process under repeated requests over new connections.
    pub fn nginx() -> Busy {
        let folder = Folder::new("stacks-nginx");
        let socket = folder.path("socket");
        let file = nginx_configuration(&folder, "gzip on; gzip_min_length 1;");
        std::fs::write(folder.path("page"), "a page ".repeat(3000)).expect("written");
        let mut command = Command::new(installed("nginx"));
        let mut busy = Self::run(command.args(["-c", &file]), Some(folder));
        memhook_tests::until("nginx listens", || {
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        });
        let script = format!(
            "import socket\n\
             while True:\n\
             \x20 s = socket.socket(socket.AF_UNIX)\n\
             \x20 try: s.connect({socket:?})\n\
             \x20 except OSError: continue\n\
             \x20 s.sendall(b'GET /page HTTP/1.1\\r\\nHost: a\\r\\nAccept-Encoding: gzip\\r\\n\
             Connection: close\\r\\n\\r\\n')\n\
             \x20 while s.recv(65536): pass\n"
        );
        busy._load = Some(Background::start(
            Command::new(installed("python3")).args(["-c", &script]),
        ));
        busy
    }

    /// Returns the process id.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
