//! Heaps of musl, mimalloc and gperftools' tcmalloc: repeated scans find 600 blocks, planted before
//! an attach, while threads allocate and release.

use memhook_tests::programs::{Folder, installed, installed_library};
use memhook_tests::scans::{List, scan};
use memhook_tests::{Target, build_on_musl, build_target, has_library, run};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Number of scans of each program.
const SCANS: usize = 50;
/// Number of scans that may miss a leak, because a thread in the middle of malloc may have
/// addresses just past other blocks in its registers, which keep those blocks alive. On a busy
/// machine, the kernel may suspend such a thread for several scans in a row.
const DISTRACTED: usize = 8;
/// Numbers of blocks that the program leaks and keeps.
pub const LEAKED: usize = 186;
const LIVE: usize = 226;

/// Blocks planted by the program: address to (state, usable bytes).
type Plan = BTreeMap<u64, (String, u64)>;

fn planted(target: &mut Target) -> Plan {
    target.go();
    read_list(target)
}

fn read_list(target: &mut Target) -> Plan {
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

/// Checks scans of a program. `allocator` is its name in the report; `own` is the number of 8-byte
/// leaks of the allocator itself.
pub fn check(program: &Path, allocator: &str, own: usize) {
    let mut target = Target::run(Command::new(program).arg("3"));
    let want = planted(&mut target);
    let count = |state: &str| want.values().filter(|block| block.0 == state).count();
    // Released memory that was reused for a planted block occurs once in the list.
    assert!(count("leak") == LEAKED && count("live") == LIVE, "{want:?}");
    let (mut distracted, mut distraction) = (0, Vec::new());
    let (mut scans, mut vain) = (0, 0);
    while scans < SCANS {
        let found = List::parse(&scan(target.pid(), &["--list"]));
        // On a busy machine, a thread may stay inside the allocator. The report says so.
        if found.rest.iter().any(|line| line.starts_with("note")) {
            vain += 1;
            assert!(vain < 10 * SCANS, "the machine is too busy");
            continue;
        }
        let mut missed = Vec::new();
        for (address, (state, bytes)) in &want {
            let block = found.blocks.get(address);
            match state.as_str() {
                "free" => assert!(!block.is_some_and(|b| b.0), "{address:#x} is released"),
                "live" => assert!(
                    block.is_none_or(|b| !b.0),
                    "{address:#x} is reachable, and called leaked"
                ),
                _ => {
                    // In a part of the heap that a thread was changing, no block is reported as
                    // leaked, and some blocks are missing.
                    missed.extend((!block.is_some_and(|b| b.0)).then_some(*address));
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
        assert!(
            missed.len() <= 5,
            "{missed:x?} were missed: {:?}",
            found.rest
        );
        // A thread that is suspended inside the allocator affects many scans.
        if !missed.is_empty() && missed == distraction {
            vain += 1;
            assert!(vain < 10 * SCANS, "a leak is missed again and again");
            continue;
        }
        scans += 1;
        distracted += usize::from(!missed.is_empty());
        distraction = missed;
    }
    println!("{allocator}: {distracted} of {SCANS} scans missed a leak");
    assert!(distracted <= DISTRACTED, "{distracted} scans missed leaks");
    assert!(target.finish().success(), "it finds all as it was");
}

/// Checks the other commands that dissect the heap, on an idle program.
pub fn check_commands(program: &Path, own: usize) {
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
    let expected = (LEAKED as u64 + own as u64, of("leak") + 8 * own as u64);
    assert_eq!(leaked, expected, "{gate:#}");

    let stale = "--older 1s -d 3s --json -T 1000";
    let stale: Vec<&str> = stale.split(' ').collect();
    let stale = json(&[&["stale", &pid][..], &stale].concat(), 0);
    let live = number(&stale["totals"]["live_blocks"]);
    let all = (LEAKED + LIVE + own) as u64;
    // The live blocks include the C library's own allocations.
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
    // Few pages of the large blocks were written, but a huge page is always resident as a whole.
    let is_huge = number(&rss["huge_page_bytes"]) > 0;
    let (found, planted) = (part("live heap"), of("leak") + of("live"));
    let most = planted + if is_huge { 64 << 10 } else { 0 };
    assert!((200 << 10..most).contains(&found), "{rss:#}");
    assert!(target.finish().success(), "it finds all as it was");
}

/// A program with one of these heaps: the allocator, the command, and the number of 8-byte blocks
/// that the allocator itself leaks.
type Heap = (&'static str, Command, usize);

/// Links the program with a build-id, which a snapshot uses to find the file with the declared
/// types.
const BUILD_ID: &str = "-Wl,--build-id";

fn all_heaps() -> Vec<Heap> {
    let linked = |library: &str| with(library).map(Command::new);
    let on_musl = |flags: &[&str]| build_on_musl("planted_heap", flags).map(Command::new);
    let heaps = [
        ("jemalloc 5.3", linked("libjemalloc.so.2"), 0),
        ("mimalloc 2", linked("libmimalloc.so.2"), 0),
        ("tcmalloc", linked("libtcmalloc_minimal.so.4"), 1),
        ("tcmalloc", linked("libtcmalloc_minimal.a"), 1),
        ("musl's malloc", on_musl(&["-pthread", BUILD_ID]), 0),
        (
            "musl's malloc",
            on_musl(&["-static", "-pthread", BUILD_ID]),
            0,
        ),
    ];
    let built = heaps.into_iter();
    built
        .filter_map(|(name, command, own)| Some((name, command?, own)))
        .collect()
}

/// Checks for each heap that a saved snapshot and a core dump give exactly the same blocks, census
/// and path to a block as the process itself.
#[test]
fn copies_and_tables_tell_the_same() {
    for (allocator, mut command, own) in all_heaps() {
        println!("{allocator}");
        let mut target = Target::run(command.arg("0"));
        let want = planted(&mut target);
        let pid = target.pid().to_string();
        let list = scan(target.pid(), &["--list"]);
        let found = List::parse(&list);
        let heading = format!("heap of {allocator}");
        assert!(
            found.rest.iter().any(|l| l.starts_with(&heading)),
            "{:?}",
            found.rest
        );
        for (address, (state, bytes)) in &want {
            let block = found.blocks.get(address).copied();
            let usable = bytes.next_multiple_of(8);
            match state.as_str() {
                "free" => assert!(!block.is_some_and(|b| b.0), "{address:#x}: {block:?}"),
                state => assert_eq!(block, Some((state == "leak", usable)), "{address:#x}"),
            }
        }
        let leaks = found.blocks.values().filter(|b| b.0).count();
        assert_eq!(leaks, LEAKED + own);

        let json = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        let census = scan(target.pid(), &["--census", "--json", "-T", "1000"]);
        let of_types = |field: &str| -> u64 {
            let census = json(&census);
            let types = census["types"].as_array().expect("types").iter();
            types.map(|t| t[field].as_u64().expect("a number")).sum()
        };
        let bytes: u64 = found.blocks.values().map(|b| b.1).sum();
        let blocks = found.blocks.len() as u64;
        assert_eq!(
            (of_types("blocks"), of_types("bytes")),
            (blocks, bytes),
            "{census}"
        );

        let folder = Folder::new("planted-copies");
        let (saved, prefix) = (folder.path("saved"), folder.path("core"));
        scan(target.pid(), &["--save", &saved]);
        let mut gcore = Command::new(installed("gcore"));
        let dumped = gcore
            .args(["-o", &prefix, &pid])
            .output()
            .expect("gcore runs");
        assert!(dumped.status.success(), "{dumped:?}");
        let core = format!("{prefix}.{pid}");
        for source in [["--load", &saved], ["--core", &core]] {
            let read = |options: &[&str]| {
                let (code, out, err) = run(&[&["scan"], &source[..], options].concat());
                assert_eq!((code, err.as_str()), (0, ""), "{source:?}");
                out
            };
            assert_eq!(read(&["--list", "-T", "1000"]), list, "{source:?}");
            let copied = json(&read(&["--census", "--json", "-T", "1000"]));
            assert_eq!(copied["types"], json(&census)["types"], "{source:?}");
        }

        let why = |address: &u64| scan(target.pid(), &["--why", &format!("{address:#x}")]);
        for state in ["live", "leak"] {
            let mut of_state = want.iter().filter(|(_, block)| block.0 == state);
            let (address, _) = of_state.next().expect("one");
            let (text, last) = (why(address), format!("{address:#x}"));
            let begin = if state == "live" {
                "Kept alive by"
            } else {
                "Nothing reaches it"
            };
            assert!(
                text.starts_with(begin) && text.contains(&last),
                "{allocator}: {text}"
            );
        }
        assert!(target.finish().success(), "it finds all as it was");
    }
}

/// Checks that exactly the leaked blocks of a program are freed while its threads continue. With
/// `apart`, no block begins at the end of another, so that no pointer just past the end of a leaked
/// block keeps it.
fn check_reclaim(command: &mut Command, own: usize, apart: bool) {
    let mut target = Target::run(command.arg("3"));
    let want = planted(&mut target);
    let lost = |target: &Target| -> BTreeSet<u64> {
        let found = List::parse(&scan(target.pid(), &["--list"])).blocks;
        let leaks = found.into_iter().filter(|(_, block)| block.0);
        leaks.map(|(address, _)| address).collect()
    };
    let before = lost(&target);
    assert!(before.len() + 2 >= LEAKED + own, "{}", before.len());
    let mut released = 0;
    let mut reports = Vec::new();
    // A thread in the middle of malloc has addresses in its registers that keep blocks alive, or
    // leaves the heap in an inconsistent state.
    for _ in 0..10 {
        let pid = target.pid().to_string();
        let words = "--reclaim --yes --json --twice 20ms";
        let (code, out, errors) =
            run(&[&["scan", &pid], &words.split(' ').collect::<Vec<_>>()[..]].concat());
        if code == 0 {
            let report: Value = serde_json::from_str(&out).expect("JSON");
            released += report["released_blocks"].as_u64().expect("a number") as usize;
        }
        reports.push((code, out, errors));
        if apart && released == LEAKED || !apart && reports.len() == 4 {
            break;
        }
    }
    let after = lost(&target);
    assert!(after.is_subset(&before), "{reports:?}");
    // In a part of the heap that a thread was changing, no block is reported as leaked.
    let gone = before.difference(&after).count();
    assert!(
        released.abs_diff(gone) <= 2,
        "{released}, {gone}: {reports:?}"
    );
    println!("{released} of {LEAKED} blocks were released");
    // Leftovers of an earlier operation on a thread's stack may keep one or two blocks alive for a
    // long time.
    let enough = if apart { LEAKED - 2 } else { LEAKED / 2 };
    assert!(released >= enough, "{released}: {reports:?}");
    target.send("r");
    assert_eq!(read_list(&mut target).len(), want.len());
    assert!(
        target.finish().success(),
        "it finds all as it was: {reports:?}"
    );
}

#[test]
fn of_a_static_program_on_musl() {
    if let Some(program) = build_on_musl("planted_heap", &["-static", "-pthread"]) {
        check(&program, "musl's malloc", 0);
        check_commands(&program, 0);
    }
}

/// Checks a program that cannot be traced because no symbol shows where its allocator is, but whose
/// heap can be recognized by its contents.
#[test]
fn of_a_stripped_static_program_on_musl() {
    if let Some(program) = build_on_musl("planted_heap", &["-static", "-s", "-pthread"]) {
        check(&program, "musl's malloc", 0);
    }
}

#[test]
fn of_a_program_on_musl() {
    if let Some(program) = build_on_musl("planted_heap", &["-pthread"]) {
        check(&program, "musl's malloc", 0);
        check_commands(&program, 0);
    }
}

/// Links the program with a library of this system, if it is installed.
fn with(library: &str) -> Option<std::path::PathBuf> {
    has_library(library).then(|| {
        let path = installed_library(library).display().to_string();
        build_target("planted_heap", &["-Wl,--no-as-needed", &path])
    })
}

#[test]
fn of_mimalloc() {
    if let Some(program) = with("libmimalloc.so.2") {
        check(&program, "mimalloc", 0);
        check_commands(&program, 0);
    }
}

/// Checks tcmalloc, which itself leaks its first MallocExtension when another replaces it.
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

#[test]
fn musl_takes_back_what_was_lost() {
    if let Some(program) = build_on_musl("planted_heap", &["-pthread"]) {
        check_reclaim(&mut Command::new(program), 0, true);
    }
}

#[test]
fn mimalloc_takes_back_what_was_lost() {
    if let Some(program) = with("libmimalloc.so.2") {
        check_reclaim(&mut Command::new(program), 0, false);
    }
}

#[test]
fn tcmalloc_takes_back_what_was_lost() {
    if let Some(program) = with("libtcmalloc_minimal.so.4") {
        check_reclaim(&mut Command::new(program), 1, false);
    }
}
