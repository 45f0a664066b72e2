//! What an agent keeps of processes that run out of memory.

use super::served::{expect_untouched, rule};
use memhook_tests::agents::Agent;
use memhook_tests::pprof::Pprof;
use memhook_tests::programs::{Folder, copy_program};
use memhook_tests::{MemoryBox, Target, build_target, not_run, until};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

const LIMIT: u64 = 96 << 20;

/// One process of a group leaks until the kernel kills it. What it kept is on the disk before that and after it, with who
/// was killed; the other one goes on.
#[test]
fn the_last_profile_says_who_was_killed() {
    let Some(group) = MemoryBox::new("agent-black-box", LIMIT) else {
        return not_run("no memory cgroup can be made here");
    };
    let folder = Arc::new(Folder::new("agent-black-box"));
    let program = PathBuf::from(folder.path("leaks"));
    copy_program(build_target("leaks_until_killed", &[]), &program);
    let idle = Target::run(group.command(&program).args(["1000000", "0"]));
    let mut leaker = Target::run(group.command(&program).args(["1000000000", "5000"]));
    let agent = Agent::start(
        &folder,
        &rule(&program, "mode = \"exact\"\nblackbox = true"),
    );
    for target in [&idle, &leaker] {
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
    agent.await_phase(idle.pid(), "traced");
    let directory = folder.path("state/blackbox");
    let mut reasons = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(&directory).expect("there").flatten() {
        let mode = entry.metadata().expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let name = entry.file_name().into_string().expect("text");
        if !name.contains(&format!("-{pid}-")) {
            continue;
        }
        let reason = name
            .trim_end_matches(".pb.gz")
            .rsplit('-')
            .next()
            .expect("a word")
            .to_owned();
        let profile = Pprof::read(&std::fs::read(entry.path()).expect("readable"));
        // More than half of what there is, before the end and at it.
        let leaked = profile.of("inuse_space", "planted_leak");
        assert!(leaked as u64 > LIMIT / 4, "{reason}: {leaked}");
        reasons.insert(reason, profile.comments);
    }
    let last = reasons.remove("end").expect("one of the end");
    let says = |words: &str| last.iter().any(|comment| comment.contains(words));
    assert!(says("killed by the kernel for want of memory"), "{last:?}");
    let before = ["limit", "growth", "pressure"].map(|reason| reasons.contains_key(reason));
    assert!(before.contains(&true), "{reasons:?}");
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains(&format!("process {pid} (leaks): killed by the kernel")),
        "{said}"
    );
    expect_untouched(idle.pid());
    drop(idle);
}
