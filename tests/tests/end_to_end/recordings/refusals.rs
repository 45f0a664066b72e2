//! Limits, damaged files, and unanswerable queries.

use super::{number, record};
use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, Target, binary, build_target, run};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn a_size_limit_ends_the_recording_not_the_trace() {
    memhook_tests::patiently(|| {
        let folder = Folder::new("recorded-limit");
        let file = folder.path("run.mhk");
        let program = build_target("oracle", &[]);
        let mut target = Target::start(&program, &["1500000", "2"]);
        let attacher = Attacher::start(&target, &["-o", &file, "--max-file-size", "1M"]);
        target.go();
        target.expect("live");
        attacher.signal(2);
        let (status, out, err) = attacher.outcome();
        assert!(status.success(), "{err}");
        assert!(err.contains("largest allowed size"), "{err}");
        let live: Value =
            serde_json::from_str(out.lines().last().expect("a report")).expect("JSON");
        assert!(target.finish().success());
        assert!(std::fs::metadata(&file).expect("there").len() <= 1 << 20);
        let (code, out, err) = run(&["report", &file, "--json"]);
        assert_eq!(code, 0, "{err}");
        assert!(err.contains("is not the whole run"), "{err}");
        let report: Value = serde_json::from_str(&out).expect("JSON");
        let (recorded, all) = (
            &report["totals"]["allocations"],
            &live["totals"]["allocations"],
        );
        assert!(
            number(recorded) > 0 && number(recorded) < number(all),
            "{recorded} of {all}"
        );
    });
}

#[test]
fn bad_input() {
    let folder = Folder::new("recorded-bad");
    let program = build_target("regression", &[]);
    let good = folder.path("good.mhk");
    record(&program, &[], &good, &[]);
    let bytes = std::fs::read(&good).expect("readable");
    let written = |name: &str, bytes: &[u8]| {
        let path = folder.path(name);
        std::fs::write(&path, bytes).expect("written");
        path
    };
    let text = written("text.mhk", b"not a recording at all, only some words");
    let empty = written("empty.mhk", b"");
    let start = written("start.mhk", &bytes[..30]);
    let mut version = bytes.clone();
    version[8] = 200;
    let version = written("version.mhk", &version);
    let mut damaged = bytes.clone();
    let middle = bytes.len() / 3;
    for byte in &mut damaged[middle..middle + 40] {
        *byte ^= 0x5a;
    }
    let damaged = written("damaged.mhk", &damaged);
    let missing = folder.path("missing.mhk");
    let taken = written("taken", b"somebody's");
    let pipe = folder.path("pipe.mhk");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    for (args, word) in [
        (vec!["report", &text], "not a recording"),
        (vec!["report", &empty], "the file is empty"),
        (vec!["report", &start], "empty"),
        (vec!["report", &version], "version"),
        (vec!["report", &damaged], "damaged"),
        (vec!["report", &missing], "No such file"),
        (vec!["report", "/tmp"], "a directory, not a recording"),
        (
            vec!["report", "/dev/null"],
            "use - and pass the recording on standard input",
        ),
        (
            vec!["report", &pipe],
            "use - and pass the recording on standard input",
        ),
        (vec!["diff", &good, "/tmp"], "a directory, not a recording"),
        (vec!["report", "-"], "standard input: the file is empty"),
        (
            vec!["report", &good, "--from", "1h"],
            "the recording covers",
        ),
        (
            vec!["report", &good, "--from", "20ms", "--to", "10ms"],
            "there is nothing between",
        ),
        (
            vec!["report", &good, "--from", "soon"],
            "a time since the attach",
        ),
        (vec!["report", &good, "--to", "1h"], "the recording ends"),
        (vec!["report", &good, "--to", "700"], "the unit is missing"),
        (vec!["report", &good, "-f", "word"], "unknown format"),
        (
            vec!["report", &good, "--measure", "hope"],
            "unknown measure",
        ),
        (
            vec!["report", &good, "--measure", "growth"],
            "--sort growth",
        ),
        (vec!["report", &good, "--who-frees"], "--stacks all"),
        (
            vec!["report", &good, "--symbols", &text],
            "not a symbol bundle",
        ),
        (vec!["report", &good, "--symbols", &missing], "cannot read"),
        (vec!["report", &good, "--sysroot", &missing], "cannot read"),
        (
            vec!["report", &good, "--sysroot", &text],
            "is not a directory",
        ),
        (vec!["report", &good, "-o", &taken], "exists already"),
        // The command is refused before any work: the damaged file is not even read.
        (vec!["report", &damaged, "-o", &taken], "exists already"),
        (vec!["view", &damaged, "-o", &taken], "exists already"),
        (
            vec!["report", &good, "--top", "abc"],
            "must be a whole number",
        ),
        (
            vec!["report", &good, "--top", "99999999999999999999"],
            "too large",
        ),
        (
            vec!["symbols", "pack", &good, "-o", &taken],
            "exists already",
        ),
        (
            vec!["symbols", "pack", &text, "-o", &missing],
            "not a recording",
        ),
        (vec!["diff", &good, &text], "not a recording"),
    ] {
        let (code, out, err) = run(&args);
        assert_eq!(code, 2, "{args:?}: {out}{err}");
        assert!(err.contains(word), "{args:?}: {err}");
        assert_eq!(err.trim_end().lines().count(), 1, "{args:?}: {err}");
        assert!(out.is_empty(), "{args:?}: {out}");
        assert!(!err.contains("os error"), "{args:?}: {err}");
    }
    assert_eq!(std::fs::read(&taken).expect("readable"), b"somebody's");
}

