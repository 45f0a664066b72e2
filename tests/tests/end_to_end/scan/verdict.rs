//! Verdicts: a snapshot is searched, and the process then releases the blocks. The process checks
//! all of its blocks in use.

use memhook_tests::programs::Folder;
use memhook_tests::scans::scan;
use memhook_tests::{Target, build_target, run};
use serde_json::Value;
use std::path::Path;

fn graph(seed: &str) -> Target {
    Target::start(&build_target("random_graph", &[]), &[seed, "300"])
}

/// Returns the addresses of leaked blocks according to `scan --list`.
fn leaked(pid: u32) -> Vec<u64> {
    let text = scan(pid, &["--list", "--unaligned"]);
    let lines = text.lines().filter_map(|line| line.strip_prefix("leak 0x"));
    let addresses = lines.map(|rest| rest.split(' ').next().expect("an address"));
    addresses
        .map(|digits| u64::from_str_radix(digits, 16).expect("an address"))
        .collect()
}

/// Writes a verdict on a process from a saved snapshot.
fn verdict(folder: &Folder, pid: u32) -> (String, Value) {
    let (snapshot, file) = (folder.path("x.snap"), folder.path("v.json"));
    scan(pid, &["--save", &snapshot, "--force"]);
    let (code, _, err) = run(&["scan", "--load", &snapshot, "--verdict", &file, "--force"]);
    assert_eq!(code, 0, "{err}");
    let text = std::fs::read_to_string(&file).expect("a verdict");
    (file, serde_json::from_str(&text).expect("JSON"))
}

fn write(file: &str, verdict: &Value) {
    std::fs::write(Path::new(file), verdict.to_string()).expect("a file");
}

fn blocks(verdict: &mut Value) -> &mut Vec<Value> {
    verdict["leaked"].as_array_mut().expect("blocks")
}

fn reclaim(pid: u32, file: &str) -> Value {
    let options = ["--reclaim", "--yes", "--json", "--verdict", file];
    serde_json::from_str(&scan(pid, &options)).expect("JSON")
}

/// Checks that the target finds all its reachable blocks intact, and none of them on a free list.
fn is_healthy(mut target: Target) {
    target.send("c");
    assert_eq!(target.expect("done"), "done 0\n");
    assert!(target.finish().success());
}

#[test]
fn what_was_found_elsewhere_is_released() {
    for seed in ["3", "5", "8"] {
        let folder = Folder::new("verdict");
        let target = graph(seed);
        let before = leaked(target.pid());
        assert!(before.len() > 5, "{before:x?}");
        let (file, mut found) = verdict(&folder, target.pid());
        let count = blocks(&mut found).len();
        assert_eq!(count, before.len());
        let round = reclaim(target.pid(), &file);
        assert_eq!(round["released_blocks"], before.len(), "{round}");
        assert_eq!(round["verdict_blocks"], before.len(), "{round}");
        assert_eq!(leaked(target.pid()).len(), 0);
        // In a second run with this file, none of its blocks is leaked any more.
        let round = reclaim(target.pid(), &file);
        assert_eq!(round["released_blocks"], 0, "{round}");
        is_healthy(target);
    }
}

#[test]
fn what_is_taken_out_is_kept() {
    let folder = Folder::new("verdict-less");
    let target = graph("13");
    let (file, mut found) = verdict(&folder, target.pid());
    let all = blocks(&mut found).len();
    let kept = blocks(&mut found).remove(all / 2)["address"]
        .as_u64()
        .expect("an address");
    write(&file, &found);
    let round = reclaim(target.pid(), &file);
    let after = leaked(target.pid());
    assert!(after.contains(&kept), "{kept:#x} of {after:x?}");
    // The blocks to which the changed block points are kept with it.
    assert_eq!(round["kept_blocks"], after.len(), "{round}");
    assert_eq!(round["released_blocks"], all - after.len(), "{round}");
    is_healthy(target);
}

