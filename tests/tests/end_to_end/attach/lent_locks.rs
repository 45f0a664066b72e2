//! Programs whose allocator, auditor or hooks take a lock of the program's that a thread keeps while it sleeps: nothing
//! that an attach has the program do may call them.

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, Target, build_library, build_target, expect_sites, run};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Attaches while the lock is taken, and says what `doctor` says of the way in.
fn attach(mut target: Target, source: &str, planted: &[(&str, &str, u64, u64)]) -> String {
    let pid = target.pid().to_string();
    let (code, out, _) = run(&["doctor", &pid]);
    assert_eq!(code, 0, "{out}");
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    let report: Value = attacher.finish();
    expect_sites(&report, source, planted);
    assert_eq!(report["totals"]["lost_events"], 0, "{report:#}");
    target.send("u");
    target.expect("usable");
    assert!(target.finish().success());
    let way = out.lines().find(|line| line.contains("loading"));
    way.expect("the way in").to_owned()
}

const PLANTED: [(&str, &str, u64, u64); 4] = [
    ("leak_by_malloc", "malloc", 10, 77),
    ("leak_by_new", "new", 7, 123),
    ("leak_by_new_array", "new[]", 6, 321),
    ("leak_after_throw", "malloc", 5, 55),
];

#[test]
fn an_allocator_of_the_executable() {
    let program = build_target("lent_lock", &["-DOWN_ALLOCATOR", "-rdynamic"]);
    let way = attach(Target::start(&program, &[]), "lent_lock.cc", &PLANTED);
    assert!(way.contains("mapped without the loader"), "{way}");
    assert!(way.contains("lent_lock"), "{way}");
}

/// The program, started with a library in a variable of its environment.
fn with_library(variable: &str, library: &Path) -> Target {
    let program = build_target("lent_lock", &[]);
    Target::run(Command::new(program).env(variable, library))
}

#[test]
fn an_allocator_that_is_preloaded() {
    let library = build_library("lending_allocator", "lending_allocator.so", &["-pthread"]);
    let target = with_library("LD_PRELOAD", &library);
    let way = attach(target, "lent_lock.cc", &PLANTED);
    assert!(way.contains("mapped without the loader"), "{way}");
    assert!(way.contains("lending_allocator.so"), "{way}");
}

#[test]
fn an_auditor() {
    let library = build_library("lending_auditor", "lending_auditor.so", &["-pthread"]);
    let target = with_library("LD_AUDIT", &library);
    let way = attach(target, "lent_lock.cc", &PLANTED);
    assert!(way.contains("mapped without the loader"), "{way}");
    assert!(way.contains("lending_auditor.so"), "{way}");
}

/// Nothing of the program's is in the loader's way.
#[test]
fn no_one_who_would_take_it() {
    let target = Target::start(&build_target("lent_lock", &[]), &[]);
    let way = attach(target, "lent_lock.cc", &PLANTED);
    assert!(way.contains("is loaded by the loader"), "{way}");
}

#[test]
fn the_heap_profiler_of_gperftools() {
    let program = build_target("heap_profiled", &["-ltcmalloc"]);
    let folder = Folder::new("heap-profiled");
    let target = Target::start(&program, &[&folder.path("profile")]);
    let planted = [
        ("leak_by_malloc", "malloc", 10, 77),
        ("leak_by_new", "new", 7, 123),
    ];
    let way = attach(target, "heap_profiled.cc", &planted);
    assert!(way.contains("mapped without the loader"), "{way}");
    assert!(way.contains("tcmalloc"), "{way}");
}
