//! Selection of processes by name or control group.

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, MemoryBox, Target, build_target, not_run, run};
use std::path::{Path, PathBuf};

/// Copies a target under a name that no other process has.
fn copy(folder: &Folder, name: &str) -> PathBuf {
    let path = folder.path(&format!("{name}-{}", std::process::id()));
    memhook_tests::programs::copy_program(build_target("deterministic", &[]), &path);
    path.into()
}

fn file_name(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .expect("text")
}

/// Runs a command that must be refused, and returns the line with the reason.
fn refused(args: &[&str]) -> String {
    let (code, out, err) = run(args);
    assert_eq!(code, 2, "{args:?}: {out}{err}");
    assert_eq!(err.lines().count(), 1, "{args:?}: {err}");
    assert!(out.is_empty(), "{args:?}: {out}");
    err
}

/// Returns the process of the only report.
fn pid_of_report(args: &[&str]) -> u64 {
    let (code, out, err) = run(&[&["attach", "--json", "-d", "100ms"], args].concat());
    assert_eq!(code, 0, "{args:?}: {err}");
    let report: serde_json::Value = serde_json::from_str(&out).expect("one report");
    report["target"]["pid"].as_u64().expect("a pid")
}

#[test]
fn by_name() {
    let folder = Folder::new("by-name");
    // The name is longer than the part that the kernel keeps of a name.
    let program = copy(&folder, "a-target-with-a-name");
    let name = file_name(&program);
    let nobody = refused(&["attach", name]);
    assert!(
        nobody.contains(&format!("no process is named {name}")),
        "{nobody}"
    );

    let first = Target::start(&program, &[]);
    assert_eq!(pid_of_report(&[name]), u64::from(first.pid()));
    let path = program.to_str().expect("text");
    assert_eq!(pid_of_report(&["-p", path]), u64::from(first.pid()));
    assert_eq!(pid_of_report(&["--name", name]), u64::from(first.pid()));
    for args in [
        vec!["doctor", name],
        vec!["detach", name],
        vec!["scan", name],
        vec!["attach", "--dry-run", name],
    ] {
        let (code, out, err) = run(&args);
        assert_eq!(code, 0, "{args:?}: {out}{err}");
    }
    let (code, out, err) = run(&["gate", "-p", name]);
    assert!(code == 0 || code == 1, "a verdict: {out}{err}");

    let second = Target::start(&program, &[]);
    for command in ["attach", "doctor", "detach", "scan"] {
        let several = refused(&[command, name]);
        let named = format!("2 processes are named {name}: ");
        assert!(several.contains(&named), "{several}");
        for pid in [first.pid(), second.pid()] {
            assert!(several.contains(&format!(" {pid} (")), "{several}");
        }
        assert!(several.contains("pgrep -n"), "{several}");
    }
    assert!(refused(&["gate", "-p", name]).contains("2 processes"));
    assert!(first.finish().success() && second.finish().success());
}

/// Checks a name with an extra letter, the name of a kernel thread, and a name that no process has.
#[test]
fn what_may_have_been_meant_is_said() {
    let folder = Folder::new("mistyped");
    let program = copy(&folder, "a-mistyped-target");
    let target = Target::start(&program, &[]);
    let name = file_name(&program);
    let said = refused(&["attach", &format!("{name}x")]);
    assert!(said.contains(&format!("did you mean {name}?")), "{said}");
    assert!(target.finish().success());
    let (code, out, err) = run(&["doctor"]);
    assert!(out.contains("rights"), "{out}{err}");
    assert_eq!(code == 0, out.contains("This machine is ready"), "{out}");
}

#[test]
fn neither_a_number_nor_a_name() {
    for command in ["attach", "doctor", "detach", "scan"] {
        let said = refused(&[command, "notapid"]);
        assert!(said.contains("no process is named notapid"), "{said}");
        assert!(said.contains("PID must be a number"), "{said}");
        // Without a process, doctor examines the machine.
        if command != "doctor" {
            let said = refused(&[command]);
            assert!(said.contains("which process?"), "{said}");
        }
        let said = refused(&[command, ""]);
        assert!(said.contains("PID must be a number"), "{said}");
        let said = refused(&[command, "99999999999"]);
        assert!(said.contains("no process is named"), "{said}");
        let said = refused(&[command, "--cgroup", "/no/such/group"]);
        assert!(said.contains("/no/such/group"), "{said}");
    }
    let said = refused(&["gate", "-p", "notapid"]);
    assert!(said.contains("no process is named notapid"), "{said}");
    let said = refused(&["attach", "--all", "17"]);
    assert!(said.contains("PID 17"), "{said}");
    let said = refused(&["attach", "--all", "x", "-o", "reports.%p.json"]);
    assert!(said.contains("%p"), "{said}");
    let said = refused(&["scan", "--from", "x", "--cgroup", "/y"]);
    assert!(said.contains("--cgroup"), "{said}");
}

#[test]
fn by_control_group() {
    let Some(group) = MemoryBox::new("by-group", 256 << 20) else {
        return not_run("no control group can be made here");
    };
    let folder = Folder::new("by-group");
    let program = copy(&folder, "in-a-group");
    let outside = Target::start(&program, &[]);
    let inside = Target::run(&mut group.command(&program));
    let directory = group.path().to_str().expect("text");
    let text = std::fs::read_to_string(format!("/proc/{}/cgroup", inside.pid()));
    let name = file_name(group.path());
    let line = text.expect("the target lives");
    let line = line.lines().find(|line| line.ends_with(name));
    let line = line.expect("its group");
    let path = line.splitn(3, ':').last().expect("a path");
    for group in [directory, line, path, &format!("{path}/")] {
        assert_eq!(pid_of_report(&["--cgroup", group]), u64::from(inside.pid()));
    }
    let both = [file_name(&program), "--cgroup", directory];
    assert_eq!(pid_of_report(&both), u64::from(inside.pid()));
    let said = refused(&["attach", "nobody", "--cgroup", directory]);
    assert!(said.contains("named nobody in the control group"), "{said}");

    // Selects all processes of the group, including future processes.
    let mut attacher = Attacher::to(&["--all", "--cgroup", directory]);
    attacher.says(&format!("Attached to {} ", inside.pid()));
    let later = Target::run(&mut group.command(&program));
    attacher.says(&format!("Attached to {} ", later.pid()));
    let (status, errors, reports) = attacher.last_reports();
    assert!(status.success(), "{status}: {errors}");
    let traced: Vec<u64> = reports.into_keys().collect();
    let mut expected = [u64::from(inside.pid()), u64::from(later.pid())];
    expected.sort();
    assert_eq!(traced, expected);
    for target in [outside, inside, later] {
        assert!(target.finish().success());
    }
}
