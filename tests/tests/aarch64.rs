//! The command on AArch64, in an emulator: recordings made here are read, compared and judged there with
//! identical output, and commands that would trace a process are refused.

// For its `#[test]`, which lets a test pass if its requirements are not installed.
#[macro_use]
extern crate memhook_tests;

use memhook_tests::programs::{Folder, installed};
use memhook_tests::{binary, build_target, not_run};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PROCESSOR: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATORS: [&str; 2] = ["qemu-aarch64-static", "qemu-aarch64"];

/// The command for AArch64, and the emulator that runs it.
struct Elsewhere {
    emulator: &'static str,
    command: PathBuf,
}

fn runs(program: &str) -> bool {
    let mut command = Command::new(program);
    let command = command.arg("--version").stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Returns whether the standard library for this processor is installed beside the compiler.
fn has_standard_library() -> bool {
    let output = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", PROCESSOR])
        .output();
    output.is_ok_and(|output| {
        let directory = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success() && Path::new(&directory).is_dir()
    })
}

/// Returns whether the command can be compiled for that processor here. If not, the test has said why.
fn can_compile() -> bool {
    if !runs(LINKER) {
        not_run("there is no compiler for AArch64: install g++-aarch64-linux-gnu");
        return false;
    }
    if !has_standard_library() {
        not_run(
            "there is no standard library for AArch64: rustup target add aarch64-unknown-linux-gnu",
        );
        return false;
    }
    true
}

/// Has cargo do something with the command for that processor; a warning is an error.
fn cargo(what: &str) -> Output {
    Command::new(env!("CARGO"))
        .args([what, "-q", "-p", "memhook-cli", "--target", PROCESSOR])
        .arg("--message-format=json")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
        .env("RUSTFLAGS", "-D warnings")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo runs")
}

impl Elsewhere {
    /// Builds the command. `None`: it cannot be built or run here, and the test has said why.
    fn build() -> Option<Elsewhere> {
        let Some(emulator) = EMULATORS.into_iter().find(|emulator| runs(emulator)) else {
            not_run("there is no emulator for AArch64: install qemu-user-static");
            return None;
        };
        if !can_compile() {
            return None;
        }
        let output = cargo("build");
        assert!(
            output.status.success(),
            "the command does not build for AArch64"
        );
        let text = String::from_utf8_lossy(&output.stdout);
        let messages = text.lines().map(serde_json::from_str::<serde_json::Value>);
        let mut programs = messages.filter_map(|message| {
            let path = message.ok()?["executable"].as_str()?.to_owned();
            path.ends_with("/memhook-rs").then(|| PathBuf::from(path))
        });
        Some(Elsewhere {
            emulator,
            command: programs.next_back().expect("cargo names the program"),
        })
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut emulated = Command::new(self.emulator);
        output(emulated.arg(&self.command).args(words))
    }
}

/// Without names that the other one has found and kept.
fn output(command: &mut Command) -> Output {
    command
        .env("XDG_CACHE_HOME", "/dev/null")
        .env_remove("DEBUGINFOD_URLS")
        .stdin(Stdio::null())
        .output()
        .expect("it runs")
}

fn run_here(words: &[&str]) -> Output {
    output(Command::new(binary()).args(words))
}

/// Records a program; returns the file.
fn record(folder: &Folder, name: &str, options: &[&str], program: &[&str]) -> String {
    let file = folder.path(name);
    let output = run_here(&[&["run", "-q", "-o", &file][..], options, &["--"], program].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {errors}");
    file
}

fn shown(output: &Output) -> String {
    let [out, errors] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}\n{out}{errors}", output.status)
}

#[test]
#[ignore = "compiles the whole command once more: .ci/run ports"]
fn it_compiles_without_a_warning() {
    if can_compile() {
        let output = cargo("check");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
    }
}

#[test]
#[ignore = "builds the whole command once more, for minutes: .ci/run ports"]
fn recordings_are_read_alike_and_nothing_is_traced() {
    let Some(elsewhere) = Elsewhere::build() else {
        return;
    };
    let folder = Folder::new("aarch64");
    let program = build_target("deterministic", &["-g"]);
    let program = program.to_str().expect("UTF-8");
    let whole = record(&folder, "whole.mhk", &["--stacks", "all"], &[program]);
    let sums = record(&folder, "sums.mhk", &["--record", "summary"], &[program]);
    let sqlite = installed("sqlite3");
    let sqlite = sqlite.to_str().expect("UTF-8");
    let query = |rows: u32| {
        format!(
            "create table t(a, b); insert into t select value, hex(value) from generate_series(1, {rows}); \
             select count(*), max(b) from t;"
        )
    };
    let few = record(&folder, "few.mhk", &[], &[sqlite, ":memory:", &query(2000)]);
    let many = record(
        &folder,
        "many.mhk",
        &[],
        &[sqlite, ":memory:", &query(9000)],
    );
    let baseline = folder.path("baseline.json");
    let written = run_here(&["gate", "--write-baseline", &baseline, &few]);
    assert!(Path::new(&baseline).exists(), "{}", shown(&written));

    let questions: Vec<Vec<&str>> = vec![
        vec!["report", &whole],
        vec!["report", &whole, "--json", "-T", "1000"],
        vec!["report", &whole, "--peak", "--by", "function", "-v"],
        vec!["report", &whole, "--tree", "top-down"],
        vec!["report", &whole, "--tree", "bottom-up", "--blocks"],
        vec!["report", &whole, "--who-frees"],
        vec!["report", &whole, "--by", "lifetime"],
        vec!["report", &whole, "--at", "1ms", "--json"],
        vec!["report", &whole, "-f", "pprof"],
        vec!["report", &whole, "-f", "folded"],
        vec!["report", &whole, "-f", "flamegraph"],
        vec!["report", &whole, "-f", "heaptrack"],
        vec!["report", &whole, "-f", "massif"],
        vec!["report", &whole, "-f", "speedscope"],
        vec!["report", &many],
        vec!["report", &many, "--json", "--measure", "allocated"],
        vec!["report", &sums],
        vec!["diff", &few, &many],
        vec!["diff", &few, &many, "--json"],
        vec!["diff", &few, &many, "--fail-on", "growth > 1%"],
        vec!["diff", &many, &few, "--fail-on", "growth > 1%"],
        vec!["gate", "--max-live", "1K", &whole],
        vec!["gate", "--max-live", "1G", "--max-peak", "1G", &whole],
        vec!["gate", "--max-live", "1K", "--json", &whole],
        vec!["gate", "--baseline", &baseline, &few],
        vec!["gate", "--baseline", &baseline, &many],
        vec!["gate", &whole],
        vec!["report", &program],
        vec!["report", "/no/such/file"],
        vec!["--help"],
        vec!["report", "--help"],
        vec!["gate", "--help"],
    ];
    for words in questions {
        let (here, there) = (run_here(&words), elsewhere.run(&words));
        assert_eq!(
            here,
            there,
            "{words:?}\n{}\n{}",
            shown(&here),
            shown(&there)
        );
        assert!(!here.stdout.is_empty() || !here.stderr.is_empty());
    }
    // They do not agree by saying nothing of use.
    let text = shown(&elsewhere.run(&["report", &whole]));
    assert!(
        text.contains("kept") && text.contains("deterministic.cc:"),
        "{text}"
    );
    let code = |words: &[&str]| elsewhere.run(words).status.code();
    assert_eq!(code(&["gate", "--max-live", "1K", &whole]), Some(1));
    assert_eq!(code(&["gate", "--max-live", "1G", &whole]), Some(0));

    let pages = ["here.html", "there.html"].map(|name| folder.path(name));
    let page = |path: &str, output: Output| {
        assert!(output.status.success(), "{}", shown(&output));
        std::fs::read(path).expect("written")
    };
    let here = page(&pages[0], run_here(&["view", &whole, "-o", &pages[0]]));
    let there = page(&pages[1], elsewhere.run(&["view", &whole, "-o", &pages[1]]));
    assert!(here.len() > 10_000);
    assert!(here == there, "the pages differ");

    for command in ["attach", "detach", "doctor", "scan", "top"] {
        is_refused(&elsewhere, &[command, "1"]);
    }
    is_refused(
        &elsewhere,
        &["attach", "--cgroup", "/", "--all", "-d", "1s"],
    );
    is_refused(&elsewhere, &["demo"]);
    is_refused(&elsewhere, &["run", "--", "true"]);
    is_refused(&elsewhere, &["gate", "--", "true"]);
    let own = std::process::id().to_string();
    is_refused(&elsewhere, &["gate", "-p", &own, "-d", "1s"]);
}

fn is_refused(elsewhere: &Elsewhere, words: &[&str]) {
    let output = elsewhere.run(words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{words:?}: {errors}");
    assert!(output.stdout.is_empty(), "{words:?}");
    assert_eq!(errors.lines().count(), 1, "{words:?}: {errors}");
    assert!(
        errors.contains("not done yet on aarch64, only on x86-64"),
        "{words:?}: {errors}"
    );
}
