//! Rust services with a linked-in allocator, whose leaks are found without any preparation.

use super::planted_heaps::{check, check_commands};
use memhook_tests::build_service;
use memhook_tests::programs::installed;

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
