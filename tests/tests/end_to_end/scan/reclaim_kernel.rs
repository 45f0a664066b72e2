//! Reclaims in programs with blocks in use whose addresses are only in the kernel, or in memory
//! that the program cannot access. A reclaim keeps these blocks, or releases nothing.

use memhook_tests::scans::scan;
use memhook_tests::{Target, build_target, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build_target("kernel_references", &[]))
}

/// Checks that leaked blocks are released, and that the target then finds its blocks in use
/// unchanged.
fn reclaims_only_what_is_lost(mut target: Target) {
    let options = ["--reclaim", "--yes", "--json", "--twice", "50ms"];
    let report: serde_json::Value = serde_json::from_str(&scan(target.pid(), &options)).unwrap();
    assert!(report["released_blocks"].as_u64() >= Some(290), "{report}");
    target.send("c");
    assert_eq!(target.expect("done"), "done 0\n");
    assert!(target.finish().success());
}

/// Checks the counter of an eventfd, memory without read access, written pages of a file that is
/// mapped read-only, shared memory in no page table, a frame pointer mangled by setjmp,
/// set_tid_address, set_robust_list.
#[test]
fn what_the_kernel_tells_is_kept() {
    reclaims_only_what_is_lost(Target::start(program(), &[]));
}

/// Checks the rseq area of a thread, to which the kernel writes at each switch: releasing it would
/// kill the thread.
#[test]
fn restartable_sequences_of_its_own() {
    let mut command = Command::new(program());
    command
        .arg("r")
        .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    reclaims_only_what_is_lost(Target::run(&mut command));
}

/// Checks message queues and detached segments, whose contents no interface reveals.
#[test]
fn what_the_kernel_does_not_tell_is_a_refusal() {
    for (mode, why) in [
        ("q", "a POSIX message queue"),
        ("m", "a POSIX message queue"),
        ("s", "a System V shared memory segment that it has detached"),
    ] {
        let mut target = Target::start(program(), &[mode]);
        let pid = target.pid().to_string();
        let (code, out, err) = run(&["scan", &pid, "--reclaim", "--yes", "--twice", "10ms"]);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains(why) && err.lines().count() == 1, "{err}");
        // A scan also reports this.
        let report = scan(target.pid(), &[]);
        assert!(report.contains(&format!("not searched: {why}")), "{report}");
        target.send("c");
        assert_eq!(target.expect("done"), "done 0\n");
        assert!(target.finish().success());
    }
}
