//! Python programs whose frames are not strictly nested. Code that swaps the C stack leaves the
//! chain of frames temporarily inconsistent, and reading it then must not crash the program.

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, Target, not_run};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Greenlets at many depths of the C stack. A switch frees the saved copy of a stack.
const GREENLETS: &str = r#"import sys, greenlet
kept = []

def remember():
    kept.append(bytearray(61_000))  # line 5

def alive(count):
    hub = greenlet.getcurrent()
    def body(depth):
        # Through C and back: each level is one more evaluation on the C stack.
        if depth:
            return sorted([depth - 1], key=body)
        for _ in range(6):
            held = bytearray(700)
            hub.switch()
        remember()
    return [greenlet.greenlet(lambda depth=n: body(depth)) for n in range(count)]

print("ready", flush=True)
for line in sys.stdin:
    for _ in range(40):
        running = alive(12)
        while running:
            for each in running:
                each.switch()
            running = [each for each in running if not each.dead]
    print("done", flush=True)
"#;

/// A server and its clients, all of which are greenlets.
const SERVER: &str = r#"import sys
import gevent, gevent.server, gevent.socket
from gevent.fileobject import FileObject
kept = []

def remember():
    kept.append(bytearray(61_000))  # line 7

def handle(connection, address):
    held = []
    for line in connection.makefile("rb"):
        held.append(bytearray(900))
        gevent.sleep(0)
        connection.sendall(line * 3)
    remember()

server = gevent.server.StreamServer(("127.0.0.1", 0), handle)
server.start()

def client(n):
    connection = gevent.socket.create_connection(("127.0.0.1", server.server_port))
    for _ in range(5):
        connection.sendall(b"x" * (40 * n + 100) + b"\n")
        left = (40 * n + 101) * 3
        while left:
            left -= len(connection.recv(65536))
    connection.shutdown(gevent.socket.SHUT_WR)
    while connection.recv(100): pass
    connection.close()

print("ready", flush=True)
for line in FileObject(sys.stdin.fileno(), "r", close=False):
    for _ in range(8):
        gevent.joinall([gevent.spawn(sorted, [n], key=client) for n in range(24)], raise_error=True)
    print("done", flush=True)
"#;

/// Generators, coroutines, a debugger-like tracer, subinterpreters, faulthandler, and objects that
/// allocate in their destructors.
const OTHERS: &str = r#"import asyncio, faulthandler, sys, threading
faulthandler.enable()
kept = []

def remember():
    kept.append(bytearray(61_000))  # line 6

def generator(depth):
    if depth:
        yield from generator(depth - 1)
    for _ in range(3):
        kept.append(bytearray(800))
        yield kept.pop()

async def coroutine(depth):
    if depth:
        return await coroutine(depth - 1)
    await asyncio.sleep(0)
    remember()
    return len(list(generator(4)))

async def all_of_them():
    await asyncio.gather(*[coroutine(n % 7) for n in range(24)])

def tracer(frame, event, argument):
    bytearray(700)
    return tracer

def interpreters():
    try:
        import _interpreters as others
    except ImportError:
        import _xxsubinterpreters as others
    made = others.create()
    run = getattr(others, "run_string", None) or others.exec
    run(made, "sorted(range(20), key=lambda n: len(bytearray(900)))")
    others.destroy(made)

class Made:
    def __init__(self, n):
        self.n = bytearray(n)
    def __del__(self):
        bytearray(1500)

print("ready", flush=True)
for line in sys.stdin:
    for _ in range(2):
        asyncio.run(all_of_them())
    sys.settrace(tracer)
    asyncio.run(all_of_them())
    sorted([Made(900).n for _ in range(50)], key=bytes)
    sys.settrace(None)
    thread = threading.Thread(target=lambda: [list(generator(9)) for _ in range(8)])
    thread.start()
    with open("/dev/null", "w") as nothing:
        faulthandler.dump_traceback(file=nothing)
    [list(generator(20)) for _ in range(8)]
    thread.join()
    interpreters()
    print("done", flush=True)
"#;

/// Returns the Python interpreters on this machine that have a module.
fn that_have(module: &str) -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").unwrap_or_default();
    let versions = std::fs::read_dir(Path::new(&home).join(".pyenv/versions"));
    let versions = versions.into_iter().flatten().flatten();
    let of_user = (8..=14).map(|minor| format!("bin/python3.{minor}"));
    let of_user: Vec<String> = of_user.collect();
    let of_user = versions.flat_map(|version| {
        let paths = of_user.iter().map(move |name| version.path().join(name));
        paths.collect::<Vec<_>>()
    });
    let import = format!("import {module}");
    let has = |path: &PathBuf| {
        let output = Command::new(path).args(["-c", &import]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let all = [PathBuf::from("/usr/bin/python3")]
        .into_iter()
        .chain(of_user);
    all.filter(has).collect()
}

/// Returns the number of kept blocks of the programs' size, and how many of them this line of
/// `remember` allocated.
fn remembered(report: &Value, line: u64) -> (u64, u64) {
    let (mut all, mut there) = (0, 0);
    for site in report["sites"].as_array().expect("sites") {
        let (bytes, blocks) = (site["bytes"].as_u64(), site["blocks"].as_u64());
        let (bytes, blocks) = (bytes.expect("bytes"), blocks.expect("blocks"));
        if blocks == 0 || bytes / blocks != 61_001 {
            continue;
        }
        all += blocks;
        let frames = site["stack"].as_array().expect("a stack");
        let first = frames.iter().find(|frame| frame["module"] == "python");
        if first.is_some_and(|f| f["function"] == "remember" && f["line"] == line) {
            there += blocks;
        }
    }
    (all, there)
}

/// Traces a program, including the stacks of releases. Checks that it exits as it would untraced,
/// and that all of its kept blocks are attributed to this line.
fn survives(module: &str, script: &str, line: u64, kept: u64) {
    let pythons = that_have(module);
    if pythons.is_empty() {
        return not_run(&format!("no Python that has {module}"));
    }
    let directory = Folder::new(module);
    let file = directory.path("program.py");
    std::fs::write(&file, script).expect("written");
    for python in pythons {
        let mut command = Command::new(&python);
        command.arg(&file).env("PYTHONMALLOC", "malloc");
        let mut target = Target::run(&mut command);
        let options = ["--stacks", "all", "--check-memo"];
        let attacher = Attacher::start(&target, &options);
        target.send("go\n");
        target.expect("done");
        let report = attacher.finish();
        assert_eq!(remembered(&report, line), (kept, kept), "{python:?}");
        assert!(target.finish().success(), "{python:?}");
    }
}

#[test]
fn exchanged_stacks_are_not_followed() {
    memhook_tests::patiently(|| {
        survives("greenlet", GREENLETS, 5, 40 * 12);
    });
}

#[test]
fn a_server_of_greenlets_goes_on() {
    memhook_tests::patiently(|| {
        survives("gevent", SERVER, 7, 8 * 24);
    });
}

#[test]
fn generators_tracers_and_other_interpreters_go_on() {
    memhook_tests::patiently(|| {
        survives("asyncio", OTHERS, 6, 3 * 24);
    });
}
