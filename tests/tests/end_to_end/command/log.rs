//! The log of every step of memhook-rs, for curious users and for bug reports.

use memhook_tests::agents::wrapped_slots;
use memhook_tests::programs::Folder;
use memhook_tests::{Target, binary, build_target, run, run_with};
use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

fn target() -> Target {
    Target::start(&build_target("deterministic", &[]), &[])
}

/// Returns the lines of a log whose field after the time is this level.
fn lines<'a>(text: &'a str, level: &str) -> Vec<&'a str> {
    let has_level = |line: &&str| line.split_whitespace().nth(1) == Some(level);
    text.lines().filter(has_level).collect()
}

#[test]
fn is_off_until_it_is_wanted() {
    let target = target();
    let pid = target.pid().to_string();
    let attach = ["attach", "-d", "100ms", "-q", &pid];
    let (code, _, plain) = run(&attach);
    assert_eq!((code, &*plain), (0, ""));

    let (code, _, steps) = run(&[&attach[..], &["-v"]].concat());
    assert_eq!(code, 0, "{steps}");
    assert_eq!(lines(&steps, "DEBUG"), [""; 0], "{steps}");
    let attached = lines(&steps, "INFO").into_iter();
    let attached: Vec<&str> = attached.filter(|line| line.contains("attached")).collect();
    assert!(attached[0].contains(&format!("pid={pid}")), "{steps}");

    let (code, _, details) = run(&[&attach[..], &["-vv"]].concat());
    assert_eq!(code, 0, "{details}");
    for step in [
        "a thread is held",
        "a thread is let go",
        "the hook is in place",
    ] {
        let found = lines(&details, "DEBUG")
            .into_iter()
            .any(|line| line.contains(step));
        assert!(found, "{step}: {details}");
    }

    let wanted = [("MEMHOOK_LOG", "memhook_inject=debug")];
    let (code, _, holds) = run_with(&attach, &wanted);
    assert_eq!(code, 0, "{holds}");
    assert!(!holds.is_empty());
    // On a busy machine, a long delay causes a warning.
    let is_of_inject = |line: &str| line.contains(" memhook_inject::");
    assert!(holds.lines().all(is_of_inject), "{holds}");

    let (code, out, why) = run_with(&attach, &[("MEMHOOK_LOG", "memhook_inject=much")]);
    assert_eq!((code, &*out), (2, ""));
    assert_eq!(
        why,
        "memhook-rs: MEMHOOK_LOG=memhook_inject=much is not a filter: try debug, or memhook_heap=trace,info\n"
    );
    assert!(target.finish().success());
}

/// Returns a full pipe.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().expect("a pipe");
    let set = |writer: &PipeWriter, flags: i32| {
        // SAFETY: an open descriptor, and integers.
        let done = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, flags) };
        assert_eq!(done, 0);
    };
    set(&writer, libc::O_NONBLOCK);
    while writer.write(&[b'x'; 4096]).is_ok() {}
    // A process that inherited the flag would not block.
    set(&writer, 0);
    (reader, writer)
}

/// Checks that neither the attacher nor the target is blocked if the reader of the log stops
/// reading.
#[test]
fn nobody_waits_for_its_reader() {
    let target = target();
    let (reader, writer) = full_pipe();
    let mut attacher = Command::new(binary())
        .args(["attach", "-d", "100ms", "-q", &target.pid().to_string()])
        .env("MEMHOOK_LOG", "trace")
        .stdout(Stdio::null())
        .stderr(writer)
        .spawn()
        .expect("it starts");
    let status = memhook_tests::patience::end_of(&mut attacher);
    assert_eq!(status.code(), Some(0));
    drop(reader);
    assert_eq!(wrapped_slots(target.pid()), 0);
    assert!(target.finish().success());
}

#[test]
fn a_report_for_those_who_were_not_there() {
    let folder = Folder::new("problem-report");
    let target = {
        let mut command = Command::new(build_target("deterministic", &[]));
        Target::run(command.env("PASSWORD", "s3cret"))
    };
    let pid = target.pid().to_string();
    let file = folder.path("report.txt");
    let doctor = ["doctor", &*pid, "--report", &*file];
    let (code, out, errors) = run(&doctor);
    assert_eq!((code, &*errors), (0, ""), "{out}");
    assert!(
        out.contains(&format!("\nWrote {file}: versions, ")),
        "{out}"
    );
    let text = std::fs::read_to_string(&file).expect("it is there");
    let printed = out.split("\nWrote ").next().expect("text");
    for part in [
        printed.trim_end(),
        "kernel/osrelease: ",
        "Max address space ",
        "/libc.so.6",
        " DEBUG ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("s3cret"), "{text}");
    let (code, _, why) = run(&doctor);
    assert_eq!(code, 2);
    assert!(why.contains("exists already"), "{why}");
    let (code, ..) = run(&[&doctor[..], &["--force"]].concat());
    assert_eq!(code, 0);
    assert!(target.finish().success());
}
