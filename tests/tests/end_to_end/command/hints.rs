//! Reports suggest the command for the next question, if it suits the process.

use memhook_tests::programs::{Folder, installed, installed_library};
use memhook_tests::terminal::Terminal;
use memhook_tests::{JsonSchema, Target, binary, build_target, run, until};
use serde_json::Value;
use std::process::{Command, Stdio};

const OTHER: &str = "These blocks come from ";
const HIDDEN: &str = "Python allocates objects of up to 512 bytes from its own arenas";
const NOTHING: &str = "Nothing grows: ";

/// Returns the last report of a short attach.
fn attached(target: &Target, more: &[&str]) -> String {
    let pid = target.pid().to_string();
    let words = [&["attach", &pid, "-q", "-d", "1500ms"], more].concat();
    let (code, output, errors) = run(&words);
    assert_eq!(code, 0, "{errors}");
    output
}

/// Returns the JSON field of the only module that has it.
fn in_json(target: &Target, field: &str) -> Value {
    let report: Value = serde_json::from_str(&attached(target, &["--json"])).expect("JSON");
    JsonSchema::load("report-1").check(&report);
    let modules = report["coverage"].as_array().expect("modules");
    let mut found = modules.iter().filter(|module| !module[field].is_null());
    let module = found.next().expect("a module").clone();
    assert!(found.next().is_none(), "{report:#}");
    module
}

/// Checks Debian's redis, which is linked to jemalloc.
#[test]
fn redis_on_jemalloc() {
    let folder = Folder::new("hints-redis");
    let socket = folder.path("socket");
    let mut server = Command::new(installed("redis-server"));
    server.args(["--port", "0", "--save", "", "--unixsocket", &socket]);
    let server = Target::silent(&mut server);
    until("the server listens", || {
        std::path::Path::new(&socket).exists()
    });
    let pid = server.pid();
    let report = attached(&server, &[]);
    let hint = format!(
        "{OTHER}jemalloc: scan knows its heap; rss {pid} asks it what it holds, \
         trim {pid} has it give memory back\n"
    );
    assert_eq!(report.matches(OTHER).count(), 1, "{report}");
    assert!(report.contains(&hint), "{report}");
    let module = in_json(&server, "allocator");
    assert_eq!(
        (&module["allocator"], &module["linked_in"]),
        (&"jemalloc".into(), &Value::Null)
    );
    // Checks that every statement is true.
    let id = pid.to_string();
    let (code, report, errors) = run(&["scan", &id]);
    assert_eq!(code, 0, "{report}{errors}");
    let (code, account, errors) = run(&["rss", &id]);
    assert!(
        code == 0 && account.contains("as jemalloc counts"),
        "{account}{errors}"
    );
    let (code, _, errors) = run(&["trim", &id]);
    assert_eq!(code, 0, "{errors}");

    let file = folder.path("run.mhk");
    attached(&server, &["-o", &file]);
    let (_, report, _) = run(&["report", &file]);
    assert!(report.contains("; rss PID asks it"), "{report}");
    // Debian's /usr/bin/redis-server is a link to redis-check-rdb.
    assert!(report.contains("redis-server, "), "{report}");
    assert!(!report.contains("redis-check"), "{report}");
    let (_, report, _) = run(&["report", &file, "--by", "size"]);
    assert!(!report.contains(OTHER), "not beside details: {report}");

    let command = format!(
        "'{}' top {pid}; echo exit=$?; sleep 1000",
        binary().display()
    );
    let terminal = Terminal::of_size("hints-top", &command, 200, 40);
    terminal.wait_for("live in");
    terminal.press("q", "exit=0");
    let screen = terminal.screen();
    assert!(screen.contains(&format!("{OTHER}jemalloc: ")), "{screen}");
}

#[test]
fn other_allocators_and_none() {
    let program = build_target("leaks", &[]);
    for (library, expected) in [
        ("", ""),
        ("libtcmalloc_minimal.so.4", "tcmalloc: scan knows its heap"),
        ("libmimalloc.so.2", "mimalloc: scan knows its heap"),
    ] {
        let mut command = Command::new(&program);
        if !library.is_empty() {
            command.env("LD_PRELOAD", installed_library(library));
        }
        let target = Target::run(&mut command);
        let report = attached(&target, &[]);
        assert_eq!(report.contains(OTHER), !library.is_empty(), "{report}");
        assert!(report.contains(expected), "{report}");
        assert_eq!(
            report.contains("; rss "),
            library.contains("tcmalloc"),
            "{report}"
        );
    }
    // jemalloc is loaded but not used.
    let mut python = Command::new(installed("python3"));
    let idle =
        "import ctypes; ctypes.CDLL('libmimalloc.so.2'); print('ready', flush=True); input()";
    let target = Target::run(python.env("PYTHONMALLOC", "malloc").args(["-c", idle]));
    let report = attached(&target, &[]);
    assert!(
        !report.contains(OTHER) && !report.contains(HIDDEN),
        "{report}"
    );
    // jemalloc, linked into the program.
    let program = build_target("leaks", &["-l:libjemalloc.a"]);
    let target = Target::start(&program, &[]);
    let report = attached(&target, &[]);
    assert!(
        report.contains(&format!("{OTHER}jemalloc, which is part of leaks")),
        "{report}"
    );
    assert_eq!(in_json(&target, "allocator")["linked_in"], true);
}

