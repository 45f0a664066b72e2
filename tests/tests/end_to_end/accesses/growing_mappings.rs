//! Watching a process must not increase the number of its growing mappings, because a process may
//! have only 65,530.

use memhook_tests::{Target, build_target, run};

/// Number of mappings that a new thread and the target of mremap may add.
const FEW: usize = 5;

/// Returns the number of mappings of a process, excluding memhook-rs's mappings.
fn own_mappings(target: &Target) -> usize {
    let maps = target.maps();
    let mut is_after_ours = false;
    let is_own = |line: &&str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_anonymous = words.len() == 5 || words.get(5) == Some(&"[heap]");
        // The zeroed data of the hook.
        let is_ours = line.contains("/memfd:memhook") || is_after_ours && is_anonymous;
        is_after_ours = is_ours;
        is_anonymous && !is_ours
    };
    maps.lines().filter(is_own).count()
}

fn growing() -> Target {
    Target::start(&build_target("growing_mappings", &["-O2"]), &[])
}

/// Runs commands on a growing target. Its heaps must keep growing, and mremap must never fail.
fn stays_few(commands: &mut dyn Iterator<Item = Vec<&str>>) {
    let target = growing();
    let pid = target.pid().to_string();
    let before = own_mappings(&target);
    for command in commands {
        let words = [&command[..1], &[pid.as_str()], &command[1..]].concat();
        let (code, _, why) = run(&words);
        // The target may be too busy to be copied or, with exit code 3, to be searched completely.
        let is_busy = code == 2 && why.contains("would be held for longer than");
        assert!(code < 2 || code == 3 || is_busy, "{words:?}: {why}");
    }
    let after = own_mappings(&target);
    let maps = target.maps();
    assert!(after <= before + FEW, "{before} -> {after}\n{maps}");
    assert!(target.finish().success());
}

#[test]
fn under_scans() {
    let commands = [vec!["scan"], vec!["rss"]].into_iter();
    stays_few(&mut commands.cycle().take(24));
}

#[test]
fn under_a_watch() {
    let watch = vec!["stale", "--older", "2s", "-d", "5s"];
    stays_few(&mut std::iter::once(watch));
}
