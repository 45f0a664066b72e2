//! Types of blocks from declarations, for a C++ and a C program with known blocks.

use memhook_tests::programs::Folder;
use memhook_tests::{Target, build_c_target, build_target, run};
use serde_json::Value;
use std::collections::BTreeMap;

/// Returns the usable bytes of a glibc block (`request2size` in malloc.c).
fn usable(bytes: u64) -> u64 {
    (bytes + 8).next_multiple_of(16).max(32) - 8
}

fn json(args: &[&str]) -> Value {
    let (code, out, err) = run(args);
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).expect("JSON")
}

/// Returns the rows of types with their evidence: blocks, and usable bytes.
fn rows(report: &Value) -> BTreeMap<(String, String), (u64, u64)> {
    let rows = report["types"].as_array().expect("rows").iter();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let number = |value: &Value| value.as_u64().expect("a number");
    rows.map(|row| {
        let key = (text(&row["name"]), text(&row["evidence"]));
        (key, (number(&row["blocks"]), number(&row["bytes"])))
    })
    .collect()
}

type Expected = (&'static str, u64, u64);

/// Everything declared in the C++ program: name, blocks, requested bytes per block.
const OF_CPP: &[Expected] = &[
    ("app::Branch", 127, 32),
    // In the tree, in sessions, in the registry.
    ("app::Leaf", 127 + 20 + 9, 40),
    ("app::Session[] of std::vector", 1, 20 * 64),
    ("app::Leaf*[] of std::vector", 20 + 1, 32),
    ("char[] of std::string", 20, 51),
    // The header of a node has 32 bytes in a tree, 16 in a list, and 8 in a hash table.
    ("std::map<int, app::Point>: node", 40, 32 + 8 + 24),
    ("std::set<long int>: node", 40, 32 + 8),
    ("std::map<std::string, app::Leaf*>: node", 9, 32 + 32 + 8),
    ("std::list<app::Colour>: node", 40, 16 + 32),
    ("std::forward_list<app::Point>: node", 40, 8 + 24),
    (
        "std::unordered_map<long int, std::unique_ptr<app::Colour>>: node",
        40,
        8 + 16,
    ),
    (
        "std::unordered_map<long int, std::unique_ptr<app::Colour>>: buckets",
        1,
        59 * 8,
    ),
    ("std::deque<app::Colour>: chunk", 3, 512),
    ("std::deque<app::Colour>: map of chunks", 1, 64),
    ("std::vector<bool>: bits", 1, 504),
    ("std::vector<int>[] of std::vector", 1, 10 * 24),
    ("int[] of std::vector", 10, 400),
    // The values of the map, of the device, and of the table.
    ("app::Colour", 40 + 1 + 1, 32),
    ("app::Colour*[]", 1, 64),
    ("app::Colour or app::Sound", 1, 32),
    // A pointer to the base class is less specific.
    ("app::Derived", 1, 64),
    ("app::Point", 1, 24),
    ("app::Point[]", 1, 2400),
    ("app::Opaque", 1, 88),
];

/// Everything declared in the C program.
const OF_C: &[Expected] = &[
    ("entry", 100, 32),
    ("entry*[]", 1, 64 * 8),
    ("record", 1, 48),
    ("vertex[]", 1, 50 * 24),
    ("message", 1, 300),
    ("double[]", 1, 800),
    ("char*[]", 1, 80),
    ("circle", 1, 56),
    ("hidden", 1, 120),
];

fn check(report: &Value, expected: &[Expected]) {
    let rows = rows(report);
    let declared = rows
        .iter()
        .filter(|((_, evidence), _)| evidence == "declared");
    let found: BTreeMap<&str, (u64, u64)> = declared
        .map(|((name, _), &sums)| (name.as_str(), sums))
        .collect();
    let expected: BTreeMap<&str, (u64, u64)> = expected
        .iter()
        .map(|&(name, blocks, bytes)| (name, (blocks, blocks * usable(bytes))))
        .collect();
    assert_eq!(found, expected);
    let told = &report["types_told"];
    let all: u64 = expected.values().map(|&(_, bytes)| bytes).sum();
    assert_eq!(told["declared_bytes"].as_u64(), Some(all), "{told}");
    assert_eq!(told["notes"].as_array().map(Vec::len), Some(0), "{told}");
    let of = |name: &str| told[name].as_u64().expect("a number");
    assert_eq!(of("bytes"), of("vtable_bytes") + of("declared_bytes"));
}

const WIDE: [&str; 3] = ["--json", "-T", "1000"];

#[test]
fn types_of_a_cpp_program_are_told() {
    let program = build_target("declared_types", &[]);
    let target = Target::start(&program, &[]);
    let folder = Folder::new("declared-types");
    let (pid, file) = (target.pid().to_string(), folder.path("a.snap"));
    let census = |how: &[&str]| json(&[&["scan"], how, &["--census"], &WIDE].concat());
    let live = census(&[&pid]);
    check(&live, OF_CPP);
    // A type known from a vtable is reported with this evidence.
    let by_vtable = |name: &str| {
        rows(&live)
            .get(&(name.to_owned(), "vtable".to_owned()))
            .copied()
    };
    assert_eq!(by_vtable("app::Device"), Some((1, usable(40))));
    // A saved snapshot is searched with the debug information of this machine.
    assert_eq!(run(&["scan", &pid, "--save", &file]).0, 0);
    check(&census(&["--load", &file]), OF_CPP);
    let retained = json(&[&["scan", &pid, "--retained"], &WIDE[..]].concat());
    check(&retained, OF_CPP);
    let of_type = |name: &str| {
        let mut rows = retained["types"].as_array().expect("rows").iter();
        let row = rows.find(|row| row["name"] == name).expect("its row");
        row["retained_bytes"].as_u64()
    };
    let tree = 127 * (usable(32) + usable(40));
    assert_eq!(of_type("app::Branch"), Some(tree));
    let hash = "std::unordered_map<long int, std::unique_ptr<app::Colour>>: node";
    assert_eq!(of_type(hash), Some(40 * (usable(24) + usable(32))));
    let sessions = usable(20 * 64) + 20 * (usable(51) + usable(32) + usable(40));
    assert_eq!(of_type("app::Session[] of std::vector"), Some(sessions));
    let (code, text, err) = run(&["scan", &pid, "--census"]);
    assert_eq!(code, 0, "{err}");
    assert!(text.contains("Types are known for "), "{text}");
    assert!(target.finish().success());
}

#[test]
fn types_of_a_c_program_are_told() {
    let target = Target::start(&build_c_target("declared_types", &[]), &[]);
    let pid = target.pid().to_string();
    check(
        &json(&[&["scan", &pid, "--census"], &WIDE[..]].concat()),
        OF_C,
    );
    assert!(target.finish().success());
}

#[test]
fn without_debug_information_contents_are_told() {
    let target = Target::start(&build_c_target("declared_types", &["-g0"]), &[]);
    let pid = target.pid().to_string();
    check(
        &json(&[&["scan", &pid, "--census"], &WIDE[..]].concat()),
        &[],
    );
    assert!(target.finish().success());
}
