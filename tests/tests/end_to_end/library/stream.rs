//! `attach --events`: readers in another process get exactly the totals of the report, and cannot
//! affect the program.

use memhook_tests::programs::{Folder, installed};
use memhook_tests::{
    Attacher, JsonSchema, Target, binary, build_target, patiently, run, stop, until,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

/// Returns the numbers of the last report in a file: allocations, bytes, live blocks, live bytes.
fn reported(file: &str) -> [u64; 4] {
    let text = std::fs::read_to_string(file).expect("a report");
    let last = text.lines().last().expect("a line");
    let report: Value = serde_json::from_str(last).expect("JSON");
    totals(&report)
}

fn totals(report: &Value) -> [u64; 4] {
    let names = [
        "allocations",
        "allocated_bytes",
        "live_blocks",
        "live_bytes",
    ];
    names.map(|name| {
        report["totals"][name]
            .as_u64()
            .unwrap_or_else(|| panic!("{report}"))
    })
}

fn parsed(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))
}

/// Opens a named pipe for reading, so that the writer does not wait for a reader.
fn pipe(path: &str) -> File {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.expect("coreutils").success());
    let mut options = File::options();
    let opened = options.read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let pipe = opened.expect("a pipe");
    let flags = nix_flags(&pipe);
    assert!(flags >= 0, "it waits for lines");
    pipe
}

/// Makes reads blocking.
fn nix_flags(pipe: &File) -> i32 {
    use std::os::fd::AsRawFd;
    // SAFETY: plain integers, and a descriptor that is open.
    unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, 0) }
}

/// Returns the program in docs/library.md.
fn documented() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/library.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let (_, program) = page.split_once("```python\n").expect("a program");
    let (program, _) = program.split_once("```").expect("its end");
    assert!(program.lines().count() <= 40, "it is to be short");
    program.to_owned()
}

