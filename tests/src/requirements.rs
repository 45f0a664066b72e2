//! Tests that cannot run everywhere.

/// Says why this test does not run. In CI, which sets MEMHOOK_TESTS_MUST_RUN, that is a failure.
pub fn not_run(why: &str) {
    let must = std::env::var_os("MEMHOOK_TESTS_MUST_RUN").is_some();
    assert!(!must, "cannot run: {why}");
    eprintln!("not run: {why}");
}
