//! Programs that create processes. The gate follows each process, and judges it separately if its
//! program is the user's own.

use memhook_tests::programs::{Folder, installed};
use memhook_tests::{binary, build_target, run_program};
use std::path::Path;
use std::process::Command;

/// Returns the exit code, the verdict as JSON, and standard error.
fn gate(
    options: &[&str],
    program: &Path,
    args: &[&str],
) -> (Option<i32>, serde_json::Value, String) {
    let folder = Folder::new("processes");
    let file = folder.path("verdict.json");
    let options = [&["gate", "--judge", "all", "--json", &file], options].concat();
    let (code, text, errors) = run_program(&options, &file, program, args);
    (code, serde_json::from_str(&text).expect("JSON"), errors)
}

/// Returns the outcomes of the processes whose program name contains this word.
fn outcomes<'a>(verdict: &'a serde_json::Value, word: &str) -> Vec<&'a str> {
    let processes = verdict["processes"].as_array().expect("several processes");
    let name = |p: &&serde_json::Value| {
        let program = p["evidence"]["program"].as_str().expect("a name");
        program.contains(word)
    };
    let of = processes.iter().filter(name);
    of.map(|p| p["outcome"].as_str().expect("an outcome"))
        .collect()
}

#[test]
fn every_way_to_make_a_process() {
    let program = build_target("gate_family", &["-O1", "-g", "-pthread"]);
    for kind in ["fork", "vfork", "spawn", "system"] {
        let (code, verdict, text) = gate(&[], &program, &[kind, "0"]);
        assert_eq!(code, Some(1), "{kind}: {text}");
        let leaf = format!("{} leaf ", program.display());
        assert_eq!(outcomes(&verdict, &leaf), ["failed"], "{kind}: {text}");
        assert_eq!(
            outcomes(&verdict, &format!(" {kind} ")),
            ["passed"],
            "{kind}: {text}"
        );
        let of = if kind == "system" { 3 } else { 2 };
        let verdict = format!("\nFAILED: 1 of {of} processes\naccept it: ");
        assert!(text.contains(&verdict), "{kind}: {text}");
        assert!(
            text.contains("\nFAILED: 1 leak, 40 B in 1 block (limit 0): "),
            "{text}"
        );
        // The leaks are within the limit, and the program's own failure determines the exit code.
        let (code, _, text) = gate(&["--fail-on", "leaked > 40"], &program, &[kind, "0"]);
        assert_eq!(code, Some(0), "{kind}: {text}");
        let (code, _, text) = gate(&[], &program, &[kind, "7"]);
        assert_eq!(code, Some(7), "{kind}: {text}");
    }
}

/// Writes a makefile whose target `test` runs this program `runs` times, each through a shell, half
/// of them without a leak.
fn tests_by_make(folder: &Folder, runs: u32) -> String {
    let program = build_target("gate_family", &["-O1", "-g", "-pthread"]);
    let clean = build_target("gate_cases", &["-O1", "-g"]);
    let makefile = folder.path("Makefile");
    let mut rules = "test:\n".to_owned();
    for number in 0..runs {
        rules += &match number % 2 {
            0 => format!("\t@{} leaf 0; true\n", program.display()),
            _ => format!("\t@{} reachable >/dev/null; true\n", clean.display()),
        };
    }
    std::fs::write(&makefile, rules).expect("written");
    makefile
}