/// Checks that blocks in use and changed blocks are kept even if a verdict lists them.
#[test]
fn what_is_forged_or_old_is_kept() {
    let folder = Folder::new("verdict-forged");
    let target = graph("21");
    let list = scan(target.pid(), &["--list"]);
    let (file, mut found) = verdict(&folder, target.pid());
    let all = blocks(&mut found).len();
    let template = blocks(&mut found)[0].clone();
    // The verdict is changed to list blocks with different contents, a different size and an
    // invalid value, and all blocks in use.
    blocks(&mut found)[0]["contents"] = "00000000000000000000000000000000".into();
    blocks(&mut found)[1]["bytes"] = 8.into();
    blocks(&mut found)[2]["contents"] = "never".into();
    let mut lies = 0;
    for line in list.lines().filter_map(|line| line.strip_prefix("live 0x")) {
        let mut fields = line.split(' ');
        let address = u64::from_str_radix(fields.next().expect("an address"), 16);
        let bytes: u64 = fields.next().expect("bytes").parse().expect("bytes");
        let mut lie = template.clone();
        lie["address"] = address.expect("an address").into();
        lie["bytes"] = bytes.into();
        blocks(&mut found).push(lie);
        lies += 1;
    }
    assert!(lies > 50, "{list}");
    write(&file, &found);
    let round = reclaim(target.pid(), &file);
    let after = leaked(target.pid()).len();
    assert!(after >= 3, "{round}");
    assert_eq!(round["released_blocks"], all - after, "{round}");
    is_healthy(target);
}

/// Checks for a one-line message, and that nothing is released.
fn is_refused(args: &[&str], words: &str) {
    let (code, out, err) = run(args);
    assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
    assert!(
        err.contains(words) && err.lines().count() == 1,
        "{words}: {err}"
    );
}

#[test]
fn verdicts_on_something_else_are_refused() {
    let folder = Folder::new("verdict-refused");
    let target = graph("34");
    let pid = target.pid().to_string();
    let (file, found) = verdict(&folder, target.pid());
    let before = leaked(target.pid());
    let other = graph("34");
    let reclaimed = |pid: &str, words: &str| {
        is_refused(
            &["scan", pid, "--reclaim", "--yes", "--verdict", &file],
            words,
        );
    };
    reclaimed(&other.pid().to_string(), "that started at another time");
    let change = |field: [&str; 2], value: Value| {
        let mut other = found.clone();
        other[field[0]][field[1]] = value;
        write(&file, &other);
    };
    change(
        ["process", "boot"],
        "00000000-0000-0000-0000-000000000000".into(),
    );
    reclaimed(&pid, "an earlier boot");
    change(["process", "started"], 1.into());
    reclaimed(&pid, "that started at another time");
    change(["program", "start"], 4096.into());
    reclaimed(&pid, "it has executed another program");
    let mut newer = found.clone();
    newer["schema"] = "memhook-rs/verdict/2".into();
    write(&file, &newer);
    reclaimed(&pid, "its schema is not memhook-rs/verdict/1");
    for text in ["", "[]", "{\"schema\":", "\u{0}\u{1}"] {
        std::fs::write(&file, text).expect("a file");
        reclaimed(&pid, "not a verdict on leaked blocks");
    }
    std::fs::remove_file(&file).expect("a file");
    reclaimed(&pid, "cannot open the verdict");
    assert_eq!(leaked(target.pid()), before);
    is_healthy(target);
    is_healthy(other);
}

#[test]
fn there_is_no_verdict_on_what_may_not_be_released() {
    let folder = Folder::new("verdict-none");
    let (snapshot, file) = (folder.path("x.snap"), folder.path("v.json"));
    let damaged = Target::start(&build_target("damaged_heap", &[]), &[]);
    scan(damaged.pid(), &["--save", &snapshot]);
    let load = ["scan", "--load", &snapshot, "--verdict"];
    is_refused(
        &[&load[..], &[&file]].concat(),
        "part of the heap could not be parsed",
    );
    assert!(!Path::new(&file).exists());
    // The snapshot is an input, which is never overwritten.
    is_refused(&[&load[..], &[&snapshot, "--force"]].concat(), "x.snap");
    std::fs::write(&file, "kept").expect("a file");
    is_refused(&[&load[..], &[&file]].concat(), "--force");
    assert_eq!(std::fs::read_to_string(&file).expect("a file"), "kept");
    let pid = damaged.pid().to_string();
    let start = ["--pointers", "start", "--verdict", "x.json"];
    is_refused(
        &[&["scan", &pid][..], &start].concat(),
        "--pointers interior",
    );
    is_refused(&["scan", &pid, "--force"], "--force");
}
