//! Tests the profiles that run memhook-rs with few privileges, and the checks of a release. Each
//! file is tested with the program that reads it.

// Provides a `#[test]` that lets a test pass if its requirements are not installed.
#[macro_use]
extern crate memhook_tests;

use memhook_tests::programs::{Folder, copy_program, installed};
use memhook_tests::{Target, binary, build_target};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn output(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Runs a command, which must succeed.
fn succeeds(command: &mut Command) -> String {
    let found = output(command);
    assert!(found.status.success(), "{command:?}: {}", text(&found));
    text(&found)
}

#[test]
fn apparmor_compiles_the_profile() {
    let folder = Folder::new("apparmor");
    let parser = || {
        let mut parser = Command::new(installed("apparmor_parser"));
        parser.args(["-Q", "-T", "-K"]);
        parser
    };
    let profile = root().join("fleet/apparmor/memhook-rs-agent");
    succeeds(parser().arg(&profile));
    // A failure here proves that the program reads the file.
    let broken = folder.path("broken");
    let contents = std::fs::read_to_string(&profile).expect("a profile");
    std::fs::write(&broken, contents.replace("ptrace (", "ptracing (")).expect("written");
    assert!(!output(parser().arg(&broken)).status.success());
}

#[test]
fn selinux_compiles_the_module() {
    let folder = Folder::new("selinux");
    let module = folder.path("memhook_agent.mod");
    let sources = root().join("fleet/selinux");
    let mut compiler = Command::new(installed("checkmodule"));
    compiler.args(["-M", "-m", "-o", &module]);
    succeeds(compiler.arg(sources.join("memhook_agent.te")));
    let mut packer = Command::new(installed("semodule_package"));
    packer.args(["-o", &folder.path("memhook_agent.pp"), "-m", &module, "-f"]);
    succeeds(packer.arg(sources.join("memhook_agent.fc")));
}

/// Checks that the kernel knows each system call in the profile. The last test checks that the list
/// contains every call that the commands need.
#[test]
fn seccomp_knows_the_system_calls() {
    let file = std::fs::read(root().join("fleet/seccomp/memhook-rs.json")).expect("a profile");
    let profile: serde_json::Value = serde_json::from_slice(&file).expect("JSON");
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let parts = profile["syscalls"].as_array().expect("a list");
    let names = parts
        .iter()
        .flat_map(|part| part["names"].as_array().expect("names"));
    let resolver = installed("scmp_sys_resolver");
    let mut count = 0;
    for name in names {
        let name = name.as_str().expect("a name");
        let number = succeeds(Command::new(&resolver).args(["-a", "x86_64", name]));
        let number: i64 = number.trim().parse().expect("a number");
        assert!(number >= 0, "{name} is no system call");
        count += 1;
    }
    assert!(count > 100, "{count}");
}

/// Runs the commands of docs/installing.md with a key made for this test.
#[test]
fn a_signature_is_checked_by_the_documented_commands() {
    let folder = Folder::new("signature");
    let (key, sums) = (folder.path("key"), folder.path("SHA256SUMS"));
    let keygen = installed("ssh-keygen");
    succeeds(Command::new(&keygen).args(["-q", "-t", "ed25519", "-N", "", "-f", &key]));
    std::fs::write(&sums, "0123  memhook-rs.tar.gz\n").expect("written");
    let sign = root().join("ci/sign-release");
    succeeds(Command::new(&sign).args([&key, &folder.path(".")]));
    std::fs::rename(folder.path("key.pub"), folder.path("release-key.pub")).expect("renamed");
    let document = std::fs::read_to_string(root().join("docs/installing.md")).expect("a page");
    let lines = document.lines().filter(|line| {
        line.starts_with("echo \"memhook-rs $(cat release-key.pub)")
            || line.starts_with("ssh-keygen -Y verify")
    });
    let script = lines.collect::<Vec<_>>().join("\n");
    assert_eq!(script.lines().count(), 2, "{script}");
    let check = || {
        output(
            Command::new("bash")
                .args(["-ec", &script])
                .current_dir(folder.path(".")),
        )
    };
    let good = check();
    assert!(good.status.success(), "{}", text(&good));
    std::fs::write(&sums, "4567  memhook-rs.tar.gz\n").expect("written");
    assert!(!check().status.success(), "another file has this signature");
    let none = output(Command::new(&sign).args([&folder.path("none"), &folder.path(".")]));
    assert_eq!(none.status.code(), Some(2), "{}", text(&none));
}

/// Checks that the release is signed, attested and compared before it is published.
#[test]
fn the_release_is_signed_before_it_is_published() {
    let workflow =
        std::fs::read_to_string(root().join(".github/workflows/release.yml")).expect("a workflow");
    let places: Vec<usize> = [
        "diff -r first/target/dist second/target/dist",
        "ci/sign-release",
        "actions/attest-build-provenance@",
        "gh release create",
    ]
    .iter()
    .map(|step| {
        workflow
            .find(step)
            .unwrap_or_else(|| panic!("no step with {step}"))
    })
    .collect();
    assert!(places.is_sorted(), "{places:?}");
    assert!(workflow.contains("attestations: write") && workflow.contains("id-token: write"));
}

/// Runs podman with an image that contains only the command, under the seccomp profile. The command
/// traces a process of the host, which is outside its container. Prints the reason if containers
/// cannot run.
#[test]
fn podman_attaches_across_containers() {
    let folder = Folder::new("podman");
    let mut target = Target::start(&build_target("leaks", &[]), &[]);
    copy_program(binary(), folder.path("memhook-rs"));
    let image = "FROM scratch\nCOPY memhook-rs /\nENTRYPOINT [\"/memhook-rs\"]\n";
    std::fs::write(folder.path("Containerfile"), image).expect("written");
    let podman = |words: &[&str]| {
        let mut command = Command::new(installed("podman"));
        // runc supports both versions of control groups. The test does not touch the machine's own
        // images.
        command
            .args(["--runtime", "runc", "--cgroup-manager", "cgroupfs"])
            .args(["--storage-driver", "vfs", "--root", &folder.path("root")])
            .args(["--runroot", &folder.path("runroot")])
            .args(words);
        output(&mut command)
    };
    let built = podman(&["build", "-q", "-t", "memhook-test", &folder.path(".")]);
    assert!(built.status.success(), "{}", text(&built));
    let profile = format!(
        "seccomp={}",
        root().join("fleet/seccomp/memhook-rs.json").display()
    );
    let pid = target.pid().to_string();
    let in_container = |words: &[&str]| {
        let head = [
            "run",
            "--rm",
            "--network=none",
            "--pid=host",
            "--cap-add=SYS_PTRACE",
        ];
        // Limits that a container of this machine may not raise.
        let limits = [
            "--ulimit",
            "nofile=1000:1000",
            "--ulimit",
            "nproc=1000:1000",
        ];
        let tail = ["--security-opt", &profile, "localhost/memhook-test"];
        podman(&[&head[..], &limits, &tail, words].concat())
    };
    let first = in_container(&["--version"]);
    if !first.status.success() {
        eprintln!("cannot run a container on this machine: {}", text(&first));
        return;
    }
    for words in [
        &["doctor", &pid][..],
        &["scan", &pid],
        &["attach", &pid, "--duration", "1s"],
        &["rss", &pid, "--read-only"],
    ] {
        let done = in_container(words);
        assert!(done.status.success(), "{words:?}: {}", text(&done));
    }
    let _ = podman(&["rmi", "--force", "localhost/memhook-test"]);
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}
