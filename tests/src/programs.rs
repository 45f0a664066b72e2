//! Programs of the distribution as targets, and small clients for them.

pub use crate::requirements::{installed, installed_library};
use crate::{Target, leave, until};
use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// Returns the path of unshare(1), which starts programs in namespaces. Skips the test if no mount
/// namespace can be created.
pub fn unshare() -> PathBuf {
    let program = installed("unshare");
    let tried = Command::new(&program).args(["--mount", "true"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        leave(
            "cannot create a mount namespace: this requires root, and a root directory that is a mount point",
        );
    }
    program
}

/// Skips the test if no user namespace can be created.
pub fn leave_without_user_namespaces() {
    let tried = Command::new(unshare()).args(["--user", "true"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        leave("cannot create a user namespace here, for example in a chroot(2)");
    }
}

/// Returns the path of pivot_root(8), which gives a namespace a different root, as containers do.
/// Skips the test in a chroot(2): user namespaces cannot be created there (user_namespaces(7)), and
/// the kernel would prefix paths in a namespace with our own root.
pub fn pivot_root() -> PathBuf {
    leave_without_user_namespaces();
    installed("pivot_root")
}

/// A temporary folder for sockets and files.
pub struct Folder(PathBuf);

impl Folder {
    /// Creates a new empty folder.
    pub fn new(name: &str) -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let file = format!("{}{name}-{count}", Self::prefix());
        let path = std::env::temp_dir().join(file);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Folder(path)
    }

    /// Returns the prefix for folder names of this process.
    fn prefix() -> String {
        format!("memhook-{}-", std::process::id())
    }

    /// Removes all folders of this process, for an exit that skips destructors.
    pub fn remove_all() {
        let entries = std::fs::read_dir(std::env::temp_dir());
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name.to_string_lossy().starts_with(&Self::prefix()) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Returns the path of a file in the folder.
    pub fn path(&self, file: &str) -> String {
        let path = self.0.join(file);
        path.to_str().expect("UTF-8").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Copies a program so that it can be executed. A separate process makes the copy: a child forked
/// by a parallel test would briefly inherit our open file, and a file that is open for writing
/// cannot be executed (ETXTBSY).
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let status = Command::new("cp").arg(from).arg(to).status();
    let is_copied = status.is_ok_and(|status| status.success());
    assert!(is_copied, "{from:?} to {to:?}");
}

/// Writes a script that all users may execute. A separate process writes it, because a script that
/// is open for writing cannot be executed either.
pub fn write_script(to: impl AsRef<Path>, text: &str) {
    let to = to.as_ref();
    let draft = to.with_extension("draft");
    std::fs::write(&draft, text).expect("written");
    copy_program(&draft, to);
    std::fs::remove_file(draft).expect("ours");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(to, mode).expect("ours");
}

/// Creates a root directory that contains only these programs, under these names, and their
/// libraries.
pub fn another_root(programs: &[(&str, &Path)]) -> Folder {
    let root = Folder::new("root");
    for (name, program) in programs {
        let output = Command::new("ldd").arg(program).output().expect("ldd");
        let text = String::from_utf8(output.stdout).expect("paths");
        let libraries = text
            .split_ascii_whitespace()
            .filter(|word| word.starts_with('/'));
        for library in libraries {
            let copy = root.path(&library[1..]);
            std::fs::create_dir_all(Path::new(&copy).parent().expect("a directory")).expect("made");
            copy_program(library, &copy);
        }
        let copy = root.path(name);
        std::fs::create_dir_all(Path::new(&copy).parent().expect("a directory")).expect("made");
        copy_program(program, copy);
    }
    std::fs::create_dir(root.path("proc")).expect("made");
    root
}

/// Returns C++ code that makes a compiler instantiate a map and a sort for this number of types.
pub fn many_templates(types: u32) -> String {
    let head = "#include <algorithm>\n#include <map>\n#include <string>\n#include <vector>\n";
    let of_type = |i| {
        format!(
            "struct T{i} {{ int a; bool operator<(const T{i}& o) const {{ return a < o.a; }} }};\n\
             std::map<T{i}, std::string> m{i}; void f{i}(std::vector<T{i}> v) \
             {{ std::sort(v.begin(), v.end()); m{i}[v[0]] = std::to_string({i}); }}\n"
        )
    };
    std::iter::once(head.to_owned())
        .chain((0..types).map(of_type))
        .collect()
}

/// Configures nginx as a single process that serves the files of the folder through `socket` in
/// that folder. `http` contains additional directives. Returns the path of the configuration.
pub fn nginx_configuration(folder: &Folder, http: &str) -> String {
    let text = format!(
        "daemon off; master_process off; pid {pid}; error_log stderr crit;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; {http}\n\
         client_body_temp_path {tmp}; proxy_temp_path {tmp}; fastcgi_temp_path {tmp};\n\
         uwsgi_temp_path {tmp}; scgi_temp_path {tmp};\n\
         server {{ listen unix:{socket}; root {root}; default_type text/html; }} }}",
        pid = folder.path("pid"),
        tmp = folder.path("tmp"),
        socket = folder.path("socket"),
        root = folder.path(""),
    );
    let file = folder.path("nginx.conf");
    std::fs::write(&file, text).expect("written");
    file
}

/// Starts a server and waits until its socket accepts connections.
pub fn server(command: &mut Command, socket: &str) -> Target {
    let target = Target::silent(command);
    until(&format!("{command:?} listens"), || {
        UnixStream::connect(socket).is_ok()
    });
    target
}

/// A connection to a server with a line protocol (redis, memcached).
pub struct Client(BufReader<UnixStream>);

impl Client {
    /// Connects to a socket.
    pub fn connect(socket: &str) -> Client {
        Client(BufReader::new(
            UnixStream::connect(socket).expect("the server listens"),
        ))
    }

    /// Sends a text.
    pub fn send(&mut self, text: &str) {
        let stream = self.0.get_mut();
        stream.write_all(text.as_bytes()).expect("the server reads");
    }

    /// Reads a line, and returns it without the line end.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the server answers");
        line.trim_end().to_owned()
    }

    /// Reads this number of bytes and the line end after them.
    pub fn bytes(&mut self, count: usize) -> String {
        let mut bytes = vec![0; count + 2];
        self.0.read_exact(&mut bytes).expect("the server answers");
        bytes.truncate(count);
        String::from_utf8(bytes).expect("text")
    }

    /// Sends a redis command, and returns the reply without its type.
    pub fn redis(&mut self, command: &str) -> String {
        self.send(&format!("{command}\r\n"));
        let line = self.line();
        match line.strip_prefix('$').map(str::parse) {
            Some(Ok(length)) => self.bytes(length),
            _ => line,
        }
    }
}

/// A program that runs until it is dropped; its output is discarded.
pub struct Background(Child);

impl Background {
    /// Starts the program.
    pub fn start(command: &mut Command) -> Background {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Background(child.unwrap_or_else(|e| panic!("{command:?}: {e}")))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts Debian's redis-server under load from redis-benchmark. Returns the target, the load and
/// the socket.
pub fn loaded_redis(folder: &Folder) -> (Target, Background, String) {
    let socket = folder.path("socket");
    let mut redis = Command::new(installed("redis-server"));
    redis.args(["--port", "0", "--save", "", "--appendonly", "no"]);
    redis.args(["--loglevel", "warning", "--unixsocket", &socket]);
    redis.args(["--dir", &folder.path("")]);
    let redis = server(&mut redis, &socket);
    let load = Background::start(
        Command::new(installed("redis-benchmark"))
            .args([
                "-s", &socket, "-l", "-q", "-c", "20", "-P", "16", "-r", "1000",
            ])
            .args(["-n", "20000", "-t", "set,get,lpush,lpop,sadd,hset,incr"]),
    );
    (redis, load, socket)
}
