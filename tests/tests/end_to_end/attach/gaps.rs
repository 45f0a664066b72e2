//! If a recorder temporarily gets no processor time, its target continues untraced, and all output
//! says so. The events before and after the gap are exact.

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, Target, binary, build_target, run, stop};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time for which the recorder is stopped. The hook waits for part of this time.
const STOP: Duration = Duration::from_millis(1500);

fn told(target: &mut Target, what: &str) {
    target.send(what);
    target.expect("done");
}

/// Stops the recorder, and lets the target fill its ring and continue.
fn forsake(target: &mut Target, attacher: &Attacher) {
    stop(attacher.pid());
    told(target, "p");
    // The ring is not drained for this long. The hook gives up after a timeout, so there is no
    // state for which the test could wait.
    std::thread::sleep(STOP);
}

fn come_back(attacher: &mut Attacher) {
    attacher.signal(libc::SIGCONT);
    attacher.wait_for("traced again");
}

/// Returns the number of blocks from the sites in a function: in total, and those not seen since a
/// gap. All blocks of a function have the same size.
fn of_function(report: &Value, name: &str) -> (u64, u64) {
    let rows = report["sites"].as_array().expect("sites").iter();
    let is_in = |row: &&Value| {
        let frames = row["stack"].as_array().expect("a stack").iter();
        let mut names = frames.filter_map(|frame| frame["function"].as_str());
        names.any(|function| function.split('(').next() == Some(name))
    };
    let (mut blocks, mut unseen) = (0, 0);
    for row in rows.filter(is_in) {
        let of_row = row["blocks"].as_u64().expect("a number");
        let bytes = row["bytes"].as_u64().expect("a number");
        blocks += of_row;
        unseen += row["unseen_bytes"].as_u64().unwrap_or(0) * of_row / bytes.max(1);
    }
    (blocks, unseen)
}

fn gaps(report: &Value) -> Vec<(f64, f64)> {
    let gaps = report["gaps"].as_array().expect("gaps").iter();
    let seconds = |gap: &Value, end| gap[end].as_f64().expect("seconds");
    gaps.map(|gap| (seconds(gap, "from_s"), seconds(gap, "to_s")))
        .collect()
}

/// Checks the numbers after a gap: live blocks of each function, and blocks in doubt.
fn check(report: &Value) {
    // 20 blocks were released during the trace. 5 more must have been released, because their
    // addresses were reused.
    assert_eq!(of_function(report, "before"), (75, 75), "{report:#}");
    assert_eq!(of_function(report, "during"), (0, 0));
    assert_eq!(of_function(report, "after"), (50, 0));
    assert_eq!(of_function(report, "reusing"), (5, 0));
    let bounds = |name: &str| report["live_bounds"][name].as_u64().expect("a bound");
    assert_eq!(bounds("most_blocks"), report["totals"]["live_blocks"]);
    assert_eq!(bounds("most_bytes"), report["totals"]["live_bytes"]);
    assert_eq!(bounds("least_blocks"), 50 + 5);
    assert_eq!(bounds("least_bytes"), 50 * 5000 + 5 * 100);
    assert_eq!(report["totals"]["lost_events"], 0, "{report:#}");
}

fn json(args: &[&str]) -> Value {
    let (code, out, errors) = run(args);
    assert_eq!(code, 0, "{args:?}: {errors}");
    serde_json::from_str(&out).expect("JSON")
}

fn text(args: &[&str]) -> String {
    let (code, out, errors) = run(args);
    assert_eq!(code, 0, "{args:?}: {errors}");
    out
}

#[test]
fn tracing_goes_on_when_the_recorder_is_back() {
    let folder = Folder::new("gaps");
    let file = folder.path("run.mhk");
    let mut target = Target::start(&build_target("forsaken", &[]), &[]);
    let pid = target.pid().to_string();
    let options = [&pid, "-i", "100ms", "--on-full", "wait", "-o", &file];
    let mut attacher = Attacher::to(&options);
    attacher.says(&format!("Attached to {pid} "));
    told(&mut target, "b");
    attacher.report_where(|report| of_function(report, "before") == (100, 0));
    forsake(&mut target, &attacher);
    come_back(&mut attacher);
    told(&mut target, "a");
    attacher.signal(libc::SIGINT);
    let (status, output, errors) = attacher.outcome();
    assert_eq!(status.code(), Some(1), "{errors}");
    let live: Value = serde_json::from_str(output.lines().last().expect("a report")).expect("JSON");
    let recorded = json(&["report", &file, "--json", "-T", "1000"]);
    for report in [&live, &recorded] {
        check(report);
        let gaps = gaps(report);
        assert_eq!(gaps.len(), 1, "{gaps:?}");
        let (from, to) = gaps[0];
        assert!(from > 0.0 && to - from > 0.3, "{gaps:?}");
        assert!(to < report["elapsed_s"].as_f64().expect("seconds"));
    }
    assert_eq!(gaps(&live), gaps(&recorded));

    // All output begins with this line.
    let says = "Nothing was seen from ";
    assert!(text(&["report", &file]).starts_with(says));
    assert!(text(&["report", &file, "--tree", "top-down"]).starts_with(says));
    assert!(text(&["report", &file, "-f", "massif"]).starts_with("desc: Nothing was seen from "));
    for format in ["flamegraph", "speedscope", "heaptrack"] {
        let exported = text(&["report", &file, "-f", format]);
        assert!(exported.contains(says), "{format}");
    }
    let compared = text(&["diff", &file, &file]);
    assert!(
        compared.starts_with("In the old run: Nothing was seen from "),
        "{compared}"
    );

    // The numbers up to the gap are exact, and the live blocks at its start are known.
    let (from, to) = gaps(&recorded)[0];
    let at = format!("{}ms", (from * 1e3) as u64);
    let before = json(&["report", &file, "--json", "-T", "1000", "--to", &at]);
    assert_eq!(of_function(&before, "before"), (100, 0), "{before:#}");
    assert_eq!(before["gaps"], serde_json::json!([]));
    // A later window contains its own allocations, and reports the blocks in doubt at its end.
    let from = format!("{}ms", (to * 1e3) as u64);
    let options = [
        "--json",
        "-T",
        "1000",
        "--from",
        &from,
        "--measure",
        "allocated",
    ];
    let behind = json(&[&["report", &file][..], &options].concat());
    assert_eq!(of_function(&behind, "after"), (50, 0), "{behind:#}");
    assert_eq!(of_function(&behind, "before"), (0, 0));
    assert_eq!(behind["totals"]["allocations"], 55);
    assert_eq!(gaps(&behind).len(), 1);

    // The gate gives no verdict.
    let (code, out, errors) = run(&["gate", "--fail-on", "live > 1", &file]);
    assert_eq!(code, 3, "{out}{errors}");
    assert!((out + &errors).contains("nothing was seen from "));
    assert!(target.finish().success());
}

