//! Compares the compiled unwind tables with gdb, at calls of malloc in third-party programs.
//!
//! `MEMHOOK_STACKS=500 cargo test -p memhook-tests --test end_to_end gdb` compares more stacks.

use super::stack_reference::{Busy, DEPTH, Modules, count, share};
use memhook_tests::programs::{Folder, installed};
use memhook_tests::{build_target, patience};
use memhook_unwind::walk;
use std::io::{BufReader, Write};
use std::process::{Command, Stdio};

/// Script for gdb. At every stop it writes the registers and the frames of its backtrace, and waits
/// for a line, while the process stays stopped.
const SCRIPT: &str = r"
import gdb, random, sys
random.seed(1)
for setting in ('pagination off', 'confirm off', 'backtrace past-main on', 'backtrace past-entry on',
                'backtrace limit 1000', 'breakpoint pending on', 'debuginfod enabled off'):
    try: gdb.execute('set ' + setting, to_string=True)
    except gdb.error: pass
point = gdb.Breakpoint('malloc')
while True:
    point.ignore_count = random.randrange(40)
    gdb.execute('continue', to_string=True)
    frame = gdb.newest_frame()
    line = [int(frame.read_register(name)) % 2**64 for name in ('rip', 'rsp', 'rbp')]
    while frame is not None:
        # These have no return address on the stack: gdb knows them from debug information.
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME): line.append(frame.pc())
        frame = frame.older()
    print('stop', *line, file=sys.stderr, flush=True)
    if not sys.stdin.readline(): break
gdb.execute('kill')
";

/// Compares `samples` backtraces, and returns the number of their frames.
fn compare(name: &str, busy: &Busy, samples: usize) -> usize {
    let pid = busy.pid();
    let modules = Modules::of(pid);
    let folder = Folder::new("gdb");
    let script = folder.path("script.py");
    std::fs::write(&script, SCRIPT).expect("written");
    let mut gdb = Command::new(installed("gdb"))
        .args(["-q", "-nx", "-batch", "-p", &pid.to_string(), "-x", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("gdb starts");
    let mut go_on = gdb.stdin.take().expect("piped");
    let mut lines = BufReader::new(gdb.stderr.take().expect("piped"));
    let (mut frames, mut cut) = (0, 0u64);
    for _ in 0..samples {
        let mut others = Vec::new();
        let numbers: Vec<u64> = loop {
            let line = patience::line(&mut lines);
            assert!(!line.is_empty(), "{name}: gdb ended: {}", others.join(""));
            match line.trim_end().strip_prefix("stop ") {
                Some(rest) => {
                    break rest
                        .split(' ')
                        .map(|number| number.parse().expect("a number"))
                        .collect();
                }
                None => others.push(line),
            }
        };
        let (registers, expected) = numbers.split_at(3);
        let expected = &expected[..expected.len().min(DEPTH)];
        let read =
            |address| memhook_process::read_word(pid, memhook_process::RemoteAddress(address));
        let start = (registers[0], registers[1], registers[2]);
        let (found, _) = walk(&modules.tables, start, &read, DEPTH);
        if found.len() < expected.len() {
            cut += 1;
            assert_eq!(found, expected[..found.len()], "{name}");
        } else {
            assert_eq!(
                modules.names(&found),
                modules.names(expected),
                "{name}: the tables, then gdb"
            );
        }
        frames += found.len();
        writeln!(go_on).expect("gdb listens");
    }
    drop(go_on);
    let _ = gdb.kill();
    let _ = gdb.wait();
    let share = share(name, samples as u64, cut);
    println!("{share}");
    assert!(cut * 1000 <= samples as u64, "{share}");
    frames
}

fn check(name: &str, busy: &Busy) {
    let samples = count(40);
    let frames = compare(name, busy, samples);
    assert!(frames > 4 * samples, "{name}: only {frames} frames");
}

macro_rules! checked {
    ($($busy:ident: $name:literal)*) => { $(
        #[test]
        fn $busy() {
            check($name, &Busy::$busy());
        }
    )* };
}

checked! {
    redis: "redis-server"
    nginx: "nginx"
    sqlite: "sqlite3"
    python: "python3"
    compiler: "cc1plus"
}

#[test]
fn templates_and_exceptions() {
    let program = build_target("templates", &["-fomit-frame-pointer"]);
    let program = program.to_str().expect("UTF-8");
    check("templates", &Busy::start(program, &[]));
}
