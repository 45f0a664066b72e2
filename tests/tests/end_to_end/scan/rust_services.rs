//! Services in Rust with an allocator linked in: what they lost is found, with nothing prepared.

use super::planted_heaps::{check, check_commands};
use std::path::Path;

#[test]
fn on_jemalloc() {
    let program = Path::new(env!("CARGO_BIN_EXE_service_on_jemalloc"));
    check(program, "jemalloc", 0);
    check_commands(program, 0);
}

/// Version 3.
#[test]
fn on_mimalloc() {
    let program = Path::new(env!("CARGO_BIN_EXE_service_on_mimalloc"));
    check(program, "mimalloc", 0);
    check_commands(program, 0);
}