#[test]
fn python_with_its_own_arenas_and_without() {
    let text =
        "print('ready', flush=True)\nkept = []\nfor line in iter(input, ''): kept.append({})";
    for (value, is_hidden) in [("", true), ("malloc", false), ("malloc_debug", false)] {
        let python = || {
            let mut python = Command::new(installed("python3"));
            if !value.is_empty() {
                python.env("PYTHONMALLOC", value);
            }
            python
        };
        let target = Target::run(python().args(["-c", text]));
        let report = attached(&target, &[]);
        assert_eq!(report.contains(HIDDEN), is_hidden, "{value}: {report}");
        if is_hidden {
            let module = in_json(&target, "hidden");
            let hidden = module["hidden"].as_str().expect("text");
            assert!(hidden.starts_with(HIDDEN), "{hidden}");
        }
        drop(target);
        // The process has exited before the report is written.
        let variable = format!("PYTHONMALLOC={value}");
        let python = installed("python3").display().to_string();
        let program = [
            python.as_str(),
            "-c",
            "print(len([{} for n in range(1000)]))",
        ];
        let mut command = Command::new(binary());
        command.args(["run", "--"]).args(if value.is_empty() {
            program.to_vec()
        } else {
            [&["env", variable.as_str()], &program[..]].concat()
        });
        let output = command.output().expect("it runs");
        let report = String::from_utf8_lossy(&output.stderr);
        assert_eq!(report.contains(HIDDEN), is_hidden, "{value}: {report}");
    }
}

/// Checks a program that releases everything, for which the next question is which code allocates.
#[test]
fn only_temporary_blocks() {
    let text = "print('ready', flush=True)\nwhile True: bytearray(100_000)";
    let mut python = Command::new(installed("python3"));
    let target = Target::run(python.env("PYTHONMALLOC", "malloc").args(["-c", text]));
    let hint = format!(
        "Who allocates it: attach {} -o run.mhk, then report run.mhk --measure allocated",
        target.pid()
    );
    // The target may be suspended during the trace.
    until("it is said", || {
        let report = attached(&target, &["--size", "50000.."]);
        let is_said = report.contains(NOTHING) || report.contains("Nearly all of ");
        is_said && report.contains(&hint)
    });
    // The suggested command works.
    let folder = Folder::new("hints-temporary");
    let file = folder.path("run.mhk");
    attached(&target, &["--size", "50000..", "-o", &file]);
    let (code, report, errors) = run(&["report", &file, "--measure", "allocated"]);
    assert_eq!(code, 0, "{errors}");
    assert!(
        report.contains("#1 ") && !report.contains(NOTHING),
        "{report}"
    );
    // The report has no such hint for a program that keeps its allocations.
    let mut kept = Target::start(&build_target("leaks", &[]), &[]);
    let pid = kept.pid().to_string();
    let attacher = Command::new(binary())
        .args(["attach", &pid, "-q"])
        .env("XDG_CACHE_HOME", "/dev/null")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    // A trace that accepts a mark has begun.
    until("the attach", || run(&["mark", &pid, "begin"]).0 == 0);
    kept.go();
    kept.expect("done");
    // SAFETY: plain integers; the child has not been waited for.
    unsafe { libc::kill(attacher.id() as i32, libc::SIGINT) };
    let report = attacher.wait_with_output().expect("it ends").stdout;
    let report = String::from_utf8(report).expect("text");
    assert!(report.contains("#1 "), "{report}");
    assert!(
        !report.contains(NOTHING) && !report.contains("Nearly all"),
        "{report}"
    );
}

/// Checks that generated code is not reported as an unreadable file, and that each file leads to
/// one note, however often it is mapped.
#[test]
fn code_that_is_in_no_module() {
    let target = Target::start(&build_target("own_code", &["-O2"]), &[]);
    let pid = target.pid().to_string();
    let (code, found, errors) = run(&["doctor", &pid]);
    assert_eq!(code, 0, "{errors}");
    let note = "/memfd:made_code (deleted) is mapped as code but is not an ELF file";
    assert_eq!(found.matches(note).count(), 1, "{found}");
    assert!(!found.contains("unreadable"), "{found}");
    assert!(target.finish().success());
}
