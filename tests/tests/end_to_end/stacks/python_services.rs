//! Real-world Python programs: blocks from a library's C code are attributed to the calling Python
//! line.

use memhook_tests::programs::{Folder, installed};
use memhook_tests::{Attacher, Target, not_run};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

const PYTHON: &str = "/usr/bin/python3";

/// Returns the number of blocks of this size whose innermost Python frame is this line of this
/// function, and the total number of blocks of this size.
fn at_line(report: &Value, size: u64, function: &str, line: u64) -> (u64, u64) {
    let (mut there, mut all) = (0, 0);
    for site in report["sites"].as_array().expect("sites") {
        let (bytes, blocks) = (site["bytes"].as_u64(), site["blocks"].as_u64());
        let (bytes, blocks) = (bytes.expect("bytes"), blocks.expect("blocks"));
        if blocks == 0 || bytes / blocks != size {
            continue;
        }
        all += blocks;
        let frames = site["stack"].as_array().expect("a stack");
        let innermost = frames.iter().find(|frame| frame["module"] == "python");
        let is_it = |frame: &Value| frame["function"] == function && frame["line"] == line;
        if innermost.is_some_and(is_it) {
            there += blocks;
        }
    }
    (there, all)
}

#[test]
fn an_array_belongs_to_the_line_that_made_it() {
    let has_numpy = Command::new(PYTHON).args(["-c", "import numpy"]).output();
    if !has_numpy.is_ok_and(|output| output.status.success()) {
        return not_run("no numpy");
    }
    let directory = Folder::new("numpy");
    let file = directory.path("arrays.py");
    let script = "import sys\nimport numpy as np\nkept = []\n\
        def grow(n):\n    kept.append(np.zeros(n))\n\
        def doubled(array):\n    return array * 2.0\n\
        def work():\n    for _ in range(20):\n        grow(100_000)\n\
        \x20   for _ in range(10):\n        kept.append(doubled(kept[0][:50_000]))\n\
        print('ready', flush=True)\nfor line in sys.stdin:\n    work()\n    print('done', flush=True)\n";
    std::fs::write(&file, script).expect("written");
    let mut target = Target::run(Command::new(installed("python3")).arg(&file));
    let attacher = Attacher::start(&target, &[]);
    target.send("go\n");
    target.expect("done");
    let report = attacher.finish();
    assert_eq!(at_line(&report, 800_000, "grow", 5), (20, 20), "{report:#}");
    assert_eq!(
        at_line(&report, 400_000, "doubled", 7),
        (10, 10),
        "{report:#}"
    );
    assert!(target.finish().success());
}

/// Checks a server with a thread per request, like the built-in server of a web framework.
#[test]
fn what_a_request_leaves_belongs_to_its_handler() {
    let directory = Folder::new("service");
    let file = directory.path("service.py");
    let script = "import sys, threading\nfrom http.server import BaseHTTPRequestHandler, ThreadingHTTPServer\n\
        sessions = []\n\
        class Application(BaseHTTPRequestHandler):\n    def log_message(self, *_):\n        pass\n\
        \x20   def login(self):\n        sessions.append(bytearray(25_000))\n\
        \x20   def do_GET(self):\n        if self.path == '/login':\n            self.login()\n\
        \x20       self.send_response(200)\n        self.end_headers()\n        self.wfile.write(b'hello')\n\
        server = ThreadingHTTPServer(('127.0.0.1', 0), Application)\n\
        threading.Thread(target=server.serve_forever, daemon=True).start()\n\
        print('ready', server.server_port, flush=True)\nsys.stdin.read()\n";
    std::fs::write(&file, script).expect("written");
    let mut target = Target::silent(Command::new(installed("python3")).arg(&file));
    let line = target.expect("");
    let port = line
        .strip_prefix("ready ")
        .expect("a port")
        .trim()
        .to_owned();
    let get = |path: &str| {
        let mut connection = TcpStream::connect(format!("127.0.0.1:{port}")).expect("connected");
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        connection.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("text");
        assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    };
    get("/");
    let attacher = Attacher::start(&target, &[]);
    for _ in 0..40 {
        get("/login");
        get("/");
    }
    let report = attacher.finish();
    let name = "Application.login";
    assert_eq!(at_line(&report, 25_001, name, 8), (40, 40), "{report:#}");
    let _ = target.finish();
}
