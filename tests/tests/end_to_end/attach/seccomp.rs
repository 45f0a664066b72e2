//! Targets with seccomp filters.

use memhook_tests::programs::installed;
use memhook_tests::{
    Attacher, Target, binary, build_library, build_target, can_pass_by_filters, changed_code,
    expect_sites, rounds, run,
};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

fn program() -> PathBuf {
    build_target("sandboxed", &["-Wl,-z,now", "-Wl,-z,relro"])
}

/// If memhook-rs cannot suspend filters here, checks that it refuses an attach, and returns true.
fn refuses(target: &Target) -> bool {
    if can_pass_by_filters() {
        return false;
    }
    let (code, _, errors) = run(&["attach", &target.pid().to_string(), "-d", "1s"]);
    assert_eq!(code, 2);
    assert!(
        errors.contains("seccomp filter that does not apply to us"),
        "{errors}"
    );
    true
}

fn check(report: &Value) {
    expect_sites(
        report,
        "sandboxed.cc",
        &[
            ("main", "malloc", 9, 300),
            // Traced regardless of how the hook was loaded.
            ("main", "new[]", 5, 70),
            ("pool_alloc", "malloc", 3, 40),
            ("churn", "malloc", 4, 200),
        ],
    );
    assert_eq!(report["totals"]["lost_events"], 0, "{}", report["totals"]);
    let refused = report["coverage"]
        .to_string()
        .contains("cannot be made writable");
    assert!(!refused, "{}", report["coverage"]);
}

/// Checks that a function whose callers expect an exception is not hooked if exceptions could not
/// pass through a mapped hook.
#[test]
fn described_functions_that_throw_under_a_filter_that_kills_for_what_the_loader_calls() {
    let mut target = Target::start(&program(), &["strict"]);
    if refuses(&target) {
        return;
    }
    let pid = target.pid().to_string();
    let described = ["--allocators", "alloc pool_alloc(size=arg1) -> ptr"];
    let (code, _, err) = run(&[&["attach", &pid, "-d", "1s"], &described[..]].concat());
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("what dlopen calls"), "{err}");
    let mut changed = changed_code(target.pid());
    changed.retain(|place| !place.contains("memhook"));
    assert!(changed.is_empty(), "{changed:?}");
    let attacher = Attacher::start(&target, &["--set", "ring-size=64K"]);
    target.go();
    target.expect("done");
    check(&attacher.finish());
    assert!(target.finish().success());
}

/// Returns the modules, and the number of their slots that point to the hook.
fn hooked(report: &Value) -> Vec<[Value; 4]> {
    let modules = report["coverage"].as_array().expect("modules").iter();
    let facts = ["module", "hooked", "unhookable", "note"];
    modules.map(|m| facts.map(|fact| m[fact].clone())).collect()
}

/// Checks an attacher that plans to use the loader, and learns only after it has stopped a thread
/// that the filter kills for the loader's system calls. At the second attach, the hook is already
/// mapped.
#[test]
fn every_attach_traces_operator_new() {
    for _ in 0..rounds(10) {
        let mut target = Target::start(&program(), &["strict"]);
        if refuses(&target) {
            return;
        }
        let first = Attacher::start(&target, &[]).finish();
        let second = Attacher::start(&target, &["--set", "ring-size=64K"]);
        target.go();
        target.expect("done");
        let second = second.finish();
        check(&second);
        assert_eq!(hooked(&first), hooked(&second));
        assert!(target.finish().success());
    }
}

