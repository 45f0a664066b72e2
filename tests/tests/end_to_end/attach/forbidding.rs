//! Targets that have forbidden or exhausted a facility that the hook needs. Either the hook works
//! without it, or memhook-rs refuses the attach, gives the reason, and leaves the target untouched.

use std::process::{Command, Stdio};

use memhook_tests::{
    Attacher, Target, build_library, build_target, expect_sites, not_run, not_run_here, run,
};

/// Checks that memhook-rs refuses an attach with a one-line message that contains this word, and
/// that the target passes its self-check.
fn is_refused(mut target: Target, word: &str) {
    let pid = target.pid().to_string();
    for _ in 0..2 {
        let (code, out, err) = run(&["attach", "-d", "100ms", "-q", &pid]);
        assert_eq!(code, 2, "{out}{err}");
        assert!(err.contains(word), "{err}");
        assert_eq!(err.trim_end().lines().count(), 1, "{err}");
        assert_eq!(target.status("TracerPid"), "0");
        assert_eq!(target.our_mappings(), 0, "nothing of ours stays");
    }
    target.go();
    target.expect("done");
    let status = target.finish();
    assert!(status.success(), "the target's self-check: {status}");
}

#[test]
fn the_time_stamp_counter() {
    let program = build_target("forbidding", &[]);
    is_refused(Target::start(&program, &["tsc"]), "time-stamp counter");
}

/// Checks slots on sealed pages (mseal), which memhook-rs writes from outside while all threads are
/// stopped.
#[test]
fn sealed_slots() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a version");
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|n| n.parse::<u32>().ok());
    if (numbers.next(), numbers.next()) < (Some(6), Some(10)) {
        return not_run("mseal(2) takes Linux 6.10");
    }
    let program = build_target("sealed", &["-Wl,-z,relro,-z,now"]);
    let mut target = Target::start(&program, &[]);
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    expect_sites(&report, "sealed.cc", &[("lose", "malloc", 20, 777)]);
    let (code, out, err) = run(&["detach", &target.pid().to_string()]);
    assert!(code == 0 && out.contains("every slot holds"), "{out}{err}");
    assert!(target.finish().success());
}

/// Checks that the hook needs no static TLS.
#[test]
fn static_tls() {
    // Any remainder is a sum of some of these sizes, plus less than eight bytes.
    let library = |power: u32| {
        let bytes = format!("-DBYTES={}", 1u32 << power);
        let path = build_library("tls_library", &format!("libtls{power}.so"), &[&bytes]);
        path.to_str().expect("UTF-8").to_owned()
    };
    let libraries: Vec<String> = (3..13).rev().map(library).collect();
    let mut arguments = vec!["tls"];
    arguments.extend(libraries.iter().map(String::as_str));
    let program = build_target("forbidding", &[]);
    works(Target::start(&program, &arguments));
}

/// Checks that an attach works as usual, and that the next attach reuses what it left behind.
fn works(mut target: Target) {
    Attacher::start(&target, &[]).finish();
    let mappings = target.our_mappings();
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    expect_sites(&report, "forbidding.cc", &[("main", "malloc", 1, 10)]);
    assert_eq!(
        target.our_mappings(),
        mappings,
        "what is there is used again"
    );
    let status = target.finish();
    assert!(status.success(), "the target's self-check: {status}");
}

/// Checks a program that cannot open any descriptor itself.
#[test]
fn one_more_descriptor() {
    let program = build_target("forbidding", &[]);
    is_refused(
        Target::start(&program, &["descriptors"]),
        "Too many open files",
    );
}

/// Traces a target that uses a kernel feature to forbid something. Skips the test, even in CI, if
/// the kernel lacks the feature.
fn works_if_known(what: &str) {
    let program = build_target("forbidding", &[]);
    let tried = Command::new(&program)
        .arg(what)
        .stdin(Stdio::null())
        .output();
    if tried.expect("it runs").stdout.starts_with(b"unable") {
        return not_run_here(&format!("this kernel cannot forbid {what}"));
    }
    works(Target::start(&program, &[what]));
}

/// Checks a program that Landlock (landlock(7)) prevents from opening or executing files.
#[test]
fn files() {
    works_if_known("files");
}

/// Checks a program in which memory must not become executable after it was mapped (PR_SET_MDWE of
/// prctl(2)).
#[test]
fn executable_memory() {
    works_if_known("code");
}

/// Checks a program in which all readable memory is executable. Memory that several processes can
/// write must not be executable, because a worker could write code into it.
#[test]
fn readable_memory_is_executable() {
    let program = build_target("forbidding", &[]);
    let mut target = Target::start(&program, &["personality"]);
    let attacher = Attacher::start(&target, &[]);
    let maps = target.maps();
    let ours: Vec<&str> = maps.lines().filter(|l| l.contains("memhook")).collect();
    let has = |wanted: &[char]| {
        let mut rights = ours.iter().filter_map(|line| line.split(' ').nth(1));
        rights.any(|rights| wanted.iter().all(|&right| rights.contains(right)))
    };
    assert!(has(&['w', 's']), "the report is there: {ours:#?}");
    assert!(!has(&['w', 's', 'x']), "{ours:#?}");
    target.go();
    target.expect("done");
    let report = attacher.finish();
    expect_sites(&report, "forbidding.cc", &[("main", "malloc", 1, 10)]);
    assert!(target.finish().success());
}
