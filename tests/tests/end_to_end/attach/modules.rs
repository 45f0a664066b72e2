//! Kinds of binaries, and libraries that are loaded and unloaded.

use memhook_tests::{Attacher, Target, build_library, build_target, expect_sites, trace};

#[test]
fn libraries_opened_while_traced() {
    let late = build_library("late_library", "liblate.so", &[]);
    let needs = build_library("needs_library", "libneeds.so", &["-Wl,-rpath,$ORIGIN"]);
    let program = build_target("late_dlopen", &["-ldl"]);
    let paths = [late, needs].map(|p| p.to_str().expect("UTF-8").to_owned());
    let mut target = Target::start(&program, &[&paths[0], &paths[1]]);
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    assert!(target.finish().success());
    expect_sites_in_library(&report, &[(500, 10), (600, 5), (700, 3)]);
}

/// Checks that memhook-rs does not read execute-only code.
#[test]
fn libraries_opened_by_execute_only_code() {
    let late = build_library("late_library", "liblate.so", &[]);
    let program = build_target("execute_only", &["-ldl"]);
    let mut target = Target::start(&program, &[late.to_str().expect("UTF-8")]);
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    assert!(target.finish().success());
    expect_sites_in_library(&report, &[(300, 4)]);
}

/// Checks an unloaded library: its symbols are gone, but its blocks remain.
fn expect_sites_in_library(report: &serde_json::Value, expected: &[(u64, u64)]) {
    assert_eq!(report["totals"]["lost_events"], 0);
    for &(size, blocks) in expected {
        let found: u64 = report["sites"]
            .as_array()
            .expect("sites")
            .iter()
            .filter(|s| s["stack"][0]["function"] == "leak_in_library")
            .filter(|s| s["bytes"].as_u64() == Some(s["blocks"].as_u64().unwrap_or(0) * size))
            .filter_map(|s| s["blocks"].as_u64())
            .sum();
        assert_eq!(found, blocks, "blocks of {size} bytes: {report:#}");
    }
}

#[test]
fn two_allocators_keep_their_own_originals() {
    let program = build_target("two_allocators", &["-l:libjemalloc.so.2"]);
    let report = trace(&program, &[]);
    expect_sites(
        &report,
        "two_allocators.cc",
        &[
            ("leak_mallocx", "mallocx", 4, 801),
            ("leak_rallocx", "rallocx", 3, 5000),
            ("leak_malloc", "malloc", 2, 802),
        ],
    );
    assert_eq!(report["totals"]["unknown_releases"], 0);
    assert_eq!(report["totals"]["unhooked_releases"], 0);
}

/// Checks that a call that is bound after the attach reaches the allocator of its own namespace.
/// The allocator of another namespace would crash the program.
#[test]
fn calls_stay_in_the_namespace_of_the_program() {
    let program = build_target("two_namespaces", &["-ldl", "-fno-builtin", "-Wl,-z,lazy"]);
    let report = trace(&program, &[]);
    expect_sites(
        &report,
        "two_namespaces.cc",
        &[
            ("leak_realloc", "realloc", 5, 811),
            ("leak_aligned", "posix_memalign", 4, 812),
        ],
    );
    assert_eq!(report["totals"]["unhooked_releases"], 0);
}

#[test]
fn a_stripped_program_is_reported_by_module_and_offset() {
    let program = build_target("leak_path", &["-s"]);
    let report = trace(&program, &[]);
    let site = &report["sites"][0];
    assert_eq!(site["blocks"], 100);
    assert_eq!(site["bytes"], 9600);
    assert_eq!(site["stack"][0]["function"], serde_json::Value::Null);
    assert!(
        site["stack"][0]["module"]
            .as_str()
            .unwrap_or("")
            .starts_with("leak_path")
    );
    assert!(site["stack"][0]["offset"].is_string());
}

#[test]
fn an_allocator_bound_at_link_time_is_named_as_not_seen() {
    let library = build_library("own_allocator", "libown.so", &["-Wl,-Bsymbolic"]);
    let program = build_target("beside_own_allocator", &["-ldl"]);
    let path = library.to_str().expect("UTF-8");
    let mut target = Target::start(&program, &[path]);
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    assert!(target.finish().success());
    expect_sites(
        &report,
        "beside_own_allocator.cc",
        &[("leak_outside", "malloc", 6, 223)],
    );
    let coverage = report["coverage"].as_array().expect("coverage");
    let own = coverage.iter().find(|c| c["module"] == "libown.so");
    let note = own.and_then(|c| c["note"].as_str()).unwrap_or("");
    assert!(note.contains("-Bsymbolic"), "{coverage:#?}");
    assert!(own.is_some_and(|c| c["unhookable"].as_u64() > Some(0)));
}

/// Checks that slots beyond the available space are left alone and reported, and that a dlopen is
/// still answered.
#[test]
fn more_slots_than_there_is_room_for() {
    let library = build_library("late_library", "liblate.so", &[]);
    let program = build_target("full_journal", &["-ldl"]);
    let mut target = Target::start(&program, &[library.to_str().expect("UTF-8")]);
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    assert!(report.to_string().contains("too many slots"), "{report}");
    let status = target.finish();
    assert!(status.success(), "the target's self-check: {status}");
}

/// Checks that a wrapped dlopen returns through an instruction of its caller's module, which
/// represents the caller in the backtrace.
#[test]
fn backtraces_lead_through_dlopen() {
    let source = "opens_in_constructor";
    let library = build_library(source, "libconstructor.so", &["-DLIBRARY"]);
    let program = build_target(source, &["-ldl", "-rdynamic"]);
    let mut target = Target::start(&program, &[library.to_str().expect("UTF-8")]);
    let attacher = Attacher::start(&target, &["--depth", "64"]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    assert!(target.finish().success());
    let sites = report["sites"].as_array().expect("sites");
    let site = sites.iter().find(|site| site["bytes"] == 4321);
    let stack = site.and_then(|site| site["stack"].as_array());
    let functions: Vec<_> = stack
        .expect("the site")
        .iter()
        .map(|f| &f["function"])
        .collect();
    assert_eq!(functions[0], "allocate_below_dlopen", "{functions:?}");
    let opener = functions.iter().position(|f| **f == "opens_here");
    assert_eq!(
        functions.get(opener.unwrap_or(0) + 1).copied(),
        Some(&"main".into()),
        "{functions:?}"
    );
}
