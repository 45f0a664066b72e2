//! Names of a process, its functions and files may contain terminal control sequences, which must
//! not reach a terminal.

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, Target, binary, build_target, run};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A terminal title, a line that imitates our own output, and a right-to-left override.
const NAME: &str = "evil\x1b]0;owned\x07\nmemhook-rs: all is well\u{202e}\u{9b}2J";

/// Builds a target with a malicious file name and function name.
fn program(folder: &Folder) -> PathBuf {
    let built = build_target("foreign_names", &["-O1", "-fno-inline"]);
    let program = PathBuf::from(folder.path("tar\x1b[31mget\ry"));
    let status = Command::new("objcopy")
        .args(["--strip-debug", "--redefine-sym"])
        .arg(format!("harmless_name={NAME}"))
        .args([&built, &program])
        .status();
    assert!(status.expect("objcopy").success());
    program
}

/// Checks that a text contains no terminal control sequences, except for colours if these are
/// allowed.
fn check(what: &str, text: &str, colors: bool) {
    let mut rest = text;
    let mut seen = String::new();
    while let Some(at) = rest.find("\x1b[").filter(|_| colors) {
        seen += &rest[..at];
        let color = &rest[at + 2..];
        let end = color.find(|c: char| !c.is_ascii_digit() && c != ';');
        let end = end.expect("a colour has an end");
        assert_eq!(&color[end..=end], "m", "{what}: {text:?}");
        rest = &color[end + 1..];
    }
    seen += rest;
    let acts = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
    assert!(!seen.contains(acts), "{what}: {seen:?}");
    let spoofed = seen
        .lines()
        .any(|line| line.starts_with("memhook-rs: all is well"));
    assert!(!spoofed, "{what}: {seen}");
}

/// Attaches to a running instance of the program, and returns standard output and standard error.
fn attach(program: &Path, options: &[&str]) -> (String, String) {
    let mut target = Target::start(program, &[]);
    let mut attacher = Command::new(binary())
        .args(["attach", "-i", "1h", &target.pid().to_string()])
        .args(options)
        .env("XDG_CACHE_HOME", "/dev/null")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut pipe = BufReader::new(attacher.stderr.take().expect("piped"));
    let mut errors = String::new();
    while !errors.contains("Attached to") {
        assert!(pipe.read_line(&mut errors).expect("text") > 0, "{errors}");
    }
    target.go();
    target.expect("done");
    // SAFETY: plain integers; the child has not been waited for.
    unsafe { libc::kill(attacher.id() as i32, libc::SIGINT) };
    let mut out = String::new();
    attacher
        .stdout
        .take()
        .expect("piped")
        .read_to_string(&mut out)
        .expect("text");
    pipe.read_to_string(&mut errors).expect("text");
    assert!(attacher.wait().expect("it ends").success(), "{errors}");
    assert!(target.finish().success());
    (out, errors)
}

#[test]
fn nothing_acts_on_the_terminal() {
    let folder = Folder::new("foreign-names");
    let program = program(&folder);
    for color in ["never", "always"] {
        let (out, errors) = attach(&program, &["--color", color, "-v"]);
        check("attach", &out, color == "always");
        check("attach's errors", &errors, false);
        assert!(
            out.contains("evil\\x1b]0;owned\\x07\\x0amemhook-rs: all is well\\u{202e}\\x9b2J"),
            "{out}"
        );
        assert!(
            out.contains("\\x1b]0;owned\\x07\\x0ax\\x7f"),
            "the process: {out}"
        );
        assert!(errors.contains("INFO attach{pid="), "{errors}");
        assert!(errors.contains("\\x1b]0;owned\\x07\\x0ax"), "{errors}");
    }
    // JSON contains the exact names, and is also harmless.
    let (out, errors) = attach(&program, &["--json"]);
    check("JSON", &out, false);
    check("its errors", &errors, false);
    let report: serde_json::Value = serde_json::from_str(out.trim()).expect("JSON");
    assert!(
        format!("{report:?}").contains(&format!("{NAME:?}")),
        "{out}"
    );
    assert_eq!(report["target"]["name"], "\x1b]0;owned\x07\nx\x7f");
}

#[test]
fn nor_does_it_from_a_recording() {
    let folder = Folder::new("foreign-names-recorded");
    let program = program(&folder);
    let file = folder.path("run.mhk");
    attach(&program, &["-o", &file]);
    for arguments in [
        &["report", &file][..],
        &["report", &file, "--color", "always", "-v"],
        &["report", &file, "--json"],
        &["report", &file, "--by", "function"],
        &["report", &file, "--by", "module"],
        &["report", &file, "--by", "thread"],
        &["report", &file, "--tree", "top-down"],
        &["report", &file, "--format", "folded"],
        &["report", &file, "--format", "speedscope"],
        &["report", &file, "--format", "massif"],
        &["diff", &file, &file],
        &["diff", &file, &file, "--json"],
        &["gate", "--allow-partial", &file],
    ] {
        let (code, out, errors) = run(arguments);
        check(
            &format!("{arguments:?}"),
            &out,
            arguments.contains(&"always"),
        );
        check(&format!("errors of {arguments:?}"), &errors, false);
        assert!(code <= 2, "{errors}");
    }
}

#[test]
fn nor_in_what_is_said_without_a_trace() {
    let folder = Folder::new("foreign-names-untraced");
    let program = program(&folder);
    let target = Target::start(&program, &[]);
    let pid = target.pid().to_string();
    for arguments in [
        &["doctor", &pid][..],
        &["scan", &pid],
        &["scan", &pid, "--json"],
        &["scan", &pid, "--census"],
        &["attach", &pid, "--dry-run"],
    ] {
        let (code, out, errors) = run(arguments);
        assert_eq!(code, 0, "{arguments:?}: {errors}");
        check(&format!("{arguments:?}"), &out, false);
        check(&format!("errors of {arguments:?}"), &errors, false);
    }
    assert!(target.finish().success());
    // Typed text is also foreign: it may have been pasted.
    let attacher = |arguments: &[&str]| run(arguments);
    for arguments in [
        &["attach", "\x1b]0;owned\x07\nx"][..],
        &["attach", "1", "--set", "functions=\x1b[2J\nx"],
        &["--\x1b[2J"],
        &["\x1b[2J\n"],
        &["report", "/nonexistent/\x1b[2J\n.mhk"],
        &["view", "/nonexistent/\x1b[2J\n.mhk"],
        &["scan", "--from", "/nonexistent/\x1b[2J\n"],
    ] {
        let (code, out, errors) = attacher(arguments);
        assert_eq!(code, 2, "{arguments:?}: {errors}");
        check(&format!("{arguments:?}"), &(out + &errors), false);
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

/// Checks that the tests' own attacher can parse the announcement for such a process.
#[test]
fn a_trace_of_it_is_as_any_other() {
    let folder = Folder::new("foreign-names-traced");
    let mut target = Target::start(&program(&folder), &[]);
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    assert_eq!(report["totals"]["live_bytes"], 7 * 321);
    assert!(target.finish().success());
}
