//! The recipes of docs/containers.md. The target runs as it would in a container: in its own
//! namespaces, with a read-only root that contains only the program, as an unprivileged user.

use memhook_tests::programs::{Folder, another_root, copy_program, installed, pivot_root, unshare};
use memhook_tests::{Attacher, Target, binary, build_target, expect_sites};
use std::path::Path;
use std::process::{Command, Output};

/// User id of the program in the container.
const USER: &str = "1000";
/// User id of another user.
const OTHER_USER: &str = "1001";

fn tool(name: &str) -> String {
    installed(name).display().to_string()
}

fn done(command: &mut Command) -> Output {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// Creates a root with a program whose symbols are in a separate debug file, at the standard path
/// below the container's root.
fn root_with_debug_file() -> Folder {
    let program = build_target("threads", &["-Wl,--build-id"]);
    let root = another_root(&[("target", &program), ("setpriv", &installed("setpriv"))]);
    let target = root.path("target");
    let notes = done(Command::new("readelf").args(["-n", &target]));
    let notes = String::from_utf8(notes.stdout).expect("text");
    let (_, id) = notes.split_once("Build ID: ").expect("a build-id");
    let (first, rest) = id.lines().next().expect("a line").split_at(2);
    let directory = root.path(&format!("usr/lib/debug/.build-id/{first}"));
    std::fs::create_dir_all(&directory).expect("made");
    let debug = format!("{directory}/{rest}.debug");
    done(Command::new("objcopy").args(["--only-keep-debug", &target, &debug]));
    done(Command::new("strip").arg(&target));
    std::fs::create_dir(root.path("old")).expect("made");
    root
}

struct Container {
    target: Target,
    root: Folder,
    /// memhook-rs in a folder where every user may execute it.
    tools: Folder,
}

impl Container {
    fn start() -> Container {
        let root = root_with_debug_file();
        let script = format!(
            "set -e; mount --bind {0} {0}; mount -t proc proc {0}/proc; mount -o remount,bind,ro {0}; \
             cd {0}; {1} . old; exec /setpriv --reuid {USER} --regid {USER} --clear-groups \
             --no-new-privs --inh-caps=-all --bounding-set=-all /target",
            root.path(""),
            pivot_root().display(),
        );
        let mut command = Command::new(unshare());
        command
            .args([
                "--mount",
                "--pid",
                "--ipc",
                "--uts",
                "--net",
                "--fork",
                "--kill-child",
            ])
            .args(["sh", "-c", &script]);
        let mut target = Target::run(&mut command);
        target.descend();
        let tools = Folder::new("tools");
        copy_program(binary(), tools.path("memhook-rs"));
        Container {
            target,
            root,
            tools,
        }
    }

    /// Attaches through a command while the program plants its leaks.
    fn traced_by(&mut self, through: &[&str], pid: u32) -> Attacher {
        let files = || {
            std::fs::read_dir(self.root.path(""))
                .expect("its root")
                .count()
        };
        let before = files();
        let memhook = self.tools.path("memhook-rs");
        let words = [through, &[&memhook]].concat();
        let attacher = Attacher::start_as(&words, pid, &[]);
        self.target.go();
        self.target.expect("done");
        assert_eq!(files(), before, "no file in the target's root");
        attacher
    }

    /// Traces the target until it exits, and checks that names are available although the
    /// container's root disappears when the target exits.
    fn traced_to_its_end(mut self, through: &[&str]) {
        let attacher = self.traced_by(through, self.target.pid());
        assert!(self.target.finish().success());
        check(&attacher.last_report());
    }

    fn refused_to(&self, through: &[&str]) -> String {
        let memhook = self.tools.path("memhook-rs");
        let words = [through, &[&memhook]].concat();
        let output = Command::new(words[0])
            .args(&words[1..])
            .args(["attach", &self.target.pid().to_string()])
            .output()
            .expect("memhook-rs starts");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    }
}

/// Checks for exactly the leaks of the program, with names from the container's root.
fn check(report: &serde_json::Value) {
    expect_sites(
        report,
        "threads.cc",
        &[("leak_in_thread", "malloc", 100, 48)],
    );
}

/// Returns the options of setpriv(1) for a user with only these capabilities.
fn with_capabilities(user: &str, capabilities: &str) -> Vec<String> {
    let mut options = vec![
        tool("setpriv"),
        format!("--bounding-set=-all{capabilities}"),
    ];
    options.push(format!("--inh-caps=-all{capabilities}"));
    if user != "0" {
        options.push(format!("--ambient-caps=-all{capabilities}"));
        options.extend(["--reuid", user, "--regid", user, "--clear-groups"].map(str::to_owned));
    }
    options
}

fn words(options: &[String]) -> Vec<&str> {
    options.iter().map(String::as_str).collect()
}

/// A container on the node that sees the host's processes: a DaemonSet, or `docker run --pid=host`.
#[test]
fn from_the_host_with_two_capabilities() {
    let container = Container::start();
    let options = with_capabilities("0", ",+sys_ptrace,+dac_override");
    container.traced_to_its_end(&words(&options));
}

/// Attaches as another user, like a service with `AmbientCapabilities=` or a binary with file
/// capabilities.
#[test]
fn as_another_user_with_two_capabilities() {
    let container = Container::start();
    let options = with_capabilities(OTHER_USER, ",+sys_ptrace,+dac_override");
    container.traced_to_its_end(&words(&options));
}

/// Checks that the target's own user needs no capability unless Yama restricts tracing.
#[test]
fn as_the_same_user_without_capabilities() {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let is_restricted = scope.is_ok_and(|scope| scope.trim() != "0");
    let container = Container::start();
    let capabilities = if is_restricted { ",+sys_ptrace" } else { "" };
    container.traced_to_its_end(&words(&with_capabilities(USER, capabilities)));
}

/// A debugging container that shares only the process namespace of the target: `kubectl debug
/// --target`, `docker run --pid=container:NAME`. It ends with the namespace's first process, which
/// is the target.
#[test]
fn from_a_sidecar() {
    let mut container = Container::start();
    let pid = container.target.pid().to_string();
    let (nsenter, unshare) = (tool("nsenter"), tool("unshare"));
    let script = "mount -t proc proc /proc && exec \"$@\"";
    let through = [
        &nsenter, "--target", &pid, "--pid", &unshare, "--mount", "sh", "-c", script, "sh",
    ];
    let attacher = container.traced_by(&through, 1);
    // nsenter waits for memhook-rs.
    let children = format!("/proc/{0}/task/{0}/children", attacher.pid());
    let children = std::fs::read_to_string(children).expect("its child");
    let memhook: i32 = children.trim().parse().expect("one child");
    // SAFETY: kill takes plain integers; nsenter has not reaped its child, which is running.
    unsafe { libc::kill(memhook, libc::SIGINT) };
    check(&attacher.last_report());
    assert!(container.target.finish().success());
}

#[test]
fn missing_capabilities_are_named() {
    let container = Container::start();
    for user in ["0", OTHER_USER] {
        let text = container.refused_to(&words(&with_capabilities(user, ",+sys_ptrace")));
        assert!(
            text.contains("but not CAP_DAC_OVERRIDE: add that"),
            "{text}"
        );
    }
    let text = container.refused_to(&words(&with_capabilities("0", ",+dac_override")));
    assert!(text.contains("--cap-add=SYS_PTRACE"), "{text}");
    let text = container.refused_to(&words(&with_capabilities(OTHER_USER, "")));
    let (reason, remedy) = ("runs as uid 1001", "CAP_SYS_PTRACE and CAP_DAC_OVERRIDE");
    assert!(text.contains(reason) && text.contains(remedy), "{text}");
}

#[test]
fn the_page_names_these_tests() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/containers.md");
    let page = std::fs::read_to_string(page).expect("docs/containers.md");
    for test in [
        "from_the_host_with_two_capabilities",
        "as_another_user_with_two_capabilities",
        "as_the_same_user_without_capabilities",
        "from_a_sidecar",
        "missing_capabilities_are_named",
    ] {
        assert!(page.contains(test), "{test}");
    }
}
