//! The command on AArch64, in an emulator. It reads, compares and judges recordings of this machine with identical
//! output, and refuses commands that would trace a process.

// Provides a `#[test]` that lets a test pass if its requirements are not installed.
#[macro_use]
extern crate memhook_tests;

use memhook_tests::arm64::{self, Machine};
use memhook_tests::programs::{Folder, installed};
use memhook_tests::{binary, build_target, not_run, not_run_here};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const EMULATORS: [&str; 2] = ["qemu-aarch64-static", "qemu-aarch64"];
/// Processors without and with LSE atomics, and with all features of the emulator (PAC, BTI, SVE).
const PROCESSORS: [&str; 3] = ["cortex-a53", "neoverse-n1", "max"];
/// Time limit for a command in an emulated machine on a busy host.
const LIMIT: Duration = Duration::from_secs(300);

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

/// Builds the command with warnings as errors. If it cannot be compiled here, prints the reason and returns `None`.
fn built() -> Option<PathBuf> {
    if let Some(missing) = arm64::missing_tools() {
        not_run(missing);
        return None;
    }
    Some(arm64::build_command().expect("the command builds"))
}

impl Elsewhere {
    /// Builds the command. If it cannot be built or run here, prints the reason and returns `None`.
    fn build() -> Option<Elsewhere> {
        let Some(emulator) = EMULATORS.into_iter().find(|emulator| runs(emulator)) else {
            not_run("there is no emulator for AArch64: install qemu-user-static");
            return None;
        };
        let command = built()?;
        Some(Elsewhere { emulator, command })
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut emulated = Command::new(self.emulator);
        output(emulated.arg(&self.command).args(words))
    }
}

/// Returns the output of a command that is run without cached names.
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

/// Records a program, and returns the file.
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

/// Returns an emulated machine with this processor. If none is available, prints the reason and returns `None`.
fn machine(processor: &str) -> Option<Machine> {
    let machine = Machine::new(processor, LIMIT);
    machine.map_err(|why| not_run_here(&why)).ok()
}

#[test]
#[ignore = "fetches packages and emulates a machine: .ci/run ports"]
fn a_machine_hands_over_what_a_command_made() {
    if let Some(missing) = arm64::missing_tools() {
        return not_run(missing);
    }
    for processor in PROCESSORS {
        let Some(mut machine) = machine(processor) else {
            return;
        };
        machine.put(&arm64::build_for_glibc("leaks.cc"), "bin/leaks");
        let on_musl = arm64::build_for_musl(machine.root(), "on_musl.c", &[]);
        machine.put(&on_musl, "bin/on_musl");
        let script = "uname -m; echo g | leaks && echo g | on_musl 160; echo some >file; echo bad >&2; exit 7";
        let ended = machine.run(script).expect("it ends");
        let out = String::from_utf8_lossy(&ended.stdout);
        assert_eq!(out, "aarch64\nready\ndone\nready\ndone\n", "{ended:?}");
        assert_eq!(ended.stderr, b"bad\n");
        assert_eq!(ended.code, 7);
        let file = std::fs::read(ended.files.join("file"));
        assert_eq!(file.expect("brought back"), b"some\n");
    }
}

