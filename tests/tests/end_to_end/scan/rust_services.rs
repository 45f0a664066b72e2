//! Services in Rust with an allocator linked in: what they lost is found, with nothing prepared.

use super::planted_heaps::{check, check_commands};
use memhook_tests::build_service;
use memhook_tests::programs::installed;

#[test]
fn on_jemalloc() {
    // Its build script runs it.
    installed("make");
    if let Some(program) = build_service("jemalloc", "service_on_jemalloc") {
        check(&program, "jemalloc", 0);
        check_commands(&program, 0);
    }
}

/// Version 3.
#[test]
fn on_mimalloc() {
    if let Some(program) = build_service("mimalloc", "service_on_mimalloc") {
        check(&program, "mimalloc", 0);
        check_commands(&program, 0);
    }
}
