//! Programs in which a thread that is stopped at an arbitrary point holds, or waits for, a lock
//! that the loader needs. After each attach and detach, the program must still be able to load
//! libraries, look up users, create threads and fork.

use memhook_tests::{Attacher, Target, build_target, expect_sites, rounds};
use std::process::Command;

/// Returns the number of attaches to each program.
fn attaches() -> usize {
    rounds(10)
}

/// Attaches repeatedly, and returns the report with the most events. On a busy machine, the target
/// may not get to allocate anything during some of the traces.
fn stays_usable(mut target: Target, attaches: usize, must_allocate: bool) -> serde_json::Value {
    let mut report = serde_json::Value::Null;
    let seen = |report: &serde_json::Value| report["totals"]["allocations"].as_u64();
    for attach in 0.. {
        let is_shown = !must_allocate || seen(&report) > Some(0);
        if attach >= attaches && (is_shown || attach >= 10 * attaches) {
            break;
        }
        let next = Attacher::start(&target, &[]).finish();
        if seen(&next) >= seen(&report) {
            report = next;
        }
        target.send("u");
        target.expect("usable");
    }
    assert!(target.finish().success());
    report
}

/// Checks threads that exit or are joined, during which the lock of glibc's list of stacks is held.
#[test]
fn threads_that_fill_their_stacks_and_are_joined() {
    memhook_tests::patiently(|| {
        let program = build_target("adversary", &[]);
        stays_usable(Target::start(&program, &["joining"]), attaches(), false);
    });
}

/// Checks that the hook loads while a thread holds this lock and waits for memhook-rs to finish.
#[test]
fn the_list_of_stacks_is_locked() {
    let program = build_target("stack_list", &["-pthread"]);
    let mut target = Target::start(&program, &[]);
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("free");
    let report = attacher.finish();
    expect_sites(&report, "stack_list.cc", &[("main", "malloc", 1, 20)]);
    target.send("u");
    target.expect("usable");
    assert!(target.finish().success());
}

/// Checks a thread that flushes all streams: it holds the lock of the stream list while one stream
/// blocks.
#[test]
fn the_list_of_streams_is_locked() {
    let program = build_target("stream_list", &["-pthread"]);
    let mut target = Target::start(&program, &[]);
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("free");
    let report = attacher.finish();
    expect_sites(&report, "stream_list.cc", &[("main", "malloc", 1, 20)]);
    target.send("u");
    target.expect("usable");
    assert!(target.finish().success());
}

/// Checks repeated loads of the hook.
#[test]
fn threads_that_are_joined_by_many_programs() {
    memhook_tests::patiently(|| {
        let program = build_target("adversary", &[]);
        for _ in 0..attaches() {
            let mut target = Target::start(&program, &["joining"]);
            Attacher::start(&target, &[]).finish();
            target.send("u");
            target.expect("usable");
            assert!(target.finish().success());
        }
    });
}

/// Checks a thread that changes the credentials of all threads: it holds the lock of the list of
/// stacks until each thread has answered a signal.
#[test]
fn credentials_that_change_all_the_time() {
    memhook_tests::patiently(|| {
        let program = build_target("adversary", &[]);
        stays_usable(Target::start(&program, &["setxid"]), attaches(), false);
    });
}

/// Checks that a thread that is stopped inside a restartable sequence (rseq) restarts the sequence
/// instead of continuing with stale values.
#[test]
fn restartable_sequences() {
    memhook_tests::patiently(|| {
        let program = build_target("adversary", &[]);
        stays_usable(Target::start(&program, &["sequences"]), attaches(), false);
    });
}

/// Checks programs whose own malloc the loader calls.
#[test]
fn allocators_of_the_executable() {
    memhook_tests::patiently(|| {
        for kind in ["-DMUTEX", "-DSPIN", "-DCACHE"] {
            let program = build_target("executable_allocator", &["-O2", kind]);
            let report = stays_usable(Target::start(&program, &[]), attaches() / 2, true);
            assert_ne!(report["totals"]["allocations"], 0, "{kind}: {report:#}");
        }
    });
}

/// Checks allocators that are usually shared libraries, here linked into the executable.
#[test]
fn allocators_that_are_linked_into_the_executable() {
    memhook_tests::patiently(|| {
        for library in ["-l:libjemalloc.a", "-l:libtcmalloc_minimal.a"] {
            let program = build_target("executable_allocator", &["-O2", library]);
            let report = stays_usable(Target::start(&program, &[]), attaches() / 2, true);
            assert_ne!(report["totals"]["allocations"], 0, "{library}: {report:#}");
        }
    });
}

/// Checks stacks that have other data of the program directly below them.
#[test]
fn stacks_that_are_local_arrays() {
    memhook_tests::patiently(|| {
        let program = build_target("local_stacks", &[]);
        for kind in ["coroutine", "handler"] {
            let mut target = Target::run(Command::new(&program).arg(kind));
            for _ in 0..attaches() {
                Attacher::start(&target, &[]).finish();
                target.go();
                target.expect("intact");
            }
            assert!(target.finish().success(), "{kind}");
        }
    });
}
