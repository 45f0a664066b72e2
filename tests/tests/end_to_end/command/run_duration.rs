//! When `run --duration` detaches from a running program, the program continues as if it had never
//! been traced.

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, Target, binary, build_target, run, until};
use std::process::Command;

/// A program under `run`, whose report goes to a file.
struct Run {
    target: Target,
    folder: Folder,
}

impl Run {
    fn start(program: &str, flags: &[&str], args: &[&str], options: &[&str]) -> Run {
        let folder = Folder::new("run-duration");
        let program = build_target(program, flags);
        let mut command = Command::new(binary());
        command.args(["run", "--json", "-q", "-o", &folder.path("report.json")]);
        command.args(options).arg("--").arg(program).args(args);
        let mut target = Target::run(&mut command);
        target.descend();
        Run { target, folder }
    }

    /// Waits for `count` final reports, and returns them.
    fn reports(&self, count: usize) -> Vec<serde_json::Value> {
        let mut reports: Vec<serde_json::Value> = Vec::new();
        until("the reports are there", || {
            let text = std::fs::read_to_string(self.folder.path("report.json"));
            let text = text.unwrap_or_default();
            // The last line may be incomplete.
            let lines = text.lines().map(serde_json::from_str);
            reports = lines.filter_map(Result::ok).collect();
            reports.len() == count
        });
        reports
    }
}

#[test]
fn registers_and_the_status_are_the_programs_own() {
    // Traces for longer if the program was suspended.
    let mut runs = ["300ms", "3s", "10s"].into_iter().map(|duration| {
        let run = Run::start("canary", &["-pthread"], &[], &["-d", duration]);
        let report = run.reports(1).remove(0);
        (run, report)
    });
    let has_begun = |report: &serde_json::Value| report["totals"]["allocations"].as_u64() > Some(4);
    let found = runs.find(|(_, report)| has_begun(report));
    let (mut run, report) = found.expect("it allocates");
    assert_eq!(report["final"], true, "{report}");
    assert_eq!(report["totals"]["lost_events"], 0, "{report}");
    // The program runs untraced, so another attach works.
    assert_eq!(run.target.status("TracerPid"), "0");
    let again = Attacher::start(&run.target, &[]).finish();
    assert_eq!(again["totals"]["lost_events"], 0, "{again}");
    run.target.go();
    assert!(run.target.finish().success());
}

/// Checks that neither the launcher's exit nor the detach interrupts a call that the kernel does
/// not restart.
#[test]
fn calls_go_on_waiting() {
    let calls = ["poll", "nanosleep", "epoll_wait", "sigtimedwait", "futex"].map(|call| {
        std::thread::spawn(move || {
            let mut run = Run::start("blocked", &[], &[call], &["-d", "200ms"]);
            run.reports(1);
            let line = run.target.expect("");
            let numbers = line.split_whitespace().map(|n| n.parse::<i64>());
            let numbers: Vec<i64> = numbers.map(|n| n.expect("a number")).collect();
            let expected = match call {
                "futex" => [0, 110],
                "sigtimedwait" => [-1, 11],
                _ => [0, 0],
            };
            // pthread_cond_timedwait returns its error and does not set errno.
            let expected = if call == "futex" { [110, 0] } else { expected };
            assert_eq!(numbers[..2], expected, "{call}");
            assert!(
                numbers[2] >= 1495,
                "{call} came back after {} ms",
                numbers[2]
            );
            run.target.go();
            assert!(run.target.finish().success(), "{call}");
        })
    });
    for call in calls {
        call.join().expect("the call was left alone");
    }
}

/// Checks that the slots of each process are restored, which the server and its worker verify on
/// exit.
#[test]
fn processes_that_were_followed_are_left_too() {
    // Both processes have started by then, even if one was descheduled for a while.
    let options = ["-d", "8s", "--follow-fork"];
    let mut run = Run::start("prefork", &["-pthread", "-ldl"], &[], &options);
    // A worker that calls exec as soon as it has read the second byte.
    run.target.send("vx");
    let child = run.target.expect("child ");
    let child = child["child ".len()..].trim();
    run.reports(2);
    let status = std::fs::read_to_string(format!("/proc/{child}/status"));
    assert!(status.expect("it runs").contains("TracerPid:\t0\n"));
    run.target.send("e");
    run.target.expect("done");
    assert!(run.target.finish().success());
}

/// Checks that if a program exits before the duration has elapsed, the report is written on exit,
/// with the exit status.
#[test]
fn a_program_that_ends_earlier() {
    let folder = Folder::new("run-duration");
    let file = folder.path("run.mhk");
    let (code, _, errors) = run(&["run", "-d", "1h", "-qo", &file, "--", "sh", "-c", "exit 5"]);
    assert_eq!(code, 5, "{errors}");
    let (code, out, errors) = run(&["report", &file]);
    assert_eq!(code, 0, "{errors}");
    assert!(out.contains("no event lost"), "{out}");
}

/// Checks that the recording ends with the trace and is complete, while the program continues.
#[test]
fn a_recording_ends_with_the_trace() {
    let folder = Folder::new("run-duration");
    let file = folder.path("run.mhk");
    let mut command = Command::new(binary());
    command.args(["run", "-d", "300ms", "-qo", &file, "--"]);
    command.arg(build_target("canary", &["-pthread"]));
    let mut target = Target::run(&mut command);
    target.descend();
    until("the launcher has left", || {
        target.status("TracerPid") == "0"
    });
    // A report on a complete recording must not say that the end of the recording is missing.
    until("the recording is complete", || {
        let (code, _, errors) = run(&["report", &file]);
        code == 0 && errors.is_empty()
    });
    target.go();
    assert!(target.finish().success());
}
