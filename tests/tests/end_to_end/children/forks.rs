//! Children of a traced process.

use memhook_tests::{build_target, expect_sites, trace};

#[test]
fn children_are_healthy_and_untraced() {
    let program = build_target("forks", &[]);
    let report = trace(&program, &[]);
    expect_sites(
        &report,
        "forks.cc",
        &[("leak_in_parent", "malloc", 20, 321)],
    );
}
