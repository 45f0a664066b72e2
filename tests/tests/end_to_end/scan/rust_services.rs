//! Rust services with a linked-in allocator, whose leaks are found without any preparation.

use super::planted_heaps::{LEAKED, check, check_commands};
use memhook_tests::build_service;
use memhook_tests::programs::installed;
use memhook_tests::scans::{List, scan};
use memhook_tests::{Target, rounds};
use std::process::Command;

#[test]
fn on_jemalloc() {
    // The build script of the allocator runs make.
    installed("make");
    if let Some(program) = build_service("jemalloc", "service_on_jemalloc") {
        check(&program, "jemalloc", 0);
        check_commands(&program, 0);
    }
}

/// Checks version 3 of mimalloc.
#[test]
fn on_mimalloc() {
    if let Some(program) = build_service("mimalloc", "service_on_mimalloc") {
        check(&program, "mimalloc", 0);
        check_commands(&program, 0);
    }
}

/// Checks first scans of processes that still fill their first huge pages. Such memory changes
/// while it is copied, so a snapshot may not parse, and must then not take leaks from the next one.
#[test]
fn a_first_scan_misses_nothing_silently() {
    let Some(program) = build_service("mimalloc", "service_on_mimalloc") else {
        return;
    };
    for round in 0..rounds(20) {
        let target = Target::run(Command::new(&program).arg("3"));
        let found = List::parse(&scan(target.pid(), &["--list"]));
        let leaked = found.blocks.values().filter(|block| block.0).count();
        let of_doubt = |line: &String| line.starts_with("note") || line.starts_with("finding");
        let is_reserved = found.rest.iter().any(of_doubt);
        assert!(
            leaked + 5 >= LEAKED || is_reserved,
            "round {round}: {leaked} leaks, {:?}",
            found.rest
        );
        assert!(target.finish().success());
    }
}