#[test]
fn two_gaps_and_one_at_the_end() {
    let folder = Folder::new("three-gaps");
    let file = folder.path("run.mhk");
    let mut target = Target::start(&build_target("forsaken", &[]), &[]);
    let mut attacher = Attacher::start(&target, &["-o", &file]);
    for _ in 0..2 {
        told(&mut target, "b");
        forsake(&mut target, &attacher);
        come_back(&mut attacher);
        told(&mut target, "a");
    }
    forsake(&mut target, &attacher);
    // The target exits while the attacher is stopped.
    assert!(target.finish().success());
    attacher.signal(libc::SIGCONT);
    let (status, output, errors) = attacher.outcome();
    assert_eq!(status.code(), Some(1), "{errors}");
    let live: Value = serde_json::from_str(output.lines().last().expect("a report")).expect("JSON");
    let recorded = json(&["report", &file, "--json", "-T", "1000"]);
    for report in [&live, &recorded] {
        assert_eq!(gaps(report).len(), 3, "{report:#}");
        // Five more addresses of the first hundred may have been reused; nothing is certain after
        // the last gap.
        let (after, unseen) = of_function(report, "after");
        assert_eq!((after, unseen), (100, 100));
        assert_eq!(report["live_bounds"]["least_blocks"], 0);
    }
    let end = recorded["elapsed_s"].as_f64().expect("seconds");
    let (from, to) = gaps(&recorded)[2];
    assert!(to <= end && end - to < to - from, "{from} {to} {end}");
}

/// A program under `run` or `gate`, whose messages are read line by line.
struct Started {
    child: Child,
    errors: BufReader<std::process::ChildStderr>,
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Started {
    fn new(options: &[&str]) -> Started {
        let mut child = Command::new(binary())
            .args(options)
            .arg("--")
            .arg(build_target("forsaken", &[]))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let errors = BufReader::new(child.stderr.take().expect("piped"));
        let mut started = Started { child, errors };
        started.expect("ready");
        started
    }

    fn expect(&mut self, word: &str) {
        let output = self.child.stdout.as_mut().expect("piped");
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let mut byte = [0];
            output
                .read_exact(&mut byte)
                .expect("the program says something");
            line.push(byte[0]);
        }
        assert_eq!(String::from_utf8_lossy(&line).trim_end(), word);
    }

    fn told(&mut self, what: &str) {
        let input = self.child.stdin.as_mut().expect("piped");
        input
            .write_all(what.as_bytes())
            .expect("the program listens");
        self.expect("done");
    }

    fn signal(&self, signal: i32) {
        // SAFETY: kill takes plain integers; the child has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    fn forsake_and_come_back(&mut self) {
        stop(self.child.id());
        self.told("p");
        // As in `forsake`, the hook gives up after a timeout.
        std::thread::sleep(STOP);
        self.signal(libc::SIGCONT);
        let mut line = String::new();
        while !line.contains("traced again") {
            line.clear();
            let length = self.errors.read_line(&mut line).expect("text");
            assert!(length > 0, "it does not come back");
        }
    }

    /// Returns the exit code, and the unread rest of standard error.
    fn end(mut self) -> (Option<i32>, String) {
        drop(self.child.stdin.take());
        let mut errors = String::new();
        self.errors.read_to_string(&mut errors).expect("text");
        (self.child.wait().expect("reaped").code(), errors)
    }
}

#[test]
fn a_program_that_was_started() {
    let folder = Folder::new("run-gap");
    let file = folder.path("run.mhk");
    let mut program = Started::new(&["run", "-o", &file]);
    program.told("b");
    program.forsake_and_come_back();
    program.told("a");
    let (code, errors) = program.end();
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("Nothing was seen from "), "{errors}");
    let report = json(&["report", &file, "--json", "-T", "1000"]);
    assert_eq!(gaps(&report).len(), 1);
    assert_eq!(of_function(&report, "before"), (75, 75), "{report:#}");
    assert_eq!(of_function(&report, "during"), (0, 0));
    assert_eq!(of_function(&report, "after"), (50, 0));
    assert_eq!(of_function(&report, "reusing"), (5, 0));
}

#[test]
fn a_gate_gives_no_verdict() {
    let mut program = Started::new(&["gate", "--fail-on", "live > 1"]);
    program.told("b");
    program.forsake_and_come_back();
    let (code, errors) = program.end();
    assert_eq!(code, Some(3), "{errors}");
    assert!(errors.contains("nothing was seen from "), "{errors}");
}
