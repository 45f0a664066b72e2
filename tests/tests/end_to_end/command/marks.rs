//! Marks: named moments of a trace, and reports between two marks.

use memhook_tests::programs::{Folder, installed};
use memhook_tests::{
    Attacher, JsonSchema, MemoryBox, Target, access_runtime, build_target, not_run, run, until,
};
use serde_json::Value;
use std::io::Read;
use std::process::{Command, Stdio};

/// Each line is a phase: it releases the given number of the oldest blocks, and allocates new
/// blocks of one size. A block is one byte larger than its array.
const PHASES: &str = "
import sys
kept = []
print('ready', flush=True)
for line in sys.stdin:
    count, size, released = map(int, line.split())
    del kept[:released]
    kept += [bytearray(size) for _ in range(count)]
    print('done', flush=True)
";

/// Returns the number of blocks with this size in a report.
fn blocks(report: &Value, size: u64) -> u64 {
    let groups = report["groups"].as_array().expect("groups");
    let of_size = groups
        .iter()
        .filter(|g| g["name"] == format!("{size} bytes"));
    of_size
        .map(|group| group["blocks"].as_u64().expect("blocks"))
        .sum()
}

#[test]
fn a_report_between_two_marks() {
    let directory = Folder::new("marks");
    let recording = &directory.path("run.mhk");
    let mut target = Target::run(Command::new(installed("python3")).args(["-c", PHASES]));
    let pid = &target.pid().to_string();
    // No trace would receive the mark.
    let (code, _, errors) = run(&["mark", pid, "too early"]);
    assert_eq!(code, 2);
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("not being traced"), "{errors}");

    let attacher = Attacher::start(&target, &["-o", recording]);
    let mut phase = |text: &str| {
        target.send(text);
        target.expect("done");
    };
    phase("30 100000 0\n");
    let (code, output, errors) = run(&["mark", pid, "phase 2"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(output.starts_with("Mark \"phase 2\" is set"), "{output}");
    phase("40 200001 10\n");
    assert_eq!(run(&["mark", pid, "phase 3"]).0, 0);
    phase("50 300002 5\n");
    for (name, words) in [
        ("", "name of a mark"),
        ("a\nb", "name of a mark"),
        (&"x".repeat(113), "at most"),
    ] {
        let (code, _, errors) = run(&["mark", pid, name]);
        assert_eq!(code, 2);
        assert!(
            errors.lines().count() == 1 && errors.contains(words),
            "{errors}"
        );
    }
    let live = attacher.finish();
    assert!(target.finish().success());
    let names = |report: &Value| -> Vec<String> {
        let marks = report["marks"].as_array().expect("marks").iter();
        marks
            .map(|mark| mark["name"].as_str().expect("a name").to_owned())
            .collect()
    };
    assert_eq!(names(&live), ["phase 2", "phase 3"]);

    let schema = JsonSchema::load("report-1");
    let report = |options: &[&str]| -> Value {
        let (code, output, errors) =
            run(&[&["report", recording, "--json", "-T", "10000"], options].concat());
        assert_eq!(code, 0, "{errors}");
        let report = serde_json::from_str(&output).expect("JSON");
        schema.check(&report);
        report
    };
    let between = ["--from", "phase 2", "--to", "phase 3"];
    let sizes = |measure: &str| {
        let report = report(&[&between[..], &["--by", "size", "--measure", measure]].concat());
        [100_001, 200_002, 300_003].map(|size| blocks(&report, size))
    };
    assert_eq!(sizes("live"), [20, 40, 0]);
    // Reports count allocated blocks per size class.
    let all = report(&["--by", "site"]);
    assert_eq!(names(&all), ["phase 2", "phase 3"]);
    let window = report(&between);
    assert_eq!(names(&window), ["phase 2", "phase 3"]);
    // Python allocates a buffer of 8 KiB while it waits for the next line, and may not have begun
    // to wait at the first mark.
    let growth = window["totals"]["live_growth_bytes"].as_i64();
    let planted = 40 * 200_002 - 10 * 100_001;
    let other = growth.expect("a number") - planted;
    assert!(other.abs() < 100_001, "{growth:?}, {planted} planted");
    let first = report(&["--to", "phase 2", "--by", "size"]);
    assert_eq!(blocks(&first, 100_001), 30);
    let last = report(&["--from", "phase 3", "--by", "size"]);
    assert_eq!([100_001, 300_003].map(|size| blocks(&last, size)), [15, 50]);

    let (_, text, _) = run(&["report", recording]);
    assert!(text.contains("Marks: \"phase 2\" at "), "{text}");
    for (options, words) in [
        (
            &["--from", "phase 9"][..],
            "recording's marks: \"phase 2\", \"phase 3\"",
        ),
        (
            &["--from", "phase 3", "--to", "phase 2"],
            "before the window",
        ),
    ] {
        let (code, _, errors) = run(&[&["report", recording.as_str()], options].concat());
        assert_eq!(code, 2, "{errors}");
        assert!(errors.contains(words), "{errors}");
    }
}

/// Returns the live blocks in the last line of reports, and checks that earlier lines report no
/// more.
fn last_live(output: &str, size: u64) -> u64 {
    let lines = output
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let live: Vec<u64> = lines.map(|report| blocks(&report, size)).collect();
    assert!(live.is_sorted(), "{live:?}");
    *live.last().expect("a report")
}

#[test]
fn a_recording_that_goes_through_a_pipe_is_followed() {
    let mut target = Target::run(Command::new(installed("python3")).args(["-c", PHASES]));
    let pid = &target.pid().to_string();
    let mut attacher = Command::new(memhook_tests::binary())
        .args(["attach", pid, "-o", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let stream = attacher.stdout.take().expect("piped");
    let mut follower = Command::new(memhook_tests::binary())
        .args([
            "report", "--follow", "-", "-i", "200ms", "--json", "--by", "size", "-T", "10000",
        ])
        .stdin(stream)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    memhook_tests::until("the mark is taken", || run(&["mark", pid, "begin"]).0 == 0);
    target.send("30 100000 0\n");
    target.expect("done");
    assert_eq!(run(&["mark", pid, "end"]).0, 0);
    // SAFETY: plain integers; the child has not been waited for.
    unsafe { libc::kill(attacher.id() as i32, libc::SIGINT) };
    let ended = attacher.wait_with_output().expect("it ends");
    assert!(
        ended.status.success(),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    let mut output = String::new();
    let mut pipe = follower.stdout.take().expect("piped");
    pipe.read_to_string(&mut output).expect("text");
    assert!(follower.wait().expect("it ends").success());
    assert_eq!(last_live(&output, 100_001), 30);
    assert!(target.finish().success());
    for (args, words) in [
        (&["report", "--follow", "/nowhere.mhk"][..], "nowhere.mhk"),
        (&["report", "--follow", "-", "-f", "pprof"], "leave -f out"),
    ] {
        let (code, _, errors) = run(args);
        assert_eq!(code, 2, "{errors}");
        assert!(
            errors.lines().count() == 1 && errors.contains(words),
            "{errors}"
        );
    }
}

/// Checks that a mark set by the program separates events correctly, even events on two threads
/// within 1 ms.
#[test]
fn a_program_marks_itself() {
    let directory = Folder::new("own-marks");
    // The header also works in C with strict compiler options.
    let unit = directory.path("unit.c");
    let text = "#include <memhook_mark.h>\nint main(void) { memhook_mark(\"x\"); return 0; }\n";
    std::fs::write(&unit, text).expect("a program");
    let include = format!("-I{}", access_runtime().display());
    let mut gcc = Command::new("gcc");
    gcc.args([
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-fsyntax-only",
        &include,
        &unit,
    ]);
    assert!(gcc.status().expect("gcc").success());

    let mut target = Target::start(&build_target("marked", &[&include]), &[]);
    let step = |target: &mut Target| {
        target.send("\n");
        target.expect("done")
    };
    assert_eq!(step(&mut target).trim(), "done alone");
    let recording = &directory.path("run.mhk");
    let attacher = Attacher::start(&target, &["-o", recording]);
    // A recording begins when the attacher starts its clock.
    assert_eq!(run(&["mark", &target.pid().to_string(), "begun"]).0, 0);
    assert_eq!(step(&mut target).trim(), "done listened to");
    let live = attacher.finish();
    let names: Vec<&str> = live["marks"]
        .as_array()
        .expect("marks")
        .iter()
        .map(|mark| mark["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(names, ["begun", "one", "two"]);
    assert_eq!(step(&mut target).trim(), "done alone");
    let sizes = |options: &[&str]| {
        let words = ["report", recording, "--json", "-T", "10000", "--by", "size"];
        let (code, output, errors) = run(&[&words[..], options].concat());
        assert_eq!(code, 0, "{errors}");
        let report: Value = serde_json::from_str(&output).expect("JSON");
        [1001, 2002, 3003].map(|size| blocks(&report, size))
    };
    let between = ["--from", "one", "--to", "two", "--measure", "live"];
    assert_eq!(sizes(&["--to", "one"]), [10, 0, 0]);
    assert_eq!(sizes(&between), [10, 20, 0]);
    let behind = ["--from", "two", "--measure", "live"];
    assert_eq!(sizes(&behind), [10, 20, 30]);
    // Each window contains its own blocks, and memory for a thread.
    let growth = |options: &[&str]| {
        let words = [&["report", recording, "--json"], options].concat();
        let report: Value = serde_json::from_str(&run(&words).1).expect("JSON");
        report["totals"]["live_growth_bytes"]
            .as_i64()
            .expect("a number")
    };
    let of_thread = growth(&between) - 20 * 2002;
    assert!((0..2002).contains(&of_thread), "{of_thread}");
    assert_eq!(growth(&behind), 30 * 3003);

    // After an attacher was killed, the next attacher restores the pointer.
    Attacher::start(&target, &[]).kill();
    assert_eq!(step(&mut target).trim(), "done listened to");
    assert_eq!(run(&["detach", &target.pid().to_string()]).0, 0);
    assert_eq!(step(&mut target).trim(), "done alone");
    assert!(target.finish().success());
}

/// Checks conditions on the used share of a memory cgroup, and on the time for which processes
/// waited for memory.
#[test]
fn limits_of_a_group_and_pressure_lead_to_marks() {
    const LIMIT: u64 = 128 << 20;
    let Some(group) = MemoryBox::new("triggers", LIMIT) else {
        return not_run("no memory cgroup can be made here");
    };
    let mut python = group.command(installed("python3").as_ref());
    let mut target = Target::run(python.args(["-c", PHASES]));
    let triggers = [
        ["--when", "limit > 30% then mark=used"],
        ["--when", "limit >= 80M and limit < 95% then detach"],
        ["--when", "limit >= 95% then mark=never"],
        ["--when", "psi <= 100% then mark=waiting is counted"],
        ["--when", "live > 1K and psi > 100% then mark=never"],
    ];
    let options: Vec<&str> = triggers.iter().flatten().copied().collect();
    let mut attacher = Attacher::start(&target, &options);
    attacher.wait_for("psi <= 100%: ");
    let mut phase = || {
        target.send("170 262144 0\n");
        target.expect("done");
    };
    phase();
    attacher.wait_for("limit > 30%: ");
    phase();
    let (status, output, errors) = attacher.outcome();
    assert_eq!(status.code(), Some(0), "{errors}");
    let report: Value = serde_json::from_str(output.trim()).expect("JSON");
    let marks = report["marks"].as_array().expect("marks").iter();
    let names: Vec<&str> = marks.filter_map(|mark| mark["name"].as_str()).collect();
    assert_eq!(names, ["waiting is counted", "used"], "{errors}");
    assert!(target.finish().success());
}

/// Checks that the actions of `--when` happen once each, in the order in which the limits are
/// reached.
#[test]
fn limits_lead_to_reports_marks_commands_and_the_detach() {
    let directory = Folder::new("triggers");
    let said = directory.path("said");
    let mut target = Target::run(Command::new(installed("python3")).args(["-c", PHASES]));
    let command = format!("live > 6M then exec=echo $MEMHOOK_PID $MEMHOOK_WHEN >> {said}");
    let triggers = [
        ["--when", "live > 2M then mark=two"],
        ["--when", "live >= 2M and rss > 1K then mark"],
        ["--when", "live > 4M then report"],
        ["--when", &command],
        ["--when", "live > 8M then detach"],
    ];
    let options: Vec<&str> = triggers.iter().flatten().copied().collect();
    let mut attacher = Attacher::start(&target, &options);
    // Each phase adds two and a half megabytes, and the next phase begins after the action.
    let mut phase = || {
        target.send("10 262144 0\n");
        target.expect("done");
    };
    phase();
    attacher.wait_for("live > 2M: ");
    phase();
    attacher.wait_for("live > 4M: ");
    phase();
    attacher.wait_for("live > 6M: ");
    until("the command has run", || {
        std::fs::metadata(&said).is_ok_and(|file| file.len() > 0)
    });
    phase();
    let (status, output, errors) = attacher.outcome();
    assert_eq!(status.code(), Some(0), "{errors}");
    let reports: Vec<Value> = output
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(reports.len(), 2, "one was asked for, and the last one");
    let pid = target.pid();
    let line = format!("{pid} live > 6M\n");
    assert_eq!(std::fs::read_to_string(&said).expect("it ran"), line);
    let marks: Vec<&str> = reports[1]["marks"]
        .as_array()
        .expect("marks")
        .iter()
        .map(|mark| mark["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(marks, ["two", "live >= 2M and rss > 1K"]);
    assert!(target.is_alive());

    let pid = &pid.to_string();
    for (options, words) in [
        (
            &["--when", "live > 2M, report"][..],
            "expected CONDITION then ACTION",
        ),
        (
            &["--when", "live > 2M and size > 1 then mark"],
            "column 15: expected live, blocks",
        ),
        (&["--when", "live > 2M then dance"], "expected report, mark"),
        (&["--when", "live > 2M"], "expected CONDITION then ACTION"),
        (
            &["--when", "limit > 190% then mark"],
            "column 9: expected a share between 0% and 100%, like 90%, or a size",
        ),
        (
            &["--when", "psi > 15 then mark"],
            "column 7: expected a share above 0% and up to 100%, like 15%",
        ),
    ] {
        let (code, output, errors) = run(&[&["attach", pid], options].concat());
        assert_eq!((code, output.as_str()), (2, ""), "{errors}");
        assert!(errors.contains(words), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    assert!(target.finish().success());
}
