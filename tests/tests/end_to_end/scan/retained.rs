//! Memory retained by holders, types and blocks in a program with a known heap, and changes between
//! two snapshots.

use memhook_tests::programs::Folder;
use memhook_tests::{Target, build_target, run};
use serde_json::Value;

/// Returns the usable bytes of a glibc block (`request2size` in malloc.c).
fn usable(bytes: u64) -> u64 {
    (bytes + 8).next_multiple_of(16).max(32) - 8
}

fn sum(sizes: &[u64]) -> u64 {
    sizes.iter().map(|&bytes| usable(bytes)).sum()
}

fn json(args: &[&str]) -> Value {
    let (code, out, err) = run(args);
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).expect("JSON")
}

fn array<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name].as_array().expect("an array")
}

fn find<'a>(value: &'a Value, name: &str, field: &str, wanted: &str) -> &'a Value {
    let mut rows = array(value, name).iter();
    let found = rows.find(|row| row[field].as_str() == Some(wanted));
    found.unwrap_or_else(|| panic!("no {wanted} in {:#}", value[name]))
}

/// Checks the report on the program's blocks.
fn check(report: &Value, program: &str) {
    let retained = |row: &Value| {
        let number = |name: &str| row[name].as_u64().expect("a number");
        (number("retained_bytes"), number("retained_blocks"))
    };
    let module = find(report, "holders", "name", program);
    let variable = |name| retained(find(module, "variables", "name", name));
    // Both children of the registry point to one block, and only both together retain it. The last
    // two blocks point to each other.
    let registry = sum(&[1000, 2000, 3000, 500, 700, 800]);
    assert_eq!(variable("registry"), (registry, 6));
    // `second` shares the block that it points to with the registry.
    assert_eq!(variable("second"), (usable(4000), 1));
    // A node has a header of 32 bytes (bits/stl_tree.h), and a pair of two ints.
    let table = 100 * usable(40);
    assert_eq!(variable("table"), (table, 100));
    let session = usable(24);
    let sessions = 10 * (session + usable(300));
    assert_eq!(variable("sessions"), (sessions, 20));
    // Two variables lead to one block, and both point to another block.
    let together = usable(600) + usable(1500);
    let all = registry + usable(4000) + table + sessions + together;
    assert_eq!(retained(module), (all, 6 + 1 + 100 + 20 + 2));
    let of_module = |name: &str| module["together"][name].as_u64();
    assert_eq!(of_module("bytes"), Some(together));
    assert_eq!(of_module("blocks"), Some(2));
    let first_bytes =
        |row: &&Value, bytes| row["path"][0]["block_bytes"].as_u64() == Some(usable(bytes));
    let mut rows = array(report, "largest").iter();
    let shared = rows
        .find(|row| first_bytes(row, 1500))
        .expect("a shared block");
    let mut pointing: Vec<&str> = array(shared, "pointed_to_by")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    pointing.sort_unstable();
    let file = program.rsplit('/').next().expect("a name");
    assert_eq!(
        pointing,
        [format!("left of {file}"), format!("right of {file}")]
    );
    let leaked = find(report, "holders", "kind", "leaked");
    assert_eq!(retained(leaked), (sum(&[1100, 1200]), 2));
    // A thread holds the blocks that its stack references, and all blocks that they hold.
    let mut rows = array(report, "largest").iter();
    let own = rows
        .find(|row| first_bytes(row, 5000))
        .expect("the thread's");
    assert_eq!(retained(own), (sum(&[5000, 900]), 2));
    let holder = own["held_by"].as_str().expect("a holder");
    assert!(holder.starts_with("thread "), "{holder}");
    // Each object holds the next, and each counts once.
    let class = find(report, "types", "name", "Session");
    assert_eq!(retained(class), (sessions, 20));
    assert_eq!(class["bytes"].as_u64(), Some(10 * session));
    // In the picture, the map's nodes are all below its variable.
    let nodes = array(report, "picture");
    let of_map = nodes.iter().position(|node| node["name"] == "table");
    let below = nodes
        .iter()
        .filter(|node| node["parent"].as_u64() == of_map.map(|i| i as u64));
    let bytes: u64 = below
        .filter_map(|node| node["retained_bytes"].as_u64())
        .sum();
    assert_eq!(bytes, table);
}

