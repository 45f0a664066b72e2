//! Remembered backtraces that another process overwrites.

use memhook_tests::build_target;
use std::process::Command;

/// Checks that overwritten data never makes a comparison read past the end of the stack, which
/// would crash the program. Some of the data is still valid, which proves that the hook compared
/// it.
#[test]
fn are_compared_within_the_stack_only() {
    let headers = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../hook-cxx");
    let program = build_target("spoiled_memos", &["-mgeneral-regs-only", headers]);
    for depth in ["2", "5", "20", "60"] {
        let output = Command::new(&program).arg(depth).output().expect("it runs");
        assert!(output.status.success(), "depth {depth}: {}", output.status);
        let said = String::from_utf8_lossy(&output.stdout);
        let held = said.trim_end().strip_prefix("held ").expect("a count");
        assert!(
            held.parse::<u64>().expect("a number") > 100,
            "depth {depth}: {said}"
        );
    }
}
