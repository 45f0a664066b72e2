//! Targets in their own namespaces, with another root.

use memhook_tests::programs::{
    Folder, another_root, leave_without_user_namespaces, pivot_root, unshare,
};
use memhook_tests::{Attacher, Target, build_target, expect_sites, run};
use std::os::unix::fs::FileExt;
use std::process::Command;

fn in_namespaces(options: &[&str]) -> Target {
    let mut command = Command::new(unshare());
    command.args([
        "--mount",
        "--pid",
        "--ipc",
        "--uts",
        "--fork",
        "--kill-child",
    ]);
    let mut target = Target::run(command.args(options));
    target.descend();
    target
}

fn check(mut target: Target, root: &Folder, own_namespaces: &[&str]) {
    for kind in own_namespaces {
        let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/{kind}")).expect(kind);
        assert_ne!(of("self"), of(&target.pid().to_string()), "{kind}");
    }
    // In the namespace, the target's thread ids start at 1, and rings are released by these ids.
    assert!(target.status("NSpid").ends_with("\t1"));
    let files = || std::fs::read_dir(root.path("")).expect("its root").count();
    let before = files();
    Attacher::start(&target, &[]).finish();
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    expect_sites(
        &report,
        "threads.cc",
        &[("leak_in_thread", "malloc", 100, 48)],
    );
    let exe = report["target"]["exe"].as_str().expect("a path");
    assert!(exe.ends_with("/target"), "{exe}");
    assert_eq!(files(), before, "no file in the target's root");
    let (code, _, err) = run(&["detach", &target.pid().to_string()]);
    assert_eq!(code, 0, "{err}");
    assert!(target.finish().success());
}

/// Checks a target whose maps show paths as we see them.
#[test]
fn mount_and_pid_namespace_with_chroot() {
    let root = another_root(&[("target", &build_target("threads", &[]))]);
    let option = format!("--root={}", root.path(""));
    let target = in_namespaces(&["--mount-proc", &option, "/target"]);
    check(target, &root, &["mnt", "pid", "ipc", "uts"]);
}

#[test]
fn user_namespace_too() {
    leave_without_user_namespaces();
    let root = another_root(&[("target", &build_target("threads", &[]))]);
    let option = format!("--root={}", root.path(""));
    let target = in_namespaces(&[
        "--user",
        "--map-root-user",
        "--mount-proc",
        &option,
        "/target",
    ]);
    check(target, &root, &["mnt", "pid", "user"]);
}

/// Checks a target whose maps show paths in a different root, which is the case in containers.
#[test]
fn mount_namespace_with_pivoted_root() {
    let root = another_root(&[("target", &build_target("threads", &[]))]);
    let script = format!(
        "set -e; mount --bind {0} {0}; cd {0}; mkdir old; mount -t proc proc proc; \
         {1} . old; exec /target",
        root.path(""),
        pivot_root().display()
    );
    let target = in_namespaces(&["sh", "-c", &script]);
    let maps = target.maps();
    assert!(maps.contains(" /target\n"), "{maps}");
    check(target, &root, &["mnt", "pid"]);
}

/// Reads the byte of the hook's ELF header that says that the hook was mapped without the loader
/// (`MAPPED_MARK`).
fn is_mark_set(target: &Target) -> bool {
    let maps = target.maps();
    let hook = maps.lines().find(|line| line.contains("memhook-hook"));
    let (start, _) = hook
        .and_then(|line| line.split_once('-'))
        .expect("the hook");
    let start = u64::from_str_radix(start, 16).expect("an address");
    let memory = std::fs::File::open(format!("/proc/{}/mem", target.pid())).expect("memory");
    let mut header = [0; 16];
    memory.read_exact_at(&mut header, start).expect("a header");
    assert!(header.starts_with(b"\x7fELF"));
    header[15] == b'm'
}

/// Checks a target whose thread ids differ in this /proc.
#[test]
fn a_proc_of_the_namespace_outside() {
    let program = build_target("threads", &[]);
    let mut target = in_namespaces(&[program.to_str().expect("UTF-8")]);
    assert!(target.status("NSpid").ends_with("\t1"));
    let (code, out, _) = run(&["doctor", &target.pid().to_string()]);
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("is loaded by the loader"), "{out}");
    let attacher = Attacher::start(&target, &[]);
    assert!(!is_mark_set(&target), "it is loaded, not mapped");
    target.go();
    target.expect("done");
    let leaked = ("leak_in_thread", "malloc", 100, 48);
    expect_sites(&attacher.finish(), "threads.cc", &[leaked]);
    assert!(target.finish().success());
}

/// Checks that the attacher maps the hook without the loader if the loader cannot open it, and that
/// `doctor` says so.
#[test]
fn a_root_without_proc() {
    let root = another_root(&[("target", &build_target("threads", &[]))]);
    let option = format!("--root={}", root.path(""));
    let target = in_namespaces(&[&option, "/target"]);
    let (code, out, _) = run(&["doctor", &target.pid().to_string()]);
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("its file system has no /proc"), "{out}");
    check(target, &root, &["mnt", "pid"]);
}
