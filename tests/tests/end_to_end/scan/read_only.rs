//! Read-only commands under a seccomp filter that kills them if they do anything else, on a target
//! that checks itself afterwards.

use memhook_tests::patience::output_of;
use memhook_tests::programs::Folder;
use memhook_tests::{JsonSchema, Target, binary, build_target, run};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn built(name: &'static str, program: &'static OnceLock<PathBuf>) -> &'static Path {
    program.get_or_init(|| build_target(name, &["-O1", "-pthread"]))
}

fn target() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    built("only_read", &PROGRAM)
}

fn filter() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    built("may_only_read", &PROGRAM)
}

/// Runs the command under the filter.
fn filtered(pid: u32, command: &str, options: &[&str]) -> (i32, String, String) {
    let pid = pid.to_string();
    let binary = binary().to_str().expect("UTF-8");
    let mut words = Command::new(filter());
    words.args([&pid, binary, command, &pid]).args(options);
    let output = output_of(&mut words);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().unwrap_or(-1);
    (code, text(&output.stdout), text(&output.stderr))
}

fn leaked(report: &str) -> (u64, u64) {
    let report: Value = serde_json::from_str(report).expect("JSON");
    let totals = &report["totals"];
    let number = |name: &str| totals[name].as_u64().expect("a number");
    (number("leaked_blocks"), number("leaked_bytes"))
}

/// Checks that every read-only command works and has no effect on the program.
#[test]
fn a_filter_that_kills_for_everything_else() {
    for args in [&[][..], &["computes"]] {
        let mut process = Target::start(target(), args);
        for (command, options) in [
            ("scan", &["--read-only", "--json"][..]),
            ("rss", &["--read-only", "--pins"]),
            ("doctor", &["--read-only"]),
            ("scan", &["--read-only", "--census"]),
            ("advise", &["--read-only"]),
            ("stale", &["--read-only", "--older", "200ms"]),
        ] {
            let (code, out, err) = filtered(process.pid(), command, options);
            assert_eq!(code, 0, "{command}: {out}{err}");
            if matches!(command, "rss" | "advise" | "stale") {
                assert!(out.starts_with("Note: read only"), "{out}");
            }
            if options.contains(&"--json") {
                let (blocks, bytes) = leaked(&out);
                assert!(blocks >= 100 && bytes >= 77_700, "{out}");
            }
        }
        assert_eq!(process.status("TracerPid"), "0");
        process.go();
        process.expect("done");
        assert!(process.finish().success());
    }
}

/// Checks that the filter works: it kills the same commands without `--read-only`.
#[test]
fn the_filter_kills() {
    let mut process = Target::start(target(), &[]);
    for (command, options) in [
        ("scan", &[][..]),
        ("rss", &[]),
        ("advise", &["-d", "1s"]),
        ("stale", &["--older", "1s"]),
    ] {
        let (code, _, err) = filtered(process.pid(), command, options);
        assert!(
            err.contains("ended by signal"),
            "{command} ended with {code}: {err}"
        );
    }
    process.go();
    process.expect("done");
}

/// Checks that the report lists the missing data before the findings.
#[test]
fn what_is_not_known_is_said_first() {
    let mut process = Target::start(target(), &[]);
    let pid = process.pid().to_string();
    let (code, out, err) = run(&["scan", &pid, "--read-only"]);
    assert_eq!(code, 0, "{err}");
    let first = out.lines().next().expect("a line");
    assert!(first.starts_with("Note: read only: "), "{out}");
    let head = out.split("\nProcess ").next().expect("a head");
    assert!(head.contains("not stopped: threads "), "{out}");
    for what in [
        &["--reclaim"][..],
        &["--verdict", "file"],
        &["--snapshot", "fork"],
    ] {
        let (code, out, err) = run(&[&["scan", &pid, "--read-only"], what].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains("cannot be used with"), "{err}");
    }
    process.go();
    process.expect("done");
    assert!(process.finish().success());
}

