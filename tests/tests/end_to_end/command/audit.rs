//! `--audit`: records every action on a process in a line.

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, JsonSchema, Target, build_target, run};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

/// Returns the lines of the file, after checking each against the schema.
fn lines(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(file).expect("a file");
    let schema = JsonSchema::load("audit-1");
    text.lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).expect("JSON");
            schema.check(&line);
            line
        })
        .collect()
}

fn acts(lines: &[Value]) -> BTreeSet<&str> {
    lines
        .iter()
        .filter_map(|line| line["act"].as_str())
        .collect()
}

/// Checks that each kind of command writes its lines, and that all runs append to one file.
#[test]
fn every_act_has_its_line() {
    let folder = Folder::new("audit");
    let file = folder.path("acts");
    let mut target = Target::start(&build_target("leaks", &[]), &[]);
    let pid = target.pid().to_string();
    let (code, _, err) = run(&["scan", &pid, "--read-only", "--audit", &file]);
    assert_eq!(code, 0, "{err}");
    let looked = lines(&file);
    assert_eq!(acts(&looked), BTreeSet::from(["stop"]), "{looked:?}");
    let (code, _, err) = run(&["scan", &pid, "--audit", &file]);
    assert_eq!(code, 0, "{err}");
    let attacher = Attacher::start(&target, &["--audit", &file]);
    target.go();
    target.expect("done");
    attacher.finish();
    let all = lines(&file);
    assert_eq!(all[..looked.len()], looked, "it is appended to");
    let found = acts(&all);
    for act in [
        "stop",
        "call",
        "mapping",
        "system_call",
        "slots",
        "slots_back",
        "protect",
    ] {
        assert!(found.contains(act), "no {act} in {found:?}");
    }
    for line in &all {
        assert_eq!(line["pid"].as_u64(), Some(u64::from(target.pid())));
        assert!(line["started"].as_u64().is_some(), "{line}");
        let words = line["command"].as_array().expect("words");
        assert!(words.iter().any(|word| word == "--audit"), "{line}");
        assert_eq!(line["uid"].as_u64(), Some(u64::from(uid())));
    }
    let called = |name: &str| {
        let of_call = |line: &&Value| line["function"].as_str().is_some_and(|f| f.ends_with(name));
        all.iter().find(of_call)
    };
    assert!(called("!dlopen").is_some(), "{found:?}");
    let mode = std::fs::metadata(&file)
        .expect("a file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

fn uid() -> u32 {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").expect("ours"))
}

/// Checks that every released block is listed.
#[test]
fn released_blocks() {
    let folder = Folder::new("audit-release");
    let file = folder.path("acts");
    let target = Target::start(&build_target("only_read", &["-O1", "-pthread"]), &[]);
    let pid = target.pid().to_string();
    let options = ["--reclaim", "--yes", "--twice", "1ms", "--json"];
    let (code, out, err) = run(&[&["scan", &pid, "--audit", &file][..], &options].concat());
    assert_eq!(code, 0, "{err}");
    let report: Value = serde_json::from_str(out.lines().last().expect("a line")).expect("JSON");
    let all = lines(&file);
    let released = all.iter().filter(|line| line["act"] == "release");
    let calls: u64 = released
        .clone()
        .filter_map(|line| line["calls"].as_u64())
        .sum();
    let listed = released.filter_map(|line| line["arguments"].as_array());
    let blocks: BTreeSet<u64> = listed.flatten().filter_map(Value::as_u64).collect();
    assert_eq!(blocks.len() as u64, calls, "{report}");
    assert!(calls >= 100, "{report}");
}

/// Checks that nothing happens with an unusable file, and that the work continues, with one message, if the file
/// becomes unwritable.
#[test]
fn files_that_fail() {
    let folder = Folder::new("audit-fails");
    let target = Target::start(&build_target("leaks", &[]), &[]);
    let pid = target.pid().to_string();
    for file in ["/dev/null", "/nowhere/acts", &folder.path(".")] {
        let (code, out, err) = run(&["scan", &pid, "--audit", file]);
        assert_eq!((code, out.as_str()), (2, ""), "{file}: {err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(err.contains("nothing was done"), "{err}");
    }
    // Limits the size of the file (setrlimit(2)); the signal for the limit is ignored.
    let file = folder.path("acts");
    let script = format!(
        "trap '' XFSZ; ulimit -f 1; exec {} scan {pid} --audit {file}",
        memhook_tests::binary().display()
    );
    let output = std::process::Command::new("bash")
        .args(["-c", &script])
        .output()
        .expect("bash");
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{err}");
    let failed = err.lines().filter(|line| line.contains("cannot write to"));
    assert_eq!(failed.count(), 1, "{err}");
    assert!(target.is_alive());
}

/// Checks that a command does exactly what `doctor` predicts, according to the audit log.
#[test]
fn doctor_says_what_the_audit_shows() {
    let folder = Folder::new("audit-doctor");
    let mut target = Target::start(&build_target("leaks", &[]), &[]);
    let pid = target.pid().to_string();
    let (code, out, err) = run(&["doctor", &pid, "--json"]);
    assert_eq!(code, 0, "{err}");
    let found: Value = serde_json::from_str(&out).expect("JSON");
    JsonSchema::load("doctor-1").check(&found);
    let commands = found["commands"].as_array().expect("a list");
    let says = |command: &str| {
        let one = commands.iter().find(|one| one["command"] == command);
        one.unwrap_or_else(|| panic!("no {command} in {found}"))
    };
    let told = |command: &str| -> BTreeSet<String> {
        let calls = says(command)["calls"].as_array().expect("a list");
        calls
            .iter()
            .map(|call| call.as_str().expect("a name").to_owned())
            .collect()
    };
    assert!(told("scan --read-only").is_empty());
    assert_eq!(says("scan --read-only")["mapped_bytes"], 0);
    let file = folder.path("acts");
    let attacher = Attacher::start(&target, &["--audit", &file]);
    target.go();
    target.expect("done");
    attacher.finish();
    let all = lines(&file);
    let named = all.iter().filter_map(|line| line["function"].as_str());
    let called: BTreeSet<String> = named
        .filter_map(|name| name.split_once('!').map(|(_, name)| name.to_owned()))
        .collect();
    let told = told("attach");
    for name in ["dlopen", "memhook_attach"] {
        assert!(told.contains(name), "{told:?}");
    }
    for name in &called {
        assert!(
            told.contains(name),
            "{name} is called, and doctor says {told:?}"
        );
    }
    assert!(called.contains("dlopen"), "{called:?}");
}
