//! Probes in a process after an attach, whose leftovers must not affect them.

use memhook_tests::{Target, build_target, run};

#[test]
fn libraries_can_be_probed_after_an_attach() {
    let mut target = Target::start(&build_target("deterministic", &[]), &[]);
    let pid = target.pid().to_string();
    for _ in 0..2 {
        let (code, _, errors) = run(&["attach", &pid, "-d", "100ms"]);
        assert_eq!(code, 0, "{errors}");
        let (code, _, errors) = run(&["probe", &pid, "--func", "libc!write", "-d", "100ms"]);
        assert_eq!(code, 0, "{errors}");
    }
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}
