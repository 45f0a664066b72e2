//! Libraries that a program opens while memhook-rs cannot patch them: no output claims to be complete.

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, Target, build_library, build_on_musl, build_target, run, stop};
use serde_json::Value;

fn library(file: &str) -> String {
    let path = build_library("late_library", file, &[]);
    path.to_str().expect("UTF-8").to_owned()
}

/// Ends a trace. Returns its last report and its messages.
fn end(attacher: Attacher) -> (Value, String) {
    attacher.signal(libc::SIGINT);
    let (status, output, errors) = attacher.outcome();
    assert_eq!(status.code(), Some(0), "{errors}");
    let last = output.lines().last().expect("a report");
    (serde_json::from_str(last).expect("JSON"), errors)
}

/// Lets the target continue while its attacher is stopped.
fn goes_on_alone(target: &mut Target, attacher: &Attacher) {
    stop(attacher.pid());
    target.go();
    target.expect("done");
    attacher.signal(libc::SIGCONT);
}

/// Returns the number of live blocks that the opened libraries allocated.
fn blocks(report: &Value) -> u64 {
    let sites = report["sites"].as_array().expect("sites").iter();
    let of_library = sites.filter(|site| site["stack"][0]["function"] == "leak_in_library");
    of_library.filter_map(|site| site["blocks"].as_u64()).sum()
}

const WARNING: &str =
    "1 library was opened before memhook-rs could patch it: calls by it may be missing";

#[test]
fn of_a_stopped_attacher() {
    let folder = Folder::new("unwatched-libraries");
    let file = folder.path("run.mhk");
    let (first, second) = (library("libfirst.so"), library("libsecond.so"));
    let mut target = Target::start(
        &build_target("opens_when_told", &["-ldl"]),
        &[&first, &second],
    );
    let attacher = Attacher::start(&target, &["-o", &file]);
    target.go();
    target.expect("done");
    goes_on_alone(&mut target, &attacher);
    let (report, _) = end(attacher);
    assert_eq!(report["totals"]["unwatched_libraries"], 1, "{report:#}");
    assert_eq!(blocks(&report), 50, "{report:#}");
    let (code, json, errors) = run(&["report", &file, "--json"]);
    assert_eq!(code, 0, "{errors}");
    let recorded: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(recorded["totals"]["unwatched_libraries"], 1, "{recorded:#}");
    let (_, text, _) = run(&["report", &file]);
    assert!(text.starts_with(WARNING), "{text}");
    assert!(!text.contains("complete: "), "{text}");
    // A gate cannot decide.
    let (code, out, errors) = run(&["gate", "--fail-on", "live > 1M", &file]);
    assert_eq!(code, 3, "{out}{errors}");
    assert!((out + &errors).contains(WARNING));
    // A new attach sees all libraries from the beginning.
    let attacher = Attacher::start(&target, &["-o", &file, "--force"]);
    let (report, _) = end(attacher);
    assert_eq!(report["totals"]["unwatched_libraries"], 0, "{report:#}");
    let (_, text, _) = run(&["report", &file]);
    assert!(text.contains("complete: "), "{text}");
    assert!(target.finish().success());
}

/// Checks libraries that the C library opens for itself, without a call of dlopen.
#[test]
fn of_the_c_library() {
    let mut target = Target::start(&build_target("converts", &[]), &[]);
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    let (report, _) = end(attacher);
    let coverage = report["coverage"].as_array().expect("modules").iter();
    let utf16: Vec<_> = coverage
        .filter(|row| row["module"] == "UTF-16.so")
        .collect();
    let [utf16] = utf16[..] else {
        panic!("{report:#}");
    };
    let note = utf16["note"].as_str().expect("a text");
    assert!(
        note.starts_with("calls before memhook-rs found it"),
        "{note}"
    );
    assert!(target.finish().success());
}

#[test]
fn of_a_stopped_attacher_on_musl() {
    let Some(library) = build_on_musl("on_musl_library", &["-shared", "-fPIC"]) else {
        return;
    };
    let program = build_on_musl("on_musl", &[]).expect("built like the library");
    let mut target = Target::start(&program, &["0", library.to_str().expect("UTF-8")]);
    let attacher = Attacher::start(&target, &[]);
    goes_on_alone(&mut target, &attacher);
    let (report, _) = end(attacher);
    assert_eq!(report["totals"]["unwatched_libraries"], 1, "{report:#}");
    assert!(target.finish().success());
}