#[test]
fn a_filter_that_kills() {
    let mut target = Target::start(&program(), &["kill"]);
    if refuses(&target) {
        return;
    }
    Attacher::start(&target, &[]).finish();
    Attacher::start(&target, &[]).kill();
    let (code, out, err) = run(&["detach", &target.pid().to_string()]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let attacher = Attacher::start(&target, &["--set", "ring-size=64K"]);
    target.go();
    target.expect("done");
    check(&attacher.finish());
    assert!(target.finish().success());
}

/// Checks that the attacher does not use the loader if a filter would kill for the loader's system
/// calls as soon as the thread is released. Whenever the attacher dies, the thread's return must
/// not trigger the filter either.
#[test]
fn attachers_that_die_under_a_filter_that_kills_for_what_the_loader_calls() {
    let mut target = Target::start(&program(), &["strict"]);
    if refuses(&target) {
        return;
    }
    let pid = target.pid().to_string();
    let rounds = rounds(40) as u64;
    for round in 0..rounds {
        let mut attacher = Command::new(binary())
            .args(["attach", &pid])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        // The kill may come at any moment.
        std::thread::sleep(Duration::from_micros(3000 + 60_000 * round / rounds));
        attacher.kill().expect("it runs");
        attacher.wait().expect("it was killed");
    }
    let attacher = Attacher::start(&target, &["--set", "ring-size=64K"]);
    target.go();
    target.expect("done");
    check(&attacher.finish());
    assert!(target.finish().success());
}

/// Checks that libraries opened under the filter are patched before dlopen returns. The attacher
/// must do this, because the hook cannot.
#[test]
fn libraries_opened_under_a_filter_that_kills() {
    let library = build_library("late_library", "liblate.so", &[]);
    let program = build_target("sandboxed", &["-ldl"]);
    let library = library.to_str().expect("UTF-8");
    let mut target = Target::start(&program, &["opens", library]);
    if refuses(&target) {
        return;
    }
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    assert!(target.finish().success());
    let of_library = |site: &&Value| site["stack"][0]["function"] == "leak_in_library";
    let sites = report["sites"].as_array().expect("sites");
    let found = sites.iter().filter(of_library);
    let found: u64 = found.filter_map(|site| site["blocks"].as_u64()).sum();
    assert_eq!(found, 6, "{report:#}");
}

/// Checks that the hook learns of the filter before it has to wait for space.
#[test]
fn a_filter_that_comes_later() {
    let mut target = Target::start(&program(), &["late"]);
    let pid = target.pid().to_string();
    let options = [
        &pid,
        "-i",
        "1h",
        "--on-full",
        "wait",
        "--set",
        "ring-size=64K",
    ];
    let mut attacher = Attacher::logging("memhook_attach=debug", &options);
    attacher.says(&format!("Attached to {pid} "));
    target.go();
    target.expect("filtered");
    attacher.wait_for("a new seccomp filter");
    target.go();
    target.expect("done");
    if !can_pass_by_filters() {
        // No function can be called in the process now, so the slots stay patched and only forward
        // calls.
        attacher.kill();
        return;
    }
    check(&attacher.finish());
    assert!(target.finish().success());
}

/// Checks that memhook-rs writes slots from outside if the target cannot make them writable. It
/// cannot suspend the target's filter here, because it has a filter itself.
#[test]
fn a_filter_that_refuses_and_cannot_be_passed_over() {
    let program = program();
    let under = [program.to_str().expect("UTF-8"), "under"];
    let attach = |target: &Target| Attacher::start_by(&under, target, &[]);
    let mut target = Target::start(&program, &["refuse"]);
    attach(&target).finish();
    attach(&target).kill();
    let detached = Command::new(under[0])
        .arg(under[1])
        .args([binary().to_str().expect("UTF-8"), "detach"])
        .arg(target.pid().to_string())
        .output()
        .expect("it runs");
    let out = String::from_utf8_lossy(&detached.stdout);
    assert!(detached.status.success(), "{detached:?}");
    assert!(out.contains("every slot holds its original"), "{out}");
    let attacher = attach(&target);
    target.go();
    target.expect("done");
    check(&attacher.finish());
    assert!(target.finish().success());
}

/// Checks an attacher without CAP_SYS_ADMIN that does not have the target's filter, and therefore
/// cannot know how the filter affects remote calls.
#[test]
fn a_filter_that_we_have_not() {
    let mut target = Target::start(&program(), &["kill"]);
    let pid = target.pid().to_string();
    for command in [vec!["attach", &pid], vec!["scan", &pid]] {
        let refused = Command::new(installed("setpriv"))
            .args(["--bounding-set", "-sys_admin"])
            .arg(binary())
            .args(&command)
            .output()
            .expect("setpriv runs");
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{errors}");
        assert!(
            errors.contains("seccomp filter that does not apply to us"),
            "{errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}
