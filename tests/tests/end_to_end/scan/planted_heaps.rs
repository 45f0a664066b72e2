//! Heaps of musl, mimalloc and gperftools' tcmalloc: 600 blocks that were planted before anyone looked, found again and
//! again while threads allocate and release.

use memhook_tests::scans::{List, scan};
use memhook_tests::{Target, build_on_musl, build_target, not_run, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// How often each program is scanned.
const SCANS: usize = 50;
/// A thread in the middle of malloc has addresses in its registers that lie just behind other blocks, and keep them
/// alive for that moment. So many scans may miss a leak for it.
const DISTRACTED: usize = 3;

/// What the program planted: address to (state, usable bytes).
fn planted(target: &mut Target) -> BTreeMap<u64, (String, u64)> {
    target.go();
    let mut planted = BTreeMap::new();
    loop {
        let line = target.expect("");
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [state, address, bytes] = fields[..] else {
            assert_eq!(line.trim(), "done");
            return planted;
        };
        let address = u64::from_str_radix(address.trim_start_matches("0x"), 16);
        let block = (state.to_owned(), bytes.parse().expect("a number"));
        planted.insert(address.expect("an address"), block);
    }
}

/// `allocator`: as the report names it. `own`: leaks of the allocator's own, of 8 bytes each.
fn check(program: &Path, allocator: &str, own: usize) {
    let mut target = Target::run(Command::new(program).arg("3"));
    let want = planted(&mut target);
    let count = |state: &str| want.values().filter(|block| block.0 == state).count();
    // Memory that was released and planted again is in the list once.
    assert!(count("leak") == 186 && count("live") == 226, "{want:?}");
    let mut distracted = 0;
    for _ in 0..SCANS {
        let found = List::parse(&scan(target.pid(), &["--list"]));
        let mut missed = 0;
        for (address, (state, bytes)) in &want {
            let block = found.blocks.get(address);
            match state.as_str() {
                "free" => assert!(!block.is_some_and(|b| b.0), "{address:#x} is released"),
                "live" => assert!(
                    block.is_none_or(|b| !b.0),
                    "{address:#x} is reachable, and called leaked"
                ),
                _ => {
                    // In a part that a thread was changing, nothing is called leaked, nor told at all.
                    missed += usize::from(!block.is_some_and(|b| b.0));
                    let usable = bytes.next_multiple_of(8);
                    assert!(
                        block.is_none_or(|b| b.1 == usable),
                        "{address:#x}: {block:?}"
                    );
                }
            }
        }
        let leaks = found.blocks.iter().filter(|(_, block)| block.0);
        let others: Vec<_> = leaks.filter(|(at, _)| !want.contains_key(at)).collect();
        assert_eq!(others.len(), own, "nothing else is leaked: {others:x?}");
        assert!(others.iter().all(|(_, block)| block.1 == 8), "{others:x?}");
        distracted += usize::from(missed > 0);
        assert!(missed <= 2, "{missed} leaks were missed");
    }
    println!("{allocator}: {distracted} of {SCANS} scans missed a leak");
    assert!(distracted <= DISTRACTED, "{distracted} scans missed leaks");
    assert!(target.finish().success(), "it finds all as it was");
}

/// What else tells one block of the heap from another does so too, of a program that stands still.
fn check_commands(program: &Path, own: usize) {
    let mut target = Target::run(Command::new(program).arg("0"));
    let want = planted(&mut target);
    let of = |wanted: &str| {
        let all = want.values().filter(|(state, _)| state == wanted);
        all.map(|(_, bytes)| bytes.next_multiple_of(8)).sum::<u64>()
    };
    let pid = target.pid().to_string();
    let json = |words: &[&str], expected: i32| {
        let (code, out, err) = run(words);
        assert_eq!(code, expected, "{words:?}: {out} {err}");
        serde_json::from_str::<Value>(&out).expect("JSON")
    };
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value}"));

    let gate = json(&["gate", "-p", &pid, "-d", "1s", "--json"], 1);
    let leaked = (
        number(&gate["leaked"]["blocks"]),
        number(&gate["leaked"]["bytes"]),
    );
    let expected = (186 + own as u64, of("leak") + 8 * own as u64);
    assert_eq!(leaked, expected, "{gate:#}");

    let stale = "--older 1s -d 3s --json -T 1000";
    let stale: Vec<&str> = stale.split(' ').collect();
    let stale = json(&[&["stale", &pid][..], &stale].concat(), 0);
    let live = number(&stale["totals"]["live_blocks"]);
    let all = 186 + 226 + own as u64;
    // And what the C library has allocated for itself.
    assert!((all..all + 20).contains(&live), "{stale:#}");

    let rss = json(&["rss", &pid, "--no-calls", "--json"], 0);
    let part = |name: &str| {
        let parts = rss["parts"].as_array().expect("parts");
        let part = parts.iter().find(|part| part["name"] == name);
        part.map_or(0, |part| number(&part["bytes"]))
    };
    assert_eq!(
        part("heap of another allocator, and mappings"),
        0,
        "{rss:#}"
    );
    // Of the large ones few pages were written.
    let (found, planted) = (part("live heap"), of("leak") + of("live"));
    assert!((200 << 10..planted).contains(&found), "{rss:#}");
    assert!(target.finish().success(), "it finds all as it was");
}

#[test]
fn of_a_static_program_on_musl() {
    if let Some(program) = build_on_musl("planted_heap", &["-static", "-pthread"]) {
        check(&program, "musl's malloc", 0);
        check_commands(&program, 0);
    }
}

#[test]
fn of_a_program_on_musl() {
    if let Some(program) = build_on_musl("planted_heap", &["-pthread"]) {
        check(&program, "musl's malloc", 0);
        check_commands(&program, 0);
    }
}

/// Links the program with a library of this system, if it is there.
fn with(library: &str) -> Option<std::path::PathBuf> {
    let path = format!("/usr/lib/x86_64-linux-gnu/{library}");
    if !Path::new(&path).exists() {
        not_run(&format!("{library} is not installed"));
        return None;
    }
    Some(build_target("planted_heap", &["-Wl,--no-as-needed", &path]))
}

#[test]
fn of_mimalloc() {
    if let Some(program) = with("libmimalloc.so.2") {
        check(&program, "mimalloc", 0);
        check_commands(&program, 0);
    }
}

/// It loses its first MallocExtension itself, when another one takes its place.
#[test]
fn of_tcmalloc() {
    if let Some(program) = with("libtcmalloc_minimal.so.4") {
        check(&program, "tcmalloc", 1);
        check_commands(&program, 1);
    }
}

#[test]
fn of_tcmalloc_that_is_linked_in() {
    if let Some(program) = with("libtcmalloc_minimal.a") {
        check(&program, "tcmalloc", 1);
        check_commands(&program, 1);
    }
}
