//! Targets whose file systems do not respond: a file server that is gone, or a FUSE program of the
//! target itself.

use super::served::{Ended, ask, expect_untouched};
use memhook_tests::agents::{Agent, get};
use memhook_tests::pods::PodGroup;
use memhook_tests::programs::{Folder, copy_program, installed, unshare};
use memhook_tests::{Target, build_library, build_target, not_run, not_run_here, run, until};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// A FUSE server that mounts a folder at another path until it is stopped.
const SERVER: &str = r#"
import os, sys, fusepy as fuse
class Shown(fuse.Operations):
    def __init__(self, of): self.of = of
    def getattr(self, path, fh=None):
        try: found = os.lstat(self.of + path)
        except OSError as error: raise fuse.FuseOSError(error.errno)
        return {key: getattr(found, key) for key in ("st_mode", "st_size", "st_nlink", "st_uid", "st_gid", "st_mtime")}
    def readdir(self, path, fh): return [".", ".."] + os.listdir(self.of + path)
    def open(self, path, flags): return os.open(self.of + path, os.O_RDONLY)
    def read(self, path, size, offset, fh): return os.pread(fh, size, offset)
    def release(self, path, fh): os.close(fh)
fuse.FUSE(Shown(sys.argv[1]), sys.argv[2], foreground=True, nothreads=True, attr_timeout=0, entry_timeout=0)
"#;

struct Shown {
    server: Ended,
    path: String,
}

impl Shown {
    /// Returns `None`, and prints the reason, if the kernel lacks FUSE, which no package can add.
    fn mount(of: &str, path: String) -> Option<Shown> {
        if std::fs::File::open("/dev/fuse").is_err() {
            not_run_here("/dev/fuse cannot be opened");
            return None;
        }
        std::fs::create_dir(&path).expect("made");
        let mut python = Command::new(installed("python3"));
        let server = python.args(["-c", SERVER, of, &path]).spawn();
        let mut server = Ended(server.expect("it runs"));
        until("the files are shown", || {
            assert!(
                server.0.try_wait().expect("a child").is_none(),
                "python3-fusepy is missing"
            );
            Path::new(&path).join("served").exists()
        });
        Some(Shown { server, path })
    }

    fn signal(&self, signal: i32) {
        // SAFETY: kill takes plain integers; the child has not been waited for.
        assert_eq!(unsafe { libc::kill(self.server.0.id() as i32, signal) }, 0);
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        // Requests that wait for an answer get an error.
        let _ = self.server.0.kill();
        let _ = Command::new("umount").args(["-l", &self.path]).status();
    }
}

/// Checks that a plan lists processes with unreadable files instead of waiting for them.
fn expect_plan(folder: &Folder, rules: &str, dead: &[Target], well: &Target) {
    let file = folder.path("plan.toml");
    let state = folder.path("state-of-plan");
    let text = format!("[agent]\nstate = \"{state}\"\n{rules}");
    std::fs::write(&file, text).expect("written");
    let (code, json, errors) = run(&["agent", "--config", &file, "--plan", "--json"]);
    assert_eq!(code, 0, "{errors}");
    let plan: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let of = |list: &str, pid: u32| {
        let list = plan[list].as_array().expect("a list").iter();
        list.clone().find(|one| one["pid"] == pid).cloned()
    };
    let is_silent = |target: &&Target| {
        let found = of("targets", target.pid()).or_else(|| of("unchosen", target.pid()));
        found.is_some_and(|found| found["why"] == "its files do not answer")
    };
    // A plan need not read libraries.
    let silent = dead.iter().filter(is_silent).count();
    assert!(silent >= 4, "the programs and the pod: {json}");
    let found = of("targets", well.pid()).expect("a target");
    assert_eq!(found["phase"], "attaches", "{found}");
}

#[test]
fn files_that_do_not_answer_keep_nobody_else_waiting() {
    let folder = Arc::new(Folder::new("agent-dead-files"));
    let [source, plain] = ["source", "plain"].map(|name| folder.path(name));
    for place in [&source, &plain] {
        std::fs::create_dir(place).expect("made");
        copy_program(build_target("served", &[]), format!("{place}/served"));
    }
    std::fs::write(format!("{source}/hostname"), "pod-1\n").expect("written");
    let library = build_library("late_library", "liblate.so", &[]);
    copy_program(library, format!("{source}/library.so"));
    let Some(shown) = Shown::mount(&source, folder.path("shown")) else {
        return;
    };
    let Some(group) = PodGroup::new(std::process::id() ^ 0x00de_adf5) else {
        return not_run("no control group can be made: it takes root");
    };
    let program = format!("{plain}/served");
    // Targets that depend on this file system for their program, for one of their libraries, or for
    // the files that name their pod.
    let of_shown = || Target::start(Path::new(&format!("{}/served", shown.path)), &[]);
    let with_library = || {
        let library = format!("{}/library.so", shown.path);
        Target::run(Command::new(&program).env("LD_PRELOAD", library))
    };
    let mut dead: Vec<Target> = vec![of_shown(), of_shown(), of_shown()];
    dead.extend([with_library(), with_library(), with_library()]);
    let script = format!("mount --bind {} /etc && exec {program}", shown.path);
    let in_pod = Target::run(Command::new(unshare()).args(["--mount", "sh", "-c", &script]));
    group.take(in_pod.pid());
    dead.push(in_pod);
    shown.signal(libc::SIGSTOP);
    let mut well = vec![Target::start(Path::new(&program), &[])];
    let rules = format!(
        "[[rule]]\nname = \"web\"\nexecutable = \"{}/served\"\nmode = \"exact\"\n",
        folder.path("*")
    );
    expect_plan(&folder, &rules, &dead, &well[0]);
    let agent = Agent::start(&folder, &rules);
    agent.await_phase(well[0].pid(), "traced");
    let number = |name: &str| agent.metric(name, &[]).unwrap_or(0.0);
    until("reads are given up", || {
        number("memhook_agent_silent_files_total") >= 3.0
    });
    let hung = number("memhook_agent_hung_readers");
    assert!((1.0..10.0).contains(&hung), "{hung}");
    for _ in 0..2 {
        let mut next = Target::start(Path::new(&program), &[]);
        until("it is traced", || {
            let target = agent.targets().remove(&u64::from(next.pid()));
            target.is_some_and(|target| target["phase"] == "traced")
        });
        ask(&mut next, "l");
        agent.await_number(next.pid(), "live_bytes", 100_000);
        well.push(next);
    }
    assert_eq!(get(agent.address(), "/healthz"), "ok\n");
    let targets = agent.targets();
    for target in &dead {
        let phase = targets
            .get(&u64::from(target.pid()))
            .map(|target| target["phase"].clone());
        assert!(
            phase.as_ref().is_none_or(|phase| phase != "traced"),
            "{phase:?}"
        );
    }
    // When the file systems respond again, the agent also traces the other targets.
    shown.signal(libc::SIGCONT);
    for target in &dead {
        until("it is traced after all", || {
            let target = agent.targets().remove(&u64::from(target.pid()));
            target.is_some_and(|target| target["phase"] == "traced")
        });
    }
    assert_eq!(number("memhook_agent_hung_readers"), 0.0);
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("its files do not answer"), "{said}");
    for target in dead.into_iter().chain(well) {
        expect_untouched(target.pid());
        assert!(target.finish().success());
    }
    drop((group, shown));
}
