//! A process exits after its selection, and another process gets its id before the first action on
//! it.

use memhook_tests::agents::{Agent, wrapped_slots};
use memhook_tests::programs::{Folder, copy_program};
use memhook_tests::{Attacher, Target, build_target, stop, until};
use std::fs::File;
use std::process::Command;
use std::sync::Arc;

/// Holds the attacher lock of a process, so that attachers wait.
struct Claimed {
    target: Target,
    lock: File,
}

impl Claimed {
    fn new(target: Target) -> Claimed {
        let lock = File::open(format!("/proc/{}/mem", target.pid())).expect("it may be traced");
        lock.lock().expect("nobody has it");
        Claimed { target, lock }
    }

    /// Waits until an attacher waits for the lock, and stops the attacher.
    fn stop_who_waits(&self, attacher: u32) {
        let wanted = format!("/proc/{}/mem", self.target.pid());
        until("the attacher is at the claim", || {
            let files = std::fs::read_dir(format!("/proc/{attacher}/fd")).expect("it runs");
            let links = files
                .flatten()
                .filter_map(|file| std::fs::read_link(file.path()).ok());
            links
                .into_iter()
                .any(|link| link.to_string_lossy() == wanted)
        });
        stop(attacher);
    }

    /// Kills the process, and starts another program with its id.
    fn replace(self, program: &str) -> Target {
        let pid = self.target.pid();
        drop(self.target);
        let reuser = build_target("reused_id", &[]);
        let target = Target::run(Command::new(reuser).args([&pid.to_string(), program]));
        let _ = self.lock.unlock();
        target
    }
}

fn expect_untouched(pid: u32) {
    assert_eq!(
        wrapped_slots(pid),
        0,
        "slots of process {pid} lead to wrappers"
    );
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    assert!(!maps.contains("memfd:memhook"), "{maps}");
}

#[test]
fn a_process_that_gets_the_id_of_the_chosen_one_is_left_alone() {
    let program = build_target("served", &[]);
    let target = Target::start(&program, &[]);
    let pid = target.pid();
    let claimed = Claimed::new(target);
    let attacher = Attacher::to(&[&pid.to_string(), "-i", "1h", "-d", "10s"]);
    claimed.stop_who_waits(attacher.pid());
    let mut other = claimed.replace(program.to_str().expect("UTF-8"));
    attacher.signal(libc::SIGCONT);
    let (status, _, errors) = attacher.outcome();
    expect_untouched(pid);
    assert_eq!(status.code(), Some(2), "{errors}");
    let why = format!("process {pid} has ended, and its id now belongs to another process");
    assert!(errors.contains(&why), "{errors}");
    other.send("l");
    other.expect("done");
}

#[test]
fn an_agent_leaves_a_forbidden_program_alone_that_gets_the_id_of_a_chosen_one() {
    let folder = Arc::new(Folder::new("reused"));
    let [web, secret] = ["web", "secret"].map(|name| folder.path(name));
    for copy in [&web, &secret] {
        copy_program(build_target("served", &[]), copy);
    }
    let target = Target::start(web.as_ref(), &[]);
    let pid = target.pid();
    let claimed = Claimed::new(target);
    let rule = format!("[[rule]]\nname = \"web\"\nexecutable = \"{web}\"\nmode = \"exact\"\n");
    let mut agent = Agent::start(&folder, &rule);
    claimed.stop_who_waits(agent.pid());
    let mut other = claimed.replace(&secret);
    agent.signal(libc::SIGCONT);
    until("the agent has given the process up", || {
        agent.targets().is_empty()
    });
    expect_untouched(pid);
    other.send("l");
    other.expect("done");
    assert!(!agent.said().contains("panicked"), "{}", agent.said());
    agent.hear("the agent runs");
}
