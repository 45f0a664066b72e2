//! An attacher that is alive but makes no progress must not keep its target waiting.

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, Target, binary, build_target, run, stop, until};
use std::process::{Command, Stdio};

fn calls(target: &mut Target) -> u64 {
    target.go();
    let line = target.expect("calls ");
    line["calls ".len()..].trim().parse().expect("a number")
}

/// Waits until the target has made more calls than the rings and the current passes can hold.
fn goes_on(target: &mut Target) {
    let before = calls(target);
    until("the target goes on", || calls(target) > before + 2_000_000);
}

#[test]
fn a_stopped_attacher() {
    let mut target = Target::start(&build_target("progress", &[]), &[]);
    let mut attacher = Attacher::start(&target, &[]);
    stop(attacher.pid());
    goes_on(&mut target);
    attacher.signal(libc::SIGCONT);
    attacher.wait_for("waited too long for memhook-rs and went on untraced");
    attacher.signal(libc::SIGINT);
    let (status, _, errors) = attacher.outcome();
    assert_eq!(status.code(), Some(1), "{errors}");
    // A new attach works as usual.
    let report = Attacher::start(&target, &[]).finish();
    assert_eq!(report["totals"]["lost_events"], 0);
    assert!(target.finish().success());
}

/// Checks an attacher whose reports and messages are not read.
#[test]
fn an_attacher_whose_output_is_full() {
    let mut target = Target::start(&build_target("progress", &[]), &[]);
    let folder = Folder::new("full-pipe");
    let fifo = folder.path("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("mkfifo runs").success());
    // Opens both ends of the pipe, so that neither side waits for the other to open it.
    let mut options = std::fs::File::options();
    let reader = options.read(true).write(true).open(&fifo).expect("a fifo");
    let mut attacher = Command::new(binary())
        .args(["attach", "--json", "-i", "1ms", "-T", "1000", "--force"])
        .args(["-o", &fifo, &target.pid().to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    until("it is traced", || target.our_mappings() > 0);
    for _ in 0..3 {
        goes_on(&mut target);
    }
    let (code, _, errors) = run(&["detach", &target.pid().to_string()]);
    assert_eq!(code, 2, "{errors}");
    let says = |what| errors.contains(what);
    assert!(
        says("is being traced") || says("already traced") || says("is working on"),
        "{errors}"
    );
    attacher.kill().expect("killed");
    attacher.wait().expect("reaped");
    drop(reader);
    goes_on(&mut target);
    assert_eq!(run(&["detach", &target.pid().to_string()]).0, 0);
    assert!(target.finish().success());
}
