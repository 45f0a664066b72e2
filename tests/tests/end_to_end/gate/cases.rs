//! The verdicts of the gate and of LeakSanitizer on each case of `gate_cases.cc`.

use memhook_tests::releases::Release;
use memhook_tests::{binary, build_library, build_target};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Leaked blocks and bytes.
type Leaked = (u64, u64);

/// Verdict of LeakSanitizer.
enum Sanitizer {
    Same,
    /// A different verdict, for this reason.
    Differs(Leaked, &'static str),
    /// The gate gives this verdict in some runs and finds no leak in others, for this reason.
    Varies(&'static str),
}

use Sanitizer::{Differs, Same, Varies};

/// Name of the case, its leaks, and LeakSanitizer's verdict.
const CASES: &[(&str, Leaked, Sanitizer)] = &[
    ("nothing", (0, 0), Same),
    ("plain", (10, 960), Same),
    ("thousands", (7000, 3771200), Same),
    (
        "zero",
        (1, 0),
        Differs((1, 1), "it counts a block of 0 bytes as 1 byte"),
    ),
    ("global", (0, 0), Same),
    ("interior", (0, 0), Same),
    (
        "vector_end",
        (0, 0),
        Differs((1, 96), "it ignores pointers just past the end of a block"),
    ),
    ("thread_local", (0, 0), Same),
    ("thread_local_of_another", (0, 0), Same),
    ("thread_local_of_an_ended", (1, 100), Same),
    ("specific", (0, 0), Same),
    ("specific_of_another", (0, 0), Same),
    ("thread_stack", (0, 0), Same),
    ("register", (0, 0), Same),
    ("ended_thread", (1, 300), Same),
    ("list", (5, 240), Same),
    ("realloc_list", (65, 64 * 8 + 64 * 20), Same),
    ("resized_mappings", (20, 20 << 20), Same),
    ("cycle", (2, 96), Same),
    ("self", (1, 48), Same),
    ("containers", (0, 0), Same),
    ("shared_cycle", (2, 64), Same),
    ("array_of_objects", (0, 0), Same),
    ("leaked_array_of_objects", (4, 8 + 3 * 32 + 3 * 51), Same),
    ("module_global", (0, 0), Same),
    ("closed_module", (1, 700), Same),
    ("module_tls", (0, 0), Same),
    ("huge", (1, 64 << 20), Same),
    ("in_huge", (0, 0), Same),
    ("memalign", (3, 100 + 192 + 300), Same),
    ("in_freed", (1, 70), Same),
    ("hidden", (1, 80), Same),
    ("overwritten", (1, 60), Same),
    ("static_destructor", (1, 123), Same),
    ("exit_handler", (1, 55), Same),
    (
        "mapped",
        (0, 0),
        Differs(
            (1, 90),
            "it searches memory from mmap only if it is registered",
        ),
    ),
    ("environment", (0, 0), Same),
    ("stdio", (0, 0), Same),
    (
        "left_at_exit",
        (1, 66),
        Differs(
            (0, 0),
            "it does not check a program that ends by a system call",
        ),
    ),
    (
        "left_in_frames",
        (1, 88),
        Varies("it searches the frames of exit, whose contents depend on the stack's alignment"),
    ),
    (
        "child",
        (0, 0),
        Differs(
            (1, 77),
            "it checks each forked child at the child's exit, or not at all",
        ),
    ),
];

fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| build_library("gate_library", "libgate_library.so", &[]))
}

fn by_gate(program: &Path, case: &str) -> (Leaked, String) {
    let output = Command::new(binary())
        .args(["gate", "--json", "-", "--no-follow", "--"])
        .arg(program)
        .arg(case)
        .arg(library())
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = String::from_utf8_lossy(&output.stdout);
    let verdict: serde_json::Value =
        serde_json::from_str(line.trim()).unwrap_or_else(|e| panic!("{case}: {e}: {line}{text}"));
    let leaked = &verdict["leaked"];
    let number = |name: &str| leaked[name].as_u64().expect("a number");
    let found = (number("blocks"), number("bytes"));
    let expected = if found.0 > 0 { 1 } else { 0 };
    assert_eq!(output.status.code(), Some(expected), "{case}: {text}");
    (found, text)
}

fn by_sanitizer(program: &Path, case: &str) -> (Leaked, String) {
    let output = Command::new(program)
        .arg(case)
        .arg(library())
        .env("LSAN_OPTIONS", "exitcode=23")
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    // SUMMARY: LeakSanitizer: 960 byte(s) leaked in 10 allocation(s).
    let summary = text
        .lines()
        .find(|line| line.starts_with("SUMMARY: LeakSanitizer:"));
    let Some(summary) = summary else {
        assert_eq!(output.status.code(), Some(0), "{case}: {text}");
        return ((0, 0), text);
    };
    let numbers: Vec<u64> = summary
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    ((numbers[1], numbers[0]), text)
}

#[test]
fn as_leak_sanitizer_or_with_a_reason() {
    let plain = build_target("gate_cases", &["-O1", "-g"]);
    let sanitized = build_target("gate_cases", &["-O1", "-g", "-fsanitize=leak"]);
    let mut wrong = String::new();
    for (case, expected, sanitizer) in CASES {
        let (ours, our_text) = by_gate(&plain, case);
        let (theirs, their_text) = by_sanitizer(&sanitized, case);
        let (theirs_expected, reason) = match sanitizer {
            Same => (*expected, "it should agree"),
            Differs(other, reason) => (*other, *reason),
            Varies(reason) if theirs == (0, 0) => (theirs, *reason),
            Varies(reason) => (*expected, *reason),
        };
        if ours != *expected {
            wrong += &format!("{case}: gate {ours:?}, planted {expected:?}\n{our_text}\n");
        }
        if theirs != theirs_expected {
            wrong += &format!(
                "{case}: LeakSanitizer {theirs:?}, expected {theirs_expected:?} ({reason})\n{their_text}\n"
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Returns the cases in which the gate disagrees with the planted leaks.
fn wrong_on(release: &Release) -> String {
    let program = release.build_target("gate_cases", &["-O1", "-g"]);
    let mut wrong = String::new();
    for (case, expected, _) in CASES {
        let (found, text) = by_gate(&program, case);
        if found != *expected {
            let name = &release.name;
            wrong += &format!("{name}, {case}: {found:?}, planted {expected:?}\n{text}\n");
        }
    }
    wrong
}

/// Checks releases from glibc 2.31 to the newest, whose heap layout may be unknown.
#[test]
fn the_same_verdicts_on_other_releases() {
    let releases = Release::all();
    let wrong: String = releases.iter().map(wrong_on).collect();
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn the_same_verdicts_where_the_heap_cannot_be_dissected() {
    let release = Release::unknown();
    let wrong = wrong_on(&release);
    assert!(wrong.is_empty(), "{wrong}");
    let program = release.build_target("gate_cases", &["-O1", "-g"]);
    let (_, text) = by_gate(&program, "plain");
    assert!(text.contains("the heap of glibc 2.99"), "{text}");
    assert!(text.contains("covers only the traced blocks"), "{text}");
    // A forked child is not traced, so its leaks are unknown.
    let output = Command::new(binary())
        .args(["gate", "--follow-fork", "--"])
        .arg(&program)
        .arg("child")
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(
        text.contains("has a layout that scan does not know"),
        "{text}"
    );
}
