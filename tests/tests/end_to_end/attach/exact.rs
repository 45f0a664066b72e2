//! Attach, trace, detach: exact numbers for programs with planted blocks.

use memhook_tests::{Attacher, Target, build_target, rounds, run};

fn check_leak_path(report: &serde_json::Value) {
    assert_eq!(report["final"], true);
    assert_eq!(report["totals"]["lost_events"], 0, "{report}");
    let sites = report["sites"].as_array().unwrap();
    assert_eq!(sites.len(), 1, "{report}");
    assert_eq!(sites[0]["blocks"], 100);
    assert_eq!(sites[0]["bytes"], 9600);
    assert_eq!(sites[0]["kind"], "malloc");
    let site = &sites[0]["stack"][0];
    assert!(site["function"].as_str().unwrap().starts_with("leak_here"));
    assert!(site["file"].as_str().unwrap().ends_with("leak_path.cc"));
    assert_eq!(report["totals"]["unknown_releases"], 1);
    assert_eq!(report["totals"]["live_blocks"], 100);
}

#[test]
fn one_leaking_path_among_balanced_ones() {
    for flags in [["-Wl,-z,lazy"], ["-Wl,-z,now"], ["-no-pie"]] {
        let program = build_target("leak_path", &flags);
        let mut target = Target::start(&program, &[]);
        let attacher = Attacher::start(&target, &[]);
        target.go();
        target.expect("done");
        check_leak_path(&attacher.finish());
        assert!(target.finish().success());
    }
}

/// Checks names that the kernel truncates after 15 bytes, even in the middle of a character.
#[test]
fn a_name_that_is_no_text() {
    let program = build_target("leak_path", &[]);
    let renamed = program.with_file_name("fifteen_bytes_\u{e4}");
    // A hard link instead of a copy, because a program started by a parallel test would inherit the
    // copy's descriptor that is open for writing.
    let _ = std::fs::remove_file(&renamed);
    std::fs::hard_link(&program, &renamed).expect("linked");
    let mut target = Target::start(&renamed, &[]);
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    check_leak_path(&attacher.finish());
    assert!(target.finish().success());
}

#[test]
fn attach_again_and_again() {
    let program = build_target("leak_path", &[]);
    let mut target = Target::start(&program, &[]);
    let mut mappings = None;
    for _ in 0..rounds(20) {
        let report = Attacher::start(&target, &[]).finish();
        assert_eq!(report["totals"]["live_blocks"], 0);
        let now = target.our_mappings();
        assert_eq!(*mappings.get_or_insert(now), now);
    }
    // A killed attacher leaves its hook behind, which the next attacher reuses.
    Attacher::start(&target, &[]).kill();
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    check_leak_path(&attacher.finish());
    Attacher::start(&target, &[]).kill();
    let (code, out, err) = run(&["detach", &target.pid().to_string()]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.starts_with("Detached from"), "{out}");
    assert!(target.finish().success());
}
