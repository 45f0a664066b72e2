//! Runs the step of `action.yml` that judges a program, in the same way as GitHub's runner: as a
//! script, with outputs for later steps.

use memhook_tests::programs::Folder;
use memhook_tests::{binary, build_target};
use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the script of the last step.
fn script() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../action.yml");
    let action = std::fs::read_to_string(path).expect("action.yml");
    let (_, step) = action.split_once("- name: Leak gate").expect("the step");
    let (_, script) = step.split_once("run: |\n").expect("its script");
    let lines = script.lines().map(str::trim_start);
    lines.collect::<Vec<_>>().join("\n")
}

/// Runs the step. Returns its exit code, its log, and its outputs.
fn step(
    folder: &Folder,
    command: &str,
    options: &str,
) -> (Option<i32>, String, HashMap<String, String>) {
    let outputs = folder.path("outputs");
    std::fs::write(&outputs, "").expect("a file");
    let path = std::env::var("PATH").unwrap_or_default();
    let own = binary().parent().expect("a folder").display();
    let output = Command::new("bash")
        .args(["--noprofile", "--norc", "-eo", "pipefail", "-c", &script()])
        .current_dir(folder.path(""))
        .env("PATH", format!("{own}:{path}"))
        .env("COMMAND", command)
        .env("OPTIONS", options)
        .env("RUNNER_TEMP", folder.path(""))
        .env("GITHUB_STEP_SUMMARY", folder.path("summary.md"))
        .env("GITHUB_OUTPUT", &outputs)
        .stdin(Stdio::null())
        .output()
        .expect("bash");
    let text = std::fs::read_to_string(outputs).expect("the outputs");
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut log = String::from_utf8_lossy(&output.stdout).into_owned();
    log += &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), log, pairs.collect())
}

#[test]
fn later_steps_learn_leaks_bytes_and_the_sarif_file() {
    let folder = Folder::new("action");
    let cases = build_target("gate_cases", &["-O1", "-g"]);
    let cases = cases.display();
    for (case, options, code, leaks, bytes, sarif) in [
        ("plain", "", 1, "1", "960", "memhook-rs.sarif"),
        ("nothing", "", 0, "0", "0", "memhook-rs.sarif"),
        (
            "plain",
            "--fail-on 'leaked > 1K'",
            0,
            "1",
            "960",
            "memhook-rs.sarif",
        ),
        (
            "plain",
            "--suppress '^block$'",
            0,
            "0",
            "0",
            "memhook-rs.sarif",
        ),
        ("plain", "-o sarif=own.sarif", 1, "1", "960", "own.sarif"),
    ] {
        let (status, log, outputs) = step(&folder, &format!("'{cases}' {case}"), options);
        assert_eq!(status, Some(code), "{case} {options}: {log}");
        assert_eq!(outputs["leaks"], leaks, "{case} {options}: {log}");
        assert_eq!(outputs["bytes"], bytes, "{case} {options}: {log}");
        let file = Path::new(&folder.path("")).join(&outputs["sarif"]);
        assert_eq!(file.file_name().and_then(|name| name.to_str()), Some(sarif));
        let text = std::fs::read_to_string(&file).expect("the file for code scanning");
        assert!(text.contains("\"version\": \"2.1.0\"") || text.contains("\"version\":\"2.1.0\""));
    }
    let summary = std::fs::read_to_string(folder.path("summary.md")).expect("the summary");
    assert!(
        summary.contains("### FAILED: 1 leak, 960 B in 10 blocks"),
        "{summary}"
    );
    assert!(summary.contains("### PASSED: no leaks"), "{summary}");
    // The gate judged nothing, so there is no output.
    let (status, log, outputs) = step(&folder, "./nosuch", "");
    assert_eq!((status, outputs.len()), (Some(2), 0), "{log}");
}