/// Checks that memory to which the program writes counts as in use, and that other memory may be
/// stale.
#[test]
fn what_is_unchanged_may_be_stale() {
    let mut process = Target::start(target(), &["writes"]);
    let pid = process.pid().to_string();
    let options = ["--read-only", "--older", "1s", "--json", "-q"];
    let (code, out, err) = filtered(process.pid(), "stale", &options);
    assert_eq!(code, 0, "{err}");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    JsonSchema::load("stale-1").check(&report);
    assert_eq!(report["evidence"]["contents"], true);
    assert_eq!(report["totals"]["stale_bytes_low"], 0);
    let sites = report["sites"].as_array().expect("sites");
    let of = |from: u64| {
        let size = format!(" of {from}.0 KiB to ");
        let mut found = sites.iter().filter(|site| {
            site["kind"]
                .as_str()
                .is_some_and(|kind| kind.contains(&size))
        });
        let site = found.next().unwrap_or_else(|| panic!("no{size}: {report}"));
        let number = |name: &str| site[name].as_u64().expect("a number");
        let state = site["state"].as_str().expect("a state").to_owned();
        (number("live_blocks"), number("stale_bytes_high"), state)
    };
    let (blocks, bytes, state) = of(32);
    assert_eq!((blocks, bytes, state.as_str()), (64, 0, "in_use"));
    let (blocks, bytes, state) = of(16);
    assert_eq!((blocks, state.as_str()), (64, "unknown"));
    assert!(bytes >= 64 * 20_000, "{report}");
    let (code, out, err) = run(&["stale", &pid, "--read-only", "--older", "100ms", "-q"]);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.contains("which shows neither reads nor writes of the same bytes"),
        "{out}"
    );
    assert!(out.contains("at most "), "{out}");
    for option in [&["--budget", "2%"][..], &["--leaks"], &["-d", "1s"]] {
        let (code, out, err) = run(&[&["stale", &pid, "--read-only"], option].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains("cannot be used with"), "{err}");
    }
    process.go();
    process.expect("done");
    assert!(process.finish().success());
}

/// Checks that advice based on a single snapshot finds the leak, states that it is less certain
/// than advice based on a trace, and lists what a snapshot cannot show.
#[test]
fn advice_without_a_trace() {
    let mut process = Target::start(target(), &["leaks"]);
    let pid = process.pid();
    let (code, out, err) = filtered(pid, "advise", &["--read-only", "--json"]);
    assert_eq!(code, 0, "{err}");
    let advice: Value = serde_json::from_str(&out).expect("JSON");
    JsonSchema::load("advice-1").check(&advice);
    let first = &advice["findings"][0];
    assert_eq!(
        (&first["kind"], &first["certainty"]),
        (&"leak".into(), &"estimated".into())
    );
    let gain = first["gain_bytes"].as_u64().expect("bytes");
    assert!((8 << 20..9 << 20).contains(&gain), "{advice}");
    let notes = advice["notes"].to_string();
    assert!(
        notes.contains("nothing was traced, so it is not known what grows"),
        "{notes}"
    );
    let lines = advice["lines"].to_string();
    assert!(!lines.contains("since the attach"), "{lines}");
    let pid = pid.to_string();
    let (code, out, err) = run(&["advise", &pid, "--read-only"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("looked at once"), "{out}");
    let (code, out, err) = run(&["advise", &pid, "--read-only", "-d", "1s"]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    process.go();
    process.expect("done");
    assert!(process.finish().success());
}

/// Checks that a heap too large to copy within the longest permitted hold is copied while the
/// program runs.
#[test]
fn a_heap_that_takes_too_long() {
    let mut process = Target::start(target(), &["large"]);
    let options = ["--read-only", "--max-hold", "1ms"];
    let (code, out, err) = filtered(process.pid(), "scan", &options);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("it changed while it was read"), "{out}");
    assert!(out.contains("Snapshot by running"), "{out}");
    process.go();
    process.expect("done");
    assert!(process.finish().success());
}

/// Checks that a read-only watch reports the resident memory when its condition becomes true.
#[test]
fn watch_looks_when_memory_is_used() {
    let folder = Folder::new("watch-read-only");
    let mut process = Target::start(target(), &["large"]);
    let options = [
        "--read-only",
        "--when",
        "rss > 64M",
        "-d",
        "4s",
        "-o",
        &folder.path("reports"),
    ];
    let pid = process.pid().to_string();
    let (code, out, err) = run(&[&["watch", &pid][..], &options].concat());
    assert_eq!(code, 0, "{out}{err}");
    let report = folder.path(&format!("reports/{pid}-001-rss.json"));
    let report = std::fs::read(report).expect("a report");
    let report: Value = serde_json::from_slice(&report).expect("JSON");
    JsonSchema::load("watch-1").check(&report);
    assert!(report["report"].is_null(), "{report}");
    let notes = report["account"]["notes"].to_string();
    assert!(notes.contains("read only"), "{report}");
    assert_eq!(process.our_mappings(), 0);
    process.go();
    process.expect("done");
    assert!(process.finish().success());
}
