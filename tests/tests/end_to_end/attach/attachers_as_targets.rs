//! A running memhook-rs as the target of another one. It maps the regions of its targets, which
//! must not be mistaken for its own region.

use memhook_tests::programs::{Folder, copy_program};
use memhook_tests::{Attacher, MemoryBox, Target, binary, build_target, not_run, run};

/// Commands that could affect a process. `top`, which needs a terminal, attaches like `attach`.
const COMMANDS: [&[&str]; 15] = [
    &["attach", "PID", "-d", "100ms"],
    &["attach", "PID", "--follow-fork", "-d", "100ms"],
    &["detach", "PID"],
    &["probe", "PID", "--func", "malloc", "-d", "100ms"],
    &["scan", "PID"],
    &["stale", "PID", "-d", "100ms"],
    &["rss", "PID"],
    &["trim", "PID"],
    &["emit", "PID"],
    &["gate", "--pid", "PID", "-d", "100ms"],
    &["mark", "PID", "here"],
    &["watch", "PID", "-d", "100ms", "-o", "/dev/null/none"],
    &["scan", "PID", "--census"],
    &["rss", "PID", "--pins"],
    &["doctor", "PID"],
];

#[test]
fn attachers_are_refused_by_what_they_are() {
    memhook_tests::patiently(|| {
        let folder = Folder::new("attachers");
        // Neither the file nor the process has the name memhook-rs.
        let other = folder.path("profiler");
        copy_program(binary(), &other);
        let program = build_target("hammer", &[]);
        for binary in [binary().to_str().expect("UTF-8"), &other] {
            let target = Target::start(&program, &[]);
            let mut attacher = Attacher::start_as(&[binary], target.pid(), &[]);
            let pid = attacher.pid().to_string();
            for command in COMMANDS {
                let words: Vec<&str> = command
                    .iter()
                    .map(|&w| if w == "PID" { &pid } else { w })
                    .collect();
                let (code, out, errors) = run(&words);
                let text = format!("{out}{errors}");
                assert_eq!(code, 2, "{words:?}: {text}");
                assert!(
                    text.contains("attaches to other processes itself"),
                    "{words:?}: {text}"
                );
                if words[0] != "doctor" {
                    assert_eq!(errors.lines().count(), 1, "{words:?}: {text}");
                }
            }
            assert!(attacher.lives(), "the first attacher has ended");
            // The attacher has continued its own work.
            attacher.finish();
            drop(target);
        }
    });
}

/// Checks that selecting a control group skips the attachers in it.
#[test]
fn attachers_in_a_control_group_are_left_alone() {
    memhook_tests::patiently(|| {
        let Some(group) = MemoryBox::new("attachers", 256 << 20) else {
            return not_run("no memory cgroup can be made here");
        };
        let program = build_target("hammer", &[]);
        let outside = Target::start(&program, &[]);
        let inside = Target::run(&mut group.command(&program));
        let mut attacher = Attacher::start(&outside, &[]);
        let members = group.path().join("cgroup.procs");
        std::fs::write(members, attacher.pid().to_string()).expect("moved");
        let folder = Folder::new("attachers-in-a-group");
        let path = group.path().to_str().expect("text");
        let reports = folder.path("reports");
        for command in [
            &["watch", "--cgroup", path, "-d", "300ms", "-o", &reports][..],
            &["attach", "--all", "--cgroup", path, "-d", "300ms"],
            &["attach", "--cgroup", path, "-d", "300ms"],
        ] {
            let (code, out, errors) = run(command);
            assert_eq!(code, 0, "{command:?}: {errors}");
            let inside = inside.pid().to_string();
            assert!(
                format!("{out}{errors}").contains(&inside),
                "{command:?}: {errors}"
            );
            let attacher_pid = attacher.pid().to_string();
            let mut numbers = errors.split(|c: char| !c.is_ascii_digit());
            assert!(numbers.all(|number| number != attacher_pid), "{errors}");
            assert!(attacher.lives(), "{command:?}");
        }
        attacher.finish();
        drop((outside, inside));
    });
}

/// Checks that every program that attaches by using these crates is recognized as a live attacher,
/// regardless of its name.
#[test]
fn an_attacher_with_another_name_is_not_taken_for_dead() {
    let folder = Folder::new("renamed");
    let other = folder.path("profiler");
    copy_program(binary(), &other);
    let mut target = Target::start(&build_target("deterministic", &[]), &[]);
    let attacher = Attacher::start_as(&[&other], target.pid(), &[]);
    let pid = target.pid().to_string();
    for command in [&["attach", &pid, "-d", "100ms"][..], &["detach", &pid]] {
        let (code, _, errors) = run(command);
        assert_ne!(code, 0, "{errors}");
        assert!(errors.contains("already traced"), "{errors}");
    }
    target.go();
    target.expect("done");
    attacher.finish();
    assert!(target.finish().success());
}