/// Checks that the verdict is about the tests, and not about the build tools, which leak by design.
#[test]
fn tests_that_make_runs_are_judged_without_an_option() {
    let folder = Folder::new("make-test");
    let makefile = tests_by_make(&folder, 20);
    let [json, junit, sarif, markdown] =
        ["v.json", "v.xml", "v.sarif", "v.md"].map(|name| folder.path(name));
    let output = Command::new(binary())
        .args(["gate", "-o", "github", "--json", &json])
        .arg(format!("--output=junit={junit}"))
        .arg(format!("--output=sarif={sarif}"))
        .arg(format!("--output=markdown={markdown}"))
        .arg("--")
        .arg(installed("make"))
        .args(["-f", &makefile, "test"])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let line = "\nFAILED: 10 of 20 processes; not judged: sh (20), make\n";
    assert!(text.contains(line), "{text}");
    // One leak in ten processes is one entry.
    assert!(
        text.contains("#1 400 B in 10 blocks leaked, by malloc, in 10 processes\n"),
        "{text}"
    );
    assert!(!text.contains("#2 "), "{text}");
    assert!(text.lines().count() < 30, "{text}");
    let read = |file: &str| std::fs::read_to_string(file).expect("written");
    assert_eq!(read(&junit).matches("<failure").count(), 1);
    assert_eq!(
        read(&sarif).matches("\"ruleId\": \"memory-leak\"").count(),
        1
    );
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(printed.matches("::error").count(), 1, "{printed}");
    let markdown = read(&markdown);
    assert_eq!(markdown.matches("<details").count(), 1, "{markdown}");
    assert_eq!(markdown.matches("passed").count(), 1, "{markdown}");
    assert!(markdown.lines().count() < 30, "{markdown}");
    let verdict: serde_json::Value = serde_json::from_str(&read(&json)).expect("JSON");
    assert_eq!(verdict["processes"].as_array().map(Vec::len), Some(20));
    let not_judged = serde_json::json!([
        {"program": "sh", "processes": 20}, {"program": "make", "processes": 1}
    ]);
    assert_eq!(verdict["not_judged"], not_judged);
}

#[test]
fn programs_of_the_system_are_judged_by_name() {
    let program = build_target("gate_family", &["-O1", "-g", "-pthread"]);
    let script = format!("{} leaf 0; ls / >/dev/null; true", program.display());
    let judged = |options: &[&str]| {
        let folder = Folder::new("by-name");
        let file = folder.path("verdict.json");
        let options = [&["gate", "--json", &file], options].concat();
        let (code, json, text) = run_program(&options, &file, &installed("sh"), &["-c", &script]);
        (
            code,
            json,
            text.lines().last().unwrap_or_default().to_owned(),
        )
    };
    let (code, _, line) = judged(&[]);
    assert_eq!(code, Some(1), "{line}");
    let (code, json, _) = judged(&["--judge", "bin/ls$"]);
    assert_eq!(code, Some(1), "{json}");
    assert!(json.contains(": ls /"), "{json}");
    let (code, json, _) = judged(&["--no-follow"]);
    assert_eq!(code, Some(0), "{json}");
    assert!(json.contains("\"headline\":\"PASSED: no leaks\""), "{json}");
    // If no program is the user's own, the gate judges the command, and lists the programs that it
    // started.
    let folder = Folder::new("only-systems");
    let file = folder.path("verdict.json");
    let options = ["gate", "--json", &file];
    let (code, json, text) = run_program(
        &options,
        &file,
        &installed("sh"),
        &["-c", "ls / >/dev/null; true"],
    );
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(
        text.lines().last(),
        Some("PASSED: no leaks; not judged: ls"),
        "{json}"
    );
}

#[test]
fn processes_by_the_dozen_from_several_threads() {
    let program = build_target("gate_family", &["-O1", "-g", "-pthread"]);
    let (code, verdict, text) = gate(&[], &program, &["many", "0"]);
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(outcomes(&verdict, " leaf "), ["failed"; 40], "{text}");
}

#[test]
fn shells_and_make() {
    let program = build_target("gate_family", &["-O1", "-g", "-pthread"]);
    let folder = Folder::new("make");
    let makefile = folder.path("Makefile");
    let rule = format!(
        "test:\n\t{} leaf 0\n\tx=$$(echo a | cat); test $$x = a\n",
        program.display()
    );
    std::fs::write(&makefile, rule).expect("written");
    let (code, verdict, text) = gate(&[], &installed("make"), &["-f", &makefile, "test"]);
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(outcomes(&verdict, " leaf "), ["failed"], "{text}");
    assert_eq!(outcomes(&verdict, "make "), ["passed"], "{text}");
    assert_eq!(text.matches("PASSED").count(), 0, "{text}");
    let passed = " processes passed\n";
    assert!(text.contains(passed), "{text}");
    // If many processes are clean, the output does not list each of them.
    let clean = ["-c", "ls / | cat | head -3 >/dev/null; (exit 0); exit 0"];
    let (code, verdict, text) = gate(&[], &installed("sh"), &clean);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(outcomes(&verdict, ": cat"), ["passed"], "{text}");
    let count = verdict["processes"].as_array().expect("several").len();
    assert_eq!(text, format!("PASSED: all {count} processes\n"));
    let (code, _, text) = gate(&["-v"], &installed("sh"), &clean);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(text.matches("PASSED: no leaks: ").count(), count, "{text}");
}

