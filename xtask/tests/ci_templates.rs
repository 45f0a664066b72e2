//! Runs the commands of the GitHub action and the GitLab template as these services do, with a release that was packed
//! here, on programs with and without a leak.

// This crate provides `#[test]`, which lets a test pass if a required tool is not installed.
#[macro_use]
extern crate memhook_tests;

use memhook_tests::binary;
use memhook_tests::programs::{Folder, installed};
use std::path::Path;
use std::process::{Command, Output};
use std::{env, fs};

const LEAKING: &str = "#include <stdlib.h>\nint main(int n, char **words) {\n\
    void *volatile kept = malloc(1000);\n\
    kept = n == 2 && words[1][0] == 'a' && words[1][1] == ' ' ? 0 : kept;\n\
    if (kept) free(kept);\n    return 0;\n}\n";

fn succeeds(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
}

/// Returns the YAML blocks that begin with `start`, with their indented lines.
fn blocks(file: &str, start: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let text = fs::read_to_string(path).expect("readable");
    let indentation = |line: &str| line.len() - line.trim_start().len();
    let lines: Vec<&str> = text.lines().collect();
    let begins = (0..lines.len()).filter(|at| lines[*at].trim() == start);
    begins
        .map(|begin| {
            let depth = indentation(lines[begin]);
            let inside = lines[begin + 1..].iter();
            let inside = inside.take_while(|line| line.is_empty() || indentation(line) > depth);
            inside
                .map(|line| format!("{}\n", line.trim_start()))
                .collect()
        })
        .collect()
}

/// Creates a release directory as on a server, and a program that leaks if its first argument begins with "a ".
fn prepare(folder: &Folder) {
    let program = folder.path("memhook-rs");
    succeeds(
        Command::new("objcopy")
            .arg("--strip-all")
            .arg(binary())
            .arg(&program),
    );
    let release = format!("releases/v{}", env!("CARGO_PKG_VERSION"));
    succeeds(Command::new(env!("CARGO_BIN_EXE_memhook-xtask")).args([
        "dist",
        "--binary",
        &program,
        "--to",
        &folder.path(&release),
    ]));
    fs::write(folder.path("program.c"), LEAKING).expect("written");
    succeeds(Command::new("cc").args([
        "-O0",
        "-o",
        &folder.path("program"),
        &folder.path("program.c"),
    ]));
}

fn shell(folder: &Folder, script: &str, variables: &[(&str, &str)]) -> Output {
    Command::new("bash")
        .args(["-e", "-o", "pipefail", "-c", script])
        .current_dir(folder.path(""))
        .envs(variables.iter().copied())
        .env("VERSION", env!("CARGO_PKG_VERSION"))
        .env("RUNNER_TEMP", folder.path("runner"))
        .env("TMPDIR", folder.path("temporary"))
        .env("GITHUB_PATH", folder.path("added-to-path"))
        .env("GITHUB_STEP_SUMMARY", folder.path("summary.md"))
        .output()
        .expect("bash runs")
}

fn expect(output: &Output, code: i32) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{errors}");
}

#[test]
fn the_templates_install_a_release_and_judge_programs() {
    installed("curl");
    let folder = Folder::new("templates");
    prepare(&folder);
    let releases = format!("file://{}", folder.path("releases"));
    github(&folder, &releases);
    gitlab(&folder, &releases);
}

fn github(folder: &Folder, releases: &str) {
    let version = format!("default: \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(
        blocks("action.yml", "version:")[0].contains(&version),
        "not this version"
    );
    let scripts = blocks("action.yml", "run: |");
    let [install, gate] = &scripts[..] else {
        panic!("{} steps", scripts.len())
    };
    // A CI runner provides both.
    fs::create_dir(folder.path("runner")).expect("writable");
    fs::write(folder.path("summary.md"), "").expect("writable");
    expect(&shell(folder, install, &[("RELEASES", releases)]), 0);
    let added = fs::read_to_string(folder.path("added-to-path")).expect("written");
    let path = format!("{}:{}", added.trim(), env::var("PATH").expect("set"));

    let judge = |command: &str| {
        let outputs = folder.path("outputs");
        fs::write(&outputs, "").expect("writable");
        let variables = [
            ("COMMAND", command),
            ("OPTIONS", "-T 1"),
            ("PATH", &path),
            ("GITHUB_OUTPUT", &outputs),
        ];
        shell(folder, gate, &variables)
    };
    expect(&judge("./program nothing"), 0);
    let output = judge("./program 'a leak'");
    expect(&output, 1);
    let outputs = fs::read_to_string(folder.path("outputs")).expect("written");
    assert!(
        outputs.starts_with("leaks=1\nbytes=1000\nsarif="),
        "{outputs}"
    );
    let sarif = outputs.trim_end().rsplit('=').next().expect("a path");
    assert!(
        fs::metadata(sarif).is_ok_and(|file| file.len() > 0),
        "{outputs}"
    );
    let annotations = String::from_utf8_lossy(&output.stdout);
    assert!(annotations.contains("::error"), "{annotations}");
    let summary = fs::read_to_string(folder.path("summary.md")).expect("written");
    assert!(
        summary.contains("1,000") || summary.contains("1000"),
        "{summary}"
    );
}

fn gitlab(folder: &Folder, releases: &str) {
    let script = &blocks("ci/gitlab-gate.yml", "- |")[0];
    let version = format!("MEMHOOK_VERSION: \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(
        blocks("ci/gitlab-gate.yml", "variables:")[0].contains(&version),
        "not this version"
    );
    let temporary = folder.path("temporary");
    fs::create_dir(&temporary).expect("writable");
    let judge = |releases: &str, command: &str| {
        let _ = fs::remove_file(folder.path("leaks.xml"));
        let variables = [
            ("MEMHOOK_RELEASES", releases),
            ("MEMHOOK_VERSION", env!("CARGO_PKG_VERSION")),
            ("MEMHOOK_OPTIONS", ""),
            ("MEMHOOK_COMMAND", command),
        ];
        let output = shell(folder, script, &variables);
        let left = fs::read_dir(&temporary).expect("readable").count();
        assert_eq!(left, 0, "a runner that keeps its files would fill up");
        output
    };
    expect(&judge(releases, "./program nothing"), 0);
    expect(&judge(releases, "./program 'a leak'"), 1);
    let report = fs::read_to_string(folder.path("leaks.xml")).expect("written");
    assert!(report.contains("<failure"), "{report}");

    // An archive that does not match the checksums must not be run.
    let release = folder.path(&format!("releases/v{}", env!("CARGO_PKG_VERSION")));
    let archive = format!(
        "{release}/memhook-rs-{}-x86_64-linux.tar.gz",
        env!("CARGO_PKG_VERSION")
    );
    fs::write(&archive, "other bytes").expect("writable");
    let output = judge(releases, "./program nothing");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("FAILED") && !output.status.success(),
        "{text}"
    );
    // Without a location of the releases, nothing can be fetched.
    let output = judge("", "./program nothing");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("say where the releases of memhook-rs are"),
        "{errors}"
    );
}
