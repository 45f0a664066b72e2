//! Scans of programs that planted blocks before an attach. The tests compare every chunk, and
//! compare the sums with those of the allocator.

use memhook_tests::programs::{Folder, installed, unshare};
use memhook_tests::scans::{List, planted, scan};
use memhook_tests::{JsonSchema, Target, binary, build_target, not_run, not_run_here, rounds, run};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Returns the program that plants blocks. Builds it once, because a file that is being written
/// cannot be executed.
fn plant() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build_target("scan_plant", &[]))
}

#[test]
fn report_census_and_why() {
    let program = plant();
    let mut target = Target::start(program, &["2"]);
    let report: serde_json::Value =
        serde_json::from_str(&scan(target.pid(), &["--json", "-T", "1000"])).unwrap();
    assert_eq!(report["schema"], "memhook-rs/scan/1");
    assert_eq!(report["whole"], true, "{report}");
    let groups = report["leaks"].as_array().unwrap();
    let sum = |field: &str| {
        groups
            .iter()
            .map(|g| g[field].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(sum("bytes"), report["totals"]["leaked_bytes"]);
    assert_eq!(sum("blocks"), report["totals"]["leaked_blocks"]);
    let of = |kind: &str| {
        groups
            .iter()
            .find(|g| g["type"] == kind)
            .cloned()
            .unwrap_or_default()
    };
    assert!(
        of("Square")["blocks"].as_u64().is_some_and(|n| n >= 25),
        "{report}"
    );
    // Other strings may also be leaked: the C library's own, or strings that a stale pointer no
    // longer keeps alive.
    assert!(
        groups.iter().any(|g| {
            let peek = g["peek"].as_str().unwrap_or("");
            g["type"] == "text" && peek.contains("a leaked text")
        }),
        "{report:#}"
    );
    // Heads of chains and rings hold the other blocks.
    let chain = groups
        .iter()
        .find(|g| g["direct"] == true && g["held_blocks"].as_u64() >= Some(30));
    assert!(chain.is_some(), "{report}");

    let census: serde_json::Value =
        serde_json::from_str(&scan(target.pid(), &["--json", "--census"])).unwrap();
    let types = census["types"].as_array().unwrap();
    assert!(
        types
            .iter()
            .any(|t| t["name"] == "Both" && t["blocks"] == 1),
        "{census}"
    );
    assert!(
        types
            .iter()
            .any(|t| t["name"] == "malloc's cache of a thread" && t["blocks"] == 3)
    );

    let (want, _) = planted(&mut target);
    let live = want.blocks.iter().find(|(_, b)| !b.0).unwrap().0;
    let why = scan(target.pid(), &["--why", &format!("{live:#x}")]);
    assert!(why.starts_with("Kept alive by"), "{why}");
    let twice = scan(target.pid(), &["--twice", "100ms", "-T", "1000"]);
    assert!(twice.contains("Square"), "{twice}");
    assert!(target.finish().success());
}

#[test]
fn a_saved_snapshot_tells_the_same() {
    let program = plant();
    let target = Target::start(program, &["1"]);
    let file = std::env::temp_dir().join(format!("memhook-scan-{}", std::process::id()));
    let file = file.to_str().unwrap();
    scan(target.pid(), &["--save", file]);
    assert!(target.finish().success());
    let (code, out, err) = run(&["scan", "--load", file, "-T", "1000"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("Square"), "{out}");
    // Reads a piped file.
    let piped = Command::new(binary())
        .args(["scan", "--from", "-", "-T", "1000"])
        .stdin(std::fs::File::open(file).unwrap())
        .output()
        .unwrap();
    let without_times = |s: &str| {
        s.lines()
            .filter(|l| !l.starts_with("Snapshot"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        without_times(&String::from_utf8_lossy(&piped.stdout)),
        without_times(&out)
    );
    // Truncated and foreign files.
    let bytes = std::fs::read(file).unwrap();
    std::fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
    for (path, word) in [
        (file, "truncated"),
        ("/bin/true", "not a snapshot"),
        ("/no/file", "No such file"),
    ] {
        let (code, out, err) = run(&["scan", "--from", path]);
        assert_eq!((code, out.as_str()), (2, ""), "{path}: {err}");
        assert!(
            err.contains(word) && err.lines().count() == 1,
            "{path}: {err}"
        );
    }
    std::fs::remove_file(file).unwrap();
}

/// Starts the program so that it leaves a core in the folder when it dies. Returns `None` if the
/// kernel pipes cores to a program, or if our parent's limit forbids cores; the test must not
/// change either (core(5)).
fn dumps_core(program: &Path, folder: &Folder) -> Option<Target> {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let mut limit = Command::new("/bin/sh");
    let may = limit.args(["-c", "ulimit -c unlimited"]).output().unwrap();
    if pattern.starts_with(['|', '/', '@']) || !may.status.success() {
        return None;
    }
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "ulimit -c unlimited && exec \"$0\" 2"]);
    Some(Target::run(shell.arg(program).current_dir(folder.path(""))))
}

/// Kills the program, and returns its core.
fn core_of(target: Target, folder: &Folder) -> PathBuf {
    target.signal(libc::SIGABRT);
    assert!(!target.finish().success());
    let entries = std::fs::read_dir(folder.path("")).unwrap();
    let mut files = entries.map(|entry| entry.unwrap().path());
    let core = files.find(|path| path.is_file()).expect("it left a core");
    assert!(files.next().is_none(), "it left nothing else");
    core
}

#[test]
fn a_core_dump_tells_the_same() {
    let folder = Folder::new("core");
    let Some(target) = dumps_core(plant(), &folder) else {
        // Even a CI job cannot change the core settings of its machine, and separate tests cover
        // the parser.
        return not_run_here("cores are not written to files (core_pattern), or are not permitted");
    };
    let alive = |options: &[&str]| scan(target.pid(), &[options, &["-T", "1000"]].concat());
    let of_live = [
        alive(&["--list"]),
        alive(&["--json"]),
        alive(&["--json", "--census"]),
    ];
    let core = core_of(target, &folder);
    let core = core.to_str().unwrap();
    let read = |options: &[&str]| {
        let words = [&["scan", "--core", core, "-T", "1000"], options].concat();
        let (code, out, err) = run(&words);
        assert_eq!((code, err.as_str()), (0, ""));
        out
    };
    let list = read(&["--list"]);
    assert_eq!(list, of_live[0]);
    assert!(list.lines().filter(|l| l.starts_with("leak")).count() > 100);
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let (of_core, live) = (json(&read(&["--json"])), json(&of_live[1]));
    for field in ["pid", "totals", "leaks", "findings", "whole"] {
        assert_eq!(of_core[field], live[field], "{field}");
    }
    assert_eq!(of_core["snapshot"]["method"], "core");
    assert_eq!(of_core["snapshot"]["threads"], live["snapshot"]["threads"]);
    JsonSchema::load("scan-1").check(&of_core);
    let (of_core, live) = (json(&read(&["--json", "--census"])), json(&of_live[2]));
    assert_eq!(of_core["types"], live["types"]);
    assert!(of_core.get("rss").is_none_or(|rss| rss.is_null()));
    assert!(read(&[]).contains("Core dump: "));
    // The core works like a saved snapshot.
    let saved = folder.path("saved");
    read(&["--save", &saved]);
    let (code, of_saved, err) = run(&["scan", "--load", &saved, "--list"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(of_saved, list);

    // Simulates that another libc.so.6 has been installed. Without the original, blocks are found,
    // but not its names.
    let mut bytes = std::fs::read(core).unwrap();
    let libc = std::fs::read(libc_path(&bytes)).unwrap();
    let note = memchr::memmem::find(&libc[..4096], b"\x14\0\0\0\x03\0\0\0GNU\0").unwrap();
    let id = &libc[note + 12..note + 32];
    let places: Vec<usize> = memchr::memmem::find_iter(&bytes, id).collect();
    for place in places {
        bytes[place] ^= 1;
    }
    std::fs::write(core, &bytes).unwrap();
    assert_eq!(read(&["--list"]), list);
    let text = read(&[]);
    assert!(text.contains("its build-id differs"), "{text}");
    // Simulates a full disk.
    std::fs::write(core, &bytes[..bytes.len() / 2]).unwrap();
    for (file, word) in [
        (core, "truncated"),
        ("/bin/true", "not a core dump"),
        ("/no/file", "No such file"),
        (&saved, "--load"),
    ] {
        let (code, out, err) = run(&["scan", "--core", file]);
        assert_eq!((code, out.as_str()), (2, ""), "{file}: {err}");
        let is_one_line = err.lines().count() == 1;
        assert!(is_one_line && err.contains(word), "{file}: {err}");
    }
}

/// Checks a core written by gdb, which omits memory that equals its file, and registers of
/// processors newer than gdb.
#[test]
fn a_core_of_a_debugger_tells_the_same() {
    let folder = Folder::new("gcore");
    let target = Target::start(plant(), &["2"]);
    let live = scan(target.pid(), &["--list"]);
    let pid = target.pid().to_string();
    let prefix = folder.path("core");
    let saved = Command::new(installed("gcore"))
        .args(["-o", &prefix, &pid])
        .output()
        .expect("gcore runs");
    assert!(saved.status.success(), "{saved:?}");
    let core = format!("{prefix}.{pid}");
    let (code, list, errors) = run(&["scan", "--core", &core, "-T", "1000", "--list"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(list.lines().count(), live.lines().count());
    for (of_core, of_process) in list.lines().zip(live.lines()) {
        if of_core != of_process {
            assert_eq!(of_core.replacen("leak", "live", 1), of_process);
            let address = of_process.split(' ').nth(1).expect("an address");
            let why = scan(target.pid(), &["--why", address]);
            assert!(why.contains("by a register of thread"), "{why}");
        }
    }
    assert!(list.lines().filter(|l| l.starts_with("leak")).count() > 100);
    assert!(target.finish().success());
}

/// Returns the path of the C library in a core.
fn libc_path(core: &[u8]) -> String {
    let end =
        memchr::memmem::find(core, b"/libc.so.6\0").expect("it is mapped") + "/libc.so.6".len();
    let start = core[..end].iter().rposition(|&byte| byte == 0).unwrap() + 1;
    String::from_utf8(core[start..end].to_vec()).unwrap()
}

/// Checks an interpreter that prints its own mallinfo2, then sleeps.
#[test]
fn python_agrees_with_its_mallinfo() {
    let python = "/usr/bin/python3";
    if !Path::new(python).exists() {
        return not_run("there is no /usr/bin/python3");
    }
    let script = "import ctypes,time,sys
class M(ctypes.Structure):
    _fields_=[(n,ctypes.c_size_t) for n in 'arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost'.split()]
f=ctypes.CDLL(None).mallinfo2
f.restype=M
x=[[i]*i for i in range(1000)]
def line():
    m=f()
    return 'ready %d %d %d %d\\n'%(m.arena,m.uordblks,m.hblks,m.hblkhd)
line()
import os
os.write(1,line().encode())
time.sleep(60)";
    let mut child = Command::new(python)
        .args(["-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut pipe = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut pipe, &mut line).unwrap();
    let said: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map(|n| n.parse().unwrap())
        .collect();
    let found = List::parse(&scan(child.id(), &["--list"]));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(found.sum("arena", "system"), said[0]);
    let used = found.sum("arena", "used") + found.sum("arena", "cached");
    // The line itself is allocated after the count.
    assert!(used.abs_diff(said[1]) <= 1024, "{used} against {}", said[1]);
    assert!(
        found
            .rest
            .contains(&format!("mmapped {} {}", said[2], said[3]))
    );
    assert!(!found.rest.iter().any(|l| l.starts_with("finding")));
}

#[test]
fn bad_input_is_one_line_and_exit_code_2() {
    let program = plant();
    let target = Target::start(program, &["0"]);
    let pid = target.pid().to_string();
    for (args, word) in [
        (vec!["scan", "2147483647"], "no process"),
        (vec!["scan", &pid, "--why", "0x10"], "not in any block"),
    ] {
        let (code, out, err) = run(&args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
        assert!(
            err.contains(word) && err.lines().count() == 1,
            "{args:?}: {err}"
        );
    }
    assert!(target.finish().success());
}

/// Checks scans during allocations and releases, even in the middle of malloc. No reachable block
/// may be reported as leaked, no system call may be cut short, and no block may be damaged.
#[test]
fn a_busy_program() {
    let program = build_target("scan_busy", &[]);
    let target = Target::start(&program, &["4"]);
    for method in ["precopy", "fork", "stop", "precopy", "fork", "precopy"] {
        let leaked = |found: &List| found.blocks.values().filter(|b| b.0).count();
        // On a busy machine, a thread may not leave malloc within the allowed few milliseconds. The
        // report says so, and blocks that such a thread is about to store may look leaked.
        let is_exact = |found: &List| !found.rest.iter().any(|line| line.starts_with("note"));
        let mut scans =
            (0..10).map(|_| List::parse(&scan(target.pid(), &["--list", "--snapshot", method])));
        let found = scans.find(|found| leaked(found) == 0 || is_exact(found));
        let found = found.expect("one scan of ten that finds no thread inside malloc");
        assert_eq!(leaked(&found), 0, "{method}: {:?}", found.rest);
        assert!(found.blocks.len() > 4000, "{}", found.blocks.len());
    }
    assert_eq!(target.finish().code(), Some(0));
}

/// Returns the children of any thread, by process id.
fn children(pid: u32) -> String {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let files = threads.map(|t| t.unwrap().path().join("children"));
    files
        .filter_map(|f| std::fs::read_to_string(f).ok())
        .collect()
}

/// Runs scans and kills them after 0 to 45 ms.
fn kill_scans(pid: u32, method: &str) {
    let rounds = rounds(30) as u64;
    for round in 0..rounds {
        let mut scan = Command::new(binary())
            .args(["scan", &pid.to_string(), "--snapshot", method])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The kill may come at any moment.
        std::thread::sleep(std::time::Duration::from_micros(45_000 * round / rounds));
        scan.kill().unwrap();
        scan.wait().unwrap();
    }
}

#[test]
fn a_fork_is_not_noticed() {
    let program = build_target("childless", &[]);
    let mut target = Target::start(&program, &[]);
    target.go();
    let line = target.expect("done");
    let planted: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map(|a| u64::from_str_radix(a.trim_start_matches("0x"), 16).unwrap())
        .collect();
    for _ in 0..3 {
        let found = scan(target.pid(), &["--list", "--snapshot", "fork"]);
        let found = List::parse(&found);
        for address in &planted {
            assert_eq!(found.blocks.get(address).map(|b| b.0), Some(false));
        }
        assert_eq!(children(target.pid()), "");
    }
    let json = scan(target.pid(), &["--json", "--snapshot", "fork"]);
    assert!(json.contains("\"method\":\"fork\""), "{json}");
    kill_scans(target.pid(), "fork");
    memhook_tests::until("the copies end", || children(target.pid()).is_empty());
    assert_eq!(target.finish().code(), Some(0));
}

/// Checks that another method replaces one that does not work, and that the report says why.
#[test]
fn an_init_process_is_not_forked() {
    let program = plant();
    let mut command = Command::new(unshare());
    command
        .args(["--pid", "--fork", "--kill-child"])
        .arg(program)
        .arg("0");
    let mut target = Target::run(&mut command);
    target.descend();
    let text = scan(target.pid(), &["--snapshot", "fork"]);
    assert!(
        text.contains("Note: no fork, all threads held instead:") && text.contains("by stop"),
        "{text}"
    );
}

#[test]
fn a_scan_that_is_killed_leaves_nothing() {
    let program = build_target("scan_busy", &["-O1"]);
    let target = Target::start(&program, &["2"]);
    kill_scans(target.pid(), "precopy");
    let file =
        |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", target.pid())).unwrap();
    memhook_tests::until("nobody traces it", || {
        file("status").contains("TracerPid:\t0")
    });
    // "uw": a userfaultfd watches this memory for writes.
    memhook_tests::until("nobody watches it", || {
        let flags = file("smaps");
        let mut flags = flags.lines().filter(|l| l.starts_with("VmFlags"));
        !flags.any(|l| l.contains(" uw"))
    });
    // 2 would mean a damaged block. 3 means that a kill within a window of microseconds interrupted
    // epoll_wait, which memhook-rs cannot prevent.
    assert!(matches!(target.finish().code(), Some(0 | 3)));
}

/// Checks that inaccessible pages in blocks do not count as damage, and hide no other block.
#[test]
fn pages_that_cannot_be_accessed() {
    let program = build_target("scan_guarded", &[]);
    let target = Target::start(&program, &["wait"]);
    for method in ["precopy", "fork", "stop"] {
        let found = List::parse(&scan(target.pid(), &["--list", "--snapshot", method]));
        let damage = found.rest.iter().find(|l| l.starts_with("finding"));
        assert_eq!(damage, None, "{method}");
        for (least, kinds) in [(12_288, 100), (400_000, 50)] {
            let blocks = found
                .blocks
                .values()
                .filter(|b| (least..least + 8192).contains(&b.1));
            let (leaked, live): (Vec<&(bool, u64)>, Vec<_>) = blocks.partition(|b| b.0);
            assert_eq!(
                (leaked.len(), live.len()),
                (kinds / 2, kinds / 2),
                "{method}"
            );
        }
    }
    assert!(target.finish().success());
    let output = Command::new(binary())
        .args(["gate", "--"])
        .arg(&program)
        .arg("end")
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(" in 75 blocks (limit 0)"), "{text}");
    assert!(!text.contains("not seen"), "{text}");
}

#[test]
fn the_initial_thread_has_ended() {
    let program = build_target("headless", &[]);
    let target = Target::start(&program, &[]);
    for options in [&["--list"][..], &["--list", "--snapshot", "fork"]] {
        let found = List::parse(&scan(target.pid(), options));
        let (leaked, live): (Vec<&(bool, u64)>, Vec<_>) = found
            .blocks
            .values()
            .filter(|b| b.1 == 712)
            .partition(|b| b.0);
        assert_eq!((leaked.len(), live.len()), (10, 10), "{:?}", found.rest);
    }
    assert!(target.finish().success());
}

/// Checks that a return address into malloc on a stack does not prove that a thread is inside
/// malloc, unless the thread executes C library code.
#[test]
fn frames_that_an_allocator_has_left() {
    let program = build_target("left_frames", &["-O1"]);
    let target = Target::start(&program, &[]);
    for method in [&["--snapshot", "stop"][..], &[]] {
        let report = scan(target.pid(), method);
        assert!(!report.contains("inside malloc"), "{report}");
    }
    assert!(target.finish().success());
}
