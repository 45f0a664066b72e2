//! Programs whose allocator, auditor or hooks take a lock that a sleeping thread holds. An attach
//! must not call these functions.

use crate::probes::neighbours::kernel_probe;
use memhook_tests::programs::Folder;
use memhook_tests::releases::Release;
use memhook_tests::{Attacher, Target, build_library, build_target, expect_sites, not_run, run};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Attaches while the lock is held, and returns `doctor`'s report on how the hook would be loaded.
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

/// Starts the program with a library in an environment variable.
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

/// The loader writes about each object into the program's output.
#[test]
fn a_loader_that_writes_about_its_work() {
    let folder = Folder::new("loader-output");
    let mut command = Command::new(build_target("lent_lock", &[]));
    command.env("LD_DEBUG", "files");
    command.env("LD_DEBUG_OUTPUT", folder.path("output"));
    let target = Target::run(&mut command);
    let output = folder.path(&format!("output.{}", target.pid()));
    let way = attach(target, "lent_lock.cc", &PLANTED);
    assert!(way.contains("LD_DEBUG"), "{way}");
    let output = std::fs::read_to_string(output).expect("the loader's output");
    assert!(output.contains("libc.so.6"), "{output}");
    let is_ours = |line: &&str| line.contains("memhook-hook") || line.contains("/fd/");
    assert_eq!(output.lines().find(is_ours), None);
}

/// The loader calls no code of the program.
#[test]
fn no_one_who_would_take_it() {
    let target = Target::start(&build_target("lent_lock", &[]), &[]);
    let way = attach(target, "lent_lock.cc", &PLANTED);
    assert!(way.contains("is loaded by the loader"), "{way}");
}

/// Before 2.34, the C library itself calls the hook (malloc_hook(3)). The variable is in the
/// program, because it is compiled without -fPIC.
#[test]
fn a_hook_of_malloc() {
    let releases = Release::all();
    let Some(old) = releases.iter().find(|release| release.glibc_minor() < 34) else {
        return not_run("it takes a glibc before 2.34: cargo xtask debian-roots");
    };
    let program = old.build_target("lent_lock", &["-DGLIBC_HOOK"]);
    // With this release, operator new appears as the malloc that it calls.
    let planted = PLANTED.map(|(site, _, blocks, bytes)| (site, "malloc", blocks, bytes));
    // The character conversion modules must also come from that release.
    let conversions = old.path("usr/lib/x86_64-linux-gnu/gconv");
    let target = Target::run(Command::new(program).env("GCONV_PATH", conversions));
    let way = attach(target, "lent_lock.cc", &planted);
    assert!(way.contains("mapped without the loader"), "{way}");
    assert!(way.contains("malloc_hook(3)"), "{way}");
}

/// Checks a uprobe in the C library, because modified code may call anything.
#[test]
fn a_kernel_probe_in_the_c_library() {
    let target = Target::start(&build_target("lent_lock", &[]), &[]);
    let maps = target.maps();
    let libc = maps.lines().find_map(|line| {
        let path = line.split_ascii_whitespace().nth(5)?;
        path.ends_with("/libc.so.6").then_some(path)
    });
    let libc = Path::new(libc.expect("a C library"));
    let Some(probe) = kernel_probe(target.pid(), libc, dynamic_function(libc, "malloc")) else {
        return not_run("the kernel permits no uprobes");
    };
    let way = attach(target, "lent_lock.cc", &PLANTED);
    assert!(way.contains("mapped without the loader"), "{way}");
    assert!(way.contains("the code of libc.so.6 was changed"), "{way}");
    drop(probe);
}

/// Returns the address of a function in a library's file. In Debian's library, file offsets of code
/// equal addresses.
fn dynamic_function(library: &Path, name: &str) -> u64 {
    let output = Command::new("nm").arg("-D").arg(library).output();
    let symbols = String::from_utf8(output.expect("nm runs").stdout).expect("text");
    let found = symbols.lines().find_map(|line| {
        let (address, symbol) = line.split_once(" T ")?;
        let symbol = symbol.split('@').next()?;
        (symbol == name).then(|| u64::from_str_radix(address, 16).expect("a number"))
    });
    found.unwrap_or_else(|| panic!("no {name} in {}", library.display()))
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
