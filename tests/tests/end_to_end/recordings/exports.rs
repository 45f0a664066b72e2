//! Formats for other programs, directly from a trace.

use memhook_tests::programs::Folder;
use memhook_tests::{Target, binary, build_target, run};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

/// Traces the program from "ready" to "done", and returns the output.
fn traced(format: &str, output: &str) -> Vec<u8> {
    let mut target = Target::start(&build_target("deterministic", &["-g"]), &[]);
    let mut attacher = Command::new(binary())
        .args([
            "attach",
            "-f",
            format,
            "-o",
            output,
            &target.pid().to_string(),
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut errors = BufReader::new(attacher.stderr.take().expect("piped"));
    let mut text = String::new();
    errors.read_line(&mut text).expect("text");
    assert!(text.starts_with("Attached to"), "{text}");
    target.go();
    target.expect("done");
    // SAFETY: kill takes plain integers; the child has not been waited for.
    unsafe { libc::kill(attacher.id() as i32, libc::SIGINT) };
    errors.read_to_string(&mut text).expect("text");
    assert!(!text.contains("into"), "the recording is nobody's: {text}");
    let ended = attacher.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{text}");
    assert_eq!(ended.stdout, b"", "reports are not mixed with it");
    assert!(target.finish().success());
    std::fs::read(output).expect("written")
}

#[test]
fn a_live_trace_has_every_format() {
    let folder = Folder::new("live-exports");
    let folded = traced("folded", &folder.path("out.folded"));
    let folded = String::from_utf8(folded).expect("text");
    let line = folded
        .lines()
        .find(|line| line.contains(";kept"))
        .expect("a stack");
    let bytes: u64 = (0..500).map(|i| 100 + i).sum();
    assert!(line.ends_with(&format!(" {bytes}")), "{line}");
    assert!(line.starts_with("_start;"), "the root is the root: {line}");
    let pprof = traced("pprof", &folder.path("out.pb.gz"));
    assert_eq!(pprof[..2], [0x1f, 0x8b]);
    let left = std::fs::read_dir(folder.path("")).expect("a directory");
    assert_eq!(left.count(), 2, "nothing else is left behind");
}

/// Checks that neither the recording nor the output remains after the attacher is killed.
#[test]
fn nothing_is_left_of_one_that_was_killed() {
    let folder = Folder::new("live-export-killed");
    let mut target = Target::start(&build_target("deterministic", &["-g"]), &[]);
    for output in [Some(folder.path("out.folded")), None] {
        let mut attacher = Command::new(binary());
        attacher.args(["attach", "-f", "folded", &target.pid().to_string()]);
        attacher.args(output.iter().flat_map(|output| ["-o", output.as_str()]));
        let mut attacher = attacher
            .env("TMPDIR", folder.path(""))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut errors = BufReader::new(attacher.stderr.take().expect("piped"));
        let mut text = String::new();
        errors.read_line(&mut text).expect("text");
        assert!(text.starts_with("Attached to"), "{text}");
        attacher.kill().expect("killed");
        attacher.wait().expect("reaped");
        let left: Vec<_> = std::fs::read_dir(folder.path(""))
            .expect("a directory")
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}

#[test]
fn an_output_is_one_thing() {
    let folder = Folder::new("live-export-refused");
    let target = Target::start(&build_target("deterministic", &["-g"]), &[]);
    let recording = folder.path("out.mhk");
    let pid = target.pid().to_string();
    let (code, out, errors) = run(&["attach", &pid, "-f", "folded", "-o", &recording]);
    assert_eq!((code, out.as_str()), (2, ""), "{errors}");
    assert!(errors.contains("the output is a recording"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert_eq!(target.our_mappings(), 0);
}