#[test]
fn the_documented_reader_counts_what_the_report_counts() {
    let folder = Folder::new("events-python");
    let report = folder.path("report.json");
    let program = build_target("oracle", &["-O1", "-g"]);
    let mut target = Target::start(&program, &["20000", "3"]);
    let pid = target.pid().to_string();
    let mut attacher = Command::new(binary())
        .args([
            "attach", &pid, "-i", "1h", "--json", "-o", &report, "--events", "-",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("memhook-rs");
    let reader = Command::new(installed("python3"))
        .args(["-c", &documented()])
        .stdin(attacher.stdout.take().expect("piped"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut errors = BufReader::new(attacher.stderr.take().expect("piped"));
    let mut line = String::new();
    errors.read_line(&mut line).expect("readable");
    assert!(line.starts_with("Attached to"), "{line}");
    target.go();
    target.expect("live ");
    target.expect("done");
    // SAFETY: plain integers; the child has not been waited for.
    unsafe { libc::kill(attacher.id() as i32, libc::SIGINT) };
    let output = reader.wait_with_output().expect("it ends");
    assert_eq!(attacher.wait().expect("it ends").code(), Some(0));
    assert!(target.finish().success());
    let text = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    let numbers = lines[..2].iter().flat_map(|line| line.split(' '));
    let numbers: Vec<u64> = numbers.filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers, reported(&report), "{text}");
    assert!(numbers[0] > 10_000, "{text}");
    assert!(
        lines[2].contains("make") && lines[2].contains("work"),
        "{text}"
    );
}

/// Returns the sums of the lines, in the order of [`totals`], with the reported losses.
fn counted(lines: &[Value]) -> [u64; 4] {
    let (mut allocations, mut bytes, mut live) = (0, 0, BTreeMap::new());
    for line in lines {
        let number = |name: &str| line[name].as_u64().unwrap_or_else(|| panic!("{line}"));
        match line["event"].as_str().expect("a name") {
            "alloc" => {
                allocations += 1;
                bytes += number("size");
                live.insert(number("address"), number("size"));
            }
            "realloc" => {
                allocations += 1;
                bytes += number("size");
                live.remove(&number("old_address"));
                live.insert(number("address"), number("size"));
            }
            "pairs" => {
                allocations += number("count");
                bytes += number("count") * number("size");
            }
            "free" => drop(live.remove(&number("address"))),
            "lost" => {
                allocations += number("allocations");
                bytes += number("allocated_bytes");
            }
            _ => {}
        }
    }
    [allocations, bytes, live.len() as u64, live.values().sum()]
}

#[test]
fn lines_fit_the_schema_and_name_things_first() {
    let folder = Folder::new("events-schema");
    let schema = JsonSchema::load("events-1");
    let mut kinds = BTreeSet::new();
    for (program, options) in [
        ("deterministic", &[][..]),
        ("deterministic", &["--stacks", "all"]),
        ("oracle", &["--sample", "4K"]),
    ] {
        let events = folder.path("events.jsonl");
        let mut target = Target::start(&build_target(program, &["-O1", "-g"]), &["2000", "2"]);
        let options = [options, &["--force", "--events", &events]].concat();
        let attacher = Attacher::start(&target, &options);
        target.go();
        if program == "oracle" {
            target.expect("live ");
        }
        target.expect("done");
        let report = attacher.finish();
        assert!(target.finish().success());
        let text = std::fs::read_to_string(&events).expect("events");
        let lines: Vec<Value> = text.lines().map(parsed).collect();
        let (mut stacks, mut threads) = (BTreeSet::from([0]), BTreeSet::from([0]));
        for line in &lines {
            schema.check(line);
            let kind = line["event"].as_str().expect("a name");
            kinds.insert(kind.to_owned());
            let id = line["id"].as_u64();
            match kind {
                "stack" => assert!(stacks.insert(id.expect("an id")), "{line}"),
                "thread" => assert!(threads.insert(id.expect("an id")), "{line}"),
                _ => {
                    assert!(line["stack"].as_u64().is_none_or(|id| stacks.contains(&id)));
                    assert!(
                        line["thread"]
                            .as_u64()
                            .is_none_or(|id| threads.contains(&id))
                    );
                }
            }
        }
        assert_eq!(lines[0]["event"], "begin");
        assert_eq!(lines.last().expect("lines")["event"], "end");
        if program == "deterministic" {
            assert_eq!(counted(&lines), totals(&report));
        }
        if options.contains(&"all") {
            let with_stack = |line: &&Value| line["event"] == "free" && line["stack"].is_u64();
            assert!(lines.iter().filter(with_stack).count() > 1000);
        }
    }
    let expected = [
        "alloc", "begin", "end", "free", "pairs", "realloc", "stack", "thread",
    ];
    assert!(
        expected.iter().all(|kind| kinds.contains(*kind)),
        "{kinds:?}"
    );
}

#[test]
fn a_gap_is_in_the_stream() {
    let folder = Folder::new("events-gap");
    let events = folder.path("events.jsonl");
    let mut target = Target::start(&build_target("forsaken", &[]), &[]);
    let mut attacher = Attacher::start(&target, &["--events", &events]);
    for what in ["b", "p", "a"] {
        if what == "p" {
            stop(attacher.pid());
        }
        target.send(what);
        target.expect("done");
        if what == "p" {
            attacher.signal(libc::SIGCONT);
            attacher.wait_for("traced again");
        }
    }
    attacher.signal(libc::SIGINT);
    attacher.outcome();
    assert!(target.finish().success());
    let text = std::fs::read_to_string(&events).expect("events");
    let gaps = text
        .lines()
        .map(parsed)
        .filter(|line| line["event"] == "gap");
    let gaps: Vec<Value> = gaps.collect();
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    JsonSchema::load("events-1").check(&gaps[0]);
    assert!(
        gaps[0]["from_ns"].as_u64() < gaps[0]["until_ns"].as_u64(),
        "{gaps:?}"
    );
}

/// Arguments that cause more events than fit into the queue for a reader.
const MANY: [&str; 2] = ["250000", "4"];

#[test]
fn a_reader_that_reads_late_learns_what_is_missing() {
    let folder = Folder::new("events-late");
    let (events, report) = (folder.path("events"), folder.path("report.json"));
    let pipe = pipe(&events);
    let mut target = Target::start(&build_target("oracle", &["-O1", "-g"]), &MANY);
    let attacher = Attacher::start(&target, &["--events", &events, "-o", &report]);
    target.go();
    // The program has finished, although no line was read.
    target.expect("live ");
    target.expect("done");
    let reader = std::thread::spawn(move || {
        let mut lines = Vec::new();
        for line in BufReader::new(pipe).lines() {
            lines.push(parsed(&line.expect("readable")));
        }
        lines
    });
    attacher.signal(libc::SIGINT);
    let (status, _, errors) = attacher.outcome();
    let lines = reader.join().expect("it reads");
    assert_eq!(status.code(), Some(0), "{errors}");
    assert!(target.finish().success());
    let schema = JsonSchema::load("events-1");
    let lost = lines.iter().filter(|line| line["event"] == "lost");
    let lost: Vec<&Value> = lost.collect();
    lost.iter().for_each(|line| schema.check(line));
    assert!(lost.iter().any(|line| line["why"] == "reader"), "{lost:?}");
    let found = counted(&lines);
    assert_eq!(found[..2], reported(&report)[..2]);
    let end = lines.last().expect("lines");
    let records = lost.iter().filter_map(|line| line["records"].as_u64());
    assert_eq!(end["lost_records"].as_u64(), Some(records.sum()), "{end}");
    assert_eq!(end["allocations"].as_u64(), Some(found[0]), "{end}");
}

#[test]
fn a_reader_that_never_reads_costs_no_report() {
    let folder = Folder::new("events-stopped");
    let (events, report) = (folder.path("events"), folder.path("report.json"));
    let pipe = pipe(&events);
    let mut target = Target::start(&build_target("oracle", &["-O1", "-g"]), &MANY);
    let attacher = Attacher::start(&target, &["--events", &events, "-o", &report]);
    target.go();
    target.expect("live ");
    target.expect("done");
    attacher.signal(libc::SIGINT);
    let (status, _, errors) = attacher.outcome();
    drop(pipe);
    assert_eq!(status.code(), Some(2), "{errors}");
    assert!(errors.contains("its reader is gone"), "{errors}");
    assert!(target.finish().success());
    assert!(reported(&report)[0] > 500_000);
}

#[test]
fn a_reader_that_closes_the_pipe_ends_nothing() {
    patiently(|| {
        let folder = Folder::new("events-closed");
        let (events, report) = (folder.path("events"), folder.path("report.json"));
        let mut pipe = pipe(&events);
        let mut target = Target::start(&build_target("oracle", &["-O1", "-g"]), &MANY);
        let mut attacher = Attacher::start(&target, &["--events", &events, "-o", &report]);
        let mut first = [0; 8];
        pipe.read_exact(&mut first).expect("a line begins");
        assert_eq!(&first, b"{\"event\"");
        drop(pipe);
        target.go();
        target.expect("live ");
        target.expect("done");
        assert!(attacher.lives());
        attacher.signal(libc::SIGINT);
        let (status, _, errors) = attacher.outcome();
        assert_eq!(status.code(), Some(0), "{errors}");
        assert!(target.finish().success());
        assert!(reported(&report)[0] > 500_000);
    });
}

#[test]
fn a_process_that_dies_ends_the_stream() {
    let folder = Folder::new("events-death");
    let events = folder.path("events.jsonl");
    let mut target = Target::start(&build_target("endings", &[]), &["kill"]);
    let attacher = Attacher::start(&target, &["--events", &events]);
    target.go();
    let report = attacher.last_report();
    let text = std::fs::read_to_string(&events).expect("events");
    let lines: Vec<Value> = text.lines().map(parsed).collect();
    assert_eq!(counted(&lines), totals(&report));
    let end = lines.last().expect("lines");
    assert_eq!(
        (&end["event"], &end["is_detached"]),
        (&"end".into(), &false.into())
    );
    until("its end", || !target.is_alive());
}

#[test]
fn what_does_not_go_together_is_refused() {
    let folder = Folder::new("events-refused");
    let there = folder.path("there");
    std::fs::write(&there, "kept").expect("written");
    let target = Target::start(&build_target("deterministic", &[]), &[]);
    let pid = target.pid().to_string();
    for (options, word) in [
        (&["--events", "-", "-f", "pprof"][..], "leave -f out"),
        (&["--events", "x", "-o", "x"], "the same file"),
        (&["--events", "-", "-o", "-"], "the same file"),
        (&["--events", "-", "--overhead", "2%"], "use --sample"),
        (&["--events", "-", "--on-full", "adapt"], "use --sample"),
        (&["--events", "-", "--mappings"], "main heap"),
        (&["--events", "-", "--all"], "--all"),
        (&["--events", "-", "--follow-fork"], "--follow-fork"),
        (&["--events", "-", "--dry-run"], "--dry-run"),
        (&["--events", &there], "exists"),
    ] {
        let (code, out, err) = run(&[&["attach", &pid, "-d", "1s"], options].concat());
        assert_eq!(code, 2, "{options:?}: {out}{err}");
        assert!(err.contains(word), "{options:?}: {err}");
        assert_eq!(err.trim_end().lines().count(), 1, "{options:?}: {err}");
        assert!(out.is_empty(), "{options:?}: {out}");
        assert!(!target.maps().contains("memhook"), "{options:?}");
    }
    assert_eq!(std::fs::read_to_string(&there).expect("there"), "kept");
    assert!(target.finish().success());
}
