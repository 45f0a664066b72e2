//! Memory use of tracing in a process with little memory.

use memhook_tests::{Attacher, MemoryBox, Target, build_target, expect_sites, not_run, run};

const LIMIT: u64 = 24 << 20;

/// Starts a target with 32 threads in a control group.
fn boxed(name: &str) -> Option<(MemoryBox, Target)> {
    let Some(group) = MemoryBox::new(name, LIMIT) else {
        not_run("cannot create a control group with a memory limit here");
        return None;
    };
    let target = Target::run(&mut group.command(&build_target("boxed", &[])));
    Some((group, target))
}

#[test]
fn a_small_container_lives_is_traced_and_gets_its_memory_back() {
    let Some((group, mut target)) = boxed("lives") else {
        return;
    };
    let start = group.usage().expect("it can be read");
    let pid = target.pid().to_string();
    let (code, text, _) = run(&["doctor", &pid]);
    assert_eq!(code, 0, "{text}");
    let line = text.lines().find(|line| line.contains("tracing takes"));
    assert!(line.is_some_and(|l| l.contains("33 threads")), "{text}");
    assert!(text.contains("below the limit of 24.0 MiB"), "{text}");
    let attacher = Attacher::start(&target, &[]);
    let attached = group.usage().expect("it can be read");
    target.go();
    target.expect("done");
    let most = group.usage().expect("it can be read");
    let report = attacher.finish();
    expect_sites(&report, "boxed.cc", &[("lose", "malloc", 32 * 20, 48)]);
    let end = group.usage().expect("it can be read");
    eprintln!(
        "usage: {start} at first, {attached} attached, {most} at the end of the work, {end} after the detach"
    );
    assert!(most < LIMIT * 3 / 4, "{most}");
    // The hook remains, and the counters of a group lag behind by 64 pages per processor
    // (MEMCG_CHARGE_BATCH).
    assert!(end < start + (2 << 20), "{start} before, {end} after");
    assert!(target.finish().success());
}

#[test]
fn memory_comes_back_when_threads_end_and_at_the_detach() {
    let mut target = Target::start(&build_target("boxed", &[]), &[]);
    // Touched shared memory of the target, in KiB.
    let touched = |target: &Target| -> u64 {
        let text = target.status("RssShmem");
        let kib = text.split_whitespace().next().and_then(|n| n.parse().ok());
        kib.expect("a number")
    };
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    // The attacher releases the rings of 32 threads as soon as it notices their exit.
    memhook_tests::until("the rings of ended threads are given back", || {
        touched(&target) < 1024
    });
    let report = attacher.finish();
    expect_sites(&report, "boxed.cc", &[("lose", "malloc", 32 * 20, 48)]);
    // The hook itself, the control block and the journal remain.
    assert!(touched(&target) < 512, "{} KiB", touched(&target));
    assert!(target.finish().success());
}

/// Checks accounted mappings ("ac" in proc_pid_smaps(5)), whose full size counts if the kernel does
/// not overcommit (overcommit_memory 2, proc_sys_vm(5)).
#[test]
fn next_to_nothing_of_what_is_mapped_is_accounted() {
    const MOST_KIB: u64 = 256;
    let target = Target::start(&build_target("filling", &[]), &[]);
    let attacher = Attacher::start(&target, &["--follow-fork"]);
    let text = std::fs::read_to_string(format!("/proc/{}/smaps", target.pid())).expect("smaps");
    let (mut is_ours, mut kib, mut ours, mut accounted) = (false, 0, 0, 0);
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("Size:") => kib = words.next().and_then(|n| n.parse().ok()).unwrap_or(0),
            Some("VmFlags:") if is_ours => {
                ours += kib;
                accounted += if words.any(|flag| flag == "ac") {
                    kib
                } else {
                    0
                };
            }
            Some(word) if !word.ends_with(':') => is_ours = line.contains("memhook"),
            _ => {}
        }
    }
    assert!(
        ours > 1 << 20 && accounted < MOST_KIB,
        "{accounted} of {ours} KiB"
    );
    attacher.finish();
    assert!(target.finish().success());
}

#[test]
fn a_target_that_is_killed_for_lack_of_memory() {
    let Some((_group, mut target)) = boxed("killed") else {
        return;
    };
    let attacher = Attacher::start(&target, &[]);
    target.send("e");
    let (status, output, errors) = attacher.outcome();
    assert!(status.success(), "{status}: {errors}");
    assert!(errors.contains("ran out of memory meanwhile"), "{errors}");
    assert!(output.contains("\"final\":true"), "{output}");
    assert!(!target.finish().success());
}

#[test]
fn a_target_without_room_is_left_alone() {
    let Some(group) = MemoryBox::new("full", 8 << 20) else {
        return not_run("cannot create a control group with a memory limit here");
    };
    let target = Target::run(&mut group.command(&build_target("boxed", &[])));
    // The limit is half a megabyte above the memory in use.
    let used = group.usage().expect("it can be read");
    if !group.set_limit(used + (512 << 10)) {
        return not_run("the limit cannot be lowered");
    }
    let (code, _, errors) = run(&["attach", &target.pid().to_string(), "-d", "100ms"]);
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("iB free below the limit of"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert_eq!(target.our_mappings(), 0);
}

/// Checks that a probe is refused if there is no memory for it: each changed page of code becomes
/// private memory of the process.
#[test]
fn probes_that_a_small_container_cannot_pay_for_are_refused() {
    let Some((_group, mut target)) = boxed("probed") else {
        return;
    };
    let pid = target.pid().to_string();
    let (code, out, errors) = run(&["probe", &pid, "--func", "*", "-d", "100ms"]);
    assert_eq!((code, out.as_str()), (2, ""), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("would be charged up to"), "{errors}");
    assert_eq!(target.our_mappings(), 0);
    let (code, _, errors) = run(&["probe", &pid, "--func", "libc!malloc", "-d", "100ms"]);
    assert_eq!(code, 0, "{errors}");
    assert_eq!(target.our_mappings(), 0);
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}
