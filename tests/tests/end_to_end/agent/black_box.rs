//! Profiles that an agent saves for processes that run out of memory.

use super::served::{expect_untouched, rule};
use memhook_tests::agents::{Agent, Pprof};
use memhook_tests::patience::TRIES;
use memhook_tests::programs::{Folder, copy_program};
use memhook_tests::{MemoryBox, Target, build_target, not_run, until};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

const LIMIT: u64 = 96 << 20;

/// Reasons for profiles before a process is killed.
const EARLIER: [&str; 3] = ["limit", "growth", "pressure"];

/// Makes one process of a group leak until the kernel kills it, while all other processes continue.
/// Returns the saved profiles of the leaking process, by the reason for which they were saved. If
/// no group can be created, prints the reason and returns `None`.
fn kept_of_leaker(name: &str, others: usize, symbols: &str) -> Option<BTreeMap<String, Pprof>> {
    let is_early = |reason: &String| EARLIER.contains(&reason.as_str());
    // If the agent gets no processor time, it keeps only the profile at the end.
    for _ in 0..TRIES {
        let reasons = kept_of_one(name, others, symbols)?;
        if reasons.keys().any(is_early) {
            return Some(reasons);
        }
    }
    panic!("nothing is kept before the end");
}

fn kept_of_one(name: &str, others: usize, symbols: &str) -> Option<BTreeMap<String, Pprof>> {
    let Some(group) = MemoryBox::new(name, LIMIT) else {
        not_run("no memory cgroup can be made here");
        return None;
    };
    let folder = Arc::new(Folder::new(name));
    let program = PathBuf::from(folder.path("leaks"));
    copy_program(build_target("leaks_until_killed", &[]), &program);
    let idle = || Target::run(group.command(&program).args(["1000000", "0"]));
    let idle: Vec<Target> = (0..others).map(|_| idle()).collect();
    let mut leaker = Target::run(group.command(&program).args(["1000000000", "5000"]));
    let rule = rule(&program, "mode = \"exact\"\nblackbox = true");
    let agent = Agent::start(&folder, &format!("{symbols}{rule}"));
    for target in idle.iter().chain([&leaker]) {
        agent.await_phase(target.pid(), "traced");
    }
    let kept = |reason: &str| agent.metric("memhook_agent_blackbox_profiles_total", &[reason]);
    assert_eq!(kept("reason=\"end\""), None);
    let pid = leaker.pid();
    leaker.go();
    let status = leaker.finish();
    assert!(!status.success(), "the kernel kills it: {status}");
    until("its last profile is kept", || {
        kept("reason=\"end\"") == Some(1.0)
    });
    for target in &idle {
        agent.await_phase(target.pid(), "traced");
    }
    let directory = folder.path("state/blackbox");
    let mut reasons = BTreeMap::new();
    for entry in std::fs::read_dir(&directory).expect("there").flatten() {
        let mode = entry.metadata().expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let name = entry.file_name().into_string().expect("text");
        if !name.contains(&format!("-{pid}-")) {
            continue;
        }
        let name = name.trim_end_matches(".pb.gz");
        let reason = name.rsplit('-').next().expect("a word").to_owned();
        let profile = Pprof::read(&std::fs::read(entry.path()).expect("readable"));
        reasons.insert(reason, profile);
    }
    let last = &reasons.get("end").expect("one of the end").comments;
    let says = |words: &str| last.iter().any(|comment| comment.contains(words));
    assert!(
        says("killed by the kernel because memory ran out"),
        "{last:?}"
    );
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains(&format!("process {pid} (leaks): killed by the kernel")),
        "{said}"
    );
    for target in &idle {
        expect_untouched(target.pid());
    }
    Some(reasons)
}

/// Checks that profiles from before and after the kill are on disk, with the name of the killed
/// process.
#[test]
fn the_last_profile_says_who_was_killed() {
    let kept = kept_of_leaker("agent-black-box", 3, "");
    for (reason, profile) in kept.into_iter().flatten() {
        // The leak accounts for more than a quarter of the memory limit, in the profile before the
        // kill and in the last one.
        let leaked = profile.of("inuse_space", "planted_leak");
        assert!(leaked as u64 > LIMIT / 4, "{reason}: {leaked}");
    }
}

/// With `names = "store"`, the agent reads no files when time is short.
#[test]
fn what_is_kept_may_have_addresses_only() {
    let symbols = "[symbols]\nnames = \"store\"\n";
    let kept = kept_of_leaker("agent-black-box-nameless", 0, symbols);
    for (reason, profile) in kept.into_iter().flatten() {
        assert_eq!(profile.functions, 0, "{reason}");
        let mut nameless = profile.nameless.iter();
        assert!(nameless.any(|(path, ..)| path.ends_with("/leaks")));
        let live = profile.sum("inuse_space");
        assert!(live as u64 > LIMIT / 4, "{reason}: {live}");
    }
}