#[test]
fn a_process_that_executes_nothing() {
    // No block of this process is unreachable, so there is a verdict.
    let clean = ["-c", "x=1; (x=2; y=$x; exit 0); exit 0"];
    let (code, verdict, text) = gate(&[], &installed("sh"), &clean);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(outcomes(&verdict, "(forked)"), ["passed"], "{text}");
    // The process that leaked the blocks is unknown.
    let program = build_target("gate_family", &["-O1", "-g", "-pthread"]);
    let (code, verdict, text) = gate(&[], &program, &["alone", "0"]);
    assert_eq!(code, Some(3), "{text}");
    assert_eq!(outcomes(&verdict, "(forked)"), ["unsound"], "{text}");
    assert!(
        text.contains("whether it lost 1 unreachable block (72 bytes)"),
        "{text}"
    );
}

#[test]
fn a_process_that_is_left_behind_gives_no_verdict() {
    let program = build_target("gate_family", &["-O1", "-g", "-pthread"]);
    let (code, verdict, text) = gate(&[], &program, &["left", "100"]);
    assert_eq!(code, Some(3), "{text}");
    assert_eq!(outcomes(&verdict, ": sleep"), ["unsound"], "{text}");
    assert!(text.contains("it still runs"), "{text}");
    let (code, _, text) = gate(&["--allow-partial"], &program, &["left", "100"]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn a_program_that_is_not_traced_gives_no_verdict() {
    let own = binary();
    let script = format!("{} --version >/dev/null", own.display());
    let (code, verdict, text) = gate(&[], &installed("sh"), &["-c", &format!("{script}; exit 0")]);
    assert_eq!(code, Some(3), "{text}");
    assert_eq!(
        outcomes(&verdict, &format!(": {} --version", own.display())),
        ["unsound"],
        "{text}"
    );
    assert!(
        text.contains("attaches to other processes itself"),
        "{text}"
    );
}

#[test]
fn each_process_is_recorded_and_reported() {
    let program = build_target("gate_family", &["-O1", "-g", "-pthread"]);
    let folder = Folder::new("recorded");
    let file = folder.path("run.mhk");
    let output = Command::new(binary())
        .args(["run", "--follow-fork", "--json", "-o", &file, "--"])
        .arg(&program)
        .args(["spawn", "5"])
        .output()
        .expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{errors}");
    let reports: Vec<serde_json::Value> = errors
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(reports.len(), 2, "{errors}");
    let child = reports
        .iter()
        .map(|r| r["target"]["pid"].as_i64().expect("a pid"));
    let files = std::fs::read_dir(Path::new(&file).parent().expect("a folder")).expect("read");
    let mut names: Vec<String> = files
        .map(|f| f.expect("a file").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    let of_child = names
        .iter()
        .find(|n| *n != "run.mhk")
        .expect("a second recording");
    let pid: i64 = of_child
        .strip_prefix("run.")
        .and_then(|n| n.strip_suffix(".mhk"))
        .and_then(|n| n.parse().ok())
        .expect("a pid");
    assert!(child.into_iter().any(|p| p == pid), "{names:?}");
    let text = |file: &str| {
        let (code, out, err) = memhook_tests::run(&["report", file]);
        assert_eq!(code, 0, "{err}");
        out
    };
    assert!(text(&folder.path(of_child)).contains("lose"), "{names:?}");
    assert!(!text(&file).contains("lose"));
    // Judges the recording.
    let site = [
        "gate",
        "--fail-on",
        "site ^lose$ > 39",
        &folder.path(of_child),
    ];
    assert_eq!(memhook_tests::run(&site).0, 1);
}
