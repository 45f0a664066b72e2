//! The gate from a script's point of view: exit codes, files, limits, baselines.

use memhook_tests::programs::Folder;
use memhook_tests::{JsonSchema, Target, binary, build_target, rounds, run};
use std::path::PathBuf;
use std::process::Command;

fn cases() -> PathBuf {
    build_target("gate_cases", &["-O1", "-g"])
}

/// Returns the exit code, standard output and standard error.
fn gate(options: &[&str], program: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(binary())
        .arg("gate")
        .args(options)
        .arg("--")
        .arg(cases())
        .args(program)
        .output()
        .expect("it runs");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn every_way_to_end() {
    for (end, code, word) in [
        ("exit", 1, "exit status 0"),
        ("exit 3", 3, "exit status 3"),
        ("_exit", 1, "exit status 0"),
        ("quick_exit", 1, "exit status 0"),
        ("abort", 128 + 6, "SIGABRT"),
        ("SIGSEGV", 128 + 11, "SIGSEGV"),
        ("SIGKILL", 128 + 9, "SIGKILL"),
        ("SIGTERM", 128 + 15, "SIGTERM"),
    ] {
        let (status, _, text) = gate(&[], &["ends", end]);
        assert_eq!(status, Some(code), "{end}: {text}");
        assert!(
            text.contains("\nFAILED: 1 leak, 960 B in 10 blocks (limit 0): block")
                && text.contains("\naccept it: "),
            "{end}: {text}"
        );
        assert!(text.contains(word), "{end}: {text}");
    }
}

/// Checks that the verdict is in the last lines of a log, because those are the lines that people
/// read.
#[test]
fn the_verdict_is_the_end_of_the_log() {
    let (_, _, text) = gate(&[], &["plain"]);
    let lines: Vec<&str> = text.lines().collect();
    let [.., verdict, remedy] = lines[..] else {
        panic!("{text}");
    };
    assert!(
        verdict.starts_with("FAILED: 1 leak, ") && verdict.contains("gate_cases.cc:"),
        "{text}"
    );
    assert!(
        remedy.starts_with("accept it: --gen-suppressions"),
        "{text}"
    );
    let (_, _, text) = gate(&["--gen-suppressions"], &["plain"]);
    assert_eq!(text.lines().last(), Some(remedy), "{text}");
    let (_, _, text) = gate(&["--verdict-only"], &["plain"]);
    assert_eq!(text.trim_end(), verdict, "{text}");
    // A program that fails on its own does not pass.
    let (status, _, text) = gate(&["--fail-on", "leaked > 1K"], &["ends", "exit 3"]);
    assert_eq!(status, Some(3), "{text}");
    let last = text.lines().last().unwrap_or_default();
    assert!(last.starts_with("1 leak within the limits"), "{text}");
    assert!(last.ends_with("itself failed with exit status 3"), "{text}");
}

#[test]
fn limits_and_exit_codes() {
    for (options, code) in [
        (&["--fail-on", "leaked > 960"][..], 0),
        (&["--fail-on", "leaked > 959"], 1),
        (&["--fail-on", "leaked-blocks > 10"], 0),
        (
            &["--fail-on", "leaked-blocks > 9", "--error-exitcode", "42"],
            42,
        ),
        (&["--fail-on", "leaked > 1K", "--fail-on", "peak > 1K"], 1),
        (
            &[
                "--fail-on",
                "leaked > 1K",
                "--fail-on",
                "live > 1G",
                "--fail-on",
                "peak > 1G",
            ],
            0,
        ),
        (
            &[
                "--fail-on",
                "leaked > 1K",
                "--fail-on",
                "site ^block$ > 959",
            ],
            1,
        ),
        (
            &[
                "--fail-on",
                "leaked > 1K",
                "--fail-on",
                "site ^block$ > 960",
            ],
            0,
        ),
        (
            &["--fail-on", "leaked > 1K", "--fail-on", "allocations > 1"],
            1,
        ),
        (&["--suppress", "^block$"], 0),
        (&["--suppress", "^bloc$"], 1),
        (&["--fail-on", "site nonsense"], 2),
        (&["--sample", "512K"], 2),
    ] {
        let (status, _, text) = gate(options, &["plain"]);
        assert_eq!(status, Some(code), "{options:?}: {text}");
    }
}

/// Checks that the peak includes blocks of the loader, which appear in no event but are live at the
/// end.
#[test]
fn the_peak_is_no_less_than_what_lives_at_the_end() {
    let (status, out, text) = gate(&["--json"], &["nothing"]);
    assert_eq!(status, Some(0), "{text}");
    let verdict: serde_json::Value = serde_json::from_str(&out).expect("one document");
    let evidence = &verdict["evidence"];
    let bytes = |of: &serde_json::Value| of.as_u64().expect("a number");
    let live = bytes(&evidence["reachable"]["bytes"]);
    assert!(live > 0, "{out}");
    assert!(bytes(&evidence["peak_bytes"]) >= live, "{out}");
}

#[test]
fn nothing_passes_that_was_not_seen() {
    let lossy = ["--on-full", "drop", "--set", "ring-size=64K"];
    let (status, _, text) = gate(&lossy, &["hammer"]);
    assert_eq!(status, Some(3), "{text}");
    assert!(
        text.contains("\nNO VERDICT") && text.contains("events were lost"),
        "{text}"
    );
    let mut allowed = lossy.to_vec();
    allowed.push("--allow-partial");
    let (status, _, text) = gate(&allowed, &["hammer"]);
    assert_eq!(status, Some(0), "{text}");
}

#[test]
fn a_baseline_holds_for_another_build() {
    let folder = Folder::new("baseline");
    let file = folder.path("baseline.json");
    let (status, _, text) = gate(&["--write-baseline", &file], &["plain"]);
    assert_eq!(status, Some(1), "{text}");
    let rebuilt = build_target(
        "gate_cases",
        &["-O1", "-g", "-DMOVED", "-fno-pie", "-no-pie"],
    );
    let run = |case: &str| {
        let output = Command::new(binary())
            .args(["gate", "--baseline", &file, "--"])
            .arg(&rebuilt)
            .arg(case)
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text)
    };
    let (status, text) = run("plain");
    assert_eq!(status, Some(0), "{text}");
    assert!(
        text.contains("in the baseline 960 B in 10 blocks"),
        "{text}"
    );
    let (status, text) = run("list");
    assert_eq!(status, Some(1), "{text}");
}

