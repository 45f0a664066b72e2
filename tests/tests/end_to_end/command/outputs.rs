//! Files that memhook-rs writes: only the owner can read them, and memhook-rs overwrites no
//! existing file or link.

use memhook_tests::programs::Folder;
use memhook_tests::{Target, binary, build_target, run};
use std::fs::{Permissions, read_to_string, set_permissions, symlink_metadata, write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

fn mode(path: &str) -> u32 {
    let metadata = symlink_metadata(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    metadata.permissions().mode() & 0o7777
}

/// Checks a command that writes `PATH`. It must refuse an existing file or link, and create a
/// private file. With `--force`, a new file replaces the old file.
fn check(folder: &Folder, arguments: &[&str]) {
    let what = arguments.join(" ");
    let path = folder.path("out");
    let _ = std::fs::remove_file(&path);
    let with = |path: &str, more: &[&str]| {
        let replaced = arguments
            .iter()
            .map(|&word| if word == "PATH" { path } else { word });
        let words: Vec<&str> = replaced.chain(more.iter().copied()).collect();
        run(&words)
    };
    let (code, _, errors) = with(&path, &[]);
    assert_eq!(code, 0, "{what}: {errors}");
    assert_eq!(mode(&path), 0o600, "{what}");
    let length = symlink_metadata(&path).expect("there").len();
    assert!(length > 0, "{what}");
    // Replacing a file keeps its permissions and other names.
    let other = folder.path("other-name");
    let _ = std::fs::remove_file(&other);
    write(&path, "precious").expect("written");
    set_permissions(&path, Permissions::from_mode(0o644)).expect("ours");
    std::fs::hard_link(&path, &other).expect("a second name");
    let (code, _, errors) = with(&path, &[]);
    assert_eq!((code, errors.lines().count()), (2, 1), "{what}: {errors}");
    assert!(errors.contains("exists already"), "{what}: {errors}");
    let (code, _, errors) = with(&path, &["--force"]);
    assert_eq!(code, 0, "{what}: {errors}");
    assert_eq!(mode(&path), 0o600, "{what}");
    assert_eq!(read_to_string(&other).expect("text"), "precious", "{what}");
    // A link to a file, and a dangling link.
    let (link, target) = (folder.path("link"), folder.path("target"));
    for is_there in [true, false] {
        let _ = (std::fs::remove_file(&link), std::fs::remove_file(&target));
        if is_there {
            write(&target, "precious").expect("written");
        }
        symlink(&target, &link).expect("a link");
        for more in [&[][..], &["--force"]] {
            let (code, _, errors) = with(&link, more);
            assert_eq!((code, errors.lines().count()), (2, 1), "{what}: {errors}");
            assert!(errors.contains("symbolic link"), "{what}: {errors}");
        }
        assert_eq!(Path::new(&target).exists(), is_there, "{what}");
    }
    // An output that is not a regular file is written to directly.
    let (code, _, errors) = with("/dev/null", &[]);
    assert_eq!(code, 0, "{what}: {errors}");
}

/// Returns an idle target, and a recording of it.
fn recorded(folder: &Folder) -> (Target, String) {
    let target = Target::start(&build_target("leaks", &[]), &[]);
    let file = folder.path("run.mhk");
    let pid = target.pid().to_string();
    let (code, _, errors) = run(&["attach", &pid, "-d", "200ms", "-o", &file]);
    assert_eq!(code, 0, "{errors}");
    assert_eq!(mode(&file), 0o600);
    (target, file)
}

#[test]
fn every_output_is_private() {
    let folder = Folder::new("outputs");
    let (target, file) = recorded(&folder);
    let pid = target.pid().to_string();
    for arguments in [
        &["attach", &pid, "-d", "50ms", "--json", "-o", "PATH"][..],
        &[
            "attach", &pid, "-d", "50ms", "--record", "events", "-o", "PATH",
        ],
        &["scan", &pid, "--save", "PATH"],
        &["symbols", "pack", &file, "-o", "PATH"],
        &["view", &file, "-o", "PATH"],
        &["diff", &file, &file, "-o", "PATH"],
        &["report", &file, "-o", "PATH"],
        &["report", &file, "--format", "pprof", "-o", "PATH"],
    ] {
        check(&folder, arguments);
    }
    assert!(target.finish().success());
}

/// Checks that an output that cannot be written completely leaves the old contents, and that inputs
/// are never overwritten.
#[test]
fn what_was_there_survives() {
    let folder = Folder::new("survives");
    let (target, file) = recorded(&folder);
    let pid = target.pid().to_string();
    let output = folder.path("output");
    let limited = |arguments: &[&str]| {
        // Limits the size of files to zero, as on a full disk.
        let script = "trap '' XFSZ; ulimit -f 0; exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(binary());
        let output = command.args(arguments).output();
        output.expect("it runs").status.code()
    };
    for arguments in [
        &["view", &file][..],
        &["report", &file, "--json"],
        &["symbols", "pack", &file],
        &["scan", &pid, "--save"],
    ] {
        let is_scan = arguments[0] == "scan";
        let to = |path: &str| {
            let flag = if is_scan { &[][..] } else { &["-o"] };
            let path = path.to_owned();
            let all = arguments.iter().chain(flag).map(|a| (*a).to_owned());
            all.chain([path, "--force".into()]).collect::<Vec<_>>()
        };
        let run_limited = |all: Vec<String>| {
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            limited(&all)
        };
        assert_ne!(run_limited(to(&output)), Some(0), "{arguments:?}");
        assert!(!Path::new(&output).exists(), "{arguments:?}");
        write(&output, "before").expect("written");
        assert_ne!(run_limited(to(&output)), Some(0), "{arguments:?}");
        let now = read_to_string(&output).expect("still there");
        assert_eq!(now, "before", "{arguments:?}");
        std::fs::remove_file(&output).expect("removed");
        if !is_scan {
            let whole = std::fs::read(&file).expect("a recording");
            let all = to(&file);
            let (code, _, errors) = run(&all.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(code, 2, "{errors}");
            assert!(errors.contains("is the input"), "{errors}");
            assert!(std::fs::read(&file).expect("a recording") == whole);
        }
    }
    assert!(target.finish().success());
}

/// Checks outputs to named pipes and to descriptors by name.
#[test]
fn streams_by_their_names() {
    let folder = Folder::new("streams");
    let (target, file) = recorded(&folder);
    let pid = target.pid().to_string();
    for arguments in [
        &["report", &file, "-o", "/dev/stdout"][..],
        &["report", &file, "-o", "/proc/self/fd/1"],
        &["attach", &pid, "-q", "-d", "100ms", "-o", "/dev/stdout"],
        &["scan", &pid, "--save", "/dev/stdout"],
        &["scan", &pid, "--save", "-"],
    ] {
        let output = Command::new(binary())
            .args(arguments)
            .output()
            .expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {errors}");
        assert!(output.stdout.len() > 100, "{arguments:?}");
    }
    let pipe = folder.path("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .expect("mkfifo")
            .success()
    );
    let reader = {
        let pipe = pipe.clone();
        std::thread::spawn(move || read_to_string(pipe).expect("text"))
    };
    assert_eq!(run(&["report", &file, "-o", &pipe]).0, 0);
    assert!(reader.join().expect("it ends").contains("live"));
    assert!(target.finish().success());
}

/// Checks that a failed attach leaves an old output unchanged, and creates no new output.
#[test]
fn a_failed_attach_leaves_no_output() {
    let folder = Folder::new("failed");
    let (old, new) = (folder.path("old.json"), folder.path("new.json"));
    write(&old, "precious").expect("written");
    let target = Target::start(&build_target("before_attach", &["-static", "-s"]), &[]);
    let pid = target.pid().to_string();
    for path in [&old, &new] {
        let (code, ..) = run(&["attach", &pid, "-d", "1s", "--force", "-o", path]);
        assert_eq!(code, 2);
        assert_eq!(run(&["scan", "2147483647", "--force", "--save", path]).0, 2);
    }
    assert_eq!(read_to_string(&old).expect("text"), "precious");
    let entries = std::fs::read_dir(folder.path("")).expect("a folder");
    assert_eq!(entries.count(), 1);
}

/// Checks that outputs behave as builds expect: the gate replaces reports, appends to the summary,
/// and keeps permissions. It does not follow links of other users in a shared folder.
#[test]
fn outputs_of_the_gate() {
    let folder = Folder::new("gate-outputs");
    let program = build_target("gate_cases", &["-O1", "-g"]);
    let (junit, summary) = (folder.path("junit.xml"), folder.path("summary.md"));
    let gate = |junit: &str, summary: &str| {
        let output = Command::new(binary())
            .args(["gate", &format!("--output=junit={junit}")])
            .args([&format!("--output=markdown={summary}"), "--"])
            .arg(&program)
            .args(["ends", "exit"])
            .output()
            .expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), errors)
    };
    assert_eq!(gate(&junit, &summary).0, Some(1));
    let (once, one) = (
        read_to_string(&junit).expect("text"),
        read_to_string(&summary).expect("text"),
    );
    assert_eq!((mode(&junit), mode(&summary)), (0o600, 0o600));
    for path in [&junit, &summary] {
        set_permissions(path, Permissions::from_mode(0o644)).expect("ours");
    }
    // It follows a link in the user's own folder.
    let link = folder.path("link.xml");
    symlink("junit.xml", &link).expect("a link");
    assert_eq!(gate(&link, &summary).0, Some(1));
    assert_eq!((mode(&junit), mode(&summary)), (0o644, 0o644));
    let again = read_to_string(&junit).expect("text");
    assert_eq!(
        again.matches("<testsuites").count(),
        once.matches("<testsuites").count()
    );
    assert_eq!(
        read_to_string(&summary)
            .expect("text")
            .matches("FAILED")
            .count(),
        2 * one.matches("FAILED").count()
    );
    set_permissions(folder.path(""), Permissions::from_mode(0o1777)).expect("ours");
    let (code, errors) = gate(&link, &summary);
    assert_eq!(code, Some(2), "{errors}");
    assert!(
        errors.contains("symbolic link") && errors.lines().count() == 1,
        "{errors}"
    );
    assert_eq!(read_to_string(&junit).expect("text"), again);
}
