//! `gate`, `watch` and `doctor` on programs with allocators that the user describes.

use memhook_tests::{JsonSchema, Target, binary, build_target, run, until};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// Describes two heaps: one divides blocks of malloc into its own blocks, the other divides a
/// mapping.
const FILE: &str = r#"
[[allocator]]
name = "items"
alloc = ["slab_get(size=arg2) -> ptr"]
free = ["slab_put(ptr=arg2)"]

[[allocator]]
name = "area"
alloc = ["area_get(size=arg1, ptr=*arg2) -> 0"]
free = ["area_put(ptr=*arg1)"]
"#;

fn file(name: &str) -> String {
    let path = std::env::temp_dir().join(format!("memhook-{}-{name}", std::process::id()));
    std::fs::write(&path, FILE).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

/// Returns the leaks of one heap from a verdict, by the function that leaked them: direct and
/// indirect leaks.
fn lost(verdict: &Value, heap: &str) -> BTreeMap<String, (u64, u64)> {
    let sites = verdict["evidence"]["sites"].as_array().expect("sites");
    let mut found = BTreeMap::new();
    for finding in verdict["findings"].as_array().expect("findings") {
        let leak = &finding["leak"];
        let site = &sites[leak["site"].as_u64().expect("a number") as usize];
        if site["heap"] != heap {
            continue;
        }
        let frames = site["stack"].as_array().expect("a stack");
        let mut names = frames.iter().filter_map(|f| f["function"].as_str());
        let name = names.find(|name| name.starts_with("lose_")).unwrap_or("?");
        let name = name.split('(').next().unwrap_or(name).to_owned();
        let entry: &mut (u64, u64) = found.entry(name).or_default();
        entry.0 += leak["direct"]["blocks"].as_u64().expect("blocks");
        for indirect in leak["indirect"].as_array().expect("a list") {
            entry.1 += indirect[1]["blocks"].as_u64().expect("blocks");
        }
    }
    found
}

fn of(planted: &[(&str, u64, u64)]) -> BTreeMap<String, (u64, u64)> {
    let all = planted.iter();
    all.map(|&(name, direct, indirect)| (name.to_owned(), (direct, indirect)))
        .collect()
}

fn check_planted(verdict: &Value) {
    JsonSchema::load("gate-1").check(verdict);
    let items = of(&[
        ("lose_items", 30, 0),
        ("lose_chains", 5, 10),
        ("lose_behind_released", 4, 0),
    ]);
    assert_eq!(lost(verdict, "items"), items, "{verdict:#}");
    let malloc = of(&[("lose_of_c", 3, 0)]);
    assert_eq!(lost(verdict, "malloc"), malloc, "{verdict:#}");
    // The list links the headers, and points to no block.
    let area = of(&[("lose_in_area", 7, 0)]);
    assert_eq!(lost(verdict, "area"), area, "{verdict:#}");
    let heaps = verdict["heaps"].as_array().expect("heaps");
    let outcomes = heaps.iter().map(|heap| (&heap["name"], &heap["outcome"]));
    let outcomes: Vec<_> = outcomes.collect();
    let failed = json!("failed");
    let names = [json!("malloc"), json!("items"), json!("area")];
    assert_eq!(
        outcomes,
        names.iter().map(|n| (n, &failed)).collect::<Vec<_>>()
    );
    let item = 88;
    assert_eq!(
        heaps[1]["leaked"],
        json!({"blocks": 49, "bytes": 49 * item})
    );
    assert_eq!(heaps[2]["leaked"], json!({"blocks": 7, "bytes": 1400}));
    assert_eq!(verdict["leaked"], json!({"blocks": 3, "bytes": 120}));
    assert_eq!(heaps[2]["reachable"], json!({"blocks": 44, "bytes": 4400}));
    assert_eq!(verdict["violations"].as_array().expect("a list").len(), 3);
}

#[test]
fn each_heap_is_judged() {
    let program = build_target("own_pools", &["-g", "-O2"]);
    let allocators = file("judged.toml");
    let gate = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["gate", "--json", "-", "--allocators", &allocators, "--"]);
        let output = command.arg(&program).args(arguments).output();
        let output = output.expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let verdict: Value = serde_json::from_slice(&output.stdout).expect(&errors);
        (output.status.code(), verdict, errors)
    };
    let (code, verdict, text) = gate(&[]);
    assert_eq!(code, Some(1), "{text}");
    check_planted(&verdict);
    for words in [
        "heap items: 1 leak, 4.2 KiB in 49 blocks (limit 0)",
        "heap malloc: 1 leak, 120 B in 3 blocks",
        "39 blocks leaked of heap items, by slab_get",
        "heap area: still reachable 4.3 KiB in 44 blocks",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let (code, verdict, text) = gate(&["without"]);
    assert_eq!(code, Some(0), "{verdict:#}");
    assert!(text.contains("PASSED: no leaks"), "{text}");
    assert_eq!(verdict["evidence"]["gaps"], json!([]));

    // A description that mistakes a size for a pointer causes a wrong report, but no crash.
    let mut mistaken = Command::new(binary());
    mistaken.args(["gate", "--json", "-", "--allocators"]);
    mistaken.args(["alloc area_get(size=arg2:32, ptr=*arg1) -> 0", "--"]);
    let output = mistaken.arg(&program).arg("without").output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let verdict: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(verdict["evidence"]["ending"], json!({"exited": 0}));
    assert_eq!(verdict["heaps"][1]["allocations"], 0, "{verdict:#}");

    // Judges a running process that has allocated nothing yet.
    let mut target = Target::start(&program, &["waits"]);
    let pid = target.pid().to_string();
    let attached = Command::new(binary())
        .args(["gate", "--json", "-", "--allocators", &allocators])
        .args(["--pid", &pid, "--duration", "1h"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    // A trace that accepts a mark has begun.
    until("marks are taken", || run(&["mark", &pid, "begin"]).0 == 0);
    target.go();
    target.expect("done");
    // SAFETY: kill takes plain integers; the child has not been waited for.
    unsafe { libc::kill(attached.id() as i32, libc::SIGINT) };
    let output = attached.wait_with_output().expect("it ends");
    let (code, out) = (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout),
    );
    let verdict: Value = serde_json::from_str(&out).expect(&out);
    assert_eq!(code, Some(1), "{verdict:#}");
    check_planted(&verdict);
    assert!(target.finish().success());
    let _ = std::fs::remove_file(allocators);
}

/// Checks that the reports of `watch` contain the heaps, and that `doctor` says how each function
/// would be hooked.
#[test]
fn heaps_are_watched_and_functions_diagnosed() {
    let program = build_target("own_pools", &["-g", "-O2"]);
    let allocators = file("watched.toml");
    let mut target = Target::start(&program, &["waits"]);
    let pid = target.pid().to_string();
    let (code, out, err) = run(&["doctor", &pid, "--allocators", &allocators]);
    assert_eq!(code, 0, "{out}{err}");
    let line = |name: &str| out.lines().find(|line| line.starts_with(name));
    for (name, heap) in [
        ("slab_get", "items"),
        ("slab_put", "items"),
        ("area_get", "area"),
        ("area_put", "area"),
    ] {
        let line = line(name).unwrap_or_else(|| panic!("{out}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[1], heap, "{line}");
        assert!(line.ends_with("a pad at its entry"), "{line}");
    }
    assert!(
        line("malloc").is_some_and(|line| line.contains("slot")),
        "{out}"
    );
    let (code, out, _) = run(&[
        "doctor",
        &pid,
        "--allocators",
        "alloc slab_get(size=arg2) -> ptr; free slab_pit(ptr=arg2)",
    ]);
    assert_eq!(code, 2, "{out}");
    let refused = out.lines().find(|line| line.starts_with("slab_pit"));
    let refused = refused.unwrap_or_else(|| panic!("{out}"));
    assert!(
        refused.contains("not at all: ") && refused.contains("slab_put"),
        "{out}"
    );
    assert!(out.contains("FAIL described"), "{out}");
    assert_eq!(target.our_mappings(), 0, "it is only read");

    let reports = std::env::temp_dir().join(format!("memhook-{}-watched", std::process::id()));
    let watch = Command::new(binary())
        .args(["watch", &pid, "--exact", "--allocators", &allocators, "-o"])
        .arg(&reports)
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    until("marks are taken", || run(&["mark", &pid, "begin"]).0 == 0);
    target.go();
    target.expect("done");
    // SAFETY: kill takes plain integers; the child has not been waited for.
    unsafe { libc::kill(watch.id() as i32, libc::SIGINT) };
    assert!(watch.wait_with_output().expect("it ends").status.success());
    let mut files = std::fs::read_dir(&reports).expect("a directory").flatten();
    let last = files.find(|file| file.path().extension().is_some_and(|e| e == "json"));
    let last = std::fs::read_to_string(last.expect("a report").path()).expect("readable");
    let report: Value = serde_json::from_str(&last).expect("JSON");
    JsonSchema::load("watch-1").check(&report);
    let heaps = report["report"]["heaps"].as_array();
    let heaps = heaps.unwrap_or_else(|| panic!("{report:#}"));
    let live = |name: &str| {
        let heap = heaps.iter().find(|heap| heap["name"] == name);
        heap.map(|heap| heap["totals"]["live_blocks"].clone())
    };
    // 520 blocks are held, 49 are leaked, and 300 have disappeared without a release.
    assert_eq!(
        live("items"),
        Some(json!(520 - 300 + 49 + 300)),
        "{report:#}"
    );
    assert_eq!(live("area"), Some(json!(51)), "{report:#}");
    assert!(target.finish().success());
    let _ = std::fs::remove_dir_all(reports);
    let _ = std::fs::remove_file(allocators);
}