#[test]
fn several_outputs_at_once() {
    let folder = Folder::new("outputs");
    let [junit, sarif, markdown] = ["j.xml", "s.sarif", "m.md"].map(|name| folder.path(name));
    let forms = [
        ("junit", &junit),
        ("sarif", &sarif),
        ("markdown", &markdown),
    ];
    let forms = forms.map(|(form, path)| format!("--output={form}={path}"));
    let options = [&["--json", "-"], &forms.each_ref().map(String::as_str)[..]].concat();
    let (status, out, text) = gate(&options, &["list"]);
    assert_eq!(status, Some(1), "{text}");
    let json: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(json["schema"], "memhook-rs/gate/1");
    assert_eq!(json["findings"][0]["leak"]["direct"]["blocks"], 1);
    let read = |file: &str| std::fs::read_to_string(file).expect(file);
    assert!(read(&junit).contains("<failure"));
    let sarif: serde_json::Value = serde_json::from_str(&read(&sarif)).expect("JSON");
    JsonSchema::of_others("sarif-2.1.0").check(&sarif);
    let result = &sarif["runs"][0]["results"][0];
    let place = &result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"];
    assert!(
        place.as_str().is_some_and(|p| p.ends_with("gate_cases.cc")),
        "{place}"
    );
    assert!(read(&markdown).contains("### FAILED"));
    // The gate appends to the summary of a job.
    gate(&options, &["nothing"]);
    let both = read(&markdown);
    assert!(
        both.contains("### FAILED") && both.contains("### PASSED"),
        "{both}"
    );
    let (status, _, _) = gate(&["-o", "junit=/nonexistent/x.xml"], &["plain"]);
    assert_eq!(status, Some(2));
}

