//! Checks that the output mentions memory outside known heaps, in which no leaks are reported.

use memhook_tests::scans::scan;
use memhook_tests::{Target, build_target};

#[test]
fn a_program_that_has_its_data_elsewhere_is_not_called_clean() {
    let target = Target::start(&build_target("memory_of_its_own", &[]), &[]);
    let text = scan(target.pid(), &[]);
    let told = "3.0 MiB of memory belong to no known heap";
    assert!(text.contains(told), "{text}");
    assert!(target.finish().success());
}

#[test]
fn nothing_is_said_of_the_rest_of_a_program_that_uses_malloc() {
    let target = Target::start(&build_target("random_graph", &[]), &["3", "30000"]);
    let text = scan(target.pid(), &[]);
    assert!(!text.contains("belong to no known heap"), "{text}");
}