/// Checks that the intact part of a truncated file is reported, with a nonzero exit code.
#[test]
fn a_recording_that_is_cut() {
    let folder = Folder::new("recorded-cut");
    let whole = folder.path("whole.mhk");
    record(&build_target("regression", &[]), &[], &whole, &[]);
    let bytes = std::fs::read(&whole).expect("readable");
    let cut = folder.path("cut.mhk");
    // The index is at the end. Everything else is readable without it.
    let mut shown = Vec::new();
    for kept in [bytes.len() - 8, bytes.len() / 2, bytes.len() / 8] {
        std::fs::write(&cut, &bytes[..kept]).expect("written");
        for command in [&["report", &cut][..], &["diff", &whole, &cut]] {
            let (code, out, err) = run(command);
            assert_eq!(code, 2, "{command:?} {kept}: {out}{err}");
            assert!(err.contains("is not the whole run: "), "{err}");
            shown.push((kept, out, err));
        }
    }
    for (kept, out, err) in shown {
        let is_empty = err.contains("no event could be read");
        assert!(is_empty || err.contains("could be read"), "{kept}: {err}");
        assert!(
            !out.contains("No block was allocated since the attach"),
            "{kept}: {out}"
        );
        if is_empty && !out.contains("Diff") {
            assert!(!out.contains("is live"), "{kept}: {out}");
        }
    }
    let (code, ..) = run(&["report", &whole]);
    assert_eq!(code, 0);
}

#[test]
fn what_cannot_be_recorded_is_said_before_the_attach() {
    let folder = Folder::new("recorded-refused");
    let taken = folder.path("taken.mhk");
    std::fs::write(&taken, b"somebody's").expect("written");
    let program = build_target("regression", &[]);
    let target = Target::start(&program, &[]);
    let (pid, maps) = (target.pid().to_string(), target.maps());
    let new = folder.path("new.mhk");
    let nowhere = folder.path("no/such/folder/run.mhk");
    for (options, word) in [
        (vec!["-o", &taken], "exists already"),
        (vec!["-o", &nowhere], "cannot write"),
        (vec!["-o", &new, "--max-file-size", "10"], "at least 1M"),
        (vec!["-o", &new, "--max-file-size", "1M,0"], "SIZE,FILES"),
        (vec!["--record", "events"], "--output"),
        (
            vec!["-o", &new, "--record", "summary", "--sample", "1K"],
            "are not estimates",
        ),
    ] {
        let (code, out, err) = run(&[&["attach", &pid], &options[..]].concat());
        assert_eq!(code, 2, "{options:?}: {out}{err}");
        assert!(err.contains(word), "{options:?}: {err}");
        // Missing required options are listed one per line.
        let lines = if err.contains("not provided:\n") {
            3
        } else {
            1
        };
        assert_eq!(err.lines().count(), lines, "{options:?}: {err}");
    }
    assert_eq!(target.maps(), maps, "the target was not touched");
    assert_eq!(std::fs::read(&taken).expect("readable"), b"somebody's");
    assert!(!Path::new(&new).exists());
}

/// Checks `ssh host cat run.mhk | memhook-rs report -`.
#[test]
fn a_recording_on_standard_input() {
    let folder = Folder::new("recorded-stream");
    let file = folder.path("run.mhk");
    record(&build_target("regression", &[]), &[], &file, &[]);
    for command in [&["report"][..], &["report", "--json"], &["diff", &file]] {
        let (code, expected, err) = run(&[command, &[&file]].concat());
        assert_eq!(code, 0, "{command:?}: {err}");
        let mut cat = Command::new("cat")
            .arg(&file)
            .stdout(Stdio::piped())
            .spawn();
        let pipe = cat.as_mut().expect("cat").stdout.take().expect("piped");
        let mut ours = Command::new(binary());
        let ours = ours.args(command).arg("-").stdin(pipe);
        let output = ours
            .env("XDG_CACHE_HOME", "/dev/null")
            .output()
            .expect("it runs");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{command:?}: {err}");
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(
            out.replace("\"-\"", &format!("{file:?}")),
            expected,
            "{command:?}"
        );
        cat.expect("cat").wait().expect("it ends");
    }
}