/// Checks --json as a flag, with its usual meaning, and with a file name in both notations.
#[test]
fn json_with_and_without_a_file() {
    let folder = Folder::new("gate-json");
    let file = folder.path("verdict.json");
    let schema = |text: &str| {
        let value: serde_json::Value = serde_json::from_str(text).expect("nothing but JSON");
        value["schema"].as_str().map(str::to_owned)
    };
    let (status, out, text) = gate(&["--json"], &["plain"]);
    assert_eq!(status, Some(1), "{text}");
    assert_eq!(schema(&out).as_deref(), Some("memhook-rs/gate/1"));
    assert!(text.contains("\nFAILED"), "{text}");
    for named in [&[&format!("--json={file}")[..]][..], &["--json", &file]] {
        let (status, out, text) = gate(named, &["plain"]);
        assert_eq!((status, out.as_str()), (Some(1), ""), "{text}");
        let written = std::fs::read_to_string(&file).expect("written");
        assert_eq!(schema(&written).as_deref(), Some("memhook-rs/gate/1"));
        std::fs::remove_file(&file).expect("there");
    }
    // For a running process, the text also goes to standard error, because standard output contains
    // the JSON.
    let target = Target::start(&build_target("gate_service", &["-O1", "-g"]), &["leak"]);
    let (_, out, text) = run(&["gate", "--json", "-p", &target.pid().to_string()]);
    assert_eq!(schema(&out).as_deref(), Some("memhook-rs/gate/1"), "{text}");
    assert!(text.contains("leak"), "{text}");
}

/// Checks that no program file is overwritten if the user forgets the --.
#[test]
fn no_program_is_overwritten() {
    let folder = Folder::new("gate-program");
    let program = folder.path("tests");
    memhook_tests::programs::copy_program(cases(), &program);
    let before = std::fs::read(&program).expect("there");
    let (code, out, err) = run(&["gate", "--json", &program, "plain"]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.contains("is a program") && err.contains("--"), "{err}");
    assert!(std::fs::read(&program).expect("there") == before);
}

