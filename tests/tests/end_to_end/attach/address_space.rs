//! Processes with limited address space (RLIMIT_AS), or nearly as many mappings as the kernel
//! allows: the mappings of memhook-rs must not exhaust either.

use memhook_tests::{Target, build_target, not_run, run};
use std::process::Command;

fn limited(kibibytes: u64) -> Target {
    let script = format!("ulimit -v {kibibytes} && exec \"$0\"");
    Target::run(
        Command::new("sh")
            .args(["-c", &script])
            .arg(build_target("filling", &[])),
    )
}

/// Returns the amount of memory that the target can map, in MB.
fn room(target: &mut Target) -> u64 {
    target.go();
    let line = target.expect("room ");
    line.trim()["room ".len()..].parse().expect("a number")
}

#[test]
fn little_address_space_is_left_alone() {
    let mut target = limited(3_000_000);
    let before = room(&mut target);
    let pid = target.pid().to_string();
    let (code, out, errors) = run(&["attach", &pid, "-d", "100ms"]);
    assert_eq!((code, out.as_str()), (2, ""), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(
        errors.contains("of address space left (RLIMIT_AS)"),
        "{errors}"
    );
    assert_eq!(target.our_mappings(), 0);
    assert_eq!(room(&mut target), before);
    let (code, text, _) = run(&["doctor", &pid]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("of address space left (RLIMIT_AS)"), "{text}");
    assert!(target.finish().success());
}

#[test]
fn what_is_mapped_is_a_small_part_of_what_is_left() {
    let mut target = limited(10_000_000);
    let before = room(&mut target);
    let pid = target.pid().to_string();
    for _ in 0..3 {
        let (code, _, errors) = run(&["attach", &pid, "-d", "100ms"]);
        assert_eq!(code, 0, "{errors}");
        // Every attach uses the same amount of memory.
        let now = room(&mut target);
        assert!(now >= before / 8 * 7 - 32, "{now} MB, {before} before");
    }
    assert!(target.finish().success());
}

/// Largest limit for which the target can make enough mappings in a test.
const MOST_MAPPINGS: u64 = 300_000;

/// Checks that a process that may have only a few more mappings keeps them for itself.
#[test]
fn the_last_mappings_are_left_alone() {
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("a limit");
    if limit
        .trim()
        .parse()
        .is_ok_and(|most: u64| most > MOST_MAPPINGS)
    {
        return not_run("vm.max_map_count is too large here");
    }
    let program = build_target("many_mappings", &[]);
    let mut target = Target::silent(Command::new(program).arg("6"));
    target.expect("ready");
    let pid = target.pid().to_string();
    let commands = [
        &["attach", &pid, "-d", "100ms"][..],
        &["attach", &pid, "-d", "100ms", "--follow-fork"],
        &["stale", &pid, "-d", "100ms"],
        &["emit", &pid],
    ];
    for command in commands {
        let (code, out, errors) = run(command);
        assert_eq!((code, out.as_str()), (2, ""), "{command:?}: {errors}");
        let says = "more mappings (vm.max_map_count)";
        assert!(errors.contains(says), "{command:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{command:?}: {errors}");
        assert_eq!(target.our_mappings(), 0, "{command:?}");
        target.go();
        target.expect("mapped");
    }
    assert!(target.finish().success());
}
