//! Tests that cannot run everywhere.

/// Says why this test does not run. In CI, which sets MEMHOOK_TESTS_MUST_RUN, that is a failure.
pub fn not_run(why: &str) {
    let must = std::env::var_os("MEMHOOK_TESTS_MUST_RUN").is_some();
    assert!(!must, "cannot run: {why}");
    eprintln!("not run: {why}");
}

/// Whether seccomp filters of others can be passed by from here: not where we live under one ourselves.
pub fn can_pass_by_filters() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("our own");
    status.lines().any(|line| line == "Seccomp:\t0")
}