#[test]
fn suppression_files() {
    let folder = Folder::new("suppressions");
    let file = folder.path("known.supp");
    let (_, _, text) = gate(&["--gen-suppressions"], &["plain"]);
    let from = text.find("leak:").expect("a suppression");
    let rules = text[from..].split("\n\n").next().expect("rules");
    std::fs::write(&file, rules).expect("written");
    let (status, _, text) = gate(&["--suppressions", &file], &["plain"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("suppressed 960 B in 10 blocks"), "{text}");
    let (status, _, text) = gate(&["--suppressions", &file], &["nothing"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("unused suppression: leak:"), "{text}");

    let valgrind = "{\n  known\n  Memcheck:Leak\n  match-leak-kinds: definite\n  fun:malloc\n  fun:block\n  ...\n  fun:main\n}\n";
    std::fs::write(&file, valgrind).expect("written");
    let (status, _, text) = gate(&["--suppressions", &file], &["plain"]);
    assert_eq!(status, Some(0), "{text}");
    std::fs::write(&file, "leak:a\nwhat\n").expect("written");
    let (status, _, text) = gate(&["--suppressions", &file], &["plain"]);
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("known.supp:2: "), "{text}");
}

/// Checks that the gate attributes leaks behind a wrapper of malloc to the wrapper's caller: one
/// bug is one leak for all call paths, and its suppression matches no other leak.
#[test]
fn wrappers_are_not_blamed() {
    let program = build_target("gate_wrapped", &["-O1", "-g"]);
    let folder = Folder::new("wrappers");
    let file = folder.path("known.supp");
    let program = program.to_str().expect("a name");
    let judged = |options: &[&str]| {
        let (_, out, err) =
            run(&[&["gate", "--json", "-"], options, &["--", program, "64"]].concat());
        let verdict: serde_json::Value = serde_json::from_str(&out).expect(&err);
        (verdict, err)
    };
    let (verdict, text) = judged(&["--gen-suppressions"]);
    assert_eq!(verdict["findings"].as_array().expect("findings").len(), 67);
    assert!(text.contains("\nFAILED: 4 leaks, "), "{text}");
    assert!(
        text.contains("6.2 KiB in 64 blocks leaked, by malloc"),
        "{text}"
    );
    assert!(
        text.contains("... and by 63 other ways to parse(int, int)"),
        "{text}"
    );
    let rules: Vec<&str> = text
        .split("\n\n")
        .filter(|part| part.starts_with("# "))
        .collect();
    assert_eq!(rules.len(), 4, "{text}");
    let mut alone = Vec::new();
    for rule in rules {
        assert!(!rule.contains("leak:^yaml_malloc"), "{text}");
        std::fs::write(&file, rule).expect("written");
        let (verdict, text) = judged(&["--suppressions", &file]);
        assert!(text.contains("\nFAILED: 3 leaks, "), "{rule}: {text}");
        alone.push(verdict["suppressed"]["bytes"].as_u64().expect("bytes"));
    }
    alone.sort_unstable();
    // A std::string and its text.
    assert_eq!(alone, [31, 32 + 501, 2000, 6400], "{text}");
    // The program's own wrapper.
    let (_, text) = judged(&["--wrapper", "^parse("]);
    assert!(text.contains("\nFAILED: 4 leaks, "), "{text}");
    assert!(text.contains("other ways to main"), "{text}");
}

/// Returns the first judgement on a process that matches the expectation, or the last judgement.
/// Each attempt takes longer than the previous attempt, because the process may be suspended.
fn judged(
    options: &[&str],
    durations: &[&str],
    is_it: impl Fn(&(i32, String, String)) -> bool,
) -> (i32, String, String) {
    let mut last = (0, String::new(), String::new());
    for &duration in durations {
        last = run(&[&["gate", "-d", duration], options].concat());
        if is_it(&last) {
            break;
        }
    }
    last
}

/// Returns the judgement on the growth of a process.
fn growth(
    pid: &str,
    options: &[&str],
    is_it: impl Fn(&(i32, String, String)) -> bool,
) -> (i32, String, String) {
    let options = [&["-p", pid, "--growth", "--warmup", "500ms"], options].concat();
    judged(&options, &["3s", "10s", "20s"], is_it)
}

#[test]
fn a_service_that_leaks_slowly_and_one_with_a_full_cache() {
    let program = build_target("gate_service", &["-O1", "-g"]);
    for (kind, code) in [("leak", 1), ("cache", 0)] {
        let target = Target::start(&program, &[kind]);
        let pid = target.pid().to_string();
        let (status, out, err) = growth(&pid, &[], |judged| [code, 1].contains(&judged.0));
        assert_eq!(status, code, "{kind}: {out}{err}");
        if kind == "leak" {
            assert!(
                out.contains("grows: ") && out.contains("keep_for_good"),
                "{out}"
            );
        }
        // Judges the current state without and with stacks. The leak is also unreachable.
        let (status, out, err) = run(&["gate", "-p", &pid]);
        assert_eq!(status, code, "{kind}: {out}{err}");
        let is_named = |out: &str| kind == "cache" || out.contains("keep_for_good");
        let (status, out, err) = judged(&["-p", &pid], &["500ms", "3s", "10s"], |judged| {
            is_named(&judged.1)
        });
        assert_eq!(status, code, "{kind}: {out}{err}");
        assert!(kind == "cache" || out.contains("keep_for_good"), "{out}");
        drop(target);
    }
}

/// Checks a growing block, while the number of blocks stays constant and none is old.
#[test]
fn a_service_whose_only_log_becomes_longer() {
    let program = build_target("gate_service", &["-O1", "-g"]);
    let target = Target::start(&program, &["log"]);
    let pid = target.pid().to_string();
    let (status, out, err) = growth(&pid, &[], |judged| judged.0 == 1);
    assert_eq!(status, 1, "{out}{err}");
    assert!(
        out.contains("more than at the beginning, in 1 block that became larger, by realloc")
            && out.contains("append_to_log"),
        "{out}"
    );
    let (status, out, err) = growth(&pid, &["--json"], |judged| judged.0 == 1);
    assert_eq!(status, 1, "{out}{err}");
    let verdict: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    memhook_tests::JsonSchema::load("gate-1").check(&verdict);
    let findings = verdict.to_string();
    assert!(findings.contains("\"kind\":\"size\""), "{out}");
    // All blocks are reachable.
    let (status, out, err) = run(&["gate", "-p", &pid]);
    assert_eq!(status, 0, "{out}{err}");
}

/// Checks that replacements of blocks from before the attach prove neither growth nor its absence.
#[test]
fn a_full_heap_whose_blocks_are_replaced() {
    let program = build_target("gate_service", &["-O1", "-g"]);
    let target = Target::start(&program, &["full"]);
    let pid = target.pid().to_string();
    let (status, out, err) = growth(&pid, &[], |judged| judged.1.contains("from before"));
    assert_eq!(status, 3, "{out}{err}");
    assert!(
        out.contains("too short to tell steady growth") && out.contains("from before the attach"),
        "{out}"
    );
}

/// Checks that the leaks at the exit of the last thread count, not those at the exit of the initial
/// thread.
#[test]
fn an_initial_thread_that_ends_first() {
    let program = build_target("leader_gone", &[]);
    for _ in 0..rounds(40) {
        let output = Command::new(binary())
            .args(["gate", "--"])
            .arg(&program)
            .arg("at-once")
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(" in 40 blocks (limit 0)"), "{text}");
    }
}