#[test]
fn what_is_retained_is_exact() {
    let program = build_target("retained", &[]);
    let name = program.to_str().expect("UTF-8");
    let target = Target::start(&program, &[]);
    let folder = Folder::new("retained");
    let (pid, file) = (target.pid().to_string(), folder.path("a.snap"));
    let wide = ["--retained", "--json", "-T", "1000"];
    check(&json(&[&["scan", &pid][..], &wide].concat()), name);
    // A saved snapshot also provides the names of variables.
    assert_eq!(run(&["scan", &pid, "--save", &file]).0, 0);
    check(
        &json(&[&["scan", "--load", &file][..], &wide].concat()),
        name,
    );
    let (code, text, err) = run(&["scan", "--load", &file, "--retained"]);
    assert_eq!(code, 0, "{err}");
    for words in [
        "registry",
        "nothing (leaked)",
        "    several of these together",
        "left of ",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let page = folder.path("page.html");
    let (code, _, err) = run(&["scan", "--load", &file, "--retained", "-o", &page]);
    assert_eq!(code, 0, "{err}");
    let html = std::fs::read_to_string(&page).expect("a page");
    assert!(html.contains("\"name\":\"registry\"") && html.contains("role=\"tree\""));
    // `scan` does not overwrite existing files, and requires the name of a page to end in .html.
    for output in [&page, &folder.path("page.txt")] {
        let (code, out, err) = run(&["scan", "--load", &file, "--retained", "-o", output]);
        assert_eq!(
            (code, out.as_str(), err.lines().count()),
            (2, "", 1),
            "{err}"
        );
    }
    let (code, _, err) = run(&["scan", "--load", &file, "--retained", "--max-memory", "64K"]);
    assert_eq!((code, err.lines().count()), (2, 1), "{err}");
    assert!(target.finish().success());
}

#[test]
fn two_snapshots_say_what_was_added() {
    let program = build_target("retained", &[]);
    let mut target = Target::start(&program, &[]);
    let folder = Folder::new("snapshot-diff");
    let (pid, old, new) = (
        target.pid().to_string(),
        folder.path("a.snap"),
        folder.path("b.snap"),
    );
    assert_eq!(run(&["scan", &pid, "--save", &old]).0, 0);
    target.go();
    target.expect("done");
    assert_eq!(run(&["scan", &pid, "--save", &new]).0, 0);
    let diff = json(&["diff", &old, &new, "--json", "-T", "1000"]);
    let changed = |row: &Value| {
        let number = |name: &str| row[name].as_i64().expect("a number");
        (number("change_bytes"), number("change_blocks"))
    };
    let module = program.file_name().and_then(|name| name.to_str());
    let holder = |variable: &str| format!("{variable} of {}", module.expect("UTF-8"));
    let of = |variable| changed(find(&diff, "holders", "name", &holder(variable)));
    let (session, text) = (usable(24) as i64, usable(300) as i64);
    assert_eq!(of("table"), (50 * usable(40) as i64, 50));
    assert_eq!(of("sessions"), (7 * (session + text), 14));
    assert_eq!(of("second"), (-(usable(4000) as i64), -1));
    let sessions = find(&diff, "holders", "name", &holder("sessions"));
    assert_eq!(
        changed(find(sessions, "types", "name", "Session")),
        (7 * session, 7)
    );
    assert_eq!(sessions["added"]["blocks"], 14);
    assert_eq!(
        changed(find(&diff, "types", "name", "Session")),
        (7 * session, 7)
    );
    let (code, text, err) = run(&["diff", &old, &new]);
    assert_eq!(code, 0, "{err}");
    assert!(text.contains(&holder("sessions")), "{text}");
    // A snapshot compared with itself shows no changes.
    let same = json(&["diff", &old, &old, "--json"]);
    assert!(array(&same, "holders").is_empty() && array(&same, "types").is_empty());
    // Refused: a different process of this program, and a file that is not a snapshot.
    let other = Target::start(&program, &[]);
    let others = folder.path("c.snap");
    let pid = other.pid().to_string();
    assert_eq!(run(&["scan", &pid, "--save", &others]).0, 0);
    std::fs::write(folder.path("a.json"), "{}").expect("written");
    let json_file = folder.path("a.json");
    let mut damaged = std::fs::read(&old).expect("read");
    damaged.truncate(damaged.len() / 2);
    let cut = folder.path("cut.snap");
    std::fs::write(&cut, damaged).expect("written");
    for args in [
        &["diff", &old, &others][..],
        &["diff", &old, &json_file],
        &["diff", &json_file, &new],
        &["diff", &old, &cut],
        &["diff", &old, &new, "--measure", "peak"],
        &["diff", &old, &new, "--fail-on", "growth > 5%"],
    ] {
        let (code, out, err) = run(args);
        assert_eq!(
            (code, out.as_str(), err.lines().count()),
            (2, "", 1),
            "{args:?}: {err}"
        );
    }
    assert!(target.finish().success());
    assert!(other.finish().success());
}