#[test]
#[ignore = "rebuilds the whole command, which takes minutes: .ci/run ports"]
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
        vec![
            "report",
            &whole,
            "--measure",
            "peak",
            "--by",
            "function",
            "-v",
        ],
        vec!["report", &whole, "--tree", "top-down"],
        vec!["report", &whole, "--tree", "bottom-up", "--blocks"],
        vec!["report", &whole, "--who-frees"],
        vec!["report", &whole, "--by", "lifetime"],
        vec!["report", &whole, "--to", "1ms", "--json"],
        vec!["report", &whole, "-f", "pprof"],
        vec!["report", &whole, "-f", "folded"],
        vec!["report", &whole, "-f", "flamegraph"],
        vec!["report", &whole, "-f", "heaptrack"],
        vec!["report", &whole, "-f", "massif"],
        vec!["report", &whole, "-f", "speedscope"],
        vec!["report", &many],
        vec!["report", &many, "--json", "--measure", "allocated"],
        vec!["report", &sums],
        vec!["advise", &whole],
        vec!["advise", &many, "--json"],
        vec!["diff", &few, &many],
        vec!["diff", &few, &many, "--json"],
        vec!["diff", &few, &many, "--fail-on", "growth > 1%"],
        vec!["diff", &many, &few, "--fail-on", "growth > 1%"],
        vec!["gate", "--fail-on", "live > 1K", &whole],
        vec![
            "gate",
            "--fail-on",
            "live > 1G",
            "--fail-on",
            "peak > 1G",
            &whole,
        ],
        vec!["gate", "--fail-on", "live > 1K", "--json", &whole],
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
    // Checks that the outputs do not agree merely because both are empty.
    let text = shown(&elsewhere.run(&["report", &whole]));
    assert!(
        text.contains("kept") && text.contains("deterministic.cc:"),
        "{text}"
    );
    let code = |words: &[&str]| elsewhere.run(words).status.code();
    assert_eq!(code(&["gate", "--fail-on", "live > 1K", &whole]), Some(1));
    assert_eq!(code(&["gate", "--fail-on", "live > 1G", &whole]), Some(0));

    let pages = ["here.html", "there.html"].map(|name| folder.path(name));
    let page = |path: &str, output: Output| {
        assert!(output.status.success(), "{}", shown(&output));
        std::fs::read(path).expect("written")
    };
    let here = page(&pages[0], run_here(&["view", &whole, "-o", &pages[0]]));
    let there = page(&pages[1], elsewhere.run(&["view", &whole, "-o", &pages[1]]));
    assert!(here.len() > 10_000);
    assert!(here == there, "the pages differ");

    for command in ["attach", "detach", "top"] {
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

/// Looks at a program with planted blocks and at one that notices whatever is done to it, as the first words of each line
/// say which of them has said it.
const LOOKS: &str = r#"
look() {
    name=$1; shift
    rm -f in out; mkfifo in; "$@" <in >out & pid=$!; exec 3>in
    until grep -q ready out; do sleep 0.05; done
    if [ "$name" != noticing ]; then
        printf g >&3
        until grep -q done out; do sleep 0.05; done
        sed "s/^/$name plan /" out
    fi
    for turn in 1 2 3; do
        memhook-rs scan --read-only --max-hold 5s --list $pid | sed "s/^/$name scan$turn /"
    done
    memhook-rs rss --read-only --max-hold 5s $pid >rss; echo "$name rss $?"
    memhook-rs advise --read-only --max-hold 5s --json $pid >advice; echo "$name advise $? $(grep -c findings advice)"
    memhook-rs watch --read-only -d 1s -o reports --when 'rss > 1K' $pid 2>/dev/null
    echo "$name watch $? $(ls reports/$pid-*.json | wc -l) $(grep -l '"reason": *"rss"' reports/$pid-*.json | wc -l)"
    memhook-rs doctor $pid >findings; echo "$name doctor $? $(grep -c 'ok  \|note' findings) $(grep FAIL findings)"
    memhook-rs scan $pid 2>refused; echo "$name plain $? $(wc -l <refused)"
    if [ "$name" = noticing ]; then
        printf g >&3
        until grep -q done out; do sleep 0.05; done
    fi
    exec 3>&-; wait $pid; echo "$name end $?"
}
look glibc planted_heap 3
look musl planted_heap-musl 3
look static planted_heap-static 3
look noticing only_read
"#;

/// Blocks that lines with these first words call `state`.
fn blocks(out: &str, words: &str, state: &str) -> BTreeSet<String> {
    let lines = out.lines().filter_map(|line| line.strip_prefix(words));
    let lines = lines.filter_map(|line| line.trim().strip_prefix(state));
    let addresses = lines.filter_map(|line| line.split_whitespace().next());
    addresses.map(str::to_owned).collect()
}

#[test]
#[ignore = "builds the whole command once more, and emulates machines: .ci/run ports"]
fn processes_are_searched_and_not_touched() {
    let Some(command) = built() else {
        return;
    };
    for processor in PROCESSORS {
        let Some(mut machine) = machine(processor) else {
            return;
        };
        machine.put(&command, "bin/memhook-rs");
        machine.put(
            &arm64::build_for_glibc("planted_heap.cc"),
            "bin/planted_heap",
        );
        machine.put(&arm64::build_for_glibc("only_read.cc"), "bin/only_read");
        for (linking, name) in [(&[][..], "musl"), (&["-static"], "static")] {
            let built = arm64::build_for_musl(machine.root(), "planted_heap.c", linking);
            machine.put(&built, &format!("bin/planted_heap-{name}"));
        }
        let ended = machine.run(LOOKS).expect("it ends");
        let out = String::from_utf8_lossy(&ended.stdout);
        let errors = String::from_utf8_lossy(&ended.stderr);
        let says = |line: &str| {
            assert!(
                out.lines().any(|l| l == line),
                "{processor}: {line}: {out}{errors}"
            )
        };
        for name in ["glibc", "musl", "static", "noticing"] {
            says(&format!("{name} rss 0"));
            says(&format!("{name} advise 0 1"));
            // The report of the condition, and the one at the end.
            says(&format!("{name} watch 0 2 1"));
            let doctor = format!("{name} doctor 2 ");
            let doctor = out.lines().find_map(|line| line.strip_prefix(&doctor));
            let doctor = doctor.unwrap_or_else(|| panic!("{processor}: {out}{errors}"));
            let (well, failed) = doctor.split_once(' ').expect("two words");
            assert!(
                well.parse::<u32>().is_ok_and(|checks| checks >= 5)
                    && failed.starts_with("FAIL processor"),
                "{processor}: {doctor}"
            );
            // Without `--read-only`, `scan` is refused with a one-line error.
            says(&format!("{name} plain 2 1"));
            // Contents are as they were, and no call has ended early.
            says(&format!("{name} end 0"));
        }
        for name in ["glibc", "musl", "static"] {
            let plan = |state| blocks(&out, &format!("{name} plan"), state);
            let (leaked, live) = (plan("leak"), plan("live"));
            assert!(
                leaked.len() == 186 && live.len() == 226,
                "{processor}: {out}{errors}"
            );
            let mut found = BTreeSet::new();
            for turn in 1..=3 {
                found.extend(blocks(&out, &format!("{name} scan{turn}"), "leak"));
            }
            let missed: Vec<&String> = leaked.difference(&found).collect();
            let wrong: Vec<&String> = found.difference(&leaked).collect();
            assert!(
                missed.is_empty() && wrong.is_empty(),
                "{processor}, {name}: missed {missed:?}, wrong {wrong:?}: {errors}"
            );
        }
    }
}

fn is_refused(elsewhere: &Elsewhere, words: &[&str]) {
    let output = elsewhere.run(words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{words:?}: {errors}");
    assert!(output.stdout.is_empty(), "{words:?}");
    assert_eq!(errors.lines().count(), 1, "{words:?}: {errors}");
    assert!(
        errors.contains("cannot be traced or changed on aarch64 yet, only on x86-64"),
        "{words:?}: {errors}"
    );
}
